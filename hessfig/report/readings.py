"""Reads sweeps for a report: their slopes and comparisons, and sentences about them."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.axis import Axis, short_variant
from hessfig.analysis.comparison.agreement import agreement_verdict
from hessfig.analysis.curves import quantity_to_fit
from hessfig.analysis.manifest import RecordedRun, read_manifest, read_run
from hessfig.analysis.slopes import gate
from hessfig.analysis.slopes.fit import FitSettings, fit_slopes, own_predictions
from hessfig.analysis.slopes.printed import as_window, label
from hessfig.errors import UserError
from hessfig.predictions.growth_rates import Prediction
from hessfig.record import CURVE
from hessfig.report.gathered import (
    Failure,
    FigureRequests,
    SweepAsked,
    SweepState,
    failures_in,
    made_by,
    state_of_sweep,
)


@dataclass(frozen=True)
class Compared:
    """The files of `hessfig compare`: its curves, the verdict and its reasons."""

    curves: pd.DataFrame
    verdict: str
    reasons: list[str]


@dataclass(frozen=True)
class SweepFound:
    """A sweep on disk. `problem` says what could not be read, `no_slopes` why there are none."""

    asked: SweepAsked
    state: SweepState
    words: str
    version: str
    manifest: Mapping[str, Any] | None = None
    run: RecordedRun | None = None
    slopes: pd.DataFrame | None = None
    no_slopes: str = ""
    compared: Compared | None = None
    failures: list[Failure] = field(default_factory=list)
    problem: UserError | None = None

    @property
    def name(self) -> str:
        """Its name, and that of its folder."""
        return self.asked.name

    @property
    def config(self) -> Mapping[str, Any]:
        """The settings that made it; empty if they are unknown."""
        return self.run.config if self.run else {}


def read_sweep(asked: FigureRequests, name: str) -> SweepFound:
    """Read outputs/<name>. Raises nothing: the result says what could not be read."""
    folder, about = asked.outputs / name, asked.sweeps[name]
    run, manifest, problem = _read(folder)
    state, words = state_of_sweep(folder, manifest, is_readable=run is not None)
    slopes, no_slopes = _slopes(run, about, asked) if run else (None, "")
    sweep = SweepFound(about, state, words, made_by(folder), manifest, run, slopes, no_slopes)
    problem = problem if state == SweepState.unreadable else None
    compared = _compared(folder) if run else None
    return replace(sweep, compared=compared, failures=failures_in(folder), problem=problem)


def _read(folder: Path) -> tuple[RecordedRun | None, Mapping[str, Any] | None, UserError | None]:
    try:
        return read_run(folder), read_manifest(folder), None
    except UserError as error:
        return None, None, error


def _slopes(run: RecordedRun, about: SweepAsked, asked: FigureRequests) -> tuple[pd.DataFrame | None, str]:
    """Fit the slopes of `hessfig slopes`, on the windows of the sweep; there are none along training steps."""
    if run.axis.name == "step":
        why = f"curves along steps are no power laws (hessfig slopes sweep={about.name} fits them all the same)"
        return None, why
    preset = "" if about.other else about.preset
    try:
        stated, quantity = own_predictions(run.config), quantity_to_fit(run.table)
        settings = FitSettings(about.average, asked.resamples, asked.tolerance, run.first_seed, preset, stated)
        frame = fit_slopes(run.table, run.architectures, about.windows, settings, axis=run.axis, quantity=quantity)
    except UserError as error:
        return None, error.what
    return frame, ""


def _compared(folder: Path) -> Compared | None:
    """Return the comparison stored next to the table, judged again from its files; None if it is incomplete."""
    try:
        points, curves, ratios = (pd.read_csv(folder / f"comparison{name}.csv") for name in ("", "_curves", "_ratios"))
        verdict, reasons = agreement_verdict(points, curves, ratios)
    except (OSError, ValueError, KeyError, TypeError):  # none, cut short, or of another version
        return None
    return Compared(curves, verdict.value, reasons)


_MOST_BLOCKS = 9


@dataclass(frozen=True)
class ReadingVerdict:
    """A verdict: its word, its kind (good, bad, open, none) and the sentence behind it."""

    word: str
    kind: str
    words: str


def on_theory(sweep: SweepFound, tolerance: float) -> ReadingVerdict:
    """Return the verdict of the slopes on the predictions, by the rule of `hessfig check`."""
    if sweep.slopes is None:
        return ReadingVerdict("no slopes", "none", sweep.no_slopes or "nothing to fit")
    checked = gate.checked(sweep.slopes)
    if not has_slopes(sweep):
        return ReadingVerdict("no slopes", "none", "no curve has enough points on the windows of this sweep")
    if checked.empty:
        return ReadingVerdict("no prediction", "none", "theory predicts none of these slopes on these windows")
    counts = Counter(checked["verdict"])
    listed = ", ".join(f"{count} {_PLURAL.get(verdict, verdict)}" for verdict, count in counts.most_common())
    words = f"{len(checked)} slopes checked: {listed} (tolerance {tolerance:g})"
    if counts["deviates"]:
        return ReadingVerdict("deviates", "bad", words)
    if gate.violations(sweep.slopes, tolerance):
        return ReadingVerdict("undecided", "open", words)
    return ReadingVerdict("agrees", "good", words)


def has_slopes(sweep: SweepFound) -> bool:
    """Whether any slope was fitted."""
    return sweep.slopes is not None and bool(sweep.slopes["slope"].notna().any())


def slope_lines(sweep: SweepFound) -> list[str]:
    """Return the slopes in one line per block and part: 'W_Q H_f 5.01 ± 0.03 (predicted 5)'."""
    if sweep.slopes is None or not has_slopes(sweep):
        return []
    first = sweep.slopes.drop_duplicates(CURVE)
    lines = list(_by_block(first))
    more = len(lines) - _MOST_BLOCKS
    return [*lines[:_MOST_BLOCKS], *([f"and {more} more below"] if more > 0 else [])]


def first_window(sweep: SweepFound) -> str:
    """Return the window of `slope_lines` in words."""
    if sweep.slopes is None:
        return ""
    first = sweep.slopes.iloc[0]
    return label(as_window(first["window_low"], first["window_high"]), Axis(first["axis"]).symbol)


def outside(sweep: SweepFound, tolerance: float) -> list[str]:
    """Return a line for every checked slope that is outside its tolerance or on its asymptote only."""
    if sweep.slopes is None or not has_slopes(sweep) or gate.checked(sweep.slopes).empty:
        return []
    return [*gate.violations(sweep.slopes, tolerance), *gate.asymptotic(sweep.slopes, tolerance)]


def on_paper(sweep: SweepFound, tolerance: float) -> ReadingVerdict:
    """Return the verdict on the published values: from a comparison if there is one, else from published slopes."""
    if sweep.compared is not None:
        kinds = {"agrees": "good", "differs": "bad"}
        words = "; ".join(sweep.compared.reasons) or f"{len(sweep.compared.curves)} curves compared"
        return ReadingVerdict(sweep.compared.verdict, kinds.get(sweep.compared.verdict, "open"), words)
    shown = sweep.slopes[sweep.slopes["published"].notna()] if sweep.slopes is not None else pd.DataFrame()
    if shown.empty:
        return ReadingVerdict("not compared", "none", "no published slope is on record for these curves")
    error = shown["slope_se"].fillna(math.inf) * 2
    off = (shown["slope"] - shown["published"]).abs()
    near, known = int((off <= tolerance + error).sum()), int((error <= tolerance).sum())
    words = f"{near} of {len(shown)} slopes within {tolerance:g} (and 2 standard errors) of the published curve's"
    if near < len(shown):
        return ReadingVerdict("differs", "bad", words)
    if known < len(shown):
        return ReadingVerdict("undecided", "open", words)
    return ReadingVerdict("agrees", "good", words)


def of_numbers(numbers: pd.DataFrame) -> str:
    """Return one or two sentences about a picture's numbers."""
    names = set(numbers.columns)
    if numbers.empty:
        return "No number is drawn."
    if {"slope", "predicted", "row", "part"} <= names and numbers["slope"].notna().any():
        return _slope_findings(numbers)
    if {"mean", "row", "col", "part"} <= names and numbers["mean"].notna().any():
        return _extremes(numbers)
    if {"variant", "block", "bin_low", "bin_high", "share"} <= names:
        return _medians(numbers)
    value = next((name for name in ("median", "y", "value", "mean") if name in names), None)
    series = next((name for name in ("bound", "panel", "quantity", "variant", "row") if name in names), None)
    if value and series and pd.api.types.is_numeric_dtype(numbers[value]):
        return _ranges(numbers, value, series)
    return f"{len(numbers)} numbers are drawn: {', '.join(map(str, list(numbers.columns)[:8]))}."


