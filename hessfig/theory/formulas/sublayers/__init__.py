"""Closed forms for what surrounds attention: feed-forward, LayerNorm, whole blocks, linear MLPs."""
