"""Distances between all blocks of every network of a sweep, and their average over pairs, seed by seed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import groupby, product

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


def pair_distances(blocks: Iterable[Block], kernel: Kernel = PUBLISHED) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Return the distances of every network's blocks, and their averages.

    The first table: a row for every pair (both orders), in columns NETWORK, PAIR and `distance`. The second: JS^0, the
    average over all pairs of different blocks, of every network, in columns NETWORK and `average`.
    """
    pairs, means = [], []
    for network, members in _networks(blocks):
        matrix = distances(members, kernel)
        means.append({**network, "average": average_distance(matrix)})
        for (i, one), (j, other) in product(enumerate(members), repeat=2):
            pairs.append({**network, **_pair(one.place, other.place), "distance": matrix[i, j]})
    return _table(pairs, [*PAIR, "distance"]), _table(means, ["average"])


def _table(rows: list[dict[str, object]], columns: list[str]) -> pd.DataFrame:
    """Return rows as a table; its last column holds numbers."""
    return pd.DataFrame(rows, columns=[*NETWORK, *columns]).astype({columns[-1]: float})


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
