"""Comparisons of a sweep with published values or with another run."""
