"""The GPT-2-style transformer and its ablations."""
