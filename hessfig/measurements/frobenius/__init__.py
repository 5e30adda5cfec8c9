"""Frobenius norms of blocks: sampled, dense or exact."""
