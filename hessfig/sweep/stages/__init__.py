"""Stages: what cells need first, planned and run by the engine that runs the cells."""
