"""Layouts: one way of drawing a sweep a module."""
