"""Numbers that cannot be compared - zeros, underflows, infinities, NaN - counted and named, never averaged."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

# NOTE(paper): published norms are roots of mean squares in float32: below this, squares lose digits or vanish.
FLOAT32_FLOOR = float(np.sqrt(np.finfo(np.float32).tiny))
_GROUP = ["side", "num_layers", "flaw"]
_KEPT = [*_GROUP, "count_", "sigma_low", "sigma_high"]


def with_logs(values: pd.DataFrame, *, floor: float) -> pd.DataFrame:
    """Return the values with their logs, nan where a flaw keeps one from being compared, and the flaw ("" if none)."""
    found = flaws(values["value"], floor)
    return values.assign(flaw=found, log=np.log(values["value"].where(found == "")))


def flaws(values: pd.Series, floor: float) -> pd.Series:
    """Return what keeps each number from being compared, "" if nothing does."""
    tests = {
        "NaN": values.isna(),
        "infinite": np.isinf(values),
        "negative": values < 0,
        "zero": values == 0,
        "underflowed": values < floor,
    }
    return pd.Series(np.select(list(tests.values()), list(tests), ""), index=values.index)


def count_flaws(sides: Mapping[str, pd.DataFrame], compared: pd.DataFrame) -> pd.DataFrame:
    """Return how many numbers of each side, network and flaw there are at the points compared, and at which sigmas."""
    labelled = [values.merge(compared).assign(side=side) for side, values in sides.items()]
    everything = pd.concat(labelled, ignore_index=True)
    flawed = everything[everything["flaw"] != ""]
    counted = flawed.groupby(_GROUP, sort=False)["sigma"].agg(["size", "min", "max"]).reset_index()
    return counted.set_axis(_KEPT, axis=1)
