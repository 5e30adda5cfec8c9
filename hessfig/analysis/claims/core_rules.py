"""Rules about the core of the paper: softmax, depth, norms before sublayers, and the layers of deep networks."""

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.axis import settings_of
from hessfig.analysis.claims import judges
from hessfig.analysis.claims.effects import (
    ATTENTION,
    LARGE,
    LEAST_DECADES,
    LEAST_GAP,
    SMALL,
    by_seed,
    diagonal_rows,
    exponents,
    gaps,
    in_logs,
    norms,
)
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.analysis.slopes.printed import WHOLE, Window, label, within
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import Block, Part

PRACTICAL: Window = (None, 1.0)  # what the source calls the practical range
LEAST_GROWTH = 1.0  # a power of the data
RELATIVE = 0.05  # of an exponent of any size
MUCH_SMALLER, MUCH_SMALLER_STILL = 0.5, 0.25


@claim("softmax-heterogeneity")
def softmax(evidence: Evidence) -> judges.Finding:
    """Claim: without softmax the query and value blocks depend alike on the data; with softmax they differ.

    Exponents of ||H||_F in sigma of the query and value blocks of one bare self-attention layer, sigma <= 0.1, seed by
    seed; the gap is that of W_Q minus that of W_V. The claim holds when with softmax the interval of the gap excludes 0
    with a mean of at least 0.25 in size, and without softmax it lies within 0.25 of 0; it does not when one of the two
    is the other way round. The effect is the gap with softmax.
    """
    gap = gaps(norms(evidence, ATTENTION), ATTENTION, window=SMALL)
    kinds = dict(list(gap.groupby(level=0)))
    if not {"softmax", "linear"} <= set(kinds):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {ATTENTION}=softmax and linear")
    return judges.together(
        {
            "softmax attention": judges.Effect(kinds["softmax"], partial(judges.departs, least=LEAST_GAP)),
            "linear attention": judges.Effect(kinds["linear"], judges.near(0, LEAST_GAP)),
        },
        words="a gap of exponents",
    )


