"""Rules of claims along trainings: stand-ins for the curvature, LayerNorm, phases, batches."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges, rule
from hessfig.analysis.claims.growth_rules import LARGE, PAPER, least_squares
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, norms, wide
from hessfig.analysis.intervals import fisher_interval
from hessfig.analysis.slopes.printed import within
from hessfig.analysis.training_runs import rank_correlations
from hessfig.terms import Part

LEAST_DECADES = 0.1  # a quarter more
LEAST_CORRELATION = 0.5
LEAST_FASTER = 0.3  # decades: twice as fast
LEAST_ACCURACY = 0.005  # of 1, per decade of batch size
STAND_INS = ("gradient_norm", "gradient_covariance", "score_spread", "pattern_spread")
BATCH = "training.batch_size"
BLOG = "blog on arXiv 2510.16927"
ADDITION = "a transformer trained on addition (4 000 steps, 99.6 % right)"


@claim(
    *("proxies", BLOG, "curvature_flow"), there="small transformers in training", here=f"{ADDITION}; 10 seeds, 20 steps"
)
def stand_ins(evidence: Evidence) -> judges.Finding:
    """Claim: gradient norm, gradient covariance and spread of attention scores track the curvature along training.

    Spearman correlations along the training, seed by seed, their intervals by Fisher's z: of gradient norm, trace of
    the gradients' covariance and spread of attention scores and mixing weights with the largest eigenvalue of the whole
    Hessian, and with the mean over weights of the log of the block norms; and, where condition numbers are measured, of
    the largest over the smallest, and over the standard deviation, of the weights' gradient norms with them. For a
    stand-in the claim holds when the interval (95 % of all together) is above 0 and the mean at least 0.5, and does not
    when the interval is below 0.5. The effect is the smallest of the correlations.
    """
    targets = {"largest eigenvalue": _largest(evidence), "block norms": _block_norms(evidence)}
    pairs = {
        f"{name} for {target}": rank_correlations(values, curvature)
        for name in STAND_INS
        if len(values := _whole(evidence, name))
        for target, curvature in targets.items()
        if len(curvature)
    } | _ratios(evidence)
    if not pairs:
        return judges.missing("stand-ins beside largest eigenvalues or block norms along a training")
    return judges.by_conditions(
        judges.each(pairs, judges.at_least(LEAST_CORRELATION), fisher_interval),
        shown=lambda conditions: judges.largest(
            {name: one.effect for name, one in conditions.items()}, lambda mean: -mean
        ),
    )


@claim(*("layernorm-stabilises", BLOG, "layernorm", "sigma"), figure="3b", there="one attention block", here=PAPER)
def bounded(evidence: Evidence) -> judges.Finding:
    """Claim: LayerNorm keeps the terms that depend on the input bounded.

    By block, seed by seed: log10 of the largest ||H||_F over sigma >= 1 without a norm over that with pre-LN, and
    log10 of the largest with pre-LN over that at the smallest such sigma. For a block the claim holds when the interval
    of the first effect is above 0 with a mean of at least 0.1 decades and that of the second is below 0.1; it does not
    when the first is below 0.1 or the second above.
    """
    sups = {name: _beyond(one) for name, one in {"pre": evidence, "none": evidence.other("sigma")}.items()}
    of: dict[str, judges.Effects] = {}
    for row in sorted(set(sups["pre"].index.get_level_values("row")) & set(sups["none"].index.get_level_values("row"))):
        normed, plain = (sups[name].xs(row, level="row") for name in ("pre", "none"))
        of[row] = {
            "no norm over pre-LN": judges.Effect(
                (plain["sup"] - normed["sup"]).dropna(), judges.at_least(LEAST_DECADES)
            ),
            "growth with pre-LN": judges.Effect(
                normed["sup"] - normed["start"], partial(judges.stays_below, most=LEAST_DECADES)
            ),
        }
    if not of:
        return judges.missing("norms of blocks for sigma >= 1 with pre-LN and without a norm")
    return judges.by_conditions(of, note="every block")


@claim(
    *("phases", f"{BLOG}, section 7", "training"), there="language and vision transformers", here=f"{ADDITION}; 3 seeds"
)
def phases(evidence: Evidence) -> judges.Finding:
    """Claim: the curvature changes fast early in training and settles later.

    The speed is the sum of |change of log10 of the largest eigenvalue of H| between measured steps over the number of
    steps. The effect is log10 of the speed in the first fifth of the training over that in its last half, seed by seed;
    the claim holds when the interval is above 0 and the mean at least 0.3 (twice as fast), and does not when the
    interval is below 0.3.
    """
    curve = _largest(evidence)
    samples = {seed: _faster(one.droplevel("seed").sort_index()) for seed, one in curve[curve > 0].groupby("seed")}
    sample = pd.Series(samples, dtype=float).dropna()
    if sample.empty:
        return judges.missing("largest eigenvalues at several steps of both ends of a training")
    return judges.single(judges.Effect(sample, judges.at_least(LEAST_FASTER)))


@claim(
    *("critical-batch", f"{BLOG}, section 7, after McCandlish et al. (2018)", "training"),
    there="language models",
    here=f"{ADDITION}; 3 seeds",
    others="no sweep trains with batches of several sizes, hence none knows the critical one",
)
def critical_batch(evidence: Evidence) -> judges.Finding:
    """Claim: the noise scale tr(C) / |g|^2 gives the critical batch size, which grows along training.

    The effect is log10 of tr(C) / |g|^2 of the gradients at the last step over that at the first, seed by seed; its
    growth holds when the interval is above 0 and the mean at least 0.1 decades, and does not when the interval is below
    0.1. The critical batch itself is not measured.
    """
    trace, norm = (_whole(evidence, name) for name in ("gradient_covariance", "gradient_norm"))
    scale = wide(np.log10((trace / norm**2).dropna()), "step") if len(trace) and len(norm) else pd.DataFrame()
    if scale.shape[1] < 2:
        return judges.missing("gradient_covariance beside gradient_norm along a training")
    return judges.single(judges.Effect((scale.iloc[:, -1] - scale.iloc[:, 0]).dropna(), judges.at_least(LEAST_DECADES)))


@claim(
    *("sharpness-batch", "slides, after Keskar et al. (2017)", "sharpness_batch"),
    figure="training",
    there="convolutional networks on CIFAR",
    here="a vision transformer on 8 x 8 digits",
    awaits="no sweep over batch sizes is shipped yet",
)
def sharp_minima(evidence: Evidence) -> judges.Finding:
    """Claim: large batches end in sharper minima that generalise worse.

    At the last step, seed by seed: the exponent of the largest eigenvalue of H in the batch size, and the loss of
    accuracy on unseen data per decade of batch size. The claim holds when both intervals are above 0 with means of at
    least 0.1 and 0.005, and does not when one is below. The effect is the exponent.
    """
    last = evidence.at_step(-1)
    eigenvalues = last.numbers("largest_eigenvalue", BATCH, row="all", part=Part.H.value)
    sharp = _along_batches(rule.in_logs(eigenvalues[eigenvalues["index"] <= 1]))
    accurate = _along_batches(last.numbers("accuracy", BATCH, index=0))
    if sharp.empty or accurate.empty:
        return judges.missing(f"largest eigenvalues and accuracies for several values of {BATCH}")
    parts = {"exponent of sharpness": judges.Effect(sharp, judges.at_least(LEAST_DECADES))}
    return judges.together(parts | {"accuracy lost": judges.Effect(-accurate, judges.at_least(LEAST_ACCURACY))})


def _along_batches(rows: pd.DataFrame) -> pd.Series:
    """Return the slope of the value on log10 of the batch size, by seed."""
    sizes = pd.to_numeric(rows[BATCH], errors="coerce") if len(rows) else pd.Series(dtype=float)
    known = rows[sizes > 0].assign(log=np.log10(sizes[sizes > 0])) if len(rows) else rows
    slopes = {
        seed: least_squares(one["log"].to_numpy(), one["value"].to_numpy()) for seed, one in known.groupby("seed")
    }
    return pd.Series(slopes, dtype=float).dropna()


def _faster(curve: pd.Series) -> float:
    """Return log10 of the speed of a curve (index: steps) early over that late; nan where one end has no change."""
    logs, steps = np.log10(curve.to_numpy()), curve.index.to_numpy(float)
    moves, ends = np.abs(np.diff(logs)), steps[1:] / steps[-1]
    spans = np.diff(steps)
    early, late = ends <= 0.2, steps[:-1] / steps[-1] >= 0.5
    if not (early.any() and late.any() and moves[early].sum() > 0 and moves[late].sum() > 0):
        return float("nan")
    rates = [moves[part].sum() / spans[part].sum() for part in (early, late)]
    return float(np.log10(rates[0] / rates[1]))


def _beyond(evidence: Evidence) -> pd.DataFrame:
    """Return log10 of the largest norm over sigma >= 1 and of that at the smallest such sigma, by (row, seed)."""
    rows = rule.in_logs(rule.diagonal(norms(evidence)))
    curves = rows[within(rows["sigma"], LARGE)].sort_values("sigma").groupby(["row", "seed"])["value"]
    return pd.DataFrame({"sup": curves.max(), "start": curves.first()})


def _ratios(evidence: Evidence) -> dict[str, pd.Series]:
    """Return the correlations of ratios of the weights' gradient norms with the true condition number."""
    truth = by_seed(evidence.numbers("condition_number", row="all", part=Part.H.value), "step").swaplevel()
    rows = evidence.numbers("gradient_norm")
    of = rows[rows["row"].str.startswith("W_")].groupby(["seed", "step"])["value"]
    if truth.empty or of.ngroups == 0:
        return {}
    ratios = {"largest over smallest gradient norm": of.max() / of.min(), "largest over spread": of.max() / of.std()}
    return {f"{name} for condition number": rank_correlations(one, truth) for name, one in ratios.items()}


def _whole(evidence: Evidence, quantity: str) -> pd.Series:
    """Return a quantity of the whole network, or averaged over layers, by seed and step."""
    rows = evidence.numbers(quantity, row="")
    return rows.groupby(["seed", "step"])["value"].mean()


def _largest(evidence: Evidence) -> pd.Series:
    rows = evidence.numbers("largest_eigenvalue", row="all", part=Part.H.value)
    return rows[rows["index"] <= 1].groupby(["seed", "step"])["value"].mean()


def _block_norms(evidence: Evidence) -> pd.Series:
    rows = rule.diagonal(norms(evidence))
    rows = rows[rows["row"].str.startswith("W_")]
    return rule.in_logs(rows, np.log).groupby(["seed", "step"])["value"].mean()


TRAINING = (stand_ins, bounded, phases, critical_batch, sharp_minima)
