"""A sharpness against the threshold of its rule: their quotient along a training, and where it settles."""

from __future__ import annotations

import pandas as pd

from hessfig.analysis.interval import Interval, student_interval
from hessfig.record import LEFT_OUT

THRESHOLD = "stability_threshold"
_PLACE = ["variant", "sigma", "seed", "step"]


def shares(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    """Return the numbers of a quantity of the whole network with `threshold` and `share` = value / threshold."""
    values, thresholds = (_of(table, name) for name in (quantity, THRESHOLD))
    merged = values.merge(thresholds.rename(columns={"value": "threshold"}), on=_PLACE)
    return merged.assign(share=merged["value"] / merged["threshold"])


def settled(table: pd.DataFrame, quantity: str) -> dict[str, Interval]:
    """Return, by variant, the interval over seeds of the mean share over the last third of the steps."""
    every = shares(table, quantity)
    late = every[every["step"] >= 2 / 3 * table["step"].max()]
    means = late.groupby(["variant", "seed"], sort=False)["share"].mean().reset_index()
    return {
        str(variant): student_interval(one["share"]) for variant, one in means.groupby("variant", sort=False)
    }


def _of(table: pd.DataFrame, quantity: str) -> pd.DataFrame:
    chosen = table[(table["quantity"] == quantity) & ~table["status"].isin(LEFT_OUT)]
    whole = chosen[chosen["row"].isin(["", "all"]) & chosen["part"].isin(["", "H"]) & (chosen["index"] <= 1)]
    return whole[[*_PLACE, "value"]]
