"""Rules of claims about components and sizes: moments of attention, powers of weights, depth, width."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.growth_rules import SMALL, exponents, gaps
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, diagonal, in_logs, norms, wide
from hessfig.analysis.slopes.printed import WHOLE
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import Block, Kind, Part

SCALE, CORRELATION, HEAD = "model.temperature", "task.correlation", "model.d_head"
WEIGHT, ALPHA = "model.scaled_weight", "model.weight_scale"
WIDTH = "model.d_model"
_ENDS = ("largest_eigenvalue", "smallest_eigenvalue")
NORM = "model.norm"
LEAST_DECADES, LEAST_EXPONENT, LEAST_VANISHING = 0.1, 0.1, 1.0
LEAST_GAP = 0.25
_PAIRS = (("W_V", "W_V"), ("W_Q", "W_Q"), ("W_K", "W_K"), ("W_V", "W_Q"), ("W_Q", "W_K"))


@claim("dispersed")
def dispersed(evidence: Evidence) -> judges.Finding:
    """Claim: dispersed attention lets the query-key blocks of H_o dominate, one-hot attention makes them diminish.

    The source varies the scores at fixed weights and inputs; the sweep varies the temperature t, which multiplies the
    query-key blocks by 1/t^2 besides. That factor is divided out: the contribution is log10 of t^2 ||H_o(Q, Q)||_F over
    ||H_o(V, V)||_F, seed by seed. The claim is in two halves: (dispersed: dominates) the contribution where attention
    is most dispersed; (one-hot: diminishes) how much lower it is where attention is most concentrated. A half of the
    claim holds when its interval is above 0 with a mean of at least 0.1 decades (dominates) or 1 (diminishes), and does
    not when the interval is below that. The effect is the first, the contribution where attention is dispersed.
    """
    share = _query_over_value(evidence, SCALE, lambda t: 2 * np.log10(t))
    if share.shape[1] < 2:
        return judges.missing(f"norms of H_o of W_Q and W_V for several values of {SCALE}")
    dispersed, concentrated = share.iloc[:, -1], share.iloc[:, 0]
    dominates = judges.Effect(dispersed.dropna(), judges.at_least(LEAST_DECADES))
    diminishes = judges.Effect((dispersed - concentrated).dropna(), judges.at_least(LEAST_VANISHING))
    halves = {"dispersed: dominates": {"": dominates}, "one-hot: diminishes": {"": diminishes}}
    return judges.by_conditions(halves, shown="dispersed: dominates")


@claim("similar-tokens")
def similar(evidence: Evidence) -> judges.Finding:
    """Claim: the more similar the tokens, the smaller the contribution of the query-key blocks.

    The source adds: if the scores do not depend on the data, which the sweep does not enforce. The contribution is
    log10 of ||H_o(Q, Q)||_F over ||H_o(V, V)||_F, seed by seed; tokens of correlation rho have differences that shrink
    as (1 - rho)^(1/2), of which the query block has four. The effect is the decades by which the contribution is lower
    at the largest correlation than at the smallest: as it is, and beyond that factor (1 - rho)^2. In each the claim
    holds when the interval is above 0 and the mean at least 0.1 decades, and does not when the interval is below 0.1.
    """
    plain = _query_over_value(evidence, CORRELATION, lambda rho: 0 * rho)
    beyond = _query_over_value(evidence, CORRELATION, lambda rho: -2 * np.log10(1 - rho))
    if plain.shape[1] < 2:
        return judges.missing(f"norms of H_o of W_Q and W_V for several values of {CORRELATION}")
    falls = {"as it is": plain, "beyond the counted (1 - rho)^2": beyond}
    samples = {name: (one.iloc[:, 0] - one.iloc[:, -1]).dropna() for name, one in falls.items()}
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_DECADES)), shown="as it is")


@claim("wide-key")
def wide_key(evidence: Evidence) -> judges.Finding:
    """Claim: with wide keys attention does not depend on the data at initialisation.

    This rests on the initialisation: with the paper's weights, N(0, 0.64 / d_V), the variance of the scores does not
    depend on d_K; with a variance of 1 / d_K it would fall. The effect is the decades by which pattern_spread, the
    spread of the mixing weights (a stand-in for their dependence on the data), is lower with the widest heads than
    with the narrowest, seed by seed; the claim holds when the interval is above 0 and the mean at least 0.1 decades,
    and does not when the interval is below 0.1.
    """
    logs = _along(evidence.numbers("pattern_spread", HEAD), HEAD)
    if logs.shape[1] < 2:
        return judges.missing(f"pattern_spread for several values of {HEAD}")
    return judges.single(judges.Effect((logs.iloc[:, 0] - logs.iloc[:, -1]).dropna(), judges.at_least(LEAST_DECADES)))


@claim("weight-powers")
def weight_powers(evidence: Evidence) -> judges.Finding:
    """Claim: the blocks of H_o and H_f depend on the norms of W_Q, W_K and W_V with the counted powers.

    Exponents of the norms of the diagonal blocks, of (V, Q) and of (Q, K), of H_o and of H_f, in the scale of each of
    the three weights, seed by seed. The counted power is that of `hessfig predict` for the scale of that weight. For
    H_o and for H_f the claim holds when the intervals of all lie within 0.25 of it, and does not when one excludes it
    with a mean at least 0.25 off. The effect is the exponent of ||H_o(Q, Q)||_F in W_K.
    """
    of: dict[str, judges.Effects] = {}
    for part in (Part.H_o, Part.H_f):
        effects = _powers(norms(evidence, WEIGHT, ALPHA, part=part), part, evidence)
        of |= {str(part): effects} if effects else {}
    shown = "(W_Q, W_Q) in |W_K|"
    if shown not in of.get(Part.H_o.value, {}):
        return judges.missing("norms of blocks of H_o against scales of W_Q, W_K and W_V")
    effects = {name: parts.get(shown, next(iter(parts.values()))) for name, parts in of.items()}
    return judges.by_conditions(of, effects, shown=Part.H_o.value).saying(" and ".join(of))


def _powers(rows: pd.DataFrame, part: Part, evidence: Evidence) -> judges.Effects:
    """Return the exponent of every block of a part in the scale of every weight, next to its counted power."""
    if rows.empty:
        return {}
    sides = zip(rows["row"], rows["col"], strict=True)  # a pair is stored once, whichever way round
    kept = rows[[(row, col) in _PAIRS or (col, row) in _PAIRS for row, col in sides]]
    numbered = kept.assign(alpha=pd.to_numeric(kept[ALPHA], errors="coerce")).dropna(subset="alpha")
    known = next(iter(evidence.architectures.values()), Architecture(kind=Kind.self_attention))
    found = exponents(numbered, "alpha", "row", "col", WEIGHT) if len(numbered) else pd.Series(dtype=float)
    effects = {}
    for (row, col, weight), sample in found.groupby(level=[0, 1, 2]) if len(found) else ():
        power = growth_rate(Block(1, row, col, 1), part, known, axis=weight).exponent
        if power is not None:
            judge = judges.near(power, LEAST_GAP)
            effects[f"({row}, {col}) in |{weight}|"] = judges.Effect(sample, judge)
    return effects


@claim("size-spectrum")
def size_spectrum(evidence: Evidence) -> judges.Finding:
    """Claim: the spectrum of the Hessian widens with the size of the network: larger and smaller eigenvalues.

    Exponents of the largest eigenvalue of the whole H, and of the size of the smallest (negative) one, in the width and
    in the number of layers, seed by seed, over the smaller half of the sizes and over the larger half (a curve that
    turns is no power). Along the width or the depth the claim holds when every interval is above 0 and its mean at
    least 0.1, and does not when one is below 0.1. The effect is the exponent of the largest eigenvalue over all sizes,
    along the first that holds, else where it is largest.
    """
    deep = evidence.other("model_size_depth")
    tables = {
        "along the width": {end: _numbered(evidence.numbers(end, WIDTH), WIDTH) for end in _ENDS},
        "along the depth": {end: (rows := deep.numbers(end)).assign(size=rows["num_layers"]) for end in _ENDS},
    }
    of = {name: _widening(ends) for name, ends in tables.items()}
    known = {name: one for name, one in of.items() if len(one)}
    if not known:
        return judges.missing("largest eigenvalues of the whole network against width or depth")
    lacking = [f"{end.replace('_', ' ')} {name}" for name in of for end in _ENDS if f"{end}, all sizes" not in of[name]]
    finding = judges.by_conditions(known).saying(f"missing: {', '.join(lacking)}" if lacking else "")
    return replace(finding, is_lacking=finding.is_lacking or bool(lacking))


def _widening(ends: Mapping[str, pd.DataFrame]) -> judges.Effects:
    """Return the exponents of both ends of the whole spectrum in a size; of one that is missing, an empty effect."""
    logs = {end: _whole(rows) for end, rows in ends.items()}
    samples = {
        f"{end}{words}": sample
        for end, rows in logs.items()
        for words, sample in (_of_sizes(rows) if len(rows) else {"": pd.Series(dtype=float)}).items()
    }
    some = any(len(one) for one in samples.values())
    return judges.alike(samples, judges.at_least(LEAST_EXPONENT)) if some else {}


def _whole(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the outermost eigenvalue of one end of the whole network's H, in size."""
    whole = rows[(rows["row"] == "all") & (rows["part"] == Part.H.value) & (rows["index"] <= 1)]
    return whole.assign(value=whole["value"].abs())


