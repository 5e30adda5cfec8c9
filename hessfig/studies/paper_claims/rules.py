"""Rules about parts and blocks of one layer: shares of H_o and H_f, moments of attention, powers of weights, values."""

from collections.abc import Callable, Iterator

import numpy as np
import pandas as pd

from hessfig.analysis.axis import X, short_variant, with_settings, without
from hessfig.analysis.claims.effects import (
    LEAST_DECADES,
    LEAST_GAP,
    LEAST_SHARE,
    by_seed,
    columns_of_level,
    diagonal_rows,
    exponents,
    in_logs,
    norms,
    numbered,
)
from hessfig.analysis.claims.judges import (
    ClaimVerdict,
    Effect,
    Effects,
    Finding,
    at_least,
    by_conditions,
    each,
    effects_by_name,
    in_parts,
    missing,
    near,
    single,
)
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.analysis.curves import seed_shares
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import growth_rate
from hessfig.record import FROBENIUS
from hessfig.terms import AT_OUTPUTS, AT_SCORES, Block, Group, Kind, Part

TEMPERATURE, HEADS = "model.temperature", "model.n_heads"
CORRELATION, HEAD = "task.correlation", "model.d_head"
WEIGHT, ALPHA = "model.scaled_weight", "model.weight_scale"
LEAST_VANISHING = 1.0
QUERY_KEY = Group.query_key.value
AFTER, ADDITION = "vision transformer, trained", "addition, trained"
_SPLIT, _AT_SCORES = ([part.value for part in split] for split in (AT_OUTPUTS, AT_SCORES))
_PAIRS = (("W_V", "W_V"), ("W_Q", "W_Q"), ("W_K", "W_K"), ("W_V", "W_Q"), ("W_Q", "W_K"))


@claim("temperature")
def temperature(evidence: Evidence) -> Finding:
    """Claim: in the query-key part of the Hessian H_f^T dominates as t grows, and H_o^T as t goes to 0.

    A limit, in the split at the scores T of Remark D.1. The share is ||H_f^T||_F / (||H_o^T||_F + ||H_f^T||_F) of the
    block of W_Q and W_K together, seed by seed, for each network and sigma. It crosses 1/2 at t of the order of
    sigma^2, so that a sigma is judged only where t reaches down to sigma^2 / 100. There the claim holds when the share
    at the highest temperature minus 1/2 and 1/2 minus the share at the lowest both have intervals above 0 and means of
    at least 0.05, and does not when one is below 0.05. The effect is the rise of the share from the lowest to the
    highest at the first network and sigma where it holds, else where the rise is largest; notes give the crossings.
    A temperature at which both norms are 0 for some seed (attention that is one-hot up to rounding) has no share.
    """
    of: dict[str, Effects] = {}
    rises: dict[str, Effect] = {}
    notes = {}
    for place, sigma, along in _along_temperature(evidence):
        enough = along.columns[0] <= sigma**2 / 100 * (1 + 1e-9)
        low, high = along.iloc[:, 0].dropna(), along.iloc[:, -1].dropna()
        parts = {
            "share at the highest - 1/2": high - 0.5,
            "1/2 - share at the lowest": (0.5 - low)[: None if enough else 0],
        }
        of[place] = effects_by_name(parts, at_least(LEAST_SHARE))
        rises[place] = Effect((along.iloc[:, -1] - along.iloc[:, 0]).dropna(), at_least(LEAST_SHARE))
        notes[place] = _crossing(along.mean()) + ("" if enough else ", t does not reach sigma^2 / 100")
    if not of:
        return missing(f"norms of H_oT and H_fT of {QUERY_KEY} for several values of {TEMPERATURE}")
    return by_conditions(of, rises, notes=notes)


