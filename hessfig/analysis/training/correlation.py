"""Rank correlations between two numbers along a training, seed by seed."""

from __future__ import annotations

import pandas as pd


def rank_correlations(one: pd.Series, other: pd.Series) -> pd.Series:
    """Return Spearman's correlation along steps for every seed of two series indexed by (seed, step).

    NaN for a seed of fewer than three common steps, or where one of the two does not change.
    """
    both = pd.concat({"one": one, "other": other}, axis=1).dropna()
    found = {seed: _spearman(rows) for seed, rows in both.groupby(level="seed")}
    return pd.Series(found, dtype=float)


def _spearman(rows: pd.DataFrame) -> float:
    ranks = rows.rank()
    flat = (ranks.nunique() < 2).any()
    return float("nan") if len(rows) < 3 or flat else float(ranks["one"].corr(ranks["other"]))
