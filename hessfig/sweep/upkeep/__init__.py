"""Keeping a folder of results small: what nothing uses any more, and the marks of runs that are at work in it."""
