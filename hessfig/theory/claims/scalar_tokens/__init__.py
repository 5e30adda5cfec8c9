"""Statements on the scalar-token model."""
