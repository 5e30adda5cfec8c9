"""Rules of claims along trainings, and against the number of samples."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.claims import rule
from hessfig.analysis.claims.growth_rules import exponents
from hessfig.analysis.claims.network_rules import heterogeneity, proxy
from hessfig.analysis.claims.rule import Evidence, Finding, alike, all_of, claim, exceeds, found, missing
from hessfig.analysis.intervals import Interval, difference_interval, student_interval
from hessfig.analysis.slopes.printed import Window
from hessfig.analysis.training_runs import rank_correlations
from hessfig.terms import Part

NORM, ATTENTION = "model.norm", "model.attention"
LEAST_DECADES = 0.1  # a quarter more
LEAST_CORRELATION = 0.5
STAND_INS = ("gradient_norm", "gradient_covariance", "score_spread", "pattern_spread")
_OTHERS = ("W_Q", "W_K")


@claim("values-trained", "arXiv 2510.16927", "curvature_flow")
def values_largest(evidence: Evidence) -> Finding:
    """Claim: after training the (V, V) block is the largest of the attention's query, key and value blocks.

    At the last step, seed by seed: log10 of the Frobenius norm of the full Hessian's (V, V) block over the larger
    of those of (Q, Q) and (K, K), which are of the same size, averaged over layers; it holds when the interval is above
    0 and the effect at least 0.1 decades, and does not when the interval is below 0.1.
    """
    rows = evidence.at_step(-1).numbers("frobenius", part=Part.H.value)
    wide = _weights(rows).pivot_table(index=["seed", "layer"], columns="row", values="value")
    if not {"W_V", *_OTHERS} <= set(wide.columns):
        return missing("norms of the blocks of W_Q, W_K and W_V")
    logs = np.log10(wide["W_V"] / wide[list(_OTHERS)].max(axis=1))
    interval = student_interval(logs.groupby("seed").mean())
    return found(interval, exceeds(interval, LEAST_DECADES))


@claim("zhang-heterogeneity-trained", "arXiv 2402.16788", "heterogeneity_after")
def heterogeneity_at_end(evidence: Evidence) -> Finding:
    """Claim: trained, the spectra of a transformer's blocks differ more from each other than those of an MLP's.

    The effect and its rule are those of zhang-heterogeneity (it holds when the interval is
    above 0 and the effect at least 0.02), from the spectra at the last step of the training.
    """
    return heterogeneity.rule(evidence.at_step(-1))


@claim("gauss-newton-worse-trained", "slides", "gauss_newton_after")
def proxy_at_end(evidence: Evidence) -> Finding:
    """Claim: after training too the Gauss-Newton part is the worse proxy for transformers than for MLPs.

    The effect and its rule are those of gauss-newton-worse (it holds when the interval is above
    0 and the effect at least 0.05), from the eigenvalues at the last step of the training.
    """
    return proxy.rule(evidence.at_step(-1))


@claim("proxies", "blog on arXiv 2510.16927", "curvature_flow")
def stand_ins(evidence: Evidence) -> Finding:
    """Claim: gradient norm, gradient covariance and spread of attention scores track the curvature along training.

    For gradient norm, trace of the gradients' covariance and spread of attention scores and mixing weights: Spearman
    correlation along the training, seed by seed, with the largest eigenvalue of the whole Hessian, and with the mean
    over weights of the log of the block norms. For a stand-in it holds when the interval (95 % of all together,
    Bonferroni) is above 0 and the mean at least 0.5, and does not when the interval is below 0.5. The effect is the
    smallest of the correlations.
    """
    targets = {"largest eigenvalue": _largest(evidence), "block norms": _block_norms(evidence)}
    series = {name: _whole(evidence, name) for name in STAND_INS}
    pairs = {
        f"{name} for {target}": rank_correlations(values, curvature)
        for name, values in series.items()
        for target, curvature in targets.items()
        if len(values) and len(curvature)
    }
    if not pairs:
        return missing("stand-ins beside largest eigenvalues or block norms along a training")
    contrasts = {name: student_interval(values, tests=len(pairs)) for name, values in pairs.items()}
    conditions = rule.each(contrasts, partial(exceeds, least=LEAST_CORRELATION))
    return rule.concluded(conditions, rule.largest(contrasts, lambda mean: -mean))


@claim("layernorm-stabilises", "blog on arXiv 2510.16927", "heterogeneity_trained")
def steadier(evidence: Evidence) -> Finding:
    """Claim: LayerNorm bounds the terms that depend on the input: block norms range less along training.

    The range of a block is log10 of the largest over the smallest Frobenius norm of its full Hessian along the
    training, averaged over blocks; the effect is its mean over seeds without LayerNorm less that with pre-LN, softmax
    attention, with Welch's interval; it holds when the interval is above 0 and the effect at least 0.1 decades, and
    does not when the interval is below 0.1.
    """
    rows = _weights(evidence.numbers("frobenius", NORM, ATTENTION, part=Part.H.value))
    logs = rule.in_logs(rows[rows[ATTENTION].isin(["softmax", ""])])
    ranges = logs.groupby([NORM, "seed", "layer", "row"])["value"].agg(np.ptp)
    by_seed = ranges.groupby([NORM, "seed"]).mean()
    norms = by_seed.index.get_level_values(NORM)
    if not {"none", "pre"} <= set(norms):
        return missing(f"block norms along trainings of {NORM}=none and {NORM}=pre")
    interval = difference_interval(by_seed[norms == "none"], by_seed[norms == "pre"])
    return found(interval, exceeds(interval, LEAST_DECADES))


def _weights(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of single weights' diagonal blocks within a layer."""
    return rule.diagonal(rows[rows["row"].str.startswith("W_")])