_PLURAL = {
    "agrees": "agree",
    "deviates": "deviate",
    "asymptote only": "reach their asymptote only (start out on the limit, then bend away)",
    "structural zero": "vanish as predicted",
}


def _slope_findings(numbers: pd.DataFrame) -> str:
    keys = [name for name in ("variant", "num_layers", "layer", "row", "col", "part") if name in numbers]
    curves = numbers.drop_duplicates(keys)
    lines = list(_by_block(curves))
    more = f"; and {len(lines) - _MOST_BLOCKS} more blocks" if len(lines) > _MOST_BLOCKS else ""
    return f"Fitted slopes: {'; '.join(lines[:_MOST_BLOCKS])}{more}."


def _by_block(curves: pd.DataFrame) -> Iterator[str]:
    for (row, part), curve in curves.groupby(["row", "part"], sort=False):
        slopes = curve["slope"].dropna()
        if slopes.empty:
            continue
        low, high = slopes.min(), slopes.max()
        span = f"{low:.2f}" if high - low < 0.005 else f"{low:.2f} to {high:.2f} in {len(slopes)} curves"
        span += _error(curve.loc[slopes.index, "slope_se"]) if "slope_se" in curve else ""
        powers = sorted({f"{value:g}" for value in curve["predicted"].dropna()}, key=float)
        is_exponent = bool(powers) and Prediction.exponent in set(curve["prediction"])
        yield f"{row} {part} {span}" + (f" (predicted {' or '.join(powers[:4])})" if is_exponent else "")


