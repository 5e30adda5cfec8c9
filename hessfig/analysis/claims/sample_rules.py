"""Rules of claims against the number of samples: landscapes, gradients and Hessians of the first k."""

import operator
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from types import MappingProxyType

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.growth_rules import exponents
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.slopes.printed import Window
from hessfig.terms import Part

K = "index"
DIRECTION, DISTANCE = "landscape.direction", "landscape.distance"
LEAST_EXPONENT = 0.1
LEAST_BEYOND = 0.05  # of an exponent, or in decades: 12 %
VACUOUS = 1.0  # decades of a bound above what it bounds, everywhere
FROM_TEN: Window = (10.0, None)
SUBSETS: Window = (10.0, 1024.0)  # of 8 192 samples: as the sweep's, which the figure draws
SPREAD, LOCAL, TOP = "landscape.spread", ("0.0001", "0.001"), (1, 4, 16)
MOST_TOP = TOP[-1]
LEAST_RATIO = 0.02  # decades: 5 %
LEAST_SHARE = 0.5
_WHOLE, _WITHIN = ("start", "full", "full quadratic"), ("top", "top quadratic", "random quadratic")
_PLACES = [(spread, f"top, D = {count}") for spread in LOCAL for count in TOP]


@claim("landscape-rate")
def rate(evidence: Evidence) -> judges.Finding:
    """Claim: |L_{k+1} - L_k| falls as 1/k.

    For each place (w* itself counts once, whatever the direction), seed by seed, k >= 10: the exponent in k. The claim
    holds when the intervals of all places lie within 0.1 of -1, and does not when one excludes -1 with a mean at least
    0.1 off. The effect is the exponent that is farthest from -1. For losses of independent samples the exponent is -1
    whatever the network: it cannot fail but by chance.
    """
    rows = _placed(evidence, "difference")
    if rows.empty:
        return judges.missing("differences of losses against k")
    rates = exponents(rows, K, "place", window=FROM_TEN)
    if rates.empty:
        return judges.missing("differences of losses at ten samples and more")
    places = dict(list(rates.groupby(level="place", sort=False)))
    return _worst(judges.alike(places, judges.near(-1, LEAST_EXPONENT)), _off(-1.0))


@claim("landscape-bound")
def bound(evidence: Evidence) -> judges.Finding:
    """Claim: |L_{k+1} - L_k| lies below the theorem's bound.

    For each place, seed by seed, the margin is the smallest log10 over k >= 10 of the bound over the difference. The
    claim holds when the intervals of all margins are above 0, and does not when one is below. The effect is the
    smallest margin. The bound's M is measured along one direction, hence a lower bound of the theorem's. The words say
    by what factors the bound exceeds the mean difference: one of more than ten is vacuous.
    """
    logs = {name: _logs(_placed(evidence, name)) for name in ("bound", "difference")}
    over = (logs["bound"] - logs["difference"]).dropna()
    margins = over.groupby(level=["place", "seed"], sort=False).min()
    if margins.empty:
        return judges.missing("differences of losses against k next to their bound")
    factors = f"factors of {10 ** over.min():.2g} to {10 ** over.max():.2g} over the mean difference"
    vacuous = "vacuous: " if over.min() > VACUOUS else ""
    places = dict(list(margins.groupby(level="place", sort=False)))
    return _worst(judges.alike(places, judges.at_least(0.0)), operator.neg, f"{vacuous}{factors}")


@claim("landscape-chance")
def chance(evidence: Evidence) -> judges.Finding:
    """Claim: the differences |L_{k+1} - L_k| are not those of independent losses.

    For each place, seed by seed, the excess is half of log10 of the mean over k >= 10 of the mean square difference
    over what independent losses give: that ratio has mean 1 for random orders, whatever the losses, and squares are
    averaged before the logarithm (that of each k is biased low where losses have a heavy tail). At a place the claim
    holds when the interval excludes 0 with a mean of at least 0.05 in size, and does not when it lies within 0.05 of 0.
    The effect is the largest excess in size. Orders of samples are random, so that it can come out true by chance only.
    """
    logs = {name: _logs(_placed(evidence, name)) for name in ("rms", "null")}
    ratios = 100 ** (logs["rms"] - logs["null"]).dropna()
    excess = np.log10(ratios.groupby(level=["place", "seed"], sort=False).mean()) / 2
    if excess.empty:
        return judges.missing("root mean squares of differences of losses against k next to their null")
    samples = dict(list(excess.groupby(level="place", sort=False)))
    return judges.by_conditions(
        judges.each(samples, partial(judges.departs, least=LEAST_BEYOND)),
        shown=lambda conditions: judges.largest({name: one.effect for name, one in conditions.items()}, abs),
    )