def _whole(evidence: Evidence, quantity: str) -> pd.Series:
    """Return a quantity of the whole network, or averaged over layers, by seed and step."""
    rows = evidence.numbers(quantity, row="")
    return rows.groupby(["seed", "step"])["value"].mean()


def _largest(evidence: Evidence) -> pd.Series:
    rows = evidence.numbers("largest_eigenvalue", row="all", part=Part.H.value)
    return rows[rows["index"] <= 1].groupby(["seed", "step"])["value"].mean()


def _block_norms(evidence: Evidence) -> pd.Series:
    rows = _weights(evidence.numbers("frobenius", part=Part.H.value))
    return rule.in_logs(rows, np.log).groupby(["seed", "step"])["value"].mean()


ALONG = (values_largest, heterogeneity_at_end, proxy_at_end, stand_ins, steadier)


K = "index"
DIRECTION, DISTANCE = "landscape.direction", "landscape.distance"
LEAST_EXPONENT = 0.1
LEAST_BEYOND = 0.05  # of an exponent, or in decades: 12 %
SMALLEST_K: Window = (10.0, None)
_CURVES = ("difference", "rms", "null", "bound")
_PLACE = [DIRECTION, DISTANCE]


@claim("landscape-rate", "arXiv 2510.16927, theorem 7", "landscape")
def rate(evidence: Evidence) -> Finding:
    """Claim: |L_{k+1} - L_k| falls as 1/k, more than chance explains, and the bound holds.

    For each direction and distance from w*, seed by seed, k >= 10: the exponent of |L_{k+1}(w) - L_k(w)| in k, the
    margin (smallest log10 over k of the bound over it) and the excess (mean log10 of its root mean square over what
    independent losses give). The rate holds when all intervals of exponents (95 % of all together, Bonferroni) lie
    within 0.1 of -1, the bound when all margins are above 0, and `more than chance` when all intervals of the
    excess exclude 0 with means of at least 0.05 in size. The claim holds when all three do; `holds only if` names those
    that do. The effect is the exponent that is farthest from -1.
    """
    curves = {name: evidence.numbers(f"landscape_{name}", *_PLACE) for name in _CURVES}
    rates = exponents(curves["difference"], K, *_PLACE, window=SMALLEST_K)
    if rates.empty or any(one.empty for one in curves.values()):
        return missing("differences of losses against k beside their null and bound")
    logs = {name: _logs(one) for name, one in curves.items()}
    each = [*_PLACE, "seed"]
    margins = (logs["bound"] - logs["difference"]).groupby(level=each).min()
    excess = (logs["rms"] - logs["null"]).groupby(level=each).mean()
    samples = {"exponent": rates, "margin": margins, "excess": excess}
    tests = sum(one.groupby(level=_PLACE).ngroups for one in samples.values())
    found_of = {name: _intervals(one, tests) for name, one in samples.items()}
    verdicts = {
        "the rate": all_of(alike(_shifted(one, 1.0), LEAST_EXPONENT) for one in found_of["exponent"].values()),
        "the bound": all_of(exceeds(one, 0.0) for one in found_of["margin"].values()),
        "more than chance": all_of(rule.departs(one, LEAST_BEYOND) for one in found_of["excess"].values()),
    }
    verdict, words = rule.by_condition(verdicts)
    worst = _farthest(found_of["exponent"], -1.0)
    contrasts = {f"{name}, {place}": one for name, ours in found_of.items() for place, one in ours.items()}
    verdict = verdict if words else all_of(verdicts.values())
    return found(found_of["exponent"][worst], verdict, words or worst, contrasts)


