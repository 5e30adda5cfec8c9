"""Growth curves: the mean over seeds of every block norm at every sigma, with its standard error."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.table import CURVE, in_reading_order


def growth_curves(table: pd.DataFrame) -> pd.DataFrame:
    """Return one row per curve and sigma: mean, sem, count, probe_sem, num_nonfinite, is_zero.

    mean = average of frob over the seeds with a finite number; sem = their standard deviation / sqrt(count)
    (nan for one seed), which holds the spread of the weights and the noise of the probes together; probe_sem
    is the probes' share of it, sqrt(sum frob_sem^2) / count. `is_zero`: every number is a structural zero.
    """
    finite = table["status"] != "nonfinite"
    rows = table.assign(
        frob=table["frob"].where(finite),
        probe_variance=(table["frob_sem"] ** 2).where(finite),
        nonfinite=~finite,
        is_zero=table["status"] == "structural_zero",
    )
    grouped = rows.groupby([*CURVE, "sigma"], sort=True)
    curves = grouped.agg(
        mean=("frob", "mean"),
        sem=("frob", "sem"),
        count=("frob", "count"),
        probe_sem=("probe_variance", "sum"),
        num_nonfinite=("nonfinite", "sum"),
        is_zero=("is_zero", "all"),
    ).reset_index()
    count = curves["count"].where(curves["count"] > 0)
    return in_reading_order(curves.assign(probe_sem=np.sqrt(curves["probe_sem"]) / count), table)


def seed_matrix(table: pd.DataFrame) -> pd.DataFrame:
    """Return frob with a row per (curve, seed) and a column per sigma, nan where nothing finite is known."""
    finite = table["frob"].where(table["status"] != "nonfinite")
    wide = table.assign(frob=finite).set_index([*CURVE, "seed", "sigma"])["frob"]
    return wide.unstack("sigma")  # noqa: PD010 - one row a number is checked already: nothing to aggregate
