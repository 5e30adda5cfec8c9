"""Keeping a folder of results small: what nothing uses any more."""
