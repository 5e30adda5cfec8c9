"""Claims about more samples: how fast losses, gradients and Hessians of k samples settle, and what chance explains."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pandas as pd

from hessfig.analysis.claims.evidence import Evidence
from hessfig.analysis.claims.exponents import exponents
from hessfig.analysis.claims.rule import (
    Claim,
    Finding,
    alike,
    all_of,
    by_condition,
    departs,
    exceeds,
    found,
    missing,
)
from hessfig.analysis.interval import Interval, student_interval
from hessfig.analysis.windows import Window
from hessfig.terms import Part

K = "index"
DIRECTION, DISTANCE = "landscape.direction", "landscape.distance"
LEAST_EXPONENT = 0.1
LEAST_BEYOND = 0.05  # of an exponent, or in decades: 12 %
SMALLEST_K: Window = (10.0, None)
_CURVES = ("difference", "rms", "null", "bound")
_PLACE = [DIRECTION, DISTANCE]


def rate(evidence: Evidence) -> Finding:
    """For each direction and distance from w*, seed by seed, k >= 10: the exponent of |L_{k+1}(w) - L_k(w)| in k, the
    margin (smallest log10 over k of the bound over it) and the excess (mean log10 of its root mean square over what
    independent losses give). The rate holds when all intervals of exponents (95 % of all together, Bonferroni) lie
    within 0.1 of -1, the bound when all margins are above 0, and `more than chance` when all intervals of the
    excess exclude 0 with means of at least 0.05 in size. The claim holds when all three do; `holds only if` names those
    that do. The effect is the exponent that is farthest from -1.
    """
    curves = {name: evidence.numbers(f"landscape_{name}", *_PLACE) for name in _CURVES}
    if any(one.empty for one in curves.values()):
        return missing("differences of losses against k beside their null and bound")
    rates = exponents(curves["difference"], K, *_PLACE, window=SMALLEST_K)
    logs = {name: _logs(one) for name, one in curves.items()}
    each = [*_PLACE, "seed"]
    margins = (logs["bound"] - logs["difference"]).groupby(level=each).min()
    excess = (logs["rms"] - logs["null"]).groupby(level=each).mean()
    samples = {"exponent": rates, "margin": margins, "excess": excess}
    tests = sum(one.groupby(level=_PLACE).ngroups for one in samples.values())
    found_of = {name: _intervals(one, tests) for name, one in samples.items()}
    verdicts = {
        "the rate": all_of(
            alike(_shifted(one, 1.0), LEAST_EXPONENT) for one in found_of["exponent"].values()
        ),
        "the bound": all_of(exceeds(one, 0.0) for one in found_of["margin"].values()),
        "more than chance": all_of(departs(one, LEAST_BEYOND) for one in found_of["excess"].values()),
    }
    verdict, words = by_condition(verdicts)
    worst = _farthest(found_of["exponent"], -1.0)
    contrasts = {f"{name}, {place}": one for name, ours in found_of.items() for place, one in ours.items()}
    verdict = verdict if words else all_of(verdicts.values())
    return found(found_of["exponent"][worst], verdict, words or worst, contrasts)


def stationarity(evidence: Evidence) -> Finding:
    """At the last step of the training, k at most a tenth of all samples, seed by seed: the exponent in k of what
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


def hessian(evidence: Evidence) -> Finding:
    """Exponents in k of the norm and of the condition number of H_k, the Hessian of the first k samples, block by
    block, seed by seed. The claim holds when the intervals of all of them (95 % together, Bonferroni) lie within 0.1 of
    -1/2, and does not when one is another exponent: its interval excludes -1/2 and its mean is at least 0.1 off. The
    effect is the exponent that is farthest from -1/2.
    """
    names = {"norm": "subset_norm", "condition number": "subset_condition_number"}
    samples = {
        name: exponents(evidence.numbers(quantity, part=Part.H.value), K, "row")
        for name, quantity in names.items()
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
    return {
        _words(*place): student_interval(one, tests=tests) for place, one in samples.groupby(level=_PLACE)
    }


def _words(direction: str, distance: str) -> str:
    """Return a place in words; the distance is empty or `None` at w* itself."""
    at_start = distance in ("", "None")
    return (
        f"{direction or 'random'}: at w*" if at_start else f"{direction or 'random'}: |w - w*| = {distance}"
    )


def _shifted(interval: Interval, by: float) -> Interval:
    return Interval(interval.mean + by, interval.se, interval.low + by, interval.high + by, interval.count)


def _farthest(intervals: Mapping[str, Interval], target: float) -> str:
    return max(intervals, key=lambda name: np.nan_to_num(abs(intervals[name].mean - target), nan=-1.0))


CLAIMS = (
    Claim(
        "landscape-rate",
        "arXiv 2510.16927, theorem 7",
        "|L_{k+1} - L_k| falls as 1/k, more than chance explains, and the bound holds",
        sweep="landscape",
        figure="landscape",
        rule=rate,
    ),
    Claim(
        "stationarity-data",
        "arXiv 2510.16927, assumption 1",
        "gradients at w* vanish better with more samples than chance alone would make them",
        sweep="stationarity",
        figure="stationarity",
        rule=stationarity,
    ),
    Claim(
        "hessian-data",
        "blog on arXiv 2510.16927",
        "the norm and the condition number of the Hessian go as 1/sqrt(number of samples)",
        sweep="data_size",
        figure="data_size",
        rule=hessian,
    ),
)
