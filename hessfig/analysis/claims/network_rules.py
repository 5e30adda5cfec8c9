"""Rules of claims about transformers beside MLPs, and about sublayers."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from itertools import pairwise

import numpy as np
import pandas as pd

from hessfig.analysis.arrays import StoredHessian
from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims import rule
from hessfig.analysis.claims.rule import Evidence, Finding, claim, exceeds, found, missing
from hessfig.analysis.intervals import Interval, difference_interval, student_interval
from hessfig.analysis.spectral_distances import is_weight, pair_distances
from hessfig.analysis.stored_spectra import Place
from hessfig.record import FROBENIUS
from hessfig.terms import Part

KIND, ATTENTION = "model.kind", "model.attention"
TRANSFORMER, MLP = "transformer", "mlp"
LEAST_DISTANCE = 0.02  # of ln 2 = 0.69
LEAST_MISFIT = 0.05  # in natural logarithms: 5 %
_PAIR = [KIND, ATTENTION, "sigma", "seed"]


@claim("zhang-heterogeneity", "arXiv 2402.16788", "heterogeneity")
def heterogeneity(evidence: Evidence) -> Finding:
    """Claim: untrained, the spectra of a transformer's blocks differ more from each other than those of an MLP's.

    The effect is the mean over seeds of JS^0 (the average Jensen-Shannon distance between the spectra of the
    full Hessian's blocks) of transformers less that of MLPs, with Welch's interval; it holds when the interval is
    above 0 and the effect at least 0.02, and does not when the interval is below 0.02.

    Sigmas and several variants of one kind are averaged within a seed.
    """

    def wanted(place: Place) -> bool:
        return is_weight(place) and place.part == Part.H

    _, every = pair_distances(evidence.spectra(wanted))
    every = with_settings(every, KIND)
    return _compared(every.rename(columns={"average": "value"}), "spectra", LEAST_DISTANCE)


@claim("gauss-newton-worse", "slides", "gauss_newton")
def proxy(evidence: Evidence) -> Finding:
    """Claim: the Gauss-Newton part is a worse proxy of the largest eigenvalue for transformers than for MLPs.

    The misfit of the proxy is |log(largest eigenvalue of H_o / largest eigenvalue of H)| of the whole network,
    averaged over all sigmas of a seed; the effect is its mean over seeds for transformers with softmax less that for
    MLPs, with Welch's interval; it holds when the interval is above 0 and the effect at least 0.05 (5 %), and does
    not when the interval is below 0.05.

    A pair of which one eigenvalue is not positive has no misfit and is left out.
    """
    rows = evidence.numbers("largest_eigenvalue", KIND, ATTENTION, row="all")
    rows = rows[rows["index"] <= 1]
    wide = rows.pivot_table(index=_PAIR, columns="part", values="value", dropna=False)
    if not {Part.H, Part.H_o} <= set(wide.columns):
        return missing("largest eigenvalues of H_o and H of the whole network")
    with np.errstate(divide="ignore", invalid="ignore"):
        misfits = np.abs(np.log(wide[Part.H_o] / wide[Part.H])).rename("value").reset_index()
    return _compared(misfits[misfits[ATTENTION].isin(["softmax", ""])], "eigenvalues", LEAST_MISFIT)


def _compared(rows: pd.DataFrame, what: str, least: float) -> Finding:
    """Return the finding of transformers less MLPs: of each, the mean of the finite numbers of each seed."""
    finite = rows[np.isfinite(rows["value"])]
    one, other = (finite[finite[KIND] == kind].groupby("seed")["value"].mean() for kind in (TRANSFORMER, MLP))
    if one.empty or other.empty:
        return missing(f"{what} of {KIND}={TRANSFORMER} and {KIND}={MLP}")
    interval = difference_interval(one, other)
    words = f"{TRANSFORMER} {one.mean():.3g} ({len(one)} seeds), {MLP.upper()} {other.mean():.3g} ({len(other)})"
    return found(interval, exceeds(interval, least), words)


KINDS = (heterogeneity, proxy)


LEAST_DECADES = 0.1  # a quarter more
LEAST_FAR = 0.5  # decades: a factor of three, for "much less"
MOST_COUPLING = 0.3  # of 1, for a Hessian of rank one
_SAME_SIZE = ("W_Q", "W_K", "W_O")
_ATTENTION, _FFN = ("W_Q", "W_K", "W_V", "W_O"), ("W_in", "W_out")
_GROUPS = {
    "embeddings": ("W_E", "W_patch", "b_patch", "W_pos"),
    "query and key": ("W_Q", "W_K"),
    "feed-forward": _FFN,
    "value and output": ("W_V", "W_O"),
    "norms": ("ln1_gain", "ln1_shift", "ln2_gain", "ln2_shift", "ln_out_gain", "ln_out_shift"),
}
_FAR = ("query and key",)  # the steps that are told as "much less" end there


@claim("values-largest", "arXiv 2510.16927", "sublayers")
def values_largest(evidence: Evidence) -> Finding:
    """Claim: the value block has the largest entries among the attention's blocks.

    Before training, seed by seed: log10 of the Frobenius norm of the full Hessian's (V, V) block over the largest of
    those of (Q, Q), (K, K) and (O, O), which have as many entries. The effect is its mean over seeds; the claim holds
    when the interval is above 0 and the effect at least 0.1 decades, and does not when the interval is below 0.1.
    """
    wide = _norms(evidence.at_step(0))
    if not {"W_V", *_SAME_SIZE} <= set(wide.columns):
        return missing("norms of the blocks of W_Q, W_K, W_V and W_O")
    interval = student_interval(np.log10(wide["W_V"] / wide[list(_SAME_SIZE)].max(axis=1)))
    return found(interval, exceeds(interval, LEAST_DECADES))


@claim("keys-values-highest", "arXiv 2510.16927", "sublayers")
def keys_values(evidence: Evidence) -> Finding:
    """Claim: keys and values have the highest Hessian norms among the parameter groups of a vision transformer.

    Seed by seed, before and after training: log10 of the smaller of the norms of the full Hessian's key and value
    blocks over the largest of those of every other block within the layer. At a step the claim holds when the interval
    (95 % of both together, Bonferroni) is above 0 and the mean at least 0.1 decades, and does not when the interval is
    below 0.1. The effect is that of the last step.
    """
    steps = evidence.steps()
    ends = dict.fromkeys([steps[0], steps[-1]]) if steps else {}
    contrasts: dict[str, Interval] = {}
    for step in ends:
        wide = _norms(evidence.of_step(step))
        others = [name for name in wide.columns if name not in ("W_K", "W_V")]
        if not {"W_K", "W_V", "W_Q"} <= set(wide.columns):
            break
        logs = np.log10(wide[["W_K", "W_V"]].min(axis=1) / wide[others].max(axis=1))
        contrasts[f"step = {step:g}"] = student_interval(logs, tests=len(ends))
    if not contrasts:
        return missing("norms of the blocks of a layer at steps of a training")
    return rule.concluded(rule.each(contrasts, partial(exceeds, least=LEAST_DECADES)), list(contrasts)[-1])


@claim("block-independence", "blog on arXiv 2510.16927", "blocks")
def coupling(evidence: Evidence) -> Finding:
    """Claim: attention and feed-forward curvature are relatively independent: their off-diagonal blocks are small.

    The coupling of attention and feed-forward weights of a layer is ||H(a, f)||_F / sqrt(||H(a, a)||_F
    ||H(f, f)||_F), the norms of their pairs of weights squared and added, seed by seed, at each sigma. The effect is
    the largest mean over sigmas; at a sigma the claim holds when the interval (95 % of all together, Bonferroni) is
    below 0.3, and does not when it is above.
    """
    rows = evidence.numbers(FROBENIUS, part=Part.H.value)
    squares = {
        pair: _squares(rows, *groups)
        for pair, groups in {"aa": (_ATTENTION, _ATTENTION), "af": (_ATTENTION, _FFN), "ff": (_FFN, _FFN)}.items()
    }
    if any(one.empty for one in squares.values()):
        return missing("norms of every pair of attention and feed-forward weights")
    strength = np.sqrt(squares["af"]) / (squares["aa"] * squares["ff"]) ** 0.25
    by_sigma = strength.groupby(level="sigma")
    contrasts = {f"sigma = {sigma:g}": student_interval(one, tests=by_sigma.ngroups) for sigma, one in by_sigma}
    conditions = rule.each(contrasts, partial(rule.stays_below, most=MOST_COUPLING))
    return rule.concluded(conditions, rule.largest(contrasts))


@claim("block-order", "arXiv 2502.19002", "sublayers")
def order(evidence: Evidence) -> Finding:
    """Claim: sharpness by group: embeddings << query and key < feed-forward < value and output << norms.

    The sharpness of a group of weights is the mean diagonal entry of its block of the full Hessian, trace over
    number of parameters, at the last step of the training, seed by seed. Each step of the order (embeddings much less
    than query and key, less than feed-forward, less than value and output, much less than norms) is log10 of the later
    over the earlier; the claim holds when every interval (95 % of all together, Bonferroni) is above 0 with a mean of
    at least 0.1 decades (0.5 where it says much), and does not when one is below that. The effect is the smallest step.
    """
    table = _sharpness(evidence.hessians(), evidence.steps()[-1:])
    if table.empty or not set(_GROUPS) <= set(table.columns):
        return missing("stored Hessians of networks with norms along a training")
    logs = np.log10(table.where(table > 0))
    names = list(_GROUPS)
    contrasts, verdicts = {}, []
    for before, after in pairwise(names):
        far = after in _FAR or after == names[-1]
        one = student_interval(logs[after] - logs[before], tests=len(names) - 1)
        contrasts[f"{after} over {before}"] = one
        verdicts.append(exceeds(one, LEAST_FAR if far else LEAST_DECADES))
    least = rule.largest(contrasts, lambda mean: -mean)
    found_order = " < ".join(logs.mean().sort_values().index)
    return found(contrasts[least], rule.all_of(verdicts), f"{least}; found: {found_order}", contrasts)


def _norms(evidence: Evidence) -> pd.DataFrame:
    """Return the norm of every diagonal block of a layer, averaged over layers in its logarithm: a row a seed."""
    rows = rule.diagonal(evidence.numbers(FROBENIUS, part=Part.H.value))
    logs = rule.in_logs(rows[rows["layer"] > 0], np.log)
    return np.exp(logs.pivot_table(index="seed", columns="row", values="value"))


def _squares(rows: pd.DataFrame, one: Iterable[str], other: Iterable[str]) -> pd.Series:
    """Return the squared norm of the block of two groups by (sigma, seed); a pair within a group counts twice."""
    straight = rows["row"].isin(one) & rows["col"].isin(other)
    turned = rows["row"].isin(other) & rows["col"].isin(one)
    kept = rows[(straight | turned) & (rows["row_layer"] == rows["layer"])]
    twice = (kept["row"] != kept["col"]) & (one is other)
    return (kept["value"] ** 2 * np.where(twice, 2, 1)).groupby([kept["sigma"], kept["seed"]]).sum()


def _sharpness(hessians: Iterable[StoredHessian], steps: list[float]) -> pd.DataFrame:
    """Return the mean diagonal entry of every group, a row a seed; all states count where there are no steps."""
    found: dict[int, dict[str, float]] = {}
    for hessian in hessians:
        if not steps or hessian.step in steps:
            owners = np.repeat(hessian.names, hessian.sizes)
            diagonal = np.diag(hessian.matrix).astype(float)
            kept = {name: diagonal[np.isin(owners, members)] for name, members in _GROUPS.items()}
            found[hessian.seed] = {name: float(one.mean()) for name, one in kept.items() if one.size}
    return pd.DataFrame.from_dict(found, orient="index")


SUBLAYERS = (values_largest, keys_values, coupling, order)
