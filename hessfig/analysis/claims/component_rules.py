"""Rules of claims about components and sizes: moments of attention, powers of weights, depth, width."""

from __future__ import annotations

from functools import partial

import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.growth_rules import BARE, ORMANIEC, SMALL, exponents, gaps
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, diagonal, in_logs, norms, wide
from hessfig.analysis.claims.training_rules import BLOG
from hessfig.terms import Part

SCALE, CORRELATION, HEAD = "model.temperature", "task.correlation", "model.d_head"
WEIGHT, ALPHA = "model.scaled_weight", "model.weight_scale"
NORM = "model.norm"
LEAST_DECADES, LEAST_EXPONENT, LEAST_VANISHING = 0.1, 0.1, 1.0
LEAST_GAP = 0.25
_LAYER = "one self-attention layer at initialisation"
# Section 3.3: powers of |W_Q|, |W_K|, |W_V| in blocks of H_o of one layer, as counted in Theorem 3.1's factors.
COUNTED = {
    "W_Q": {"W_Q": 0, "W_K": 2, "W_V": 2},
    "W_K": {"W_Q": 2, "W_K": 0, "W_V": 2},
    "W_V": {"W_Q": 0, "W_K": 0, "W_V": 0},
}


@claim(*("dispersed", f"{ORMANIEC}, section 3.2", "dispersion"), there=_LAYER, here=BARE)
def dispersed(evidence: Evidence) -> judges.Finding:
    """Claim: dispersed attention lets the query-key blocks of H_o dominate, one-hot attention makes them vanish.

    Along the temperature of the scores, seed by seed: log10 of ||H_o(Q, Q)||_F over ||H_o(V, V)||_F where attention is
    most dispersed, and the decades by which ||H_o(Q, Q)||_F is lower where it is most concentrated. The claim holds
    when both intervals are above 0 with means of at least 0.1 and 1, and does not when one is below. The effect is the
    first.
    """
    found = {row: _along(norms(evidence, SCALE, part=Part.H_o), SCALE, row) for row in ("W_Q", "W_V")}
    if any(one.shape[1] < 2 for one in found.values()):
        return judges.missing(f"norms of H_o of W_Q and W_V for several values of {SCALE}")
    query, value = found["W_Q"], found["W_V"]
    parts = {
        "query over value, dispersed": judges.Effect(
            query.iloc[:, -1] - value.iloc[:, -1], judges.at_least(LEAST_DECADES)
        )
    }
    return judges.together(
        parts | {"fall, one-hot": judges.Effect(query.iloc[:, -1] - query.iloc[:, 0], judges.at_least(LEAST_VANISHING))}
    )


@claim(*("similar-tokens", f"{ORMANIEC}, section 3.2", "similar_tokens"), there=_LAYER, here=BARE)
def similar(evidence: Evidence) -> judges.Finding:
    """Claim: the more similar the tokens, the smaller the contribution of the query-key blocks.

    The effect is the decades by which ||H_o(Q, Q)||_F is lower at the largest correlation of the tokens than at the
    smallest, seed by seed; the claim holds when the interval is above 0 and the mean at least 0.1 decades, and does not
    when the interval is below 0.1.
    """
    logs = _along(norms(evidence, CORRELATION, part=Part.H_o), CORRELATION, "W_Q")
    return _fall(logs, f"norms of H_o of W_Q for several values of {CORRELATION}")


@claim(*("wide-key", f"{ORMANIEC}, section 3.2", "wide_keys"), there=_LAYER, here=BARE)
def wide_key(evidence: Evidence) -> judges.Finding:
    """Claim: with wide keys attention does not depend on the data at initialisation.

    The effect is the decades by which pattern_spread, the spread of the mixing weights, is lower with the widest heads
    than with the narrowest, seed by seed; the claim holds when the interval is above 0 and the mean at least 0.1
    decades, and does not when the interval is below 0.1.
    """
    logs = _along(evidence.numbers("pattern_spread", HEAD), HEAD)
    return _fall(logs, f"pattern_spread for several values of {HEAD}")


def _fall(logs: pd.DataFrame, needed: str) -> judges.Finding:
    """Return the finding of a claim that something falls from the first to the last value of a setting."""
    if logs.shape[1] < 2:
        return judges.missing(needed)
    return judges.single(judges.Effect((logs.iloc[:, 0] - logs.iloc[:, -1]).dropna(), judges.at_least(LEAST_DECADES)))


