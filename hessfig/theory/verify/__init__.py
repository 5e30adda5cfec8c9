"""hessfig verify: check every statement and write the errata sheet."""
