"""Random numbers and classes of a seed."""

import torch


def draws(*shape, seed=0):
    return torch.randn(
        shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)
    )


def labels(*shape, classes=3, seed=0):
    return torch.randint(
        0, classes, shape, generator=torch.Generator().manual_seed(seed)
    )
