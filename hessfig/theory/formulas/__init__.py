"""Closed forms of the paper's statements, corrected where they need it."""
