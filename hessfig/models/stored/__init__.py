"""Shared parts of the kinds of stored networks: folders, sizes, tokens in batches, and torch modules."""