@claim(*("weight-powers", f"{ORMANIEC}, section 3.3, and slides", "weight_powers"), there=_LAYER, here=BARE)
def weight_powers(evidence: Evidence) -> judges.Finding:
    """Claim: the diagonal blocks of H_o depend on the norms of W_Q, W_K and W_V with the counted powers.

    Exponents of ||H_o(A, A)||_F in the scale of each of the three weights, seed by seed. The claim holds when the
    intervals of all lie within 0.25 of the counted power (0 in the weight itself, 2 in the other two for W_Q and W_K, 0
    for W_V), and does not when one excludes its power with a mean at least 0.25 off. The effect is the exponent of
    ||H_o(Q, Q)||_F in W_K.
    """
    rows = diagonal(norms(evidence, WEIGHT, ALPHA, part=Part.H_o))
    rows = rows.assign(alpha=pd.to_numeric(rows[ALPHA], errors="coerce"))
    found = exponents(rows.dropna(subset="alpha"), "alpha", "row", WEIGHT) if len(rows) else pd.Series(dtype=float)
    groups = dict(list(found.groupby(level=["row", WEIGHT]))) if len(found) else {}
    effects = {
        f"exponent of H_o({row}, {row}) in |{weight}|": judges.Effect(
            groups[row, weight], judges.near(power, LEAST_GAP)
        )
        for row, powers in COUNTED.items()
        for weight, power in powers.items()
        if (row, weight) in groups
    }
    shown = "exponent of H_o(W_Q, W_Q) in |W_K|"
    if shown not in effects:
        return judges.missing("norms of blocks of H_o against scales of W_Q, W_K and W_V")
    return judges.together(effects, shown)


@claim(
    *("size-spectrum", f"{BLOG}, section 7", "model_size_width", "model_size_depth"),
    figure="model_size_width",
    there="transformers in general",
    here="one layer of width 16 to 256, and 1 to 6 layers of width 64, untrained, 5 seeds",
)
def size_spectrum(evidence: Evidence) -> judges.Finding:
    """Claim: the spectrum of the Hessian widens with the size of the network.

    Exponents of the largest eigenvalue of the whole H in the width and in the number of layers, seed by seed. Along one
    of the two the claim holds when the interval is above 0 and the mean at least 0.1, and does not when the interval is
    below 0.1. The effect is that of the first that holds, else the largest.
    """
    tables = {"model.d_model": evidence, "model.n_layers": evidence.other("model_size_depth")}
    samples = {}
    for setting, one in tables.items():
        rows = one.numbers("largest_eigenvalue", setting, row="all", part=Part.H.value)
        of = exponents(_numbered(rows[rows["index"] <= 1], setting), "size")
        if len(of.dropna()):
            samples[f"along {setting}"] = of
    if not samples:
        return judges.missing("largest eigenvalues of the whole network against width or depth")
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_EXPONENT)))


@claim(
    *("norm-depth", f"{BLOG}, section 7", "depth_norm"),
    there="transformers in general",
    here="1 to 5 layers, untrained",
)
def norm_depth(evidence: Evidence) -> judges.Finding:
    """Claim: block norms grow with depth, and pre-norm prevents it.

    The exponent of ||H||_F of the first layer's blocks, averaged in logarithms, in the number of layers, seed by seed:
    without a norm, and with pre-norm. The claim holds when the interval of the first is above 0 with a mean of at least
    0.1 and that of the second is below 0.1, and does not when one is the other way round. The effect is the exponent
    without a norm.
    """
    rows = in_logs(diagonal(norms(evidence, NORM)))
    first = rows[rows["layer"] == 1]
    means = by_seed(first, NORM, "num_layers").reset_index()
    found = exponents(means.assign(value=10 ** means["value"]), "num_layers", NORM)
    kinds = dict(list(found.groupby(level=NORM))) if len(found) else {}
    if not {"none", "pre"} <= set(kinds):
        return judges.missing(f"norms of blocks for several depths with {NORM}=none and {NORM}=pre")
    parts = {"exponent, no norm": judges.Effect(kinds["none"], judges.at_least(LEAST_EXPONENT))}
    return judges.together(
        parts | {"exponent, pre-norm": judges.Effect(kinds["pre"], partial(judges.stays_below, most=LEAST_EXPONENT))}
    )


