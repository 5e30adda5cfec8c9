"""Layouts of figures: each module draws sweeps in one way."""
