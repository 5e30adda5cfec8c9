"""Claims about training: what of the initial state stays, which stand-ins track curvature, what LayerNorm steadies."""

from __future__ import annotations

import numpy as np
import pandas as pd

from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.claims.kinds import heterogeneity, proxy
from hessfig.analysis.claims.rule import Claim, Finding, by_condition, exceeds, found, missing
from hessfig.analysis.interval import difference_interval, student_interval
from hessfig.analysis.training.correlation import rank_correlations
from hessfig.terms import Part

NORM, ATTENTION = "model.norm", "model.attention"
LEAST_DECADES = 0.1  # a quarter more
LEAST_CORRELATION = 0.5
STAND_INS = ("gradient_norm", "gradient_covariance", "score_spread", "pattern_spread")
_OTHERS = ("W_Q", "W_K")


def values_largest(evidence: Evidence) -> Finding:
    """At the last step, seed by seed: log10 of the Frobenius norm of the full Hessian's (V, V) block over the larger
    of those of (Q, Q) and (K, K), which are of the same size, averaged over layers; it holds when the interval is above
    0 and the effect at least 0.1 decades, and does not when the interval is below 0.1.
    """
    rows = evidence.at_step(-1).numbers("frobenius", part=Part.H.value)
    wide = _diagonal(rows).pivot_table(index=["seed", "layer"], columns="row", values="value")
    if not {"W_V", *_OTHERS} <= set(wide.columns):
        return missing("norms of the blocks of W_Q, W_K and W_V")
    logs = np.log10(wide["W_V"] / wide[list(_OTHERS)].max(axis=1))
    interval = student_interval(logs.groupby("seed").mean())
    return found(interval, exceeds(interval, LEAST_DECADES))


def heterogeneity_at_end(evidence: Evidence) -> Finding:
    """The effect and its rule are those of zhang-heterogeneity (it holds when the interval is
    above 0 and the effect at least 0.02), from the spectra at the last step of the training.
    """
    return heterogeneity(evidence.at_step(-1))


def proxy_at_end(evidence: Evidence) -> Finding:
    """The effect and its rule are those of gauss-newton-worse (it holds when the interval is above
    0 and the effect at least 0.05), from the eigenvalues at the last step of the training.
    """
    return proxy(evidence.at_step(-1))


def stand_ins(evidence: Evidence) -> Finding:
    """For gradient norm, trace of the gradients' covariance and spread of attention scores and mixing weights: Spearman
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
    verdicts = {name: exceeds(one, LEAST_CORRELATION) for name, one in contrasts.items()}
    verdict, words = by_condition(verdicts)
    worst = min(contrasts, key=lambda name: np.nan_to_num(contrasts[name].mean, nan=np.inf))
    return found(contrasts[worst], verdict, words or worst, contrasts)


def steadier(evidence: Evidence) -> Finding:
    """The range of a block is log10 of the largest over the smallest Frobenius norm of its full Hessian along the
    training, averaged over blocks; the effect is its mean over seeds without LayerNorm less that with pre-LN, softmax
    attention, with Welch's interval; it holds when the interval is above 0 and the effect at least 0.1 decades, and
    does not when the interval is below 0.1.
    """
    rows = _diagonal(evidence.numbers("frobenius", NORM, ATTENTION, part=Part.H.value))
    rows = rows[(rows["value"] > 0) & rows[ATTENTION].isin(["softmax", ""])]
    logs = rows.assign(value=np.log10(rows["value"]))
    ranges = logs.groupby([NORM, "seed", "layer", "row"])["value"].agg(np.ptp)
    by_seed = ranges.groupby([NORM, "seed"]).mean()
    norms = by_seed.index.get_level_values(NORM)
    if not {"none", "pre"} <= set(norms):
        return missing(f"block norms along trainings of {NORM}=none and {NORM}=pre")
    interval = difference_interval(by_seed[norms == "none"], by_seed[norms == "pre"])
    return found(interval, exceeds(interval, LEAST_DECADES))


def _diagonal(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of single weights' diagonal blocks within a layer."""
    weights = rows["row"].str.startswith("W_")
    return rows[weights & (rows["row"] == rows["col"]) & (rows["row_layer"] == rows["layer"])]


def _whole(evidence: Evidence, quantity: str) -> pd.Series:
    """Return a quantity of the whole network, or averaged over layers, by seed and step."""
    rows = evidence.numbers(quantity, row="")
    return rows.groupby(["seed", "step"])["value"].mean()


def _largest(evidence: Evidence) -> pd.Series:
    rows = evidence.numbers("largest_eigenvalue", row="all", part=Part.H.value)
    return rows[rows["index"] <= 1].groupby(["seed", "step"])["value"].mean()


def _block_norms(evidence: Evidence) -> pd.Series:
    rows = _diagonal(evidence.numbers("frobenius", part=Part.H.value))
    positive = rows[rows["value"] > 0]
    return positive.assign(value=np.log(positive["value"])).groupby(["seed", "step"])["value"].mean()


CLAIMS = (
    Claim(
        "values-trained",
        "arXiv 2510.16927",
        "after training the (V, V) block is the largest of the attention's query, key and value blocks",
        sweep="curvature_flow",
        figure="curvature_flow",
        rule=values_largest,
    ),
    Claim(
        "zhang-heterogeneity-trained",
        "arXiv 2402.16788",
        "trained, the spectra of a transformer's blocks differ more from each other than those of an MLP's",
        sweep="heterogeneity_after",
        figure="heterogeneity_after",
        rule=heterogeneity_at_end,
    ),
    Claim(
        "gauss-newton-worse-trained",
        "slides",
        "after training too the Gauss-Newton part is the worse proxy for transformers than for MLPs",
        sweep="gauss_newton_after",
        figure="gauss_newton_after",
        rule=proxy_at_end,
    ),
    Claim(
        "proxies",
        "blog on arXiv 2510.16927",
        "gradient norm, gradient covariance and spread of attention scores track the curvature along training",
        sweep="curvature_flow",
        figure="curvature_flow",
        rule=stand_ins,
    ),
    Claim(
        "layernorm-stabilises",
        "blog on arXiv 2510.16927",
        "LayerNorm bounds the terms that depend on the input: block norms range less along training",
        sweep="heterogeneity_trained",
        figure="heterogeneity_trained",
        rule=steadier,
    ),
)
