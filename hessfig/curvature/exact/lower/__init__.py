"""Exact norms below the last layer: few outputs, causal scores."""
