"""Rules of claims about growth rates in sigma, scales of weights, and shares of the functional part."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.axis import X, with_settings
from hessfig.analysis.claims import rule
from hessfig.analysis.claims.rule import (
    Condition,
    Evidence,
    Finding,
    alike,
    all_of,
    claim,
    concluded,
    departs,
    exceeds,
    found,
    missing,
)
from hessfig.analysis.curves import seed_shares
from hessfig.analysis.intervals import Interval, difference_interval, student_interval
from hessfig.analysis.slopes.fit import MIN_POINTS
from hessfig.analysis.slopes.printed import WHOLE, Window, label, within
from hessfig.record import FROBENIUS
from hessfig.terms import Part

Numbers = NDArray[np.float64]


def exponents(rows: pd.DataFrame, x: str, *by: str, window: Window = WHOLE) -> pd.Series:
    """Return p of value ~ x^p for every (by ..., seed): least squares of log value on log x inside the window.

    Values that are not positive have no logarithm and are left out; nan with fewer than MIN_POINTS others. The mean
    over seeds of these is the slope of the geometric mean, and seeds are independent.
    """
    positive = rows[(rows["value"] > 0) & (rows[x] > 0)]
    kept = positive[within(positive[x], window)]
    found = {
        key if isinstance(key, tuple) else (key,): _exponent(one[x], one["value"])
        for key, one in kept.groupby([*by, "seed"], sort=True)
    }
    index = pd.MultiIndex.from_tuples(list(found), names=[*by, "seed"])
    return pd.Series(list(found.values()), index=index, dtype=float)


def least_squares(x: Numbers, y: Numbers) -> float:
    """Return the slope of y on x; nan where x has no spread."""
    centred = x - x.mean()
    spread = float(centred @ centred)
    return float(centred @ y) / spread if spread > 0 else float("nan")


def _exponent(x: pd.Series, values: pd.Series) -> float:
    if x.nunique() < MIN_POINTS:
        return float("nan")
    return least_squares(np.log(x.to_numpy(float)), np.log(values.to_numpy(float)))


BY_ATTENTION = "model.attention"
LEAST_GAP = 0.25  # of exponents that are whole numbers in theory
LEAST_GROWTH = 1.0  # a power of the data
WINDOWS: tuple[Window, ...] = ((None, 0.1), (1.0, None), (None, None))
_PAIR = ("W_Q", "W_V")


@claim("softmax-heterogeneity", "Ormaniec et al. (ICLR 2025), section 4.1", "eq5")
def softmax(evidence: Evidence) -> Finding:
    """Claim: without softmax the query and value blocks depend alike on the data; with softmax they differ.

    Exponents of ||H||_F in sigma of the query and value blocks of one bare self-attention layer, sigma <= 0.1, seed
    by seed; the gap is that of W_Q less that of W_V. The claim holds when with softmax the interval of the gap (95 %
    of both together, Bonferroni) excludes 0 with a mean of at least 0.25 in size, and without softmax it lies within
    0.25 of 0; it does not when one of the two is the other way round. The effect is the gap with softmax.
    """
    gaps = _gaps(evidence.numbers("frobenius", BY_ATTENTION, part=Part.H.value), BY_ATTENTION, window=(None, 0.1))
    kinds = {kind: student_interval(one, tests=2) for kind, one in gaps.groupby(level=0)}
    if not {"softmax", "linear"} <= set(kinds):
        return missing(f"norms of the blocks of W_Q and W_V for {BY_ATTENTION}=softmax and linear")
    verdict = all_of([departs(kinds["softmax"], LEAST_GAP), alike(kinds["linear"], LEAST_GAP)])
    contrasts = {f"gap of exponents, {kind} attention": kinds[kind] for kind in ("softmax", "linear")}
    return found(kinds["softmax"], verdict, contrasts=contrasts)


@claim("depth-data", "Ormaniec et al. (ICLR 2025), section 4.1", "softmax", "mlp", figure="7")
def depth(evidence: Evidence) -> Finding:
    """Claim: the data dependence of linear attention grows with depth, that of linear MLPs does not.

    Exponents of ||H||_F in sigma, averaged over diagonal blocks, seed by seed; the growth is that of the deepest
    networks less that of one layer. The claim holds when for linear attention the interval of the growth (95 % of both
    together, Bonferroni) is above 0 with a mean of at least 1, a power of the data, and for linear MLPs it is below 1;
    it does not when attention's is below 1 or that of MLPs above. The effect is the growth for linear attention.
    """
    attention, mlp = _growth(evidence), _growth(evidence.other("mlp"))
    if not (len(attention) and len(mlp)):
        return missing("norms of linear attention and of linear MLPs for several depths")
    ours, theirs = (student_interval(one, tests=2) for one in (attention, mlp))
    verdict = all_of([exceeds(ours, LEAST_GROWTH), rule.stays_below(theirs, LEAST_GROWTH)])
    contrasts = {"growth, linear attention": ours, "growth, linear MLP": theirs}
    return found(ours, verdict, contrasts=contrasts)


@claim("prenorm-blocks", "Ormaniec et al. (ICLR 2025), section 4.3", "layernorm", "sigma", figure="3b")
def prenorm(evidence: Evidence) -> Finding:
    """Claim: pre-LN removes the different dependence of the query and value blocks on sigma.

    The gap between the exponents of ||H||_F in sigma of the query and value blocks, seed by seed, for sigma <= 0.1,
    for sigma >= 1 and for all sigma. In a window the claim holds when without LayerNorm the interval of the gap (95 %
    of all together, Bonferroni) excludes 0 with a mean of at least 0.25 in size and with pre-LN it lies within 0.25 of
    0, and does not when one of the two is the other way round. The effect is the gap with pre-LN in the first window
    where it holds, else over all sigma.
    """
    networks = {"no norm": evidence.other("sigma"), "pre-LN": evidence}
    conditions: dict[str, Condition] = {}
    for window in WINDOWS:
        gaps = [_gaps(one.numbers("frobenius", part=Part.H.value), window=window) for one in networks.values()]
        if not all(len(gap) for gap in gaps):
            return missing("norms of the blocks of W_Q and W_V with pre-LN and without a norm")
        without, normed = (student_interval(gap, tests=2 * len(WINDOWS)) for gap in gaps)
        name = label(window)
        verdict = all_of([departs(without, LEAST_GAP), alike(normed, LEAST_GAP)])
        contrasts = {f"{name}: gap, no norm": without, f"{name}: gap, pre-LN": normed}
        conditions[name] = Condition(normed, verdict, contrasts)
    return concluded(conditions, rule.first_that_holds(conditions, label(WINDOWS[-1])), note="")


def _gaps(rows: pd.DataFrame, *by: str, window: Window) -> pd.Series:
    """Return the exponent of W_Q less that of W_V by (by ..., seed)."""
    diagonal = rows[(rows["row"] == rows["col"]) & rows["row"].isin(_PAIR)]
    slopes = exponents(diagonal, "sigma", *by, "row", window=window)
    if not set(_PAIR) <= set(slopes.index.get_level_values("row")):
        return pd.Series(dtype=float)
    query, value = (slopes.xs(name, level="row") for name in _PAIR)
    return (query - value).dropna()


def _growth(evidence: Evidence) -> pd.Series:
    """Return the mean exponent of the deepest networks less that of the shallowest, by seed."""
    rows = rule.diagonal(evidence.numbers("frobenius", part=Part.H.value))
    slopes = exponents(rows, "sigma", "num_layers", "layer", "row")
    depths = sorted(set(slopes.index.get_level_values("num_layers")))
    if len(depths) < 2:
        return pd.Series(dtype=float)
    means = slopes.groupby(["num_layers", "seed"]).mean()
    return (means.loc[depths[-1]] - means.loc[depths[0]]).dropna()


GROWTH = (softmax, depth, prenorm)


SINK, BETA = "model.sink", "model.sink_beta"
WEIGHT, SCALE = "model.scaled_weight", "model.weight_scale"
LEAST_DECADES = 0.1  # a quarter more or less
LEAST_EXPONENT = 0.1
_QUERY_KEY = ("W_Q", "W_K")


@claim("sinks-stretch", "slides", "sinks")
def stretch(evidence: Evidence) -> Finding:
    """Claim: larger attention sinks stretch the spectrum: the bulk shrinks and the outliers grow.

    For each kind of sink, seed by seed: growth = log10 of the outermost eigenvalue of H (in size) at the largest
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
    conditions: dict[str, Condition] = {}
    for kind, change in changes.items():
        parts = {f"{kind}: growth": change["outer"], f"{kind}: shrinkage": -change["width"]}
        effect = student_interval(change["outer"] - change["width"], tests=len(kinds))
        conditions[f"{SINK}={kind}"] = _all_exceed(effect, parts, LEAST_DECADES, tests=len(kinds))
    return concluded(conditions, rule.first_that_holds(conditions))


