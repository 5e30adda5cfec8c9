"""Claims of the first paper about growth with the data: what softmax, depth and pre-LN do to exponents in sigma."""

from __future__ import annotations

import pandas as pd

from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.claims.exponents import exponents
from hessfig.analysis.claims.rule import (
    Claim,
    Finding,
    Verdict,
    alike,
    all_of,
    by_condition,
    departs,
    exceeds,
    found,
    missing,
    stays_below,
)
from hessfig.analysis.interval import Interval, student_interval
from hessfig.analysis.windows import Window, label
from hessfig.terms import Part

ATTENTION = "model.attention"
LEAST_GAP = 0.25  # of exponents that are whole numbers in theory
LEAST_GROWTH = 1.0  # a power of the data
WINDOWS: tuple[Window, ...] = ((None, 0.1), (1.0, None), (None, None))
_PAIR = ("W_Q", "W_V")


def softmax(evidence: Evidence) -> Finding:
    """Exponents of ||H||_F in sigma of the query and value blocks of one bare self-attention layer, sigma <= 0.1, seed
    by seed; the gap is that of W_Q less that of W_V. The claim holds when with softmax the interval of the gap (95 %
    of both together, Bonferroni) excludes 0 with a mean of at least 0.25 in size, and without softmax it lies within
    0.25 of 0; it does not when one of the two is the other way round. The effect is the gap with softmax.
    """
    gaps = _gaps(evidence.numbers("frobenius", ATTENTION, part=Part.H.value), ATTENTION, window=(None, 0.1))
    kinds = {kind: student_interval(one, tests=2) for kind, one in gaps.groupby(level=0)}
    if not {"softmax", "linear"} <= set(kinds):
        return missing(f"norms of the blocks of W_Q and W_V for {ATTENTION}=softmax and linear")
    verdict = all_of([departs(kinds["softmax"], LEAST_GAP), alike(kinds["linear"], LEAST_GAP)])
    contrasts = {f"gap of exponents, {kind} attention": kinds[kind] for kind in ("softmax", "linear")}
    return found(kinds["softmax"], verdict, contrasts=contrasts)


def depth(evidence: Evidence) -> Finding:
    """Exponents of ||H||_F in sigma, averaged over diagonal blocks, seed by seed; the growth is that of the deepest
    networks less that of one layer. The claim holds when for linear attention the interval of the growth (95 % of both
    together, Bonferroni) is above 0 with a mean of at least 1, a power of the data, and for linear MLPs it is below 1;
    it does not when attention's is below 1 or that of MLPs above. The effect is the growth for linear attention.
    """
    attention, mlp = _growth(evidence), _growth(evidence.other("mlp"))
    if not (len(attention) and len(mlp)):
        return missing("norms of linear attention and of linear MLPs for several depths")
    ours, theirs = (student_interval(one, tests=2) for one in (attention, mlp))
    verdict = all_of([exceeds(ours, LEAST_GROWTH), stays_below(theirs, LEAST_GROWTH)])
    contrasts = {"growth, linear attention": ours, "growth, linear MLP": theirs}
    return found(ours, verdict, contrasts=contrasts)


def prenorm(evidence: Evidence) -> Finding:
    """The gap between the exponents of ||H||_F in sigma of the query and value blocks, seed by seed, for sigma <= 0.1,
    for sigma >= 1 and for all sigma. In a window the claim holds when without LayerNorm the interval of the gap (95 %
    of all together, Bonferroni) excludes 0 with a mean of at least 0.25 in size and with pre-LN it lies within 0.25 of
    0, and does not when one of the two is the other way round. The effect is the gap with pre-LN in the first window
    where it holds, else over all sigma.
    """
    networks = {"no norm": evidence.other("sigma"), "pre-LN": evidence}
    contrasts: dict[str, Interval] = {}
    verdicts: dict[str, Verdict] = {}
    for window in WINDOWS:
        gaps = [
            _gaps(one.numbers("frobenius", part=Part.H.value), window=window) for one in networks.values()
        ]
        if not all(len(gap) for gap in gaps):
            return missing("norms of the blocks of W_Q and W_V with pre-LN and without a norm")
        without, normed = (student_interval(gap, tests=2 * len(WINDOWS)) for gap in gaps)
        name = label(window)
        verdicts[name] = all_of([departs(without, LEAST_GAP), alike(normed, LEAST_GAP)])
        contrasts |= {f"{name}: gap, no norm": without, f"{name}: gap, pre-LN": normed}
    verdict, words = by_condition(verdicts)
    shown = next((name for name, one in verdicts.items() if one == Verdict.holds), label(WINDOWS[-1]))
    return found(contrasts[f"{shown}: gap, pre-LN"], verdict, words, contrasts)


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
    rows = evidence.numbers("frobenius", part=Part.H.value)
    diagonal = rows[(rows["row"] == rows["col"]) & (rows["row_layer"] == rows["layer"])]
    slopes = exponents(diagonal, "sigma", "num_layers", "layer", "row")
    depths = sorted(set(slopes.index.get_level_values("num_layers")))
    if len(depths) < 2:
        return pd.Series(dtype=float)
    means = slopes.groupby(["num_layers", "seed"]).mean()
    return (means.loc[depths[-1]] - means.loc[depths[0]]).dropna()


CLAIMS = (
    Claim(
        "softmax-heterogeneity",
        "Ormaniec et al. (ICLR 2025), section 4.1",
        "without softmax the query and value blocks depend alike on the data; with softmax they differ",
        sweep="eq5",
        figure="eq5",
        rule=softmax,
    ),
    Claim(
        "depth-data",
        "Ormaniec et al. (ICLR 2025), section 4.1",
        "the data dependence of linear attention grows with depth, that of linear MLPs does not",
        sweep="softmax",
        figure="7",
        rule=depth,
        beside=("mlp",),
    ),
    Claim(
        "prenorm-blocks",
        "Ormaniec et al. (ICLR 2025), section 4.3",
        "pre-LN removes the different dependence of the query and value blocks on sigma",
        sweep="layernorm",
        figure="3b",
        rule=prenorm,
        beside=("sigma",),
    ),
)
