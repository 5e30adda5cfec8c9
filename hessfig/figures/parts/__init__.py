"""Shared parts of all layouts: style, panels, saving, and the sweep that a figure draws."""
