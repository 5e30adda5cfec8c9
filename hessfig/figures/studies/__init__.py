"""Figures of the theory studies."""
