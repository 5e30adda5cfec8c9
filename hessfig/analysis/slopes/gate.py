"""The regression gate: every slope with a prediction must be close to it, with a sufficiently small error."""

from collections import Counter
from typing import Any

from pandas import DataFrame

from hessfig.analysis.slopes.printed import SlopeVerdict, judge, window_words
from hessfig.predictions.growth_rates import Prediction
from hessfig.predictions.network_series import Regime

_PASSES = (
    SlopeVerdict.agrees,
    SlopeVerdict.structural_zero,
    SlopeVerdict.no_prediction,
)
NOTHING = "no slope has a prediction: nothing was checked"
SATURATION = 1.0  # predictions for sigma -> 0 do not apply to sigmas above this, where the softmax saturates


def summary(frame: DataFrame, tolerance: float) -> tuple[list[str], int]:
    """Return the text to print and the exit code.

    The text lists asymptotic slopes, failures, and the number of checked slopes. The
    exit code is 0 if every checked slope passes, and 1 if one fails or if no slope has
    a prediction.
    """
    rows = len(frame)
    count = len(checked(frame))
    if not count:
        return [NOTHING], 1
    noted = asymptotic(frame, tolerance)
    wrong = violations(frame, tolerance)
    verdicts: Counter[SlopeVerdict] = Counter()
    passed = 0
    left_out = 0
    for row in checked(frame).itertuples():
        verdict = judge(row, tolerance)
        verdicts[verdict] += 1
        if verdict in _PASSES and _lost(row):
            left_out += 1
        elif verdict in _PASSES:
            passed += 1
    rest = {
        "undecided (the error is too large to tell)": verdicts[SlopeVerdict.undecided],
        "with too few points": verdicts[SlopeVerdict.too_few_points],
        "with numbers left out": left_out,
        "asymptote only (notes above)": len(noted),
        "where no prediction applies": rows - count,
    }
    words = "".join(f", {number} {what}" for what, number in rest.items() if number)
    outside = f"{verdicts[SlopeVerdict.deviates]} outside tolerance {tolerance:g}"
    last = f"{count} slopes checked, {passed} pass, {outside}{words}"
    return [*(f"note: {line}" for line in noted), *wrong, last], int(bool(wrong))


def checked(frame: DataFrame) -> DataFrame:
    """Return the rows of the slopes table whose prediction applies to their window.

    A prediction for small sigma does not apply to a window that reaches above 1. One
    for sigma -> infinity applies above 1 (the window has been matched with its regime).
    Where theory is silent, no prediction applies.
    """
    reach = frame["x_high"].fillna(frame["window_high"]) <= SATURATION * (1 + 1e-9)
    applies = frame["regime"].isin([Regime.every_sigma, Regime.large_sigma]) | reach
    return frame[(frame["prediction"] != Prediction.unknown) & applies]


def violations(frame: DataFrame, tolerance: float) -> list[str]:
    """Return one line for every checked row that fails at `tolerance`; an empty list means that all pass.

    A slope fails if it deviates, if it is undecided (2 se > tolerance, so that a wrong
    exponent would not be detected), if it has too few points, or if numbers in its
    window are not finite. A slope that only reaches its asymptote neither fails nor
    passes (see `asymptotic`). A frame without any applicable prediction fails.
    """
    rows = checked(frame)
    if rows.empty:
        return [NOTHING]
    lines: list[str] = []
    for row in rows.itertuples():
        lines += _complaints(row, tolerance)
    return lines


def asymptotic(frame: DataFrame, tolerance: float) -> list[str]:
    """Return one line for every checked row that starts at its limit but bends away from it, and so does not pass."""
    lines = []
    for row in checked(frame).itertuples():
        verdict = judge(row, tolerance)
        if verdict == SlopeVerdict.asymptote_only:
            lines.append(_line(row, verdict, tolerance))
    return lines


def _complaints(row: Any, tolerance: float) -> list[str]:
    verdict = judge(row, tolerance)
    lines = []
    if verdict not in (*_PASSES, SlopeVerdict.asymptote_only):
        lines.append(_line(row, verdict, tolerance))
    for what, number in _lost(row).items():
        lines.append(f"{_name(row)}: numbers in the window that {what}: {number}")
    return lines


def _lost(row: Any) -> dict[str, int]:
    """Return how many numbers in the window are excluded from means, by reason."""
    lost = {
        "are not finite": row.num_nonfinite,
        "did not converge": row.num_not_converged,
    }
    return {why: number for why, number in lost.items() if number}


def _line(row: Any, verdict: SlopeVerdict, tolerance: float) -> str:
    return f"{_name(row)}: {verdict}: {_evidence(row, verdict, tolerance)}"


def _name(row: Any) -> str:
    variant = f"{row.variant}, " if row.variant else ""
    block = f"{row.part}({row.row}, {row.col})"
    return (
        f"{variant}layer {row.layer} of {row.num_layers}, {block}, {window_words(row)}"
    )


def _evidence(row: Any, verdict: SlopeVerdict, tolerance: float) -> str:
    if row.is_zero:
        return f"every number is zero, predicted exponent {row.predicted:g}"
    if verdict == SlopeVerdict.too_few_points:
        return f"{row.num_points} sigmas with a positive mean, at least 3 are needed"
    if row.prediction == Prediction.structural_zero:
        return f"not zero, predicted to vanish ({row.reference})"
    slope = f"slope {row.slope:.3f} ± {row.slope_se:.3f} (se of {row.num_seeds} seeds)"
    if verdict == SlopeVerdict.asymptote_only:
        slope += f", lower half {row.lower_half:.2f} ± {row.lower_half_se:.2f}"
    return f"{slope}, predicted {row.predicted:g}, tolerance {tolerance:g}"
