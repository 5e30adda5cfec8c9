"""The same bits every time: named random streams, whatever else is drawn, and sums on one thread."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from hessfig.record import FROBENIUS


def stream(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator whose state depends on `seed` and `names` alone.

    Names are joined by their `repr`, so `stream(0, "W_Q", 1)` and `stream(0, "W_Q", "1")` differ
    and adding a layer or a grid point never shifts the draws of another.
    """
    digest = hashlib.sha256(repr((int(seed), *map(repr, names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def probe_stream(
    seed: int, quantity: str, sigma: float | None, layer: int, col: str, *, step: int | None = None
) -> torch.Generator:
    """Return the generator of a column's probes: every quantity, state and column has its own."""
    names = ("probes",) if quantity == FROBENIUS else ("probes", quantity)
    steps = () if step is None else ("step", step)
    return stream(seed, *names, sigma, layer, str(col), *steps)


@contextmanager
def one_thread() -> Iterator[None]:
    """Hold torch to one thread: sums over more would be split otherwise, and round otherwise."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)
