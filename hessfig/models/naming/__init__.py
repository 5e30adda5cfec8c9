"""Checks the names of weights by small runs of a network."""
