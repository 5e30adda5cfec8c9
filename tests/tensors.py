"""Lists of tensors, as autograd returns them."""

import torch


def flat(pieces):
    """Return all entries, one tensor after the other."""
    return torch.cat([one.flatten() for one in pieces])


def copies(network):
    """Return the parameters as they are now."""
    return [one.detach().clone() for one in network.parameters()]


def inner(pieces, others):
    """Return the sum over all entries of their products."""
    return float(flat(pieces) @ flat(others))
