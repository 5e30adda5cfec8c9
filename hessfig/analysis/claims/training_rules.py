"""Rules of claims along trainings: stand-ins for the curvature, LayerNorm, phases, batches."""

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

import numpy as np
import pandas as pd

from hessfig.analysis.axis import with_settings
from hessfig.analysis.claims import judges, rule
from hessfig.analysis.claims.growth_rules import LARGE, least_squares
from hessfig.analysis.claims.rule import Evidence, by_seed, claim, norms, wide
from hessfig.analysis.intervals import fisher_interval, student_interval
from hessfig.analysis.slopes.printed import within
from hessfig.analysis.training_runs import BATCH, RATE, critical_batches, rank_correlations
from hessfig.terms import Part

LEAST_DECADES = 0.1  # a quarter more
LEAST_CORRELATION = 0.5
LEAST_BEYOND = 0.3  # a correlation given the step
LEAST_OVER = 0.1  # of a correlation over that with other seeds
LEAST_FASTER = 0.3  # decades: a factor of two
LEAST_ACCURACY = 0.005  # of 1, per decade of batch size
STAND_INS = ("gradient_norm", "gradient_covariance", "score_spread", "pattern_spread")
SCHEDULE = "training.schedule"
MOST_OFF = 0.5  # decades: a factor of three


@claim("proxies")
def stand_ins(evidence: Evidence) -> judges.Finding:
    """Claim: gradient norm, gradient covariance and spread of attention scores track the curvature along training.

    Two series that drift along one training correlate, so each stand-in is compared with two nulls. Spearman
    correlations along the training, seed by seed: of gradient norm, trace of the gradients' covariance and spread of
    attention scores and mixing weights with the largest eigenvalue of the whole Hessian, and with the mean over
    weights of the log of the block norms; and, where condition numbers are measured, of the largest over the smallest,
    and over the standard deviation, of the weights' gradient norms with them. For each: the correlation; the partial
    correlation given the step (0 where one of the two only follows the step), both by Fisher's z; and the
    correlation minus the mean of those with the curvature of every other seed. For a stand-in, in the transformer
    trained on addition and in the language model, the claim holds when all three intervals of every curvature are
    above 0 with means of at least 0.5, 0.3 and 0.1, and does not when one is below that (95 % for all together). The
    effect is the first correlation of the first stand-in that holds, else of the one where it is largest. The step as
    a stand-in of its own is reported and does not enter the verdict.
    """
    networks = {"addition": evidence, "language model": evidence.other("language_course")}
    found = {network: _stand_ins(there) for network, there in networks.items()}
    clock = {f"{network}: the step": one for network, there in networks.items() for one in [_clock(there)] if len(one)}
    if lacking := [network for network, one in found.items() if not one]:
        what = "stand-ins next to largest eigenvalues or block norms along a training"
        return judges.missing(f"{what}: {', '.join(lacking)}")
    finding = judges.by_conditions(
        {f"{network}: {name}": one for network in found for name, one in found[network].items()}
    )
    beside = {name: fisher_interval(one) for name, one in clock.items()}
    words = "; ".join(f"{name} for largest eigenvalue {one.mean:.2g}" for name, one in beside.items())
    return replace(finding.saying(words), contrasts=(*finding.contrasts, *beside.items()))


@claim("layernorm-stabilises")
def bounded(evidence: Evidence) -> judges.Finding:
    """Claim: LayerNorm keeps the terms that depend on the input bounded.

    Of W_V and W_Q, seed by seed: log10 of the largest ||H||_F over sigma >= 1 without a norm over that with pre-LN, and
    log10 of the largest with pre-LN over that at the smallest such sigma. For a block the claim holds when the interval
    of the first effect is above 0 with a mean of at least 0.1 decades and that of the second is below 0.1; it does not
    when the first is below 0.1 or the second above.
    """
    sups = {name: _beyond(one) for name, one in {"pre": evidence, "none": evidence.other("sigma")}.items()}
    of: dict[str, judges.Effects] = {}
    for row in sorted(set(sups["pre"].index.get_level_values("row")) & set(sups["none"].index.get_level_values("row"))):
        normed, plain = (sups[name].xs(row, level="row") for name in ("pre", "none"))
        over, growth, below = plain["sup"] - normed["sup"], normed["sup"] - normed["start"], judges.stays_below
        of[row] = {
            "no norm over pre-LN": judges.Effect(over.dropna(), judges.at_least(LEAST_DECADES)),
            "growth with pre-LN": judges.Effect(growth, partial(below, most=LEAST_DECADES)),
        }
    if not of:
        return judges.missing("norms of blocks for sigma >= 1 with pre-LN and without a norm")
    return judges.by_conditions(of).saying(" and ".join(of))