@claim("stationarity-data")
def stationarity(evidence: Evidence) -> judges.Finding:
    """Claim: gradients at w* vanish better with more samples than chance alone would make them.

    The source assumes it, and measures nothing. At the last step of the training, k from 10 to a tenth of all samples,
    seed by seed: the exponent in k of what independent gradients of mean zero give (-1/2) minus that of the root mean
    square of |grad L_k(w*)| over orders. The claim holds when the interval of this effect is above 0 and the mean at
    least 0.05, and does not when the interval is below 0.05. Samples are drawn without replacement, which alone makes
    the exponent 0.006 steeper.
    """
    last = evidence.at_step(-1)
    curves = [last.numbers(f"stationarity_{name}") for name in ("null", "rms")]
    if any(one.empty for one in curves):
        return judges.missing("gradients against k next to their null")
    window: Window = (FROM_TEN[0], float(curves[0][K].max()) / 10)
    null, measured = (exponents(one, K, window=window) for one in curves)
    contrasts = {"exponent by chance": student_interval(null), "exponent": student_interval(measured)}
    return judges.single(judges.Effect((null - measured).dropna(), judges.at_least(LEAST_BEYOND)), contrasts=contrasts)


@claim("hessian-data")
def hessian(evidence: Evidence) -> judges.Finding:
    """Claim: the norm and the condition number of the Hessian go as 1/sqrt(number of samples).

    The source says so in comments of its code alone, and gives no reason. Exponents in k, from 10 to 1 024, of the norm
    and of the condition number of H_k, the Hessian of the first k samples of a batch, block by block, averaged over
    seeds batch by batch (over which the intervals are; over seeds where there is one batch). The claim holds when the
    intervals of all of them lie within 0.1 of -1/2, and does not when one excludes -1/2 with a mean at least 0.1 off.
    The effect is the exponent that is farthest from -1/2.
    """
    names = {"norm": "subset_norm", "condition number": "subset_condition_number"}
    effects = {
        f"exponent of the {name}, {row}": judges.Effect(_over_batches(one), judges.near(-0.5, LEAST_EXPONENT))
        for name, quantity in names.items()
        for row, one in exponents(
            evidence.numbers(quantity, part=Part.H.value), K, "row", "variant", window=SUBSETS
        ).groupby(level="row")
    }
    if not all(any(name in effect for effect in effects) for name in ("norm", "condition number")):
        return judges.missing("norms and condition numbers of the Hessians of k samples")
    count = next(iter(effects.values())).interval().count
    return _worst(effects, _off(-0.5), f"intervals over {count} batches or seeds")


@claim("top-subspace")
def subspace(evidence: Evidence) -> judges.Finding:
    """Claim: Delta_2 in the space of the top eigenvectors of the Hessian is that in all weights, at small spreads.

    Spreads 1e-4 and 1e-3 (the source's local regime), D = 1, 4 and 16: log10 of the ratio of both Delta_2, seed by
    seed; for orders of samples in the mean it is the same at every k. The claim holds when the intervals of all of them
    lie within 0.02 (5 %) of 0, and does not when one excludes 0 with a mean at least 0.02 off. The effect is the
    farthest from 0. Beside it stands the ratio at w* itself, which no direction enters (D = 0): where that is 1 too,
    the spreads are so small that every subspace passes.
    """
    levels = _levels(evidence)
    if levels.empty:
        return judges.missing("Delta_2 in subspaces and in all weights")
    full = levels["full"]
    ratios = {
        f"{name}, s = {spread}": np.log10(levels.loc[spread, name] / full.loc[spread]) for spread, name in _PLACES
    }
    start = {f"w* itself, s = {one}": np.log10(levels.loc[one, "start"] / full.loc[one]) for one in LOCAL}
    return _worst(judges.alike(ratios, judges.near(0, LEAST_RATIO)), abs, beside=start)