def _along_temperature(evidence: Evidence) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Yield each network and sigma in words, the sigma, and the shares: seeds by rising temperatures."""
    shares = _at_scores(evidence)
    for (place, sigma), here in shares.groupby(level=["place", "sigma"], sort=False) if len(shares) else ():
        along = columns_of_level(here.droplevel(["place", "sigma"]), "t").dropna(axis=1)  # one-hot: both norms may be 0
        if along.shape[1] > 1:
            yield place, float(sigma), along


def _crossing(share: pd.Series) -> str:
    """Return in words at which temperature a rising share crosses 1/2, linear in the logarithm of t."""
    above = np.flatnonzero(share.to_numpy() >= 0.5)
    if not len(above) or above[0] == 0:
        return "no crossing of 1/2 between the ends of t"
    ends = slice(above[0] - 1, above[0] + 1)
    log = np.interp(0.5, share.to_numpy()[ends], np.log(share.index.to_numpy(float)[ends]))
    return f"1/2 at t = {np.exp(log):.2g}"


@claim("single-matrix")
def single_matrix(evidence: Evidence) -> Finding:
    """Claim: the Hessian of one weight W_QK has no counterpart of H_f^T, which double parametrisation adds.

    For W_QK the lemma gives H_f^T = 0 exactly. What two weights add is the share ||H_f^T||_F / (||H_o^T||_F +
    ||H_f^T||_F) of their common block at temperature 1, seed by seed. At a network and sigma the claim holds when the
    interval of the share is above 0 and its mean at least 0.05, and does not when the interval is below 0.05. The
    effect is the share at the first where it holds, else the largest.
    """
    shares = _at_scores(evidence)
    plain = shares[shares.index.get_level_values("t") == 1.0] if len(shares) else shares
    if plain.empty:
        return missing(f"norms of H_oT and H_fT of {QUERY_KEY} at temperature 1")
    return by_conditions(each(dict(list(plain.groupby(level="place", sort=False))), at_least(LEAST_SHARE)))


@claim("heads")
def heads(evidence: Evidence) -> Finding:
    """Claim: with more heads most entries of the attention Hessian have H_f = 0, and H_o dominates the Hessian.

    Two statements, each with a verdict, seed by seed at each sigma. (entries) the share of entries of the
    attention's H_f that are exactly zero (zero_share; between different heads they vanish by the theorem, a share of
    1 - 1/H of the pairs of heads) rises from the fewest heads to the most, and is above 1/2 there. (norm) the share
    ||H_f||_F / (||H_o||_F + ||H_f||_F) of the diagonal blocks that have one, averaged, falls, and is below 1/2 there. A
    statement holds when both intervals are above 0 with means of at least 0.05, and does not when one is below 0.05;
    the claim holds when both statements do. The effect is the rise of the share of zeros.
    """
    return in_parts({"entries": _zero_entries(evidence), "norm": _norms_by_heads(evidence.other("heads"))})


def _zero_entries(evidence: Evidence) -> Finding:
    rows = evidence.numbers("zero_share", HEADS, part=Part.H_f.value)
    rows = rows[rows["row"].isin(["attention", QUERY_KEY])]
    if rows.empty or rows[HEADS].nunique() < 2:
        return missing(f"zero_share of the attention's H_f for several values of {HEADS}")
    of: dict[str, Effects] = {}
    for sigma, here in rows.assign(heads=rows[HEADS].astype(float)).groupby("sigma"):
        along = columns_of_level(by_seed(here, "heads"), "heads")
        parts = {"rise": along.iloc[:, -1] - along.iloc[:, 0], "share with the most - 1/2": along.iloc[:, -1] - 0.5}
        of[f"sigma = {sigma:g}"] = effects_by_name(parts, at_least(LEAST_SHARE))
    return by_conditions(of)


def _norms_by_heads(evidence: Evidence) -> Finding:
    along = _norm_shares(evidence)
    if along.shape[1] < 2:
        return missing(f"norms of H_o and H_f of diagonal blocks for several values of {HEADS}")
    of: dict[str, Effects] = {}
    for sigma, shares in along.groupby(level=X):
        fewest, most = shares.iloc[:, 0], shares.iloc[:, -1]
        parts = {"fall": (fewest - most).dropna(), "1/2 - share with the most": (0.5 - most).dropna()}
        of[f"sigma = {sigma:g}"] = effects_by_name(parts, at_least(LEAST_SHARE))
    return by_conditions(of)


def _at_scores(evidence: Evidence) -> pd.Series:
    """Return the share of H_f^T of the query-key block by (place, sigma, t, seed); a place is a network at a sigma."""
    rows = with_settings(evidence.numbers(FROBENIUS, row=QUERY_KEY), TEMPERATURE, default="1")
    rows = rows[rows["part"].isin(_AT_SCORES)]
    if rows.empty:
        return pd.Series(dtype=float)
    rows = rows.assign(t=rows[TEMPERATURE].astype(float), place=list(map(_place, rows["variant"], rows["sigma"])))
    norms = rows.pivot_table(index=["place", "sigma", "t", "seed"], columns="part", values="value", sort=False)
    outer, functional = (norms.get(part, pd.Series(dtype=float)) for part in _AT_SCORES)
    return (functional / (outer + functional)).dropna()


def _place(variant: str, sigma: float) -> str:
    return ", ".join(filter(None, [short_variant(without(variant, TEMPERATURE)), f"sigma = {sigma:g}"]))


def _norm_shares(evidence: Evidence) -> pd.DataFrame:
    """Return the functional share of the norm, averaged over blocks that have one: (sigma, seed) by number of heads."""
    table = evidence.table[(evidence.table["quantity"] == FROBENIUS) & evidence.table["part"].isin(_SPLIT)]
    own = table[table["row"] == table["col"]]
    if own.empty:
        return pd.DataFrame()
    shares = with_settings(seed_shares(own), HEADS, default="nan")
    shares = shares[shares.groupby(["row", "layer"])["share"].transform("max") > 0]
    by_heads = shares.assign(heads=shares[HEADS].astype(float))
    return by_heads.pivot_table(index=[X, "seed"], columns="heads", values="share")


@claim("dispersed")
def dispersed(evidence: Evidence) -> Finding:
    """Claim: dispersed attention lets the query-key blocks of H_o dominate, one-hot attention makes them diminish.

    The source varies the scores at fixed weights and inputs; the sweep varies the temperature t, which multiplies the
    query-key blocks by 1/t^2 besides. That factor is divided out: the contribution is log10 of t^2 ||H_o(Q, Q)||_F over
    ||H_o(V, V)||_F, seed by seed. The claim is in two halves: (dispersed: dominates) the contribution where attention
    is most dispersed; (one-hot: diminishes) how much lower it is where attention is most concentrated. A half of the
    claim holds when its interval is above 0 with a mean of at least 0.1 decades (dominates) or 1 (diminishes), and does
    not when the interval is below that. The effect is the first, the contribution where attention is dispersed.
    """
    share = _query_over_value(evidence, TEMPERATURE, lambda t: 2 * np.log10(t))
    if share.shape[1] < 2:
        return missing(f"norms of H_o of W_Q and W_V for several values of {TEMPERATURE}")
    dispersed, concentrated = share.iloc[:, -1], share.iloc[:, 0]
    dominates = Effect(dispersed.dropna(), at_least(LEAST_DECADES))
    diminishes = Effect((dispersed - concentrated).dropna(), at_least(LEAST_VANISHING))
    halves = {"dispersed: dominates": {"": dominates}, "one-hot: diminishes": {"": diminishes}}
    return by_conditions(halves, shown="dispersed: dominates")


@claim("similar-tokens")
def similar(evidence: Evidence) -> Finding:
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
        return missing(f"norms of H_o of W_Q and W_V for several values of {CORRELATION}")
    falls = {"as it is": plain, "beyond the counted (1 - rho)^2": beyond}
    samples = {name: (decades.iloc[:, 0] - decades.iloc[:, -1]).dropna() for name, decades in falls.items()}
    return by_conditions(each(samples, at_least(LEAST_DECADES)), shown="as it is")


@claim("wide-key")
def wide_key(evidence: Evidence) -> Finding:
    """Claim: with wide keys attention does not depend on the data at initialisation.

    This rests on the initialisation: with the paper's weights, N(0, 0.64 / d_V), the variance of the scores does not
    depend on d_K; with a variance of 1 / d_K it would fall. The effect is the decades by which pattern_spread, the
    spread of the mixing weights (a stand-in for their dependence on the data), is lower with the widest heads than
    with the narrowest, seed by seed; the claim holds when the interval is above 0 and the mean at least 0.1 decades,
    and does not when the interval is below 0.1.
    """
    logs = _along(evidence.numbers("pattern_spread", HEAD), HEAD)
    if logs.shape[1] < 2:
        return missing(f"pattern_spread for several values of {HEAD}")
    finding = single(Effect((logs.iloc[:, 0] - logs.iloc[:, -1]).dropna(), at_least(LEAST_DECADES)))
    return finding.saying("not as initialised here" * (finding.verdict == ClaimVerdict.does_not_hold))


@claim("weight-powers")
def weight_powers(evidence: Evidence) -> Finding:
    """Claim: the blocks of H_o and H_f depend on the norms of W_Q, W_K and W_V with the counted powers.

    Exponents of the norms of the diagonal blocks, of (V, Q) and of (Q, K), of H_o and of H_f, in the scale of each of
    the three weights, seed by seed. The counted power is that of `hessfig predict` for the scale of that weight. For
    H_o and for H_f the claim holds when the intervals of all lie within 0.25 of it, and does not when one excludes it
    with a mean at least 0.25 off. The effect is the exponent of ||H_o(Q, Q)||_F in W_K.
    """
    of: dict[str, Effects] = {}
    for part in (Part.H_o, Part.H_f):
        effects = _powers(norms(evidence, WEIGHT, ALPHA, part=part), part, evidence)
        of |= {str(part): effects} if effects else {}
    shown = "(W_Q, W_Q) in |W_K|"
    if shown not in of.get(Part.H_o.value, {}):
        return missing("norms of blocks of H_o against scales of W_Q, W_K and W_V")
    effects = {name: parts.get(shown, next(iter(parts.values()))) for name, parts in of.items()}
    return by_conditions(of, effects, shown=Part.H_o.value)


def _powers(rows: pd.DataFrame, part: Part, evidence: Evidence) -> Effects:
    """Return the exponent of every block of a part in the scale of every weight, next to its counted power."""
    if rows.empty:
        return {}
    sides = zip(rows["row"], rows["col"], strict=True)  # a pair is stored once, whichever way round
    kept = rows[[(row, col) in _PAIRS or (col, row) in _PAIRS for row, col in sides]]
    scaled = numbered(kept, ALPHA)
    known = next(iter(evidence.architectures.values()), Architecture(kind=Kind.self_attention))
    slopes = exponents(scaled, "size", "row", "col", WEIGHT) if len(scaled) else pd.Series(dtype=float)
    effects = {}
    for (row, col, weight), sample in slopes.groupby(level=[0, 1, 2]) if len(slopes) else ():
        power = growth_rate(Block(1, row, col, 1), part, known, axis=weight).exponent
        if power is not None:
            effects[f"({row}, {col}) in |{weight}|"] = Effect(sample, near(power, LEAST_GAP))
    return effects


def _query_over_value(evidence: Evidence, setting: str, extra: Callable[[pd.Index], pd.Index]) -> pd.DataFrame:
    """Return log10 of ||H_o(Q, Q)||_F over ||H_o(V, V)||_F, and what `extra` adds: seeds by values of a setting."""
    rows = norms(evidence, setting, part=Part.H_o)
    query, value = (_along(rows, setting, row) for row in ("W_Q", "W_V"))
    return query - value + extra(query.columns) if len(query) and len(value) else pd.DataFrame()


def _along(rows: pd.DataFrame, setting: str, row: str = "") -> pd.DataFrame:
    """Return the mean log10 of a quantity (of a weight's diagonal block): rows are seeds, columns ascending values."""
    kept = in_logs(numbered(diagonal_rows(rows[rows["row"] == row]) if row else rows, setting))
    return columns_of_level(by_seed(kept, "size"), "size") if len(kept) else pd.DataFrame()


@claim("values-trained")
def values_trained(evidence: Evidence) -> Finding:
    """Claim: after training the (V, V) block is the largest of the attention's query, key and value blocks.

    At the last step, seed by seed: log10 of the Frobenius norm of the full Hessian's (V, V) block over the larger of
    those of (Q, Q) and (K, K), which are of the same size, averaged over layers; for the vision transformer, of which
    the source speaks, and second for the transformer trained on addition. For a network the claim holds when the
    interval is above 0 and the mean at least 0.1 decades, and does not when the interval is below 0.1. The effect is
    that of the vision transformer.
    """
    ends = {AFTER: evidence.at_step(-1), ADDITION: evidence.other("curvature_flow").at_step(-1)}
    sizes = {name: _norms_of_layers(end) for name, end in ends.items()}
    if lacking := [name for name, norms in sizes.items() if not {"W_Q", "W_K", "W_V"} <= set(norms.columns)]:
        return missing(f"norms of the blocks of W_Q, W_K and W_V after a training: {', '.join(lacking)}")
    samples = {
        name: np.log10(norms["W_V"] / norms[["W_Q", "W_K"]].max(axis=1)).dropna() for name, norms in sizes.items()
    }
    return by_conditions(each(samples, at_least(LEAST_DECADES)), shown=AFTER)


def _norms_of_layers(evidence: Evidence) -> pd.DataFrame:
    """Return the norm of every diagonal block of a layer, averaged over layers in its logarithm: one row per seed."""
    rows = diagonal_rows(norms(evidence))
    logs = in_logs(rows[rows["layer"] > 0], np.log)
    return np.exp(logs.pivot_table(index="seed", columns="row", values="value"))
