"""Layouts of the loss landscape and of power laws along numbers of samples and sizes of networks."""
