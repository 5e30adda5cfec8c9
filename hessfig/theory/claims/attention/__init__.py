"""Statements on self-attention."""
