"""Rules of claims along trainings: stand-ins for the curvature, LayerNorm, phases, batches."""

from __future__ import annotations

from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges, rule
from hessfig.analysis.claims.growth_rules import LARGE, PAPER, least_squares
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, norms, wide
from hessfig.analysis.critical_batches import BATCH, RATE, critical_batches
from hessfig.analysis.intervals import fisher_interval, student_interval
from hessfig.analysis.slopes.printed import within
from hessfig.analysis.training_runs import rank_correlations
from hessfig.terms import Part

LEAST_DECADES = 0.1  # a quarter more
LEAST_CORRELATION = 0.5
LEAST_FASTER = 0.3  # decades: twice as fast
LEAST_ACCURACY = 0.005  # of 1, per decade of batch size
STAND_INS = ("gradient_norm", "gradient_covariance", "score_spread", "pattern_spread")
MOST_OFF = 0.5  # decades: a factor of three
LANGUAGE = "a character GPT-2 of 4 layers, d_model 64 (0.2 M parameters)"
BLOG = "blog on arXiv 2510.16927"
ADDITION = "a transformer trained on addition (4 000 steps, 99.6 % right)"


@claim(
    *("proxies", BLOG, "curvature_flow", "language_course"),
    there="small transformers in training",
    here=f"{ADDITION}; 10 seeds, 20 steps; {LANGUAGE}; 5 seeds, 13 steps",
)
def stand_ins(evidence: Evidence) -> judges.Finding:
    """Claim: gradient norm, gradient covariance and spread of attention scores track the curvature along training.

    Spearman correlations along the training, seed by seed, their intervals by Fisher's z: of gradient norm, trace of
    the gradients' covariance and spread of attention scores and mixing weights with the largest eigenvalue of the whole
    Hessian, and with the mean over weights of the log of the block norms; and, where condition numbers are measured, of
    the largest over the smallest, and over the standard deviation, of the weights' gradient norms with them. So for the
    transformer trained on addition, and for the language model. For a stand-in the claim holds when the interval (95 %
    of all together) is above 0 and the mean at least 0.5, and does not when the interval is below 0.5. The effect is
    the smallest of the correlations.
    """
    read = _correlations(evidence.other("language_course"))
    pairs = _correlations(evidence) | {f"language model: {name}": one for name, one in read.items()}
    if not pairs:
        return judges.missing("stand-ins next to largest eigenvalues or block norms along a training")
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
    *("phases", f"{BLOG}, section 7", "training", "language_course"),
    there="language and vision transformers",
    here=f"{ADDITION}; 10 seeds; {LANGUAGE}; 5 seeds",
)
def phases(evidence: Evidence) -> judges.Finding:
    """Claim: the curvature changes fast early in training and settles later.

    The speed is the sum of |change of log10 of the largest eigenvalue of H| between measured steps over the number of
    steps. The effect is log10 of the speed in the first fifth of the training over that in its last half, seed by seed,
    for the language model and for the transformer trained on addition. For a network the claim holds when the interval
    is above 0 and the mean at least 0.3 (twice as fast), and does not when the interval is below 0.3.
    """
    samples = {"language model": _speeds(evidence.other("language_course")), "addition": _speeds(evidence)}
    known = {name: sample for name, sample in samples.items() if len(sample)}
    if not known:
        return judges.missing("largest eigenvalues at several steps of both ends of a training")
    return judges.by_conditions(judges.each(known, judges.at_least(LEAST_FASTER)))


@claim(
    *("critical-batch", f"{BLOG}, section 7, after McCandlish et al. (2018)", "critical_batch", "language_noise"),
    there="language models",
    here="a character GPT-2 of 2 layers, d_model 32, batches of 4 to 256 windows, 3 seeds;"
    f" growth: {LANGUAGE}; 3 seeds",
)
def critical_batch(evidence: Evidence) -> judges.Finding:
    """Claim: the noise scale tr(C) / |G|^2 gives the critical batch size, which grows along training.

    Seed by seed: S(B) is the number of steps with batches of B to a loss on held-out text that trainings of all batch
    sizes reach (the best of several learning rates for each), linear in the logarithm of the loss between measured
    steps; S = S_min (1 + B_crit / B), by least squares of relative deviations, gives the critical batch size. The first
    effect is log10 of the noise scale, where the training of the largest batches passes that loss, over B_crit: 0
    within half a decade, the whole interval there, holds. The second effect is log10 of the noise scale at the last
    step of a language model's training over that at the first: it holds when the interval is above 0 and the mean at
    least 0.1. The claim does not hold when one of the two does not (the first: 0 is excluded and the mean half a decade
    off).
    """
    ratios, growth = _noise_over_critical(evidence), _growth(evidence.other("language_noise"))
    if ratios.empty or growth.empty:
        return judges.missing(f"held-out losses and noise scales for several values of {BATCH}, and along a training")
    return judges.together(
        {
            "noise scale over critical batch": judges.Effect(ratios, judges.near(0.0, MOST_OFF)),
            "growth of the noise scale": judges.Effect(growth, judges.at_least(LEAST_DECADES)),
        }
    )


