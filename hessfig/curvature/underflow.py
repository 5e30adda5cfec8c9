"""Numbers below the normal range of floating point, which some processors are slow with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def flushing(dtype: torch.dtype) -> Iterator[None]:
    """Count numbers below the normal range of their type (1e-38 in float32) as zero if `dtype` is float32.

    Attention that saturates leaves many of them, and processors of Intel take microcode for each: beyond sigma = 2 a
    cell of five layers took three times as long. In float64 they are kept: norms may be as small.
    """
    if dtype != torch.float32:
        yield
        return
    before = _flushes()
    torch.set_flush_denormal(True)
    try:
        yield
    finally:
        torch.set_flush_denormal(before)


def _flushes() -> bool:
    """Whether they count as zero here already."""
    return float(torch.full((1,), 1e-310, dtype=torch.float64) * 1.0) == 0.0
