"""Statements on whole layers and stacks of them."""
