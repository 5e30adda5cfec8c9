"""Rules of claims about shares of the two parts of the Hessian: temperature, heads, one weight for two."""

from collections.abc import Iterator

import numpy as np
import pandas as pd

from hessfig.analysis.axis import X, short_variant, with_settings, without
from hessfig.analysis.claims.judges import Effect, Effects, Finding, alike, at_least, by_conditions, each, missing
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, wide
from hessfig.analysis.curves import seed_shares
from hessfig.record import FROBENIUS
from hessfig.terms import AT_OUTPUTS, AT_SCORES, Group, Part

TEMPERATURE, HEADS, ATTENTION = "model.temperature", "model.n_heads", "model.attention"
LEAST_SHARE = 0.05
QUERY_KEY = Group.query_key.value
_SPLIT, _AT_SCORES = ([part.value for part in split] for split in (AT_OUTPUTS, AT_SCORES))
_QUERY_KEY = ("W_Q", "W_K")


@claim("temperature")
def temperature(evidence: Evidence) -> Finding:
    """Claim: in the query-key part of the Hessian H_f^T dominates as t grows, and H_o^T as t goes to 0.

    A limit, in the split at the scores T of Remark D.1. The share is ||H_f^T||_F / (||H_o^T||_F + ||H_f^T||_F) of the
    block of W_Q and W_K together, seed by seed, for each network and sigma. It crosses 1/2 at t of the order of
    sigma^2, so that a sigma is judged only where t reaches down to sigma^2 / 100. There the claim holds when the share
    at the highest temperature minus 1/2 and 1/2 minus the share at the lowest both have intervals above 0 and means of
    at least 0.05, and does not when one is below 0.05. The effect is the rise of the share from the lowest to the
    highest at the first network and sigma where it holds, else where the rise is largest; the words give the crossings.
    A temperature at which both norms are 0 for some seed (attention that is one-hot up to rounding) has no share.
    """
    of: dict[str, Effects] = {}
    rises: dict[str, Effect] = {}
    said = []
    for place, sigma, along in _along_temperature(evidence):
        enough = along.columns[0] <= sigma**2 / 100 * (1 + 1e-9)
        low, high = along.iloc[:, 0].dropna(), along.iloc[:, -1].dropna()
        parts = {
            "share at the highest - 1/2": high - 0.5,
            "1/2 - share at the lowest": (0.5 - low)[: None if enough else 0],
        }
        of[place] = alike(parts, at_least(LEAST_SHARE))
        rises[place] = Effect((along.iloc[:, -1] - along.iloc[:, 0]).dropna(), at_least(LEAST_SHARE))
        said.append(f"{place}: {_crossing(along.mean())}" + ("" if enough else ", t does not reach sigma^2 / 100"))
    if not of:
        return missing(f"norms of H_oT and H_fT of {QUERY_KEY} for several values of {TEMPERATURE}")
    return by_conditions(of, rises).saying(*said)


def _along_temperature(evidence: Evidence) -> Iterator[tuple[str, float, pd.DataFrame]]:
    """Yield each network and sigma in words, the sigma, and the shares: seeds by rising temperatures."""
    shares = _at_scores(evidence)
    for (place, sigma), one in shares.groupby(level=["place", "sigma"], sort=False) if len(shares) else ():
        along = wide(one.droplevel(["place", "sigma"]), "t").dropna(axis=1)  # one-hot: both norms may be 0
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
def single(evidence: Evidence) -> Finding:
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


@claim("single-matrix-share")
def single_share(evidence: Evidence) -> Finding:
    """Claim: one weight W_QK in place of W_Q W_K^T makes the functional share of the query-key blocks smaller.

    The share ||H_f||_F / (||H_o||_F + ||H_f||_F) (the split at the outputs) of all blocks of W_Q and W_K together
    (their norms squared and added, the pair twice), minus that of the block of W_QK at the same sigma (norms
    interpolated in log-log) and seed, softmax attention. At a sigma the claim holds when the interval of this effect is
    above 0 and the mean at least 0.05, and does not when the interval is below 0.05.
    """
    pairs, one = _pairs(evidence.other("blocks")), _single(evidence)
    places = sorted(set(pairs.index.get_level_values("sigma"))) if len(pairs) else []
    if not places or one.empty:
        return missing("norms of H_o and H_f of the block of W_QK, and of every pair of W_Q and W_K")
    samples = {
        f"sigma = {sigma:g}": (_share(pairs.xs(sigma, level="sigma")) - _share(_at(one, sigma))).dropna()
        for sigma in places
    }
    return by_conditions(each(samples, at_least(LEAST_SHARE)))


@claim("heads-entries")
def heads_entries(evidence: Evidence) -> Finding:
    """Claim: with more heads most entries of the attention Hessian have H_f = 0: the outer product determines them.

    The share of entries of the attention's H_f that are exactly zero (zero_share; between different heads they vanish
    by the theorem, a share of 1 - 1/H of the pairs of heads), seed by seed, at each sigma. There the claim holds when
    the share with the most heads minus that with the fewest, and that with the most minus 1/2, have intervals above 0
    and means of at least 0.05, and does not when one is below 0.05. The effect is the rise of the share.
    """
    rows = evidence.numbers("zero_share", HEADS, part=Part.H_f.value)
    rows = rows[rows["row"].isin(["attention", QUERY_KEY])]
    if rows.empty or rows[HEADS].nunique() < 2:
        return missing(f"zero_share of the attention's H_f for several values of {HEADS}")
    of: dict[str, Effects] = {}
    for sigma, one in rows.assign(heads=rows[HEADS].astype(float)).groupby("sigma"):
        along = wide(by_seed(one, "heads"), "heads")
        parts = {"rise": along.iloc[:, -1] - along.iloc[:, 0], "share with the most - 1/2": along.iloc[:, -1] - 0.5}
        of[f"sigma = {sigma:g}"] = alike(parts, at_least(LEAST_SHARE))
    return by_conditions(of)


@claim("heads-norm")
def heads_norm(evidence: Evidence) -> Finding:
    """Claim: with an increasing number of heads the outer product Hessian dominates the Hessian, in norm.

    The share ||H_f||_F / (||H_o||_F + ||H_f||_F) of the diagonal blocks that have one, averaged, seed by seed, at each
    sigma. There the claim holds when the share with the fewest heads minus that with the most, and 1/2 minus that with
    the most, have intervals above 0 and means of at least 0.05, and does not when one is below 0.05. The effect is the
    fall of the share.
    """
    along = _norm_shares(evidence)
    if along.shape[1] < 2:
        return missing(f"norms of H_o and H_f of diagonal blocks for several values of {HEADS}")
    of: dict[str, Effects] = {}
    for sigma, one in along.groupby(level=X):
        fewest, most = one.iloc[:, 0], one.iloc[:, -1]
        parts = {"fall": (fewest - most).dropna(), "1/2 - share with the most": (0.5 - most).dropna()}
        of[f"sigma = {sigma:g}"] = alike(parts, at_least(LEAST_SHARE))
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
    numbered = shares.assign(heads=shares[HEADS].astype(float))
    return numbered.pivot_table(index=[X, "seed"], columns="heads", values="share")


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
