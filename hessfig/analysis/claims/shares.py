"""Claims of the first paper about which part of the Hessian rules: temperature, heads, one query-key weight."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from hessfig.analysis.axis import X
from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.claims.rule import (
    Claim,
    Finding,
    Verdict,
    all_of,
    by_condition,
    exceeds,
    found,
    missing,
)
from hessfig.analysis.interval import Interval, difference_interval, student_interval
from hessfig.analysis.shares import seed_shares
from hessfig.analysis.variants import assignments
from hessfig.record import FROBENIUS
from hessfig.terms import Part

TEMPERATURE, HEADS, ATTENTION = "model.temperature", "model.n_heads", "model.attention"
LEAST_SHARE = 0.05
_QUERY_KEY = ("W_Q", "W_K")
_SPLIT = (Part.H_o, Part.H_f)


def temperature(evidence: Evidence) -> Finding:
    """The share of a block is ||H_f||_F / (||H_o||_F + ||H_f||_F), averaged over the query and key blocks that were
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


def heads(evidence: Evidence) -> Finding:
    """The share of a block is ||H_f||_F / (||H_o||_F + ||H_f||_F), averaged over the diagonal blocks that have a
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


def single(evidence: Evidence) -> Finding:
    """The share ||H_f||_F / (||H_o||_F + ||H_f||_F) of the query-key part of the Hessian: of all blocks of W_Q and W_K
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
    verdicts = {name: exceeds(interval, LEAST_SHARE) for name, interval in contrasts.items()}
    verdict, words = by_condition(verdicts)
    shown = _shown(verdicts, contrasts)
    return found(contrasts[shown], verdict, words or shown, contrasts)


def _by_setting(evidence: Evidence, setting: str, rows: tuple[str, ...] = ()) -> pd.DataFrame:
    """Return shares with a row a (sigma, seed) and a column a value of the setting, rising."""
    table = evidence.table[evidence.table["quantity"] == FROBENIUS]
    diagonal = table[(table["row"] == table["col"]) & (table["row"].isin(rows) if rows else True)]
    if diagonal.empty:
        return pd.DataFrame()
    shares = seed_shares(diagonal)
    values = [assignments(variant).get(setting, "nan") for variant in shares["variant"]]
    shares = shares.assign(setting=np.asarray(values, dtype=float))
    alive = shares[shares.groupby(["row", "layer"])["share"].transform("max") > 0]
    return alive.pivot_table(index=[X, "seed"], columns="setting", values="share").dropna()


def _by_sigma(parts: Mapping[str, pd.Series], effect: pd.Series) -> Finding:
    """Return the finding of a claim that needs all `parts` at a sigma; each is a number a (sigma, seed)."""
    places = list(dict.fromkeys(effect.index.get_level_values(X)))
    contrasts: dict[str, Interval] = {}
    verdicts, effects = {}, {}
    for place in places:
        name, tests = f"sigma = {place:g}", len(parts) * len(places)
        ours = {f"{name}: {k}": student_interval(one.loc[place], tests=tests) for k, one in parts.items()}
        verdicts[name] = all_of(exceeds(one, LEAST_SHARE) for one in ours.values())
        effects[name] = student_interval(effect.loc[place], tests=len(places))
        contrasts |= ours
    verdict, words = by_condition(verdicts)
    shown = _shown(verdicts, effects)
    return found(effects[shown], verdict, words or shown, contrasts)


def _shown(verdicts: Mapping[str, Verdict], effects: Mapping[str, Interval]) -> str:
    """Return the first place where the claim holds, else the one with the largest effect."""
    first = next((name for name, one in verdicts.items() if one == Verdict.holds), None)
    return first or max(effects, key=lambda name: np.nan_to_num(effects[name].mean, nan=-np.inf))


def _pairs(evidence: Evidence) -> pd.DataFrame:
    """Return the norms of H_o and H_f of all blocks of W_Q and W_K together, by (sigma, seed)."""
    rows = evidence.numbers(FROBENIUS)
    rows = rows[rows["row"].isin(_QUERY_KEY) & rows["col"].isin(_QUERY_KEY) & rows["part"].isin(_SPLIT)]
    if not (rows["row"] != rows["col"]).any():
        return pd.DataFrame()
    # a pair is stored once, whichever way round
    several = rows.assign(square=rows["value"] ** 2 * np.where(rows["row"] == rows["col"], 1, 2))
    return np.sqrt(
        several.pivot_table(index=["sigma", "seed"], columns="part", values="square", aggfunc="sum")
    )


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
        found[seed] = {
            part: np.exp(np.interp(np.log(sigma), places, np.log(one[part].to_numpy()))) for part in norms
        }
    return pd.DataFrame.from_dict(found, orient="index")


def _share(norms: pd.DataFrame) -> pd.Series:
    outer, functional = (norms[part] for part in _SPLIT)
    return functional / (outer + functional)


CLAIMS = (
    Claim(
        "temperature",
        "Ormaniec et al. (ICLR 2025), section 4.3",
        "the functional part dominates the query-key blocks at high temperature, the outer-product part at low",
        sweep="temperature",
        figure="temperature",
        rule=temperature,
    ),
    Claim(
        "heads",
        "Ormaniec et al. (ICLR 2025), appendix E",
        "with an increasing number of heads the outer-product part dominates the Hessian",
        sweep="heads",
        figure="heads",
        rule=heads,
    ),
    Claim(
        "single-matrix",
        "Ormaniec et al. (ICLR 2025), section 4.2",
        "one weight W_QK in place of W_Q W_K^T makes the functional share of the query-key blocks smaller",
        sweep="single_matrix",
        figure="single_matrix",
        rule=single,
        beside=("blocks",),
    ),
)