@claim("stationarity-data", "arXiv 2510.16927, assumption 1", "stationarity")
def stationarity(evidence: Evidence) -> Finding:
    """Claim: gradients at w* vanish better with more samples than chance alone would make them.

    At the last step of the training, k at most a tenth of all samples, seed by seed: the exponent in k of what
    independent gradients of mean zero give (-1/2) less that of the root mean square of |grad L_k(w*)|. The effect is
    its mean over seeds; the claim holds when the interval is above 0 and the effect at least 0.05, and does not when
    the interval is below 0.05.
    """
    last = evidence.at_step(-1)
    curves = [last.numbers(f"stationarity_{name}") for name in ("null", "rms")]
    if any(one.empty for one in curves):
        return missing("gradients against k beside their null")
    window: Window = (None, float(curves[0][K].max()) / 10)
    null, measured = (exponents(one, K, window=window) for one in curves)
    interval = student_interval(null - measured)
    contrasts = {"exponent by chance": student_interval(null), "exponent": student_interval(measured)}
    return found(interval, exceeds(interval, LEAST_BEYOND), contrasts=contrasts)


@claim("hessian-data", "blog on arXiv 2510.16927", "data_size")
def hessian(evidence: Evidence) -> Finding:
    """Claim: the norm and the condition number of the Hessian go as 1/sqrt(number of samples).

    Exponents in k of the norm and of the condition number of H_k, the Hessian of the first k samples, block by
    block, seed by seed. The claim holds when the intervals of all of them (95 % together, Bonferroni) lie within 0.1 of
    -1/2, and does not when one is another exponent: its interval excludes -1/2 and its mean is at least 0.1 off. The
    effect is the exponent that is farthest from -1/2.
    """
    names = {"norm": "subset_norm", "condition number": "subset_condition_number"}
    samples = {
        name: exponents(evidence.numbers(quantity, part=Part.H.value), K, "row") for name, quantity in names.items()
    }
    if any(one.empty for one in samples.values()):
        return missing("norms and condition numbers of the Hessians of k samples")
    tests = sum(one.groupby(level="row").ngroups for one in samples.values())
    contrasts = {
        f"exponent of the {name}, {row}": student_interval(one, tests=tests)
        for name, sample in samples.items()
        for row, one in sample.groupby(level="row")
    }
    verdict = all_of(alike(_shifted(one, 0.5), LEAST_EXPONENT) for one in contrasts.values())
    worst = _farthest(contrasts, -0.5)
    return found(contrasts[worst], verdict, worst, contrasts)


def _logs(rows: pd.DataFrame) -> pd.Series:
    """Return log10 of a curve from the smallest k on, by (direction, distance, seed, k)."""
    kept = rows[(rows["value"] > 0) & (rows[K] >= (SMALLEST_K[0] or 0))]
    return np.log10(kept.groupby([*_PLACE, "seed", K])["value"].mean())


def _intervals(samples: pd.Series, tests: int) -> dict[str, Interval]:
    """Return an interval over seeds for each direction and distance."""
    return {_words(*place): student_interval(one, tests=tests) for place, one in samples.groupby(level=_PLACE)}


def _words(direction: str, distance: str) -> str:
    """Return a place in words; the distance is empty or `None` at w* itself."""
    at_start = distance in ("", "None")
    return f"{direction or 'random'}: at w*" if at_start else f"{direction or 'random'}: |w - w*| = {distance}"


def _shifted(interval: Interval, by: float) -> Interval:
    return replace(interval, mean=interval.mean + by, low=interval.low + by, high=interval.high + by)


def _farthest(intervals: dict[str, Interval], target: float) -> str:
    return rule.largest(intervals, lambda mean: abs(mean - target))


SAMPLES = (rate, stationarity, hessian)
