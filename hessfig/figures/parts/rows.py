"""Selection and order of the rows of a table: by network, part, block or place on the axis."""

from collections.abc import Iterator
from itertools import chain
from typing import Any

import numpy as np
from pandas import DataFrame, Series

from hessfig.analysis.axis import POINT, Axis, X, variants_in_order
from hessfig.figures.parts.saving import page_suffix
from hessfig.record import LEFT_OUT, NETWORK
from hessfig.terms import Part, name_order

Network = tuple[str, int]  # variant and number of layers
BlockKey = tuple[str, str, str]
BLOCK_KEY = ["row", "col", "across"]


def where(frame: DataFrame, **choice: object) -> DataFrame:
    """Return the rows with these values in their columns, e.g. where(table, part="H", layer=1); nan matches nan."""
    matches = [
        frame[key].isna() if value != value else frame[key].to_numpy() == value
        for key, value in choice.items()
    ]
    return frame[np.logical_and.reduce(matches)]


def of_network(frame: DataFrame, network: Network) -> DataFrame:
    """Return the rows of a network."""
    return where(frame, variant=network[0], num_layers=network[1])


def different(frame: DataFrame, *names: str) -> list[tuple[Any, ...]]:
    """Return the distinct values of the rows in some columns, in the order of their appearance."""
    return list(frame[list(names)].drop_duplicates().itertuples(index=False, name=None))


def networks_of(frame: DataFrame) -> list[Network]:
    """Return all networks, with variants in natural order."""
    networks = different(frame, *NETWORK)
    rank = variants_in_order(variant for variant, _ in networks).index
    return sorted(networks, key=lambda network: rank(network[0]))


def by_network(frame: DataFrame) -> Iterator[tuple[str, Network, DataFrame]]:
    """Yield the suffix of its page, the network and its rows for every network."""
    networks = networks_of(frame)
    for variant, depth in networks:
        yield (
            page_suffix(variant, depth, networks),
            (variant, depth),
            of_network(frame, (variant, depth)),
        )


def by_part(frame: DataFrame) -> Iterator[tuple[str, DataFrame]]:
    """Yield the suffix of its page and its rows for every part of the Hessian."""
    parts = [part for part in ("", *Part) if part in set(frame["part"])]
    for part in parts:
        yield f"_{part}" * (len(parts) > 1), where(frame, part=part)


def counted(table: DataFrame) -> DataFrame:
    """Return the rows that enter means."""
    return table[~table["status"].isin(LEFT_OUT)]


def numbers_behind(curve: DataFrame, table: DataFrame) -> DataFrame:
    """Return the numbers of a table along an axis over which the points of a curve are means."""
    return curve[POINT].merge(table, on=POINT)


def at_one_place(
    curves: DataFrame, wanted: float | None, axis: Axis
) -> tuple[DataFrame, str]:
    """Return the points nearest to the place `wanted`, and this place in words; all points if they have no place.

    The default is sigma = 1, or the end of another axis.
    """
    places = np.sort(curves[X].dropna().unique())
    if not places.size:
        return curves, ""
    if wanted is not None:
        target = wanted
    elif axis.is_sigma:
        target = 1.0
    else:
        target = float(places[-1])
    logarithmic = target > 0 and places[0] > 0
    if logarithmic:
        distance = np.abs(np.log(places / target))
    else:
        distance = np.abs(places - target)
    place = float(places[distance.argmin()])
    words = f"{place:.2g}" if axis.is_sigma else f"{place:g}"
    return curves[curves[X] == place], f"{axis.symbol} = {words}"


def as_written(frame: DataFrame, axis: Axis) -> DataFrame:
    """Return drawn numbers with their places in a column that is named like the axis."""
    return frame.drop(columns=axis.name, errors="ignore").rename(columns={X: axis.name})


def with_pairs(curves: DataFrame) -> DataFrame:
    """Return the points with a column `across`, the two layers of a pair across layers, which is a separate block."""
    pairs = curves["row_layer"].astype(str) + "," + curves["layer"].astype(str)
    return curves.assign(
        across=pairs.where(curves["row_layer"] != curves["layer"], "")
    ).reset_index(drop=True)


def blocks_in_order(curves: DataFrame) -> list[BlockKey]:
    """Return (row, col, across) of every block, in the order of the weights."""
    keys = different(curves, *BLOCK_KEY)
    rank = name_order(list(chain(*(key[:2] for key in keys))))
    return sorted(keys, key=lambda key: (rank(key[0]), rank(key[1]), key[2]))


def in_order(names: Series) -> list[str]:
    """Return the distinct names: the paper's weights in their order, then other names as they appear, then groups."""
    return sorted(names.unique(), key=name_order(names.unique()))


def parts_of(frame: DataFrame) -> list[Part]:
    """Return the measured parts in the order H_o, H_f, H."""
    return [part for part in Part if part in set(frame["part"])]