def _numbered(rows: pd.DataFrame, setting: str) -> pd.DataFrame:
    return rows.assign(size=pd.to_numeric(rows[setting], errors="coerce")).dropna(subset="size")


def _along(rows: pd.DataFrame, setting: str, row: str = "") -> pd.DataFrame:
    """Return the mean log10 of a quantity (of a weight's diagonal block): rows are seeds, columns ascending values."""
    kept = in_logs(_numbered(diagonal(rows[rows["row"] == row]) if row else rows, setting))
    return wide(by_seed(kept, "size"), "size") if len(kept) else pd.DataFrame()


OURS = "hessfig (this package)"
REMOVED = ("model.attention=linear", "model.norm=pre", "model.norm=sandwich")
TURNED = ("model.scores=qk_norm", "model.scores=cosine")
RAISED = ("model.attention=sigmoid", "model.attention=sparsemax", "model.norm=post")
_RAISED_BY = 0.5
_COMPONENTS = {"there": "predicted by counting powers", "here": "one layer, d_model 64, untrained, 10 seeds"}


@claim("heterogeneity-removed", OURS, "components", **_COMPONENTS)
def removed(evidence: Evidence) -> judges.Finding:
    """Claim: linear attention, and norms before or around sublayers, let value and query blocks grow alike with sigma.

    Exponents of ||H||_F in sigma, sigma <= 0.1, seed by seed: that of W_Q less that of W_V, for linear attention, pre-
    and sandwich norm. The claim holds when every interval lies within 0.25 of 0, and does not when one excludes 0 with
    a mean at least 0.25 off. The effect is the first gap.
    """
    return _of_variants(evidence, REMOVED, judges.near(0, LEAST_GAP))


@claim("heterogeneity-turned", OURS, "components", **_COMPONENTS)
def turned(evidence: Evidence) -> judges.Finding:
    """Claim: normalised queries and keys turn the heterogeneity round: query blocks grow slower than value blocks.

    The exponent of ||H(Q, Q)||_F less that of ||H(V, V)||_F, sigma <= 0.1, seed by seed, for scores of normalised
    queries and keys. The claim holds when every interval lies within 0.25 of -1, and does not when one excludes -1 with
    a mean at least 0.25 off. The effect is the first gap.
    """
    return _of_variants(evidence, TURNED, judges.near(-1, LEAST_GAP))


@claim("heterogeneity-raised", OURS, "components", **_COMPONENTS)
def raised(evidence: Evidence) -> judges.Finding:
    """Claim: sigmoid and sparsemax attention, and norms after sublayers, raise the heterogeneity of softmax attention.

    The gap (exponent of ||H(Q, Q)||_F less that of ||H(V, V)||_F, sigma <= 0.1) of sigmoid attention without bias, of
    sparsemax and of post-norm, less the gap of the base network of the same seed. The claim holds when every interval
    is above 0 with a mean of at least 0.5, and does not when one is below 0.5. The effect is the first.
    """
    return _of_variants(evidence, RAISED, judges.at_least(_RAISED_BY), less="")


def _of_variants(
    evidence: Evidence, variants: tuple[str, ...], judge: judges.Judge, *, less: str | None = None
) -> judges.Finding:
    """Judge the gaps of exponents of some variants, each less that of another of the same seed if one is told."""
    found = gaps(norms(evidence), "variant", window=SMALL)
    known = dict(list(found.groupby(level="variant"))) if len(found) else {}
    if not {*variants, *([] if less is None else [less])} <= set(known):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {', '.join(variants)} and the base")
    by_seed_alone = {name: one.droplevel("variant") for name, one in known.items()}
    samples = {
        name: by_seed_alone[name] if less is None else (by_seed_alone[name] - by_seed_alone[less]).dropna()
        for name in variants
    }
    return judges.together({f"gap of exponents, {name}": judges.Effect(one, judge) for name, one in samples.items()})


COMPONENTS = (*(dispersed, similar, wide_key, weight_powers, size_spectrum, norm_depth), *(removed, turned, raised))
