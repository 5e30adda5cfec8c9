"""Figures: from curves and slopes to sheets (no torch)."""
