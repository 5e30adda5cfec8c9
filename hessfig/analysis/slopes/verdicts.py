"""What a fitted slope says about its prediction."""

from __future__ import annotations

import math
from enum import StrEnum
from typing import Protocol

from hessfig.predictions.growth_rates import Prediction, Regime


class Verdict(StrEnum):
    """Outcome of comparing a slope with its prediction, at a tolerance t.

    agrees           |slope - predicted| <= t, and the slope is known well enough (2 se <= t)
    deviates         it is further off than t, and not by its own error alone; or a block does not vanish
                     that should
    drifts           as `deviates`, but the exponent is a limit for sigma -> 0 and the smaller half of the
                     sigmas agrees with it, known to se <= t: the curve bends away inside the window
    undecided        the standard error is too large for t to tell anything (or there is one seed only)
    structural zero  every number is exactly zero, as predicted
    no prediction    theory is silent
    too few points   fewer than three sigmas with a positive mean in the window
    """

    agrees = "agrees"
    deviates = "deviates"
    drifts = "drifts"
    undecided = "undecided"
    structural_zero = "structural zero"
    no_prediction = "no prediction"
    too_few_points = "too few points"


class SlopeRow(Protocol):
    """The columns of slopes.csv that a verdict rests on."""

    slope: float
    slope_se: float
    lower_half: float
    lower_half_se: float
    num_points: int
    is_zero: bool
    predicted: float
    prediction: str
    regime: str


def judge(row: SlopeRow, tolerance: float) -> Verdict:
    """Return the verdict on one row of the slopes table."""
    if row.prediction == Prediction.structural_zero:
        return Verdict.structural_zero if row.is_zero else Verdict.deviates
    if row.is_zero:
        return Verdict.deviates if row.prediction == Prediction.exponent else Verdict.structural_zero
    if row.num_points < 3:
        return Verdict.too_few_points
    if row.prediction == Prediction.unknown:
        return Verdict.no_prediction
    return _judge_exponent(row, tolerance)


def _judge_exponent(row: SlopeRow, tolerance: float) -> Verdict:
    distance = abs(row.slope - row.predicted)
    error = 2 * row.slope_se if math.isfinite(row.slope_se) else math.inf
    if distance > tolerance + error:
        return Verdict.drifts if _lower_half_agrees(row, tolerance) else Verdict.deviates
    if error > tolerance:
        return Verdict.undecided
    if distance > tolerance:
        return Verdict.drifts if _lower_half_agrees(row, tolerance) else Verdict.deviates
    return Verdict.agrees


def _lower_half_agrees(row: SlopeRow, tolerance: float) -> bool:
    if row.regime != Regime.small_sigma or not row.lower_half_se <= tolerance:
        return False
    return abs(row.lower_half - row.predicted) <= max(tolerance, 2 * row.lower_half_se)