@claim("top-subspace-share")
def subspace_share(evidence: Evidence) -> judges.Finding:
    """Claim: sixteen top eigenvectors carry half of what probing all weights adds to Delta_2 at w* itself.

    Spreads 1e-4 and 1e-3: Delta_2 in the space of 16 eigenvectors less that at w*, over Delta_2 in all weights less
    that at w*, both of second-order expansions, seed by seed. The claim holds when both intervals are above 0 with
    means of at least 1/2, and does not when one is below 1/2. The effect is the smaller share. The share of 16 random
    directions stands beside it.
    """
    levels = _levels(evidence)
    if levels.empty:
        return judges.missing("Delta_2 in subspaces and in all weights")
    added = levels.sub(levels["start"], axis=0)
    shares = {name: added[f"{name} quadratic, D = {MOST_TOP}"] / added["full quadratic"] for name in ("top", "random")}
    effects = judges.alike({f"s = {one}": shares["top"].loc[one] for one in LOCAL}, judges.at_least(LEAST_SHARE))
    return _worst(effects, operator.neg, beside={f"random, s = {one}": shares["random"].loc[one] for one in LOCAL})


def _worst(
    effects: judges.Effects,
    size: Callable[[float], float],
    words: str = "",
    beside: Mapping[str, pd.Series] = MappingProxyType({}),
) -> judges.Finding:
    """Return the finding of a claim whose every part must hold: its effect is the one whose mean is largest by `size`.

    `words` come before those that name it; intervals of what stands `beside` are reported and do not enter the verdict.
    """
    shown = judges.largest(effects, size)
    finding = judges.together(effects, shown, words).saying(f"the effect is that of {shown}")
    others = tuple((name, student_interval(one)) for name, one in beside.items())
    return replace(finding, contrasts=finding.contrasts + others)


def _off(target: float) -> Callable[[float], float]:
    """Return how far a mean is from a target."""
    return lambda mean: abs(mean - target)


def _levels(evidence: Evidence) -> pd.DataFrame:
    """Return means of the variance behind Delta_2 by (spread, seed), a column for each place; none where one lacks."""
    named = {name: f"landscape_{name.replace(' ', '_')}" for name in (*_WHOLE, *_WITHIN)}
    rows = {name: evidence.numbers(quantity, SPREAD) for name, quantity in named.items()}
    found = {name: _by_spread(rows[name]) for name in _WHOLE}
    for name in _WITHIN:
        found |= {f"{name}, D = {count}": _by_spread(rows[name][rows[name][K] == count]) for count in TOP}
    levels = pd.DataFrame(found).dropna()
    return levels if set(LOCAL) <= set(levels.index.get_level_values(0)) else levels.iloc[:0]


def _by_spread(rows: pd.DataFrame) -> pd.Series:
    return rows.groupby([SPREAD, "seed"])["value"].mean()


def _over_batches(exponents: pd.Series) -> pd.Series:
    batches = exponents.index.get_level_values("variant").nunique()
    return exponents.groupby(level="variant" if batches > 1 else "seed").mean()


def _placed(evidence: Evidence, name: str) -> pd.DataFrame:
    """Return a landscape's curve with its place in words; w* is one place, seen once."""
    rows = evidence.numbers(f"landscape_{name}", DIRECTION, DISTANCE)
    at_start = rows[DISTANCE].isin(["", "None"])
    known = rows[~at_start | (rows[DIRECTION] == rows.loc[at_start, DIRECTION].min())]
    return known.assign(place=[_words(*place) for place in zip(known[DIRECTION], known[DISTANCE], strict=True)])


def _logs(rows: pd.DataFrame) -> pd.Series:
    """Return log10 of a curve from the smallest k on, by (place, seed, k)."""
    kept = rows[(rows["value"] > 0) & (rows[K] >= (FROM_TEN[0] or 0))]
    return np.log10(kept.groupby(["place", "seed", K], sort=False)["value"].mean())


def _words(direction: str, distance: str) -> str:
    return "at w*" if distance in ("", "None") else f"{direction or 'random'}: |w - w*| = {distance}"
