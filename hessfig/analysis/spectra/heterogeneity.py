"""Distances between all blocks of every network of a sweep, and their average over pairs, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby

import pandas as pd

from hessfig.analysis.arrays.spectra import Density, Place, Spectrum
from hessfig.analysis.spectra.distances import PUBLISHED, average_distance, distances
from hessfig.analysis.spectra.smoothing import Kernel
from hessfig.terms import Group

Block = Spectrum | Density
NETWORK = ["variant", "num_layers", "part", "sigma", "step", "seed"]
PAIR = ["one_layer", "one", "other_layer", "other"]


def is_weight(place: Place) -> bool:
    """Return whether a place is one weight's own block: no group, no pair."""
    return place.row == place.col and place.row not in list(Group) and place.row_layer == place.layer


def pair_distances(blocks: Iterable[Block], kernel: Kernel = PUBLISHED) -> pd.DataFrame:
    """Return a row for every pair of blocks of a network (both orders), in columns NETWORK, PAIR and `distance`."""
    rows = []
    for network, members in _networks(blocks):
        matrix = distances(members, kernel)
        for i, one in enumerate(members):
            for j, other in enumerate(members):
                rows.append({**network, **_pair(one.place, other.place), "distance": matrix[i, j]})
    return pd.DataFrame(rows, columns=[*NETWORK, *PAIR, "distance"]).astype({"distance": float})


def averages(blocks: Iterable[Block], kernel: Kernel = PUBLISHED) -> pd.DataFrame:
    """Return JS^0, the average distance over all pairs of different blocks, of every network, in `average`."""
    rows = [
        {**network, "average": average_distance(distances(members, kernel))}
        for network, members in _networks(blocks)
    ]
    return pd.DataFrame(rows, columns=[*NETWORK, "average"]).astype({"average": float})


def _networks(blocks: Iterable[Block]) -> Iterable[tuple[dict[str, object], Sequence[Block]]]:
    """Yield what names a network, state and part, and its blocks in the order they were stored."""

    def key(block: Block) -> str:
        return repr([getattr(block.place, name) for name in NETWORK])  # nan equals nan, as text

    stored = list(blocks)
    order = {name: rank for rank, name in enumerate(dict.fromkeys(map(key, stored)))}
    for _, group in groupby(sorted(stored, key=lambda block: order[key(block)]), key):
        members = list(group)
        yield {name: getattr(members[0].place, name) for name in NETWORK}, members


def _pair(one: Place, other: Place) -> dict[str, object]:
    return {
        **{"one_layer": one.layer, "one": one.row},
        **{"other_layer": other.layer, "other": other.row},
    }
