"""Rules of claims about growth rates: exponents of norms in sigma, in scales of weights, and in size."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.axis import settings_of
from hessfig.analysis.claims import judges
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, diagonal, in_logs, norms
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.slopes.fit import MIN_POINTS
from hessfig.analysis.slopes.printed import WHOLE, Window, label, within
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import Block, Part

Numbers = NDArray[np.float64]
SMALL: Window = (None, 0.1)
LARGE: Window = (1.0, None)
PRACTICAL: Window = (None, 1.0)  # what the source calls the practical range


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
RELATIVE = 0.05  # of an exponent of any size
MUCH_SMALLER, MUCH_SMALLER_STILL = 0.5, 0.25
BY_ATTENTION = "model.attention"
_PAIR = ("W_Q", "W_V")


@claim("softmax-heterogeneity")
def softmax(evidence: Evidence) -> judges.Finding:
    """Claim: without softmax the query and value blocks depend alike on the data; with softmax they differ.

    Exponents of ||H||_F in sigma of the query and value blocks of one bare self-attention layer, sigma <= 0.1, seed by
    seed; the gap is that of W_Q minus that of W_V. The claim holds when with softmax the interval of the gap excludes 0
    with a mean of at least 0.25 in size, and without softmax it lies within 0.25 of 0; it does not when one of the two
    is the other way round. The effect is the gap with softmax.
    """
    found = gaps(norms(evidence, BY_ATTENTION), BY_ATTENTION, window=SMALL)
    kinds = dict(list(found.groupby(level=0)))
    if not {"softmax", "linear"} <= set(kinds):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {BY_ATTENTION}=softmax and linear")
    judged_by: dict[str, judges.Judge] = {
        "softmax": partial(judges.departs, least=LEAST_GAP),
        "linear": judges.near(0, LEAST_GAP),
    }
    effects = {f"gap of exponents, {kind} attention": judges.Effect(kinds[kind], judged_by[kind]) for kind in judged_by}
    return judges.together(effects, words="a gap of exponents")


@claim("softmax-entries")
def entries(evidence: Evidence) -> judges.Finding:
    """Claim: entries of the value and query blocks are of different size with softmax and of like size without.

    log10 of the median of |entries| of H(V, V) over that of H(Q, Q), zeros left out, seed by seed. The effect is this
    with softmax minus without. The claim holds when its interval is above 0 and the mean at least 0.25 decades, and
    without softmax the interval lies within 0.25 of 0; it does not when the first is below 0.25, or the second excludes
    0 with a mean at least 0.25 off.
    """
    found: dict[str, dict[int, float]] = {}
    for one in evidence.hessians():
        sizes = [np.abs(one.block(name)) for name in ("W_V", "W_Q") if name in one.names]
        if len(sizes) == 2 and all((size > 0).any() for size in sizes):
            value, query = (float(np.median(size[size > 0])) for size in sizes)
            kind = "linear" if settings_of(one.variant).get(BY_ATTENTION) == "linear" else "softmax"
            found.setdefault(kind, {})[one.seed] = np.log10(value / query)
    if len(found) < 2:
        return judges.missing(f"stored Hessians for {BY_ATTENTION}=softmax and linear (quantities=[hessian])")
    logs = {kind: pd.Series(of) for kind, of in found.items()}
    effect = judges.Effect((logs["softmax"] - logs["linear"]).dropna(), judges.at_least(LEAST_GAP))
    told = {f"log10 of the ratio of medians, {kind}": student_interval(one) for kind, one in logs.items()}
    return judges.together(
        {"difference": effect, "without softmax": judges.Effect(logs["linear"], judges.near(0, LEAST_GAP))},
        words="; ".join(f"{name} {one.mean:.2f}" for name, one in told.items()),
    )


@claim("depth-data")
def depth(evidence: Evidence) -> judges.Finding:
    """Claim: the data dependence of linear attention grows with depth, that of linear MLPs does not.

    Exponents in sigma, averaged over diagonal blocks, seed by seed; the growth is that of the deepest networks minus
    that of the shallowest. D layers of linear attention hold 3^D covariances, hence 2 * 3^D powers of sigma, in H_o of
    every layer and in H of the last one. The claim holds when for linear attention the intervals of the growth of H_o,
    and of H of the last layer, lie within 5 % of the difference of these powers (48 from one layer to three), and for
    linear MLPs that of H is below 1; it does not when one of the first excludes it with a mean at least 5 % off, or
    that of MLPs is above. The effect is the growth of H_o for linear attention.
    """
    linear = diagonal(norms(evidence))
    outer = _growth(diagonal(norms(evidence, part=Part.H_o)))
    last, mlp = (
        _growth(linear[linear["layer"] == linear["num_layers"]]),
        _growth(diagonal(norms(evidence.other("mlp")))),
    )
    if not (len(outer) and len(last) and len(mlp)):
        return judges.missing("norms of H_o and H of linear attention, and of H of linear MLPs, for several depths")
    power = 2.0 * (3 ** int(linear["num_layers"].max()) - 3 ** int(linear["num_layers"].min()))
    exact = judges.near(power, RELATIVE * power)
    return judges.together(
        {
            "growth of H_o, linear attention": judges.Effect(outer, exact),
            "growth of H of the last layer, linear attention": judges.Effect(last, exact),
            "growth of H, linear MLP": judges.Effect(mlp, partial(judges.stays_below, most=LEAST_GROWTH)),
        }
    )


@claim("prenorm-blocks")
def prenorm(evidence: Evidence) -> judges.Finding:
    """Claim: with pre-LN the trend exponents of the query and value blocks differ much less than without a norm.

    The gap is the exponent of ||H||_F in sigma of the query block minus that of the value block; the ratio that with
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
    told = "in every window", f"below 1/4: {', '.join(quarter) or 'nowhere'}"
    return judges.by_conditions(of, shown, _smallest).saying(*told)


