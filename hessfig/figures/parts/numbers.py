"""The numbers a sheet draws: one quantity of a sweep along its axis, and one place on that axis."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.axis import Axis, X, along
from hessfig.analysis.curves import of_quantity
from hessfig.analysis.manifest import Run, read_run
from hessfig.errors import UserError
from hessfig.figures.parts.spec import FigureSpec
from hessfig.terms import name_order

SUPERSCRIPTS = str.maketrans("-.0123456789", "⁻˙⁰¹²³⁴⁵⁶⁷⁸⁹")
BlockKey = tuple[str, str, str]
BLOCK_KEY = ["row", "col", "across"]


def read_numbers(spec: FigureSpec, folder: Path) -> tuple[Run, pd.DataFrame]:
    """Return a sweep and its numbers of one quantity (the first of several) along its axis, for blocks in one layer.

    Raises UserError when there are none: the general layouts draw whatever a table has.
    """
    run = read_run(folder)
    table = along(of_quantity(run.table, spec.quantity, spec.index), run.axis)
    table = table[table["index"] == table["index"].min()]
    inside = table[(table["row_layer"] == table["layer"]) & (table["row"] != "")]
    if inside.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws blocks within a layer, and the table has none",
            got=f"{spec.quantity} of the network, or of pairs across layers",
            allowed="blocks of two weights of one layer",
            remedy="figure.layout=lines or figure.layout=bars",
        )
    return run, inside


def at_one_place(curves: pd.DataFrame, wanted: float | None, axis: Axis) -> tuple[pd.DataFrame, str]:
    """Return the points nearest to the place `wanted`, and the words for it; all of them where there is no place.

    By default it is sigma = 1, or the end of another axis.
    """
    places = np.sort(curves[X].dropna().unique())
    if not places.size:
        return curves, ""
    target = wanted if wanted is not None else 1.0 if axis.is_sigma else float(places[-1])
    logarithmic = target > 0 and places[0] > 0
    distance = np.abs(np.log(places / target)) if logarithmic else np.abs(places - target)
    place = float(places[distance.argmin()])
    return curves[curves[X] == place], f"{axis.symbol} = {place:{'.2g' if axis.is_sigma else 'g'}}"


def as_written(frame: pd.DataFrame, axis: Axis) -> pd.DataFrame:
    """Return drawn numbers with their places in a column of the axis' own name."""
    return frame.drop(columns=axis.name, errors="ignore").rename(columns={X: axis.name})


def with_pairs(curves: pd.DataFrame) -> pd.DataFrame:
    """Return the points with a column `across`: the layers of a pair across layers, which is a block of its own."""
    pairs = curves["row_layer"].astype(str) + "," + curves["layer"].astype(str)
    return curves.assign(across=pairs.where(curves["row_layer"] != curves["layer"], "")).reset_index(
        drop=True
    )


def blocks_in_order(curves: pd.DataFrame) -> list[BlockKey]:
    """Return (row, col, across) of every block, in the order of the weights."""
    found = list(curves[BLOCK_KEY].drop_duplicates().itertuples(index=False, name=None))
    rank = name_order([name for row, col, _ in found for name in (row, col)])
    return sorted(found, key=lambda key: (rank(key[0]), rank(key[1]), key[2]))


def in_digits(value: float, error: float) -> str:
    """Return 'value ± error' with as many digits as the error has two of, and one power of ten for both."""
    if not math.isfinite(value):
        return "not known"
    scale = math.floor(math.log10(abs(value))) if value else 0
    shown = 0 if -2 <= scale <= 2 else scale
    value, error = value / 10**shown, error / 10**shown
    known = math.isfinite(error) and error > 0
    digits = min(max(1 - math.floor(math.log10(error)), 0), 4) if known else 2
    words = f"{value:.{digits}f}" + (f" ± {error:.{digits}f}" if known else "")
    return (f"({words})·10{str(shown).translate(SUPERSCRIPTS)}" if shown else words).replace("-", "−")