def _error(errors: pd.Series) -> str:
    """Return the standard error of a slope, the largest of several; of one seed there is none."""
    if errors.isna().all():
        return " (one seed: no error)"
    return f" ± {errors.max():.1g}" if len(errors) == 1 else f" (± {errors.max():.1g} at most)"


def _extremes(numbers: pd.DataFrame) -> str:
    positive = numbers[numbers["mean"] > 0]
    if positive.empty:
        return f"All {len(numbers)} means are zero or below."
    big, small = (positive.loc[positive["mean"].agg(which)] for which in ("idxmax", "idxmin"))
    zeros = int((numbers["mean"] == 0).sum())
    rest = f"; {zeros} of {len(numbers)} are zero" if zeros else ""
    return f"Largest mean: {_mean(big)}. Smallest above zero: {_mean(small)}{rest}."


def _medians(numbers: pd.DataFrame) -> str:
    """Return the median of each histogram (shares of logarithmic bins)."""
    lines = []
    for (variant, block), bins in numbers.groupby(["variant", "block"], sort=False):
        share = bins["share"].cumsum()
        low, high = bins.loc[share >= share.max() / 2, ["bin_low", "bin_high"]].iloc[0].abs()
        name = f"{short_variant(str(variant))} {block}".strip()
        lines.append(f"{name} near {math.sqrt(low * high):.2g}")
    return f"Median sizes of entries: {'; '.join(lines[:_MOST_BLOCKS])}."


def _ranges(numbers: pd.DataFrame, value: str, series: str) -> str:
    """Return the range of each series."""
    spans = numbers.groupby(series, sort=False)[value].agg(["min", "max"]).dropna()
    lines = [f"{name} from {low:.3g} to {high:.3g}" for name, low, high in spans.itertuples()]
    return f"{value.capitalize()}: {'; '.join(lines[:_MOST_BLOCKS])}."


def _mean(row: pd.Series) -> str:
    block = row["row"] if row["row"] == row["col"] else f"({row['row']}, {row['col']})"
    return f"{row['mean']:.3g} for {block} {row['part']}".rstrip()
