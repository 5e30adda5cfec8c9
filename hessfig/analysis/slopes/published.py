"""Slopes of the paper's own curves (facts, with their source, in data/published_slopes.csv)."""

from __future__ import annotations

import csv
import math
from functools import cache
from importlib.resources import files

from hessfig.analysis.windows import Window

Key = tuple[str, str, str, str, Window]


def published_slope(sweep: str, row: str, col: str, part: str, window: Window) -> float:
    """Return the slope of the published mean curve on exactly this window; nan if none is on record.

    The record holds for every layer and depth the paper shows for that block.
    """
    return _records().get((sweep, row, col, part, window), math.nan)


@cache
def _records() -> dict[Key, float]:
    text = files("hessfig.data").joinpath("published_slopes.csv").read_text()
    return {
        (r["sweep"], r["row"], r["col"], r["part"], (_end(r["window_low"]), _end(r["window_high"]))): float(
            r["slope"]
        )
        for r in csv.DictReader(text.splitlines())
    }


def _end(text: str) -> float | None:
    return float(text) if text else None
