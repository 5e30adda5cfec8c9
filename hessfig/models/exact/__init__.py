"""Block norms without sampling error, by the linear bottleneck through which each weight enters the loss."""