def _of_sizes(rows: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the exponents over all sizes, over the smaller half and over the larger half, by seed."""
    sizes = np.sort(rows["size"].unique())
    half = (len(sizes) + 1) // 2
    windows = {", all sizes": WHOLE, ", smaller half": (None, sizes[half - 1]), ", larger half": (sizes[-half], None)}
    return {words: exponents(rows, "size", window=window) for words, window in windows.items()}


@claim("norm-depth")
def norm_depth(evidence: Evidence) -> judges.Finding:
    """Claim: block norms grow with depth, and pre-norm prevents it.

    The exponent of ||H||_F of the first layer's W_V and W_Q, averaged in logarithms, in the number of layers, seed by
    seed and sigma by sigma: without a norm, and with pre-norm. (Growth may be exponential rather than a power: of the
    exponent only the sign and the least size count.) At a sigma the claim holds when the interval of the first is above
    0 with a mean of at least 0.1 and that of the second is below 0.1, and does not when one is the other way round. The
    effect is the exponent without a norm at the first sigma where it holds, else where it is largest.
    """
    rows = in_logs(diagonal(norms(evidence, NORM)))
    means = by_seed(rows[rows["layer"] == 1], NORM, "sigma", "num_layers").reset_index()
    found = exponents(means.assign(value=10 ** means["value"]), "num_layers", NORM, "sigma")
    kinds = dict(list(found.groupby(level=NORM))) if len(found) else {}
    if not {"none", "pre"} <= set(kinds):
        return judges.missing(f"norms of blocks for several depths with {NORM}=none and {NORM}=pre")
    of: dict[str, judges.Effects] = {}
    for sigma in sorted(set(found.index.get_level_values("sigma"))):
        plain, normed = (kinds[kind].xs(sigma, level="sigma") for kind in ("none", "pre"))
        grows = judges.Effect(plain, judges.at_least(LEAST_EXPONENT))
        of[f"sigma = {sigma:g}"] = {
            "no norm": grows,
            "pre-norm": judges.Effect(normed, partial(judges.stays_below, most=LEAST_EXPONENT)),
        }
    return judges.by_conditions(of)


def _query_over_value(evidence: Evidence, setting: str, extra: Callable[[pd.Index], pd.Index]) -> pd.DataFrame:
    """Return log10 of ||H_o(Q, Q)||_F over ||H_o(V, V)||_F, and what `extra` adds: seeds by values of a setting."""
    rows = norms(evidence, setting, part=Part.H_o)
    query, value = (_along(rows, setting, row) for row in ("W_Q", "W_V"))
    return query - value + extra(query.columns) if len(query) and len(value) else pd.DataFrame()


def _numbered(rows: pd.DataFrame, setting: str) -> pd.DataFrame:
    return rows.assign(size=pd.to_numeric(rows[setting], errors="coerce")).dropna(subset="size")


def _along(rows: pd.DataFrame, setting: str, row: str = "") -> pd.DataFrame:
    """Return the mean log10 of a quantity (of a weight's diagonal block): rows are seeds, columns ascending values."""
    kept = in_logs(_numbered(diagonal(rows[rows["row"] == row]) if row else rows, setting))
    return wide(by_seed(kept, "size"), "size") if len(kept) else pd.DataFrame()


REMOVED = ("model.attention=linear", "model.norm=pre", "model.norm=sandwich")
TURNED = ("model.scores=qk_norm", "model.scores=cosine")
RAISED = ("model.attention=sigmoid", "model.attention=sparsemax", "model.norm=post")
_RAISED_BY = 0.5


@claim("heterogeneity-removed")
def removed(evidence: Evidence) -> judges.Finding:
    """Claim: linear attention, and norms before or around sublayers, let value and query blocks grow alike with sigma
    (within 0.25).

    Exponents of ||H||_F in sigma, sigma <= 0.1, seed by seed: that of W_Q minus that of W_V, for linear attention, pre-
    and sandwich norm. The claim holds when every interval lies within 0.25 of 0, and does not when one excludes 0 with
    a mean at least 0.25 off. The effect is the first gap.
    """
    return _of_variants(evidence, REMOVED, judges.near(0, LEAST_GAP))


@claim("heterogeneity-turned")
def turned(evidence: Evidence) -> judges.Finding:
    """Claim: normalised queries and keys reverse the heterogeneity: query blocks grow by one power of sigma slower than
    value blocks (within 0.25).

    The exponent of ||H(Q, Q)||_F minus that of ||H(V, V)||_F, sigma <= 0.1, seed by seed, for scores of normalised
    queries and keys. The claim holds when every interval lies within 0.25 of -1, and does not when one excludes -1 with
    a mean at least 0.25 off. The effect is the first gap.
    """
    return _of_variants(evidence, TURNED, judges.near(-1, LEAST_GAP))


@claim("heterogeneity-raised")
def raised(evidence: Evidence) -> judges.Finding:
    """Claim: sigmoid and sparsemax attention, and norms after sublayers, raise the heterogeneity of softmax attention.

    The gap (exponent of ||H(Q, Q)||_F minus that of ||H(V, V)||_F, sigma <= 0.1) of sigmoid attention without bias, of
    sparsemax and of post-norm, minus the gap of the base network of the same seed. The claim holds when every interval
    is above 0 with a mean of at least 0.5, and does not when one is below 0.5. The effect is the first.
    """
    return _of_variants(evidence, RAISED, judges.at_least(_RAISED_BY), less="")


def _of_variants(
    evidence: Evidence, variants: tuple[str, ...], judge: judges.Judge, *, less: str | None = None
) -> judges.Finding:
    """Judge the gaps of exponents of some variants, each minus that of another of the same seed if one is named."""
    found = gaps(norms(evidence), "variant", window=SMALL)
    known = dict(list(found.groupby(level="variant"))) if len(found) else {}
    if not {*variants, *([] if less is None else [less])} <= set(known):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {', '.join(variants)} and the base")
    of = {name: one.droplevel("variant") for name, one in known.items()}
    samples = {
        f"gap of exponents, {name}": of[name] if less is None else (of[name] - of[less]).dropna() for name in variants
    }
    return judges.together(judges.alike(samples, judge))
