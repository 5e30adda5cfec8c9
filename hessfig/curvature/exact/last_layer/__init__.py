"""Exact norms of the last layer's blocks, item by item."""
