"""Random numbers and classes of a seed, and small networks of drawn weights."""

from itertools import pairwise

import torch
from torch import nn


def draws(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def labels(*shape, classes=3, seed=0):
    return torch.randint(
        0, classes, shape, generator=torch.Generator().manual_seed(seed)
    )


def tanh_network(*widths):
    """Return linear maps of these widths with a tanh between them."""
    modules = []
    for inputs, outputs in pairwise(widths):
        modules += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*modules[:-1])