def _all_exceed(effect: Interval, parts: dict[str, pd.Series], least: float, *, tests: int) -> Condition:
    """Return a condition under which the mean of every part must be at least `least`."""
    contrasts = {name: student_interval(part, tests=tests) for name, part in parts.items()}
    return Condition(effect, all_of(exceeds(one, least) for one in contrasts.values()), contrasts)


@claim("condition-norms", "slides", "weight_norms")
def sensitivity(evidence: Evidence) -> Finding:
    """Claim: the condition number is sensitive to the norms of query and key weights, beyond the scalar model.

    Condition numbers of the query and key blocks of H against the scale alpha of W_Q and of W_K, seed by seed, in
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
    verdict = rule.any_of(departs(one, LEAST_EXPONENT) for one in contrasts.values())
    shown = rule.largest(contrasts, abs)
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
    mirrored = [(curve[alpha] + curve[1 / alpha]) / 2 for alpha in curve.index if alpha > 1 and 1 / alpha in curve]
    return float(np.mean(mirrored) - curve[1.0]) if mirrored and 1.0 in curve else float("nan")


SCALES = (stretch, sensitivity)


TEMPERATURE, HEADS, ATTENTION = "model.temperature", "model.n_heads", "model.attention"
LEAST_SHARE = 0.05
_SPLIT = (Part.H_o, Part.H_f)


@claim("temperature", "Ormaniec et al. (ICLR 2025), section 4.3", "temperature")
def temperature(evidence: Evidence) -> Finding:
    """Claim: the functional part dominates the query-key blocks at high temperature, the outer-product part at low.

    The share of a block is ||H_f||_F / (||H_o||_F + ||H_f||_F), averaged over the query and key blocks that were
    measured, seed by seed, at each sigma. The claim holds at a sigma when the share at the highest temperature less 1/2
    and 1/2 less the share at the lowest both have intervals (95 % of all together, Bonferroni) above 0 and means of at
    least 0.05, and does not when one interval is below 0.05. The effect is the rise of the share from the lowest to the
    highest at the first sigma where it holds, else where the rise is largest.
    """
    shares = _by_setting(evidence, TEMPERATURE, _QUERY_KEY)
    if shares.shape[1] < 2:
        return missing(f"norms of H_o and H_f of the query or key block for several values of {TEMPERATURE}")
    low, high = shares.iloc[:, 0], shares.iloc[:, -1]
    parts = {"share at the highest - 1/2": high - 0.5, "1/2 - share at the lowest": 0.5 - low}
    return _by_sigma(parts, high - low)


@claim("heads", "Ormaniec et al. (ICLR 2025), appendix E", "heads")
def heads(evidence: Evidence) -> Finding:
    """Claim: with an increasing number of heads the outer-product part dominates the Hessian.

    The share of a block is ||H_f||_F / (||H_o||_F + ||H_f||_F), averaged over the diagonal blocks that have a
    functional part, seed by seed, at each sigma. The claim holds at a sigma when the share with the fewest heads less
    that with the most, and 1/2 less that with the most, both have intervals (95 % of all together, Bonferroni) above 0
    and means of at least 0.05, and does not when one interval is below 0.05. The effect is the fall of the share at the
    first sigma where it holds, else where the fall is largest.
    """
    shares = _by_setting(evidence, HEADS)
    if shares.shape[1] < 2:
        return missing(f"norms of H_o and H_f for several values of {HEADS}")
    fewest, most = shares.iloc[:, 0], shares.iloc[:, -1]
    fall = fewest - most
    return _by_sigma({"fall": fall, "1/2 - share with the most": 0.5 - most}, fall)


@claim("single-matrix", "Ormaniec et al. (ICLR 2025), section 4.2", "single_matrix", "blocks")
def single(evidence: Evidence) -> Finding:
    """Claim: one weight W_QK in place of W_Q W_K^T makes the functional share of the query-key blocks smaller.

    The share ||H_f||_F / (||H_o||_F + ||H_f||_F) of the query-key part of the Hessian: of all blocks of W_Q and W_K
    together (their norms squared and added, the pair twice), and of the one block of W_QK at the same sigma (norms
    interpolated in log-log), softmax attention. The effect is the mean over seeds of the first less that of the second,
    with Welch's interval (95 % of all sigmas together, Bonferroni); at a sigma the claim holds when the interval is
    above 0 and the effect at least 0.05, and does not when the interval is below 0.05.
    """
    pairs, one = _pairs(evidence.other("blocks")), _single(evidence)
    places = sorted(set(pairs.index.get_level_values("sigma"))) if len(pairs) else []
    if not places or one.empty:
        return missing("norms of H_o and H_f of the block of W_QK, and of every pair of W_Q and W_K")
    contrasts = {
        f"sigma = {sigma:g}": difference_interval(
            _share(pairs.xs(sigma, level="sigma")), _share(_at(one, sigma)), tests=len(places)
        )
        for sigma in places
    }
    conditions = rule.each(contrasts, partial(exceeds, least=LEAST_SHARE))
    return concluded(conditions, rule.first_that_holds(conditions))


def _by_setting(evidence: Evidence, setting: str, rows: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return shares with a row a (sigma, seed) and a column a value of the setting, rising."""
    table = evidence.table[evidence.table["quantity"] == FROBENIUS]
    diagonal = table[(table["row"] == table["col"]) & (table["row"].isin(rows) if rows else True)]
    if diagonal.empty:
        return pd.DataFrame()
    shares = with_settings(seed_shares(diagonal), setting, default="nan")
    shares = shares.assign(setting=shares[setting].astype(float))
    alive = shares[shares.groupby(["row", "layer"])["share"].transform("max") > 0]
    return alive.pivot_table(index=[X, "seed"], columns="setting", values="share").dropna()


