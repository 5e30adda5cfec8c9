"""Analysis: from a table on disk to curves, slopes and comparisons (no torch)."""