@claim("phases")
def phases(evidence: Evidence) -> judges.Finding:
    """Claim: the curvature changes fast early in training and settles later.

    The move over a decade of steps is |change of log10 of the largest eigenvalue of H| between its ends (between
    measured steps linear in the logarithm of the step). The effect is the move from a hundredth to a tenth of the
    training minus that over the last nine tenths, seed by seed, with learning rates that stay constant after the
    warm-up. A power of the step moves as much in every decade, and noise about a constant as much at every two steps:
    both have an effect of 0. The claim holds when the interval is above 0 and the mean at least 0.3 decades (a factor
    of two), and does not when the interval is below 0.3. Where the learning rate goes to zero the curve settles by the
    schedule: these trainings are reported and do not enter the verdict.
    """
    sample = _settles(_of_schedule(evidence, "constant"))
    if sample.empty:
        return judges.missing("largest eigenvalues at three decades of steps with training.schedule=constant")
    others = {"addition": evidence.other("training"), "language model": evidence.other("language_course")}
    cosine = {"small": _of_schedule(evidence, "cosine"), **others}
    told = {f"{name}, cosine": student_interval(_settles(one)) for name, one in cosine.items()}
    known = {name: one for name, one in told.items() if one.count}
    words = "; ".join(f"{name}: {one.words}" for name, one in known.items())
    effect = judges.Effect(sample, judges.at_least(LEAST_FASTER))
    return judges.single(effect, words, {"constant": effect.interval(), **known})


@claim("critical-batch")
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
    words = f"noise scale over critical batch of single seeds: {10 ** ratios.min():.2g} to {10 ** ratios.max():.2g}"
    return judges.together(
        {
            "noise scale over critical batch": judges.Effect(ratios, judges.near(0.0, MOST_OFF)),
            "growth of the noise scale": judges.Effect(growth, judges.at_least(LEAST_DECADES)),
        },
        words=words,
    )


@claim("sharpness-batch")
def sharp_minima(evidence: Evidence) -> judges.Finding:
    """Claim: large batches end in sharper minima that generalise worse.

    At the last step, seed by seed: the exponent of the largest eigenvalue of H in the batch size over all sizes, over
    the smaller half and over the larger half of them (a curve that turns has no slope), and the loss of accuracy on
    unseen data per decade of batch size. The claim holds when all intervals are above 0 with means of at least 0.1 and
    0.005, and does not when one is below. The effect is the exponent over all sizes; that of the adaptive sharpness,
    which no rescaling of weights changes, is reported with it and does not enter the verdict.
    """
    last = evidence.at_step(-1)
    eigenvalues = last.numbers("largest_eigenvalue", BATCH, row="all", part=Part.H.value)
    logs = rule.in_logs(eigenvalues[eigenvalues["index"] <= 1])
    sharp = _along_batches(logs)
    accurate = _along_batches(last.numbers("accuracy", BATCH, index=0))
    if sharp.empty or accurate.empty:
        return judges.missing(f"largest eigenvalues and accuracies for several values of {BATCH}")
    parts = {
        "exponent of sharpness": judges.Effect(sharp, judges.at_least(LEAST_DECADES)),
        **{
            f"exponent, {name} batches": judges.Effect(_along_batches(half), judges.at_least(LEAST_DECADES))
            for name, half in _halves(logs).items()
        },
        "accuracy lost": judges.Effect(-accurate, judges.at_least(LEAST_ACCURACY)),
    }
    adaptive = _along_batches(rule.in_logs(last.numbers("adaptive_sharpness", BATCH)))
    if adaptive.empty:
        return judges.together(parts)
    beside = student_interval(adaptive)
    words = f"exponent of the adaptive sharpness {beside.words}"
    return judges.together(parts, words=words)


def _stand_ins(evidence: Evidence) -> dict[str, judges.Effects]:
    """Return what each stand-in is judged by, for every measure of curvature that is there."""
    targets = {"largest eigenvalue": _largest(evidence), "block norms": _block_norms(evidence)}
    pairs = {name: (values, targets) for name in STAND_INS if len(values := _whole(evidence, name))} | _ratios(evidence)
    found = {
        name: {
            words: effect for target, one in of.items() if len(one) for words, effect in _beside(values, one, target)
        }
        for name, (values, of) in pairs.items()
    }
    return {name: parts for name, parts in found.items() if parts}


