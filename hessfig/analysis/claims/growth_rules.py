"""Rules of claims about growth rates: exponents of norms in sigma, in scales of weights, and in size."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, diagonal, in_logs, norms
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.slopes.fit import MIN_POINTS
from hessfig.analysis.slopes.printed import WHOLE, Window, label, within
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import Block, Part

Numbers = NDArray[np.float64]
ORMANIEC = "Ormaniec et al. (ICLR 2025)"
PAPER = "the paper's: one GPT-2-like layer, d_model 128, addition, as printed"
BARE = "the theorem's bare layer"
SMALL: Window = (None, 0.1)
LARGE: Window = (1.0, None)


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


LEAST_GAP = 0.25  # of exponents that are whole numbers in theory
LEAST_GROWTH = 1.0  # a power of the data
MUCH_SMALLER, MUCH_SMALLER_STILL = 0.5, 0.25
BY_ATTENTION, LAYERS = "model.attention", "model.n_layers"
_PAIR = ("W_Q", "W_V")


@claim(
    *("softmax-heterogeneity", f"{ORMANIEC}, section 4.1", "eq5"),
    there="any self-attention layer; drawn for d_model 128",
    here=f"{BARE}, 20 seeds",
    theorems=("eq5", "tab1"),
)
def softmax(evidence: Evidence) -> judges.Finding:
    """Claim: without softmax the query and value blocks depend alike on the data; with softmax they differ.

    Exponents of ||H||_F in sigma of the query and value blocks of one bare self-attention layer, sigma <= 0.1, seed
    by seed; the gap is that of W_Q less that of W_V. The claim holds when with softmax the interval of the gap excludes
    0 with a mean of at least 0.25 in size, and without softmax it lies within 0.25 of 0; it does not when one of the
    two is the other way round. The effect is the gap with softmax.
    """
    found = gaps(norms(evidence, BY_ATTENTION), BY_ATTENTION, window=SMALL)
    kinds = dict(list(found.groupby(level=0)))
    if not {"softmax", "linear"} <= set(kinds):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {BY_ATTENTION}=softmax and linear")
    judged_by: dict[str, judges.Judge] = {
        "softmax": partial(judges.departs, least=LEAST_GAP),
        "linear": judges.near(0, LEAST_GAP),
    }
    return judges.together(
        {f"gap of exponents, {kind} attention": judges.Effect(kinds[kind], judged_by[kind]) for kind in judged_by}
    )


@claim(
    *("softmax-entries", f"{ORMANIEC}, section 4.1, Figure 4", "entries_seeds"),
    figure="4",
    there="one network, d_model 16",
    here="the same, 20 seeds",
)
def entries(evidence: Evidence) -> judges.Finding:
    """Claim: entries of the value and query blocks are of different size with softmax and of like size without.

    log10 of the median of |entries| of H(V, V) over that of H(Q, Q), zeros left out, seed by seed; with softmax less
    without. The claim holds when the interval of this effect is above 0 and the mean at least 0.25 decades, and does
    not when the interval is below that.
    """
    found: dict[str, dict[int, float]] = {}
    for one in evidence.hessians():
        sizes = [np.abs(one.block(name)) for name in ("W_V", "W_Q") if name in one.names]
        if len(sizes) == 2 and all((size > 0).any() for size in sizes):
            value, query = (float(np.median(size[size > 0])) for size in sizes)
            kind = "linear" if f"{BY_ATTENTION}=linear" in one.variant else "softmax"
            found.setdefault(kind, {})[one.seed] = np.log10(value / query)
    if len(found) < 2:
        return judges.missing(f"stored Hessians for {BY_ATTENTION}=softmax and linear (quantities=[hessian])")
    logs = {kind: pd.Series(of) for kind, of in found.items()}
    effect = judges.Effect((logs["softmax"] - logs["linear"]).dropna(), judges.at_least(LEAST_GAP))
    told = {f"log10 of the ratio of medians, {kind}": student_interval(one) for kind, one in logs.items()}
    return judges.together(
        {"difference": effect}, words="; ".join(f"{name} {one.mean:.2f}" for name, one in told.items())
    )


@claim(
    *("depth-data", f"{ORMANIEC}, section 4.1", "softmax", "mlp"),
    figure="7",
    there="linear attention and linear MLPs, 1 to 3 and 1 to 5 layers",
    here=f"{PAPER}, 20 seeds",
    theorems=("depth", "mlp"),
)
def depth(evidence: Evidence) -> judges.Finding:
    """Claim: the data dependence of linear attention grows with depth, that of linear MLPs does not.

    Exponents of ||H||_F in sigma, averaged over diagonal blocks, seed by seed; the growth is that of the deepest
    networks less that of one layer. The claim holds when for linear attention the interval of the growth is above 0
    with a mean of at least 1, a power of the data, and for linear MLPs it is below 1; it does not when attention's is
    below 1 or that of MLPs above. The effect is the growth for linear attention.
    """
    attention, mlp = _growth(evidence), _growth(evidence.other("mlp"))
    if not (len(attention) and len(mlp)):
        return judges.missing("norms of linear attention and of linear MLPs for several depths")
    return judges.together(
        {
            "growth, linear attention": judges.Effect(attention, judges.at_least(LEAST_GROWTH)),
            "growth, linear MLP": judges.Effect(mlp, partial(judges.stays_below, most=LEAST_GROWTH)),
        }
    )


@claim(
    *("prenorm-blocks", f"{ORMANIEC}, section 4.3", "layernorm", "sigma"),
    figure="3b",
    there=PAPER,
    here=f"{PAPER}, 20 seeds",
)
def prenorm(evidence: Evidence) -> judges.Finding:
    """Claim: with pre-LN the trend exponents of the query and value blocks differ much less than without a norm.

    The gap is the exponent of ||H||_F in sigma of the query block less that of the value block; the ratio that with
    pre-LN over that without, in size and seed by seed, for sigma <= 0.1, for sigma >= 1 and for all sigma. In a window
    the claim holds when the gap without a norm excludes 0 with a mean of at least 0.25 in size and the interval of the
    ratio is below 1/2; it does not when the ratio is above. Where it is below 1/4 too the words say so. The effect is
    the ratio in the first window where it holds, else the smallest.
    """
    plain, windows = evidence.other("sigma"), (SMALL, LARGE, WHOLE)
    of: dict[str, judges.Effects] = {}
    shown: dict[str, judges.Effect] = {}
    for window in windows:
        without, normed = (gaps(norms(one), window=window).abs() for one in (plain, evidence))
        ratio = (normed / without.where(without > 0)).dropna()
        if ratio.empty:
            return judges.missing("norms of the blocks of W_Q and W_V with pre-LN and without a norm")
        shown[label(window)] = judges.Effect(ratio, partial(judges.stays_below, most=MUCH_SMALLER))
        gap = judges.Effect(without, partial(judges.departs, least=LEAST_GAP))
        of[label(window)] = {"pre-LN / no norm": shown[label(window)], "gap, no norm": gap}
    quarter = [name for name, one in shown.items() if one.interval(len(of)).high < MUCH_SMALLER_STILL]
    finding = judges.by_conditions(of, shown, shown=_smallest, note="in every window")
    return replace(finding, words=f"{finding.words}; below 1/4: {', '.join(quarter) or 'nowhere'}")


@claim(*("layers", f"{ORMANIEC}, appendix G", "depth", "softmax"), figure="6", there=PAPER, here=f"{PAPER}, 20 seeds")
def layers(evidence: Evidence) -> judges.Finding:
    """Claim: earlier layers lie lower, the top layer alone keeps its law beyond sigma = 1, and in Figure 7 for H too.

    Seed by seed, the value block of the deepest networks: (lower) log10 of ||H||_F of the top layer over that of the
    first, sigma <= 0.1; (steeper) the exponent for sigma >= 1 of the first layer less that of the top layer; (law) the
    exponent of H at the top layer of linear attention less its prediction. (lower) and (steeper) must exceed 0 by at
    least 0.25 and (law) lie within 0.25 of 0. The claim holds when all three do; holds only if names those that do. The
    effect is the first that holds.
    """
    deep, chain = (_deepest(norms(one)) for one in (evidence, evidence.other("softmax")))
    top = deep["layer"].max() if len(deep) else 0
    if top < 2 or chain.empty:
        return judges.missing(
            "norms of the value block of every layer of deep networks, with softmax and of linear attention"
        )
    logs = by_seed(in_logs(deep[within(deep["sigma"], SMALL)]), "layer")
    far = exponents(deep, "sigma", "layer", window=LARGE)
    follows = exponents(chain[chain["layer"] == chain["layer"].max()], "sigma")
    predicted = _predicted(evidence.other("softmax"), int(chain["num_layers"].max()))
    samples = {"lower": _ends(logs, top), "steeper": -_ends(far, top), "law": (follows - predicted).dropna()}
    judged_by = {
        "lower": judges.at_least(LEAST_GAP),
        "steeper": judges.at_least(LEAST_GAP),
        "law": judges.near(0, LEAST_GAP),
    }
    return judges.by_conditions({name: {"": judges.Effect(one, judged_by[name])} for name, one in samples.items()})


@claim(
    *("jacobian", f"{ORMANIEC}, section 3.1, and Noci et al. (2022)", "jacobian"),
    there="one self-attention layer at initialisation",
    here=BARE,
)
def jacobian(evidence: Evidence) -> judges.Finding:
    """Claim: the Jacobian grows as sigma in the value weight and as sigma^3 in the query weight.

    Exponents in sigma of jacobian_norm, sigma <= 0.1, seed by seed. The claim holds when the intervals lie within 0.25
    of 1 (W_V) and of 3 (W_Q), and does not when one excludes its power with a mean at least 0.25 off. The effect is the
    exponent of W_Q.
    """
    found = exponents(evidence.numbers("jacobian_norm"), "sigma", "row", window=SMALL)
    if not {"W_Q", "W_V"} <= set(found.index.get_level_values("row")):
        return judges.missing("norms of the Jacobian of W_Q and W_V for small sigma")
    powers = {"W_Q": 3.0, "W_V": 1.0}
    return judges.together(
        {f"exponent, {row}": judges.Effect(found.xs(row), judges.near(p, LEAST_GAP)) for row, p in powers.items()}
    )


def _smallest(conditions: Mapping[str, judges.Condition]) -> str:
    holding = [name for name, one in conditions.items() if one.verdict == judges.ClaimVerdict.holds]
    return (holding or [judges.largest({name: one.effect for name, one in conditions.items()}, lambda mean: -mean)])[0]


def gaps(rows: pd.DataFrame, *by: str, window: Window) -> pd.Series:
    """Return the exponent of W_Q less that of W_V by (by ..., seed)."""
    slopes = exponents(diagonal(rows[rows["row"].isin(_PAIR)]), "sigma", *by, "row", window=window)
    if not set(_PAIR) <= set(slopes.index.get_level_values("row")):
        return pd.Series(dtype=float)
    query, value = (slopes.xs(name, level="row") for name in _PAIR)
    return (query - value).dropna()


def _growth(evidence: Evidence) -> pd.Series:
    """Return the mean exponent of the deepest networks less that of the shallowest, by seed."""
    slopes = exponents(diagonal(norms(evidence)), "sigma", "num_layers", "layer", "row")
    depths = sorted(set(slopes.index.get_level_values("num_layers")))
    if len(depths) < 2:
        return pd.Series(dtype=float)
    means = slopes.groupby(["num_layers", "seed"]).mean()
    return (means.loc[depths[-1]] - means.loc[depths[0]]).dropna()


def _deepest(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the norms of the value block of every layer of the deepest network."""
    values = diagonal(rows[rows["row"] == "W_V"])
    return values[values["num_layers"] == values["num_layers"].max()]


def _ends(of_layers: pd.Series, top: int) -> pd.Series:
    """Return the number of the top layer less that of the first, by seed."""
    return (of_layers.xs(top, level="layer") - of_layers.xs(1, level="layer")).dropna()


def _predicted(evidence: Evidence, depth: int) -> float:
    """Return the predicted exponent of H of the value block of the last layer; nan where no network is known."""
    known = [one for (_, layers), one in evidence.architectures.items() if layers == depth]
    rate = growth_rate(Block(depth, "W_V", "W_V", depth), Part.H, known[0]).exponent if known else None
    return float("nan") if rate is None else float(rate)


GROWTH = (softmax, entries, depth, prenorm, layers, jacobian)
