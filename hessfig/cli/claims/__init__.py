"""`hessfig claims`: the literature's empirical claims, judged from the tables on disk."""
