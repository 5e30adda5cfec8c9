"""Named random streams: the same seed and name always give the same draws, whatever else is drawn."""

from __future__ import annotations

import hashlib

import torch


def stream(seed: int, *names: object) -> torch.Generator:
    """Return a CPU generator whose state depends on `seed` and `names` alone.

    Names are joined by their `repr`, so `stream(0, "W_Q", 1)` and `stream(0, "W_Q", "1")` differ
    and adding a layer or a grid point never shifts the draws of another.
    """
    digest = hashlib.sha256(repr((int(seed), *map(repr, names))).encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