@claim(
    *("sharpness-batch", "slides, after Keskar et al. (2017)", "sharpness_batch"),
    there="convolutional networks on CIFAR",
    here="a vision transformer on 8 x 8 digits, 1 000 updates with batches of 16 to all pictures, 5 seeds",
)
def sharp_minima(evidence: Evidence) -> judges.Finding:
    """Claim: large batches end in sharper minima that generalise worse.

    At the last step, seed by seed: the exponent of the largest eigenvalue of H in the batch size, and the loss of
    accuracy on unseen data per decade of batch size. The claim holds when both intervals are above 0 with means of at
    least 0.1 and 0.005, and does not when one is below. The effect is the exponent; that of the adaptive sharpness,
    which no rescaling of weights changes, is reported with it and does not enter the verdict.
    """
    last = evidence.at_step(-1)
    eigenvalues = last.numbers("largest_eigenvalue", BATCH, row="all", part=Part.H.value)
    sharp = _along_batches(rule.in_logs(eigenvalues[eigenvalues["index"] <= 1]))
    accurate = _along_batches(last.numbers("accuracy", BATCH, index=0))
    if sharp.empty or accurate.empty:
        return judges.missing(f"largest eigenvalues and accuracies for several values of {BATCH}")
    parts = {
        "exponent of sharpness": judges.Effect(sharp, judges.at_least(LEAST_DECADES)),
        "accuracy lost": judges.Effect(-accurate, judges.at_least(LEAST_ACCURACY)),
    }
    adaptive = _along_batches(rule.in_logs(last.numbers("adaptive_sharpness", BATCH)))
    if adaptive.empty:
        return judges.together(parts)
    beside = student_interval(adaptive)
    words = f"exponent of the adaptive sharpness {beside.mean:.2g} [{beside.low:.2g}, {beside.high:.2g}]"
    return judges.together(parts, words=words)


def _correlations(evidence: Evidence) -> dict[str, pd.Series]:
    """Return the rank correlations of every stand-in with every measure of curvature that is there, by seed."""
    targets = {"largest eigenvalue": _largest(evidence), "block norms": _block_norms(evidence)}
    return {
        f"{name} for {target}": rank_correlations(values, curvature)
        for name in STAND_INS
        if len(values := _whole(evidence, name))
        for target, curvature in targets.items()
        if len(curvature)
    } | _ratios(evidence)


def _speeds(evidence: Evidence) -> pd.Series:
    """Return log10 of the speed of the largest eigenvalue early over that late, by seed."""
    curve = _largest(evidence)
    found = {seed: _faster(one.droplevel("seed").sort_index()) for seed, one in curve[curve > 0].groupby("seed")}
    return pd.Series(found, dtype=float).dropna()


def _growth(evidence: Evidence) -> pd.Series:
    """Return log10 of the noise scale at the last step over that at the first, by seed."""
    scale = _whole(evidence, "noise_scale")
    logs = wide(np.log10(scale[scale > 0]), "step") if len(scale) else pd.DataFrame()
    return (logs.iloc[:, -1] - logs.iloc[:, 0]).dropna() if logs.shape[1] > 1 else pd.Series(dtype=float)


def _noise_over_critical(evidence: Evidence) -> pd.Series:
    """Return log10 of the noise scale over the critical batch size, by seed."""
    losses, noise = (evidence.numbers(name, BATCH, RATE) for name in ("held_out_loss", "noise_scale"))
    found = {seed: np.log10(one.noise_scale / one.critical) for seed, one in critical_batches(losses, noise).items()}
    return pd.Series(found, dtype=float).dropna()


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