@claim("layers-lower")
def lower(evidence: Evidence) -> judges.Finding:
    """Claim: blocks of earlier layers are smaller where sigma is below 1.

    The effect is log10 of ||H||_F of the value block of the top layer over that of the first, in the deepest networks,
    averaged over sigma <= 1, seed by seed. The claim holds when the interval is above 0 and the mean at least 0.25
    decades, and does not when the interval is below 0.25.
    """
    deep, top = _deepest(norms(evidence))
    if top < 2:
        return judges.missing("norms of the value block of every layer of deep networks")
    logs = by_seed(in_logs(deep[within(deep["sigma"], PRACTICAL)]), "layer")
    return judges.single(judges.Effect(_ends(logs, top), judges.at_least(LEAST_GAP)))


@claim("layers-steeper")
def steeper(evidence: Evidence) -> judges.Finding:
    """Claim: beyond sigma = 1 blocks of deeper networks show higher powers of sigma in their earlier layers.

    The effect is the exponent in sigma, sigma >= 1, of ||H||_F of the value block of the first layer minus that of the
    top layer, in the deepest networks, seed by seed. The claim holds when the interval is above 0 and the mean at least
    0.25, and does not when the interval is below 0.25.
    """
    deep, top = _deepest(norms(evidence))
    if top < 2:
        return judges.missing("norms of the value block of every layer of deep networks")
    far = exponents(deep, "sigma", "layer", window=LARGE)
    return judges.single(judges.Effect(-_ends(far, top), judges.at_least(LEAST_GAP)))


@claim("layers-law")
def law(evidence: Evidence) -> judges.Finding:
    """Claim: the top layer of deep networks keeps its law: that of one layer beyond sigma = 1, and 2 * 3^D in Figure 7.

    Exponents in sigma over their predictions, seed by seed, in the top layer of the deepest networks: with softmax, for
    sigma >= 1, of H of the query block and of H_o of the value block over those of a single layer; of linear attention
    in a chain, of H of the value block over its own. In a network the claim holds when all intervals lie within 5 % of
    1, and does not when one excludes 1 with a mean at least 5 % off. The effect is the first ratio.
    """
    blocks = {"query, H": ("W_Q", Part.H), "value, H_o": ("W_V", Part.H_o)}
    chain = evidence.other("softmax")
    deep = {words: _over_law(evidence, *block, window=LARGE) for words, block in blocks.items()}
    of = {"softmax": deep, "linear chain": {"value, H": _over_law(chain, "W_V", Part.H, window=WHOLE, own=True)}}
    if not all(len(one) for parts in of.values() for one in parts.values()):
        return judges.missing(
            "norms of blocks of the top layers of deep networks, with softmax and of linear attention"
        )
    judge = judges.near(1, RELATIVE)
    return judges.by_conditions({name: judges.alike(parts, judge) for name, parts in of.items()})