def _beside(values: pd.Series, curvature: pd.Series, target: str) -> Iterator[tuple[str, judges.Effect]]:
    """Yield the three effects of a stand-in: its correlation, what is left given the step, and over other seeds'."""
    own = rank_correlations(values, curvature)
    yield target, judges.Effect(own, judges.at_least(LEAST_CORRELATION), fisher_interval)
    beyond = rank_correlations(values, curvature, beyond_step=True)
    yield f"{target}, given the step", judges.Effect(beyond, judges.at_least(LEAST_BEYOND), fisher_interval)
    over = (own - _with_other_seeds(values, curvature)).dropna()
    yield f"{target}, over that of other seeds", judges.Effect(over, judges.at_least(LEAST_OVER))


def _with_other_seeds(values: pd.Series, curvature: pd.Series) -> pd.Series:
    """Return, by seed, the mean rank correlation of its stand-in with the curvature of every other seed."""
    both = [wide(one, "step") for one in (values, curvature)]
    steps, seeds = (both[0].dropna(axis=1).columns.intersection(both[1].dropna(axis=1).columns), both[0].index)
    if len(steps) < 3 or len(seeds) < 2 or not seeds.equals(both[1].index):
        return pd.Series(dtype=float)
    ranks = [one[steps].rank(axis=1).to_numpy() for one in both]
    with np.errstate(invalid="ignore"):  # a stand-in that does not change has no correlation
        found = np.corrcoef(*ranks)[: len(seeds), len(seeds) :]
    return pd.Series((found.sum(axis=1) - np.diag(found)) / (len(seeds) - 1), index=seeds)


def _clock(evidence: Evidence) -> pd.Series:
    """Return the rank correlation of the step itself with the largest eigenvalue, by seed."""
    curvature = _largest(evidence)
    return rank_correlations(curvature.index.to_frame()["step"], curvature)


def _of_schedule(evidence: Evidence, schedule: str) -> Evidence:
    """Return what was measured along trainings of one schedule of learning rates."""
    kinds = with_settings(evidence.table, SCHEDULE)[SCHEDULE]
    return replace(evidence, table=evidence.table[kinds == schedule])


def _settles(evidence: Evidence) -> pd.Series:
    """Return the move of the largest eigenvalue over the decade before the last minus that over the last, by seed."""
    curve = _largest(evidence)
    found = {seed: _slowed(one.droplevel("seed").sort_index()) for seed, one in curve[curve > 0].groupby("seed")}
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


def _halves(rows: pd.DataFrame) -> dict[str, pd.DataFrame]:
    """Return the rows of the smaller and of the larger half of the batch sizes; a middle one is in both."""
    sizes = pd.to_numeric(rows[BATCH])
    every = np.sort(sizes.unique())
    half = (len(every) + 1) // 2
    return {"smaller": rows[sizes <= every[half - 1]], "larger": rows[sizes >= every[-half]]}


def _slowed(curve: pd.Series) -> float:
    """Return how much less log10 of a curve (index: steps) moves in the last decade of steps than in the one before.

    nan where no step of the first hundredth (but the start) was measured.
    """
    later = curve[curve.index > 0]
    if later.empty or later.index[0] > later.index[-1] / 100 * (1 + 1e-9):
        return float("nan")
    places = np.log10(later.index[-1] / np.array([100.0, 10.0, 1.0]))
    moves = np.abs(np.diff(np.interp(places, np.log10(later.index.to_numpy(float)), np.log10(later.to_numpy()))))
    return float(moves[0] - moves[1])


def _beyond(evidence: Evidence) -> pd.DataFrame:
    """Return log10 of the largest norm over sigma >= 1 and of that at the smallest such sigma, by (row, seed)."""
    rows = rule.in_logs(rule.diagonal(norms(evidence)))
    curves = rows[within(rows["sigma"], LARGE)].sort_values("sigma").groupby(["row", "seed"])["value"]
    return pd.DataFrame({"sup": curves.max(), "start": curves.first()})


def _ratios(evidence: Evidence) -> dict[str, tuple[pd.Series, dict[str, pd.Series]]]:
    """Return ratios of the weights' gradient norms next to the true condition number, where it is measured."""
    truth = by_seed(evidence.numbers("condition_number", row="all", part=Part.H.value), "step").swaplevel()
    rows = evidence.numbers("gradient_norm")
    of = rows[rows["row"].str.startswith("W_")].groupby(["seed", "step"])["value"]
    if truth.empty or of.ngroups == 0:
        return {}
    ratios = {"largest over smallest gradient norm": of.max() / of.min(), "largest over spread": of.max() / of.std()}
    return {name: (one, {"condition number": truth}) for name, one in ratios.items()}


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
