"""Lines of means over seeds with their 95 % interval, along a setting: what the sheets below share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.interval import student_interval
from hessfig.figures.parts.style import TONES

_FLOOR = 0.02  # a band on a logarithmic axis ends at this share of its mean


def seed_means(
    rows: pd.DataFrame, by: Sequence[str], name: str = "value", *, logs: bool = False
) -> pd.DataFrame:
    """Return mean, low, high (95 %, Student's t over seeds) and count of `name` for each place in `by`.

    With `logs` the mean is geometric, and so is its interval; what is not positive is left out then.
    """
    values = rows[name].where(rows[name] > 0) if logs else rows[name]
    found = []
    for key, one in rows.assign(used=values).groupby(list(by), sort=True, dropna=False):
        interval = student_interval(np.log10(one["used"]) if logs else one["used"])
        ends = np.array([interval.mean, interval.low, interval.high])
        mean, low, high = 10**ends if logs else ends
        place = dict(zip(by, key, strict=True))
        found.append({**place, "mean": mean, "low": low, "high": high, "count": interval.count})
    return pd.DataFrame(found, columns=[*by, "mean", "low", "high", "count"])


def draw_line(ax: Axes, points: pd.DataFrame, x: str, *, colour: Any, label: str = "", **line: Any) -> None:
    """Draw means against the column `x` with the band of their intervals; on logarithmic axes what is positive."""
    drawn = points[np.isfinite(points["mean"])].sort_values(x)
    if ax.get_yscale() == "log":
        drawn = drawn[drawn["mean"] > 0]
    style = {"marker": "o", "markeredgewidth": 0, "markersize": 2.0, **line}
    ax.plot(drawn[x], drawn["mean"], color=colour, label=label, **style)
    low = drawn["low"]
    low = np.maximum(low, _FLOOR * drawn["mean"]) if ax.get_yscale() == "log" else low
    ax.fill_between(drawn[x], low, drawn["high"], color=colour, alpha=0.2, linewidth=0)


def tone(rank: int) -> str:
    """Return the colour of the `rank`-th line of a panel whose lines are of no weight and no part."""
    return TONES[rank % len(TONES)]