@claim("layers-exact")
def exact(evidence: Evidence) -> judges.Finding:
    """Claim: for sigma below 1 the query blocks of H_o and H_f and the value block of H_o scale exactly as those of one
    layer, in every layer of a deep network.

    Exponents in sigma, sigma <= 1, of the three blocks in each layer of the deepest networks over those predicted for a
    single layer, seed by seed. For a block the claim holds when the intervals of all layers lie within 5 % of 1, and
    does not when one excludes 1 with a mean at least 5 % off. The effect is the ratio that is farthest from 1.
    """
    blocks = {f"{row}, {part}": (row, part) for row, part in (("W_Q", Part.H_o), ("W_Q", Part.H_f), ("W_V", Part.H_o))}
    of: dict[str, judges.Effects] = {}
    for words, (row, part) in blocks.items():
        top = int(evidence.table["num_layers"].max()) if len(evidence.table) else 0
        found = {f"layer {k}": _over_law(evidence, row, part, window=PRACTICAL, layer=k) for k in range(1, top + 1)}
        known = judges.alike({name: one for name, one in found.items() if len(one)}, judges.near(1, RELATIVE))
        of |= {words: known} if known else {}
    if not of:
        return judges.missing("norms of the query and value blocks of every layer of deep networks")
    worst = {name: max(parts.values(), key=lambda one: abs(one.interval().mean - 1)) for name, parts in of.items()}
    return judges.by_conditions(of, worst, lambda found: max(found, key=lambda name: abs(found[name].effect.mean - 1)))


@claim("jacobian")
def jacobian(evidence: Evidence) -> judges.Finding:
    """Claim: the Jacobian grows as sigma in the value weight and as sigma^3 in the query weight.

    The source gives bounds, O(|X|) and O(|X|^3); judged is whether they are attained as laws. Exponents in sigma of
    jacobian_norm, sigma <= 0.1, seed by seed. The claim holds when the intervals lie within 0.25 of 1 (W_V) and of 3
    (W_Q), and does not when one excludes its power with a mean at least 0.25 off. The effect is the exponent of W_Q.
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
    """Return the exponent of W_Q minus that of W_V by (by ..., seed)."""
    slopes = exponents(diagonal(rows[rows["row"].isin(_PAIR)]), "sigma", *by, "row", window=window)
    if not set(_PAIR) <= set(slopes.index.get_level_values("row")):
        return pd.Series(dtype=float)
    query, value = (slopes.xs(name, level="row") for name in _PAIR)
    return (query - value).dropna()


def _growth(rows: pd.DataFrame) -> pd.Series:
    """Return the mean exponent of the deepest networks minus that of the shallowest, by seed."""
    slopes = exponents(rows, "sigma", "num_layers", "layer", "row") if len(rows) else pd.Series(dtype=float)
    if slopes.empty:
        return slopes
    depths = sorted(set(slopes.index.get_level_values("num_layers")))
    if len(depths) < 2:
        return pd.Series(dtype=float)
    means = slopes.groupby(["num_layers", "seed"]).mean()
    return (means.loc[depths[-1]] - means.loc[depths[0]]).dropna()


def _deepest(rows: pd.DataFrame, row: str = "W_V") -> tuple[pd.DataFrame, int]:
    """Return the norms of a diagonal block in every layer of the deepest network, and the number of its top layer."""
    blocks = diagonal(rows[rows["row"] == row])
    deep = blocks[blocks["num_layers"] == blocks["num_layers"].max()]
    return deep, int(deep["layer"].max()) if len(deep) else 0


def _ends(of_layers: pd.Series, top: int) -> pd.Series:
    """Return the number of the top layer minus that of the first, by seed."""
    return (of_layers.xs(top, level="layer") - of_layers.xs(1, level="layer")).dropna()


def _over_law(
    evidence: Evidence, row: str, part: Part, *, window: Window, layer: int = 0, own: bool = False
) -> pd.Series:
    """Return the exponent of a block in a layer (0: the top one) of the deepest networks over its prediction, by seed.

    The prediction is that of a network of one layer, or with `own` of the network itself; nothing where none is known.
    """
    deep, top = _deepest(norms(evidence, part=part), row)
    known = [one for (_, depth), one in evidence.architectures.items() if depth == top]
    if not (known and top >= 2):
        return pd.Series(dtype=float)
    place, shape = (top, known[0]) if own else (1, replace(known[0], num_layers=1))
    rate = growth_rate(Block(place, row, row, place), part, shape).exponent
    if rate is None:
        return pd.Series(dtype=float)
    return (exponents(deep[deep["layer"] == (layer or top)], "sigma", window=window) / rate).dropna()