def _by_sigma(parts: dict[str, pd.Series], effect: pd.Series) -> Finding:
    """Return the finding of a claim that needs all `parts` at a sigma; each is a number a (sigma, seed)."""
    places = list(dict.fromkeys(effect.index.get_level_values(X)))
    conditions: dict[str, Condition] = {}
    for place in places:
        ours = {f"sigma = {place:g}: {name}": part.loc[place] for name, part in parts.items()}
        shown = student_interval(effect.loc[place], tests=len(places))
        conditions[f"sigma = {place:g}"] = _all_exceed(shown, ours, LEAST_SHARE, tests=len(parts) * len(places))
    return concluded(conditions, rule.first_that_holds(conditions))


def _pairs(evidence: Evidence) -> pd.DataFrame:
    """Return the norms of H_o and H_f of all blocks of W_Q and W_K together, by (sigma, seed)."""
    rows = evidence.numbers(FROBENIUS)
    rows = rows[rows["row"].isin(_QUERY_KEY) & rows["col"].isin(_QUERY_KEY) & rows["part"].isin(_SPLIT)]
    if not (rows["row"] != rows["col"]).any():
        return pd.DataFrame()
    # a pair is stored once, whichever way round
    several = rows.assign(square=rows["value"] ** 2 * np.where(rows["row"] == rows["col"], 1, 2))
    return np.sqrt(several.pivot_table(index=["sigma", "seed"], columns="part", values="square", aggfunc="sum"))


def _single(evidence: Evidence) -> pd.DataFrame:
    """Return the norms of H_o and H_f of the block of W_QK with softmax attention, by (sigma, seed)."""
    rows = evidence.numbers(FROBENIUS, ATTENTION, row="W_QK", col="W_QK")
    rows = rows[rows[ATTENTION].isin(["softmax", ""]) & rows["part"].isin(_SPLIT) & (rows["value"] > 0)]
    return rows.pivot_table(index=["sigma", "seed"], columns="part", values="value").dropna()


def _at(norms: pd.DataFrame, sigma: float) -> pd.DataFrame:
    """Return the norms at one sigma by seed, interpolated in log-log; those of the end beyond the measured range."""
    found = {}
    for seed, one in norms.groupby("seed"):
        places = np.log(one.index.get_level_values("sigma").to_numpy(float))
        found[seed] = {part: np.exp(np.interp(np.log(sigma), places, np.log(one[part].to_numpy()))) for part in norms}
    return pd.DataFrame.from_dict(found, orient="index")


def _share(norms: pd.DataFrame) -> pd.Series:
    outer, functional = (norms[part] for part in _SPLIT)
    return functional / (outer + functional)


SHARES = (temperature, heads, single)
