"""Quantities of a state: its loss, accuracy, norms, and how far a step of its training could go."""