@claim("softmax-entries")
def entries(evidence: Evidence) -> judges.Finding:
    """Claim: entries of the value and query blocks are of different size with softmax and of like size without.

    log10 of the median of |entries| of H(V, V) over that of H(Q, Q), zeros left out, seed by seed. The effect is this
    with softmax minus without. The claim holds when its interval is above 0 and the mean at least 0.25 decades, and
    without softmax the interval lies within 0.25 of 0; it does not when the first is below 0.25, or the second excludes
    0 with a mean at least 0.25 off.
    """
    ratios: dict[str, dict[int, float]] = {}
    for hessian in evidence.hessians():
        sizes = [np.abs(hessian.block(name)) for name in ("W_V", "W_Q") if name in hessian.names]
        if len(sizes) == 2 and all((size > 0).any() for size in sizes):
            value, query = (float(np.median(size[size > 0])) for size in sizes)
            kind = "linear" if settings_of(hessian.variant).get(ATTENTION) == "linear" else "softmax"
            ratios.setdefault(kind, {})[hessian.seed] = np.log10(value / query)
    if len(ratios) < 2:
        return judges.missing(f"stored Hessians for {ATTENTION}=softmax and linear (quantities=[hessian])")
    softmax, linear = (pd.Series(ratios[kind]) for kind in ("softmax", "linear"))
    return judges.together(
        {
            "difference": judges.Effect((softmax - linear).dropna(), judges.at_least(LEAST_GAP)),
            "without softmax": judges.Effect(linear, judges.near(0, LEAST_GAP)),
        }
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
    linear = diagonal_rows(norms(evidence))
    outer = _growth(diagonal_rows(norms(evidence, part=Part.H_o)))
    last = _growth(linear[linear["layer"] == linear["num_layers"]])
    mlp = _growth(diagonal_rows(norms(evidence.other("mlp"))))
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


@claim("prenorm-blocks")
def prenorm(evidence: Evidence) -> judges.Finding:
    """Claim: with pre-LN the trend exponents of the query and value blocks differ much less than without a norm.

    The gap is the exponent of ||H||_F in sigma of the query block minus that of the value block; the ratio that with
    pre-LN over that without, in size and seed by seed, for sigma <= 0.1, for sigma >= 1 and for all sigma. In a window
    the claim holds when the gap without a norm excludes 0 with a mean of at least 0.25 in size and the interval of the
    ratio is below 1/2; it does not when the ratio is above. A note says where it is below 1/4 too. The effect is the
    ratio in the first window where it holds, else the smallest.
    """
    of: dict[str, judges.Effects] = {}
    for window in (SMALL, LARGE, WHOLE):
        without, normed = (gaps(norms(source), window=window).abs() for source in (evidence.other("sigma"), evidence))
        ratio = (normed / without.where(without > 0)).dropna()
        if ratio.empty:
            return judges.missing("norms of the blocks of W_Q and W_V with pre-LN and without a norm")
        of[label(window)] = {
            "pre-LN / no norm": judges.Effect(ratio, partial(judges.stays_below, most=MUCH_SMALLER)),
            "gap, no norm": judges.Effect(without, partial(judges.departs, least=LEAST_GAP)),
        }
    ends = {name: parts["pre-LN / no norm"].interval(len(of)).high for name, parts in of.items()}
    notes = {name: "below 1/4" for name, high in ends.items() if high < MUCH_SMALLER_STILL}
    return judges.by_conditions(of, shown=_smallest, notes=notes)


def _smallest(rows: Mapping[str, judges.SubRow]) -> str:
    holding = [name for name, row in rows.items() if row.verdict == judges.ClaimVerdict.holds]
    return holding[0] if holding else judges.largest(rows, lambda mean: -mean)


@claim("layernorm-stabilises")
def bounded(evidence: Evidence) -> judges.Finding:
    """Claim: LayerNorm keeps the terms that depend on the input bounded, in the blocks of W_V and W_Q.

    Of W_V and W_Q, seed by seed: log10 of the largest ||H||_F over sigma >= 1 without a norm over that with pre-LN, and
    log10 of the largest with pre-LN over that at the smallest such sigma. For a block the claim holds when the interval
    of the first effect is above 0 with a mean of at least 0.1 decades and that of the second is below 0.1; it does not
    when the first is below 0.1 or the second above.
    """
    pre, none = (_beyond(source) for source in (evidence, evidence.other("sigma")))
    of: dict[str, judges.Effects] = {}
    for row in sorted(set(pre.index.get_level_values("row")) & set(none.index.get_level_values("row"))):
        normed, plain = (suprema.xs(row, level="row") for suprema in (pre, none))
        growth = partial(judges.stays_below, most=LEAST_DECADES)
        of[row] = {
            "no norm over pre-LN": judges.Effect(
                (plain["sup"] - normed["sup"]).dropna(), judges.at_least(LEAST_DECADES)
            ),
            "growth with pre-LN": judges.Effect(normed["sup"] - normed["start"], growth),
        }
    if not of:
        return judges.missing("norms of blocks for sigma >= 1 with pre-LN and without a norm")
    return judges.by_conditions(of)


def _beyond(evidence: Evidence) -> pd.DataFrame:
    """Return log10 of the largest norm over sigma >= 1 and of that at the smallest such sigma, by (row, seed)."""
    rows = in_logs(diagonal_rows(norms(evidence)))
    curves = rows[within(rows["sigma"], LARGE)].sort_values("sigma").groupby(["row", "seed"])["value"]
    return pd.DataFrame({"sup": curves.max(), "start": curves.first()})


@claim("layers")
def layers(evidence: Evidence) -> judges.Finding:
    """Claim: in deep networks earlier layers lie lower for sigma below 1 and are steeper beyond; the top layer keeps
    the law of one layer, and for sigma below 1 all layers scale exactly as one layer.

    Four statements, each with a verdict, about the deepest networks, seed by seed. (lower) log10 of ||H||_F of the
    value block of the top layer over that of the first, averaged over sigma <= 1, is above 0 with a mean of at least
    0.25. (steeper) the same of the exponents in sigma, sigma >= 1, of the first layer minus the top one. (law) the
    exponent of the top layer over its prediction lies within 5 % of 1: with softmax, for sigma >= 1, of H of the query
    block and H_o of the value block over those of one layer; of linear attention in a chain, of H of the value block
    over its own 2 * 3^D. (exact) for sigma <= 1, in every layer, the exponents of the query blocks of H_o and H_f
    and of the value block of H_o lie within 5 % of those predicted for one layer. A statement holds when its intervals
    do, and does not when one is on the other side; the claim holds when all four do. The effect is that of lower.
    """
    statements = {"lower": _lower, "steeper": _steeper, "law": _law, "exact": _exact}
    return judges.in_parts({name: statement(evidence) for name, statement in statements.items()})


def _lower(evidence: Evidence) -> judges.Finding:
    deep, top = _deepest(norms(evidence))
    if top < 2:
        return judges.missing("norms of the value block of every layer of deep networks")
    logs = by_seed(in_logs(deep[within(deep["sigma"], PRACTICAL)]), "layer")
    return judges.single(judges.Effect(_ends(logs, top), judges.at_least(LEAST_GAP)))


def _steeper(evidence: Evidence) -> judges.Finding:
    deep, top = _deepest(norms(evidence))
    if top < 2:
        return judges.missing("norms of the value block of every layer of deep networks")
    far = exponents(deep, "sigma", "layer", window=LARGE)
    return judges.single(judges.Effect(-_ends(far, top), judges.at_least(LEAST_GAP)))


def _law(evidence: Evidence) -> judges.Finding:
    blocks = {"query, H": ("W_Q", Part.H), "value, H_o": ("W_V", Part.H_o)}
    chain = evidence.other("softmax")
    deep = {words: _over_law(evidence, *block, window=LARGE) for words, block in blocks.items()}
    of = {"softmax": deep, "linear chain": {"value, H": _over_law(chain, "W_V", Part.H, window=WHOLE, own=True)}}
    if not all(len(sample) for parts in of.values() for sample in parts.values()):
        return judges.missing(
            "norms of blocks of the top layers of deep networks, with softmax and of linear attention"
        )
    judge = judges.near(1, RELATIVE)
    return judges.by_conditions({name: judges.effects_by_name(parts, judge) for name, parts in of.items()})


def _exact(evidence: Evidence) -> judges.Finding:
    of = _every_layer(evidence, PRACTICAL)
    if not of:
        return judges.missing("norms of the query and value blocks of every layer of deep networks")
    worst = {name: max(parts.values(), key=_off) for name, parts in of.items()}
    finding = judges.by_conditions(of, worst, lambda rows: judges.largest(rows, lambda mean: abs(mean - 1)))
    count = int(evidence.table["num_layers"].max())
    small = [_off(part) for parts in _every_layer(evidence, SMALL).values() for part in parts.values()]
    below = f", {np.nanmax(small):.1%} for sigma <= 0.1" if np.isfinite(small).any() else ""
    return finding.saying(f"off by up to {abs(finding.effect - 1):.0%} with {count} layers{below}")


def _every_layer(evidence: Evidence, window: Window) -> dict[str, judges.Effects]:
    """Return the exponents of the three blocks over those of one layer, by block and layer of the deepest networks."""
    of: dict[str, judges.Effects] = {}
    for row, part in (("W_Q", Part.H_o), ("W_Q", Part.H_f), ("W_V", Part.H_o)):
        top = int(evidence.table["num_layers"].max()) if len(evidence.table) else 0
        ratios = {f"layer {k}": _over_law(evidence, row, part, window=window, layer=k) for k in range(1, top + 1)}
        known = {name: sample for name, sample in ratios.items() if len(sample)}
        of |= {f"{row}, {part}": judges.effects_by_name(known, judges.near(1, RELATIVE))} if known else {}
    return of


def _off(effect: judges.Effect) -> float:
    """Return how far the mean of a ratio is from 1."""
    return abs(effect.interval().mean - 1)


def _deepest(rows: pd.DataFrame, row: str = "W_V") -> tuple[pd.DataFrame, int]:
    """Return the norms of a diagonal block in every layer of the deepest network, and the number of its top layer."""
    blocks = diagonal_rows(rows[rows["row"] == row])
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
    known = [shape for (_, depth), shape in evidence.architectures.items() if depth == top]
    if not (known and top >= 2):
        return pd.Series(dtype=float)
    place, shape = (top, known[0]) if own else (1, replace(known[0], num_layers=1))
    rate = growth_rate(Block(place, row, row, place), part, shape).exponent
    if rate is None:
        return pd.Series(dtype=float)
    return (exponents(deep[deep["layer"] == (layer or top)], "sigma", window=window) / rate).dropna()
