"""Claims about one setting turned up: the size of attention sinks, the norms of query and key weights."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.claims.exponents import least_squares
from hessfig.analysis.claims.rule import (
    Claim,
    Finding,
    Verdict,
    all_of,
    any_of,
    by_condition,
    departs,
    exceeds,
    found,
    missing,
)
from hessfig.analysis.interval import Interval, student_interval
from hessfig.terms import Part

SINK, BETA = "model.sink", "model.sink_beta"
WEIGHT, SCALE = "model.scaled_weight", "model.weight_scale"
LEAST_DECADES = 0.1  # a quarter more or less
LEAST_EXPONENT = 0.1
_QUERY_KEY = ("W_Q", "W_K")


def stretch(evidence: Evidence) -> Finding:
    """For each kind of sink, seed by seed: growth = log10 of the outermost eigenvalue of H (in size) at the largest
    beta over that at the smallest, shrinkage = log10 of the bulk's width (95 % less 5 % quantile, exact) at the
    smallest beta over that at the largest. A kind holds when the 95 % intervals (of all kinds together, Bonferroni)
    of both are above 0 and both means at least 0.1 decades, and does not when one interval is below 0.1. The effect is
    growth + shrinkage of the first kind that holds, else of the one where it is largest.
    """
    outer, width = _outermost(evidence), _widths(evidence)
    both = pd.concat({"outer": outer, "width": width}, axis=1).dropna()
    kinds = list(dict.fromkeys(both.index.get_level_values(SINK)))
    if not kinds:
        return missing("largest and smallest eigenvalues and quantiles of the whole network against beta")
    changes = {kind: _changes(both.xs(kind, level=SINK)) for kind in kinds}
    contrasts: dict[str, Interval] = {}
    verdicts, stretches = {}, {}
    for kind, change in changes.items():
        parts = {"growth": change["outer"], "shrinkage": -change["width"]}
        ours = {f"{kind}: {name}": student_interval(part, tests=len(kinds)) for name, part in parts.items()}
        verdicts[f"{SINK}={kind}"] = all_of(exceeds(one, LEAST_DECADES) for one in ours.values())
        stretches[f"{SINK}={kind}"] = student_interval(change["outer"] - change["width"], tests=len(kinds))
        contrasts |= ours
    verdict, words = by_condition(verdicts)
    shown = next((k for k, one in verdicts.items() if one == Verdict.holds), None)
    shown = shown or max(stretches, key=lambda kind: np.nan_to_num(stretches[kind].mean, nan=-np.inf))
    return found(stretches[shown], verdict, words or shown, contrasts)


def sensitivity(evidence: Evidence) -> Finding:
    """Condition numbers of the query and key blocks of H against the scale alpha of W_Q and of W_K, seed by seed, in
    two contrasts each: the exponent (least squares of log kappa on log alpha) and the bend (mean over alpha of log10
    of sqrt(kappa(alpha) kappa(1/alpha)) / kappa(1)). The claim holds when one of these intervals (95 % for all
    together, Bonferroni) excludes 0 with a mean of at least 0.1 in size, and does not when all lie within 0.1 of 0.
    The effect is the contrast that is largest in size.
    """
    rows = evidence.numbers("condition_number", WEIGHT, SCALE, part=Part.H.value)
    rows = rows[rows[WEIGHT].isin(_QUERY_KEY) & rows["row"].isin(_QUERY_KEY) & (rows["value"] > 0)]
    if rows.empty:
        return missing("condition numbers of the blocks of W_Q and W_K against their scale")
    logs = rows.assign(alpha=rows[SCALE].astype(float), log=np.log10(rows["value"]))
    samples: dict[str, list[float]] = {}
    for (weight, row, _), one in logs.groupby([WEIGHT, "row", "seed"], sort=True):
        curve = one.groupby("alpha")["log"].mean()
        samples.setdefault(f"exponent of kappa({row}) in |{weight}|", []).append(
            least_squares(np.log10(curve.index.to_numpy()), curve.to_numpy())
        )
        samples.setdefault(f"bend of kappa({row}) in |{weight}|", []).append(_bend(curve))
    contrasts = {name: student_interval(values, tests=len(samples)) for name, values in samples.items()}
    verdict = any_of(departs(one, LEAST_EXPONENT) for one in contrasts.values())
    shown = max(contrasts, key=lambda name: np.nan_to_num(abs(contrasts[name].mean), nan=-1.0))
    return found(contrasts[shown], verdict, shown, contrasts)


def _outermost(evidence: Evidence) -> pd.Series:
    """Return the size of the outermost eigenvalue by (kind, beta, seed)."""
    ends = [
        evidence.numbers(quantity, SINK, BETA, part=Part.H.value, row="all")
        for quantity in ("largest_eigenvalue", "smallest_eigenvalue")
    ]
    rows = pd.concat([one[one["index"] <= 1] for one in ends])
    return _placed(rows.assign(value=rows["value"].abs())).max()


def _widths(evidence: Evidence) -> pd.Series:
    """Return the 95 % less the 5 % quantile by (kind, beta, seed)."""
    rows = evidence.numbers("eigenvalue_quantile", SINK, BETA, part=Part.H.value, row="all")
    low, high = (_placed(rows[rows["index"] == percent]).mean() for percent in (5, 95))
    return high - low


def _placed(rows: pd.DataFrame) -> pd.core.groupby.SeriesGroupBy:
    return rows.assign(**{BETA: rows[BETA].astype(float)}).groupby([SINK, BETA, "seed"])["value"]


def _changes(both: pd.DataFrame) -> pd.DataFrame:
    """Return log10 of each number at the largest beta over that at the smallest, a row a seed."""
    logs = np.log10(both.where(both > 0))
    betas = sorted(logs.index.get_level_values(BETA).unique())
    return logs.xs(betas[-1], level=BETA) - logs.xs(betas[0], level=BETA)


def _bend(curve: pd.Series) -> float:
    """Return the mean of the even part of a curve of log10, measured from alpha = 1; nan without a pair."""
    mirrored = [
        (curve[alpha] + curve[1 / alpha]) / 2 for alpha in curve.index if alpha > 1 and 1 / alpha in curve
    ]
    return float(np.mean(mirrored) - curve[1.0]) if mirrored and 1.0 in curve else float("nan")


CLAIMS = (
    Claim(
        "sinks-stretch",
        "slides",
        "larger attention sinks stretch the spectrum: the bulk shrinks and the outliers grow",
        sweep="sinks",
        figure="sinks",
        rule=stretch,
    ),
    Claim(
        "condition-norms",
        "slides",
        "the condition number is sensitive to the norms of query and key weights, beyond the scalar model",
        sweep="weight_norms",
        figure="weight_norms",
        rule=sensitivity,
    ),
)
