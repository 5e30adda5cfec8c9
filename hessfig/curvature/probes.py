"""Random test vectors."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Generator, Tensor


def rademacher(
    dim: int, num_probes: int, *, generator: Generator, dtype: torch.dtype
) -> Float[Tensor, "dim num_probes"]:
    """Return independent +1/-1 entries; the first probes do not depend on how many follow.

    Drawn on the CPU whatever the device of the products, so that every device sees the same probes.
    """
    bits = torch.randint(0, 2, (num_probes, dim), generator=generator)
    return (2 * bits - 1).T.to(dtype)
