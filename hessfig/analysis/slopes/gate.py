"""The regression gate: where a prediction applies, a slope must be near it, and near enough to tell."""

from collections import Counter
from typing import Any

import pandas as pd

from hessfig.analysis.axis import Axis
from hessfig.analysis.slopes.printed import SlopeVerdict, as_window, judge, label
from hessfig.predictions.growth_rates import Prediction
from hessfig.predictions.network_series import Regime

_PASSES = (SlopeVerdict.agrees, SlopeVerdict.structural_zero, SlopeVerdict.no_prediction)
NOTHING = "no slope has a prediction: nothing was checked"
SATURATION = 1.0  # predictions for sigma -> 0 say nothing about sigmas above this: the softmax saturates


def summary(frame: pd.DataFrame, tolerance: float) -> tuple[list[str], int]:
    """Return what to print (what is asymptotic only, what fails, and at last how many were checked) and the exit code.

    0: every checked slope passes; 1: one fails, or no slope has a prediction and nothing was checked.
    """
    rows, count = len(frame), len(checked(frame))
    if not count:
        return [NOTHING], 1
    noted, wrong = asymptotic(frame, tolerance), violations(frame, tolerance)
    judged = [(judge(row, tolerance), _lost(row)) for row in checked(frame).itertuples()]
    verdicts = Counter(verdict for verdict, _ in judged)
    rest = {
        "undecided (the error is too large to tell)": verdicts[SlopeVerdict.undecided],
        "with too few points": verdicts[SlopeVerdict.too_few_points],
        "with numbers left out": sum(bool(lost) and verdict in _PASSES for verdict, lost in judged),
        "asymptote only (notes above)": len(noted),
        "where no prediction applies": rows - count,
    }
    words = "".join(f", {number} {what}" for what, number in rest.items() if number)
    passed = sum(verdict in _PASSES and not lost for verdict, lost in judged)
    outside = f"{verdicts[SlopeVerdict.deviates]} outside tolerance {tolerance:g}"
    last = f"{count} slopes checked, {passed} pass, {outside}{words}"
    return [*(f"note: {line}" for line in noted), *wrong, last], int(bool(wrong))


def checked(frame: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of the slopes table whose prediction applies to their window.

    An exponent for small sigma does not where the window reaches sigmas above 1, and one for sigma -> infinity applies
    above 1 (the window has been matched with its regime); silence never does.
    """
    reach = frame["x_high"].fillna(frame["window_high"]) <= SATURATION * (1 + 1e-9)
    applies = frame["regime"].isin([Regime.every_sigma, Regime.large_sigma]) | reach
    return frame[(frame["prediction"] != Prediction.unknown) & applies]


def violations(frame: pd.DataFrame, tolerance: float) -> list[str]:
    """Return one line for every checked row that fails at `tolerance`; an empty list is a pass.

    A slope fails when it deviates, when it is undecided (2 se > tolerance: it could not have told a wrong
    exponent), when it has too few points, or when numbers in its window are not finite. One that
    reaches its asymptote only does not, and does not pass either (see `asymptotic`). A frame in which no prediction
    applies fails as well: nothing was checked.
    """
    rows = checked(frame)
    if rows.empty:
        return [NOTHING]
    return [line for row in rows.itertuples() for line in _complaints(row, tolerance)]


def asymptotic(frame: pd.DataFrame, tolerance: float) -> list[str]:
    """Return one line for every checked row that starts out on its limit, but bends away from it: no pass."""
    judged = [(row, judge(row, tolerance)) for row in checked(frame).itertuples()]
    return [_line(row, verdict, tolerance) for row, verdict in judged if verdict == SlopeVerdict.asymptote_only]


def _complaints(row: Any, tolerance: float) -> list[str]:
    verdict = judge(row, tolerance)
    wrong = [] if verdict in (*_PASSES, SlopeVerdict.asymptote_only) else [_line(row, verdict, tolerance)]
    return wrong + [f"{_name(row)}: numbers in the window that {what}: {n}" for what, n in _lost(row).items()]


def _lost(row: Any) -> dict[str, int]:
    """Return how many numbers in the window enter no mean, by why."""
    lost = {"are not finite": row.num_nonfinite, "did not converge": row.num_not_converged}
    return {why: number for why, number in lost.items() if number}


def _line(row: Any, verdict: SlopeVerdict, tolerance: float) -> str:
    return f"{_name(row)}: {verdict}: {_evidence(row, verdict, tolerance)}"


def _name(row: Any) -> str:
    variant = f"{row.variant}, " if row.variant else ""
    window = label(as_window(row.window_low, row.window_high), Axis(row.axis).symbol)
    return f"{variant}layer {row.layer} of {row.num_layers}, {row.part}({row.row}, {row.col}), {window}"


def _evidence(row: Any, verdict: SlopeVerdict, tolerance: float) -> str:
    if row.is_zero:
        return f"every number is zero, predicted exponent {row.predicted:g}"
    if row.prediction == Prediction.structural_zero:
        return f"not zero, predicted to vanish ({row.reference})"
    if verdict == SlopeVerdict.too_few_points:
        return f"{row.num_points} sigmas with a positive mean, at least 3 are needed"
    slope = f"slope {row.slope:.3f} ± {row.slope_se:.3f} from {row.num_seeds} seeds"
    if verdict == SlopeVerdict.asymptote_only:
        slope += f", lower half {row.lower_half:.2f} ± {row.lower_half_se:.2f}"
    return f"{slope}, predicted {row.predicted:g} ± {tolerance:g}"
