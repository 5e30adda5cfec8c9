"""Sweeps: plan the cells of an experiment, measure them, store them, run them."""
