"""Sheets along a training: its course, its curvature by layer, its thresholds, and a race of rules."""
