"""Exact block norms, from the linear bottleneck through which each weight enters the loss."""
