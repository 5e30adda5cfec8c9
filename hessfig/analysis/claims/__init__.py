"""Empirical claims of the literature, each with a rule fixed beforehand, judged from tables on disk."""
