"""Data of a figure: the curves of a table, and the numbers that are saved next to the picture."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from pandas import DataFrame

from hessfig.analysis.axis import POINT, Axis, X, along, check_places
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import Architectures, RecordedRun
from hessfig.analysis.slopes.fit import (
    GEOMETRIC,
    FitSettings,
    fit_slopes,
    own_predictions,
)
from hessfig.analysis.slopes.levels import window_levels
from hessfig.analysis.slopes.printed import WHOLE, Window, label
from hessfig.errors import UserError
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.labels import (
    interval_words,
    made_words,
    seeds_words,
    setting_words,
    variant_words,
)
from hessfig.figures.parts.page import Paper
from hessfig.figures.parts.rows import as_written, counted, in_order, networks_of, where
from hessfig.figures.parts.saving import page_suffix
from hessfig.predictions.growth_rates import Prediction
from hessfig.predictions.network_series import Regime
from hessfig.record import CURVE
from hessfig.terms import Matrix


def wanted_quantities(
    table: DataFrame, asked: list[str] | None, usual: Sequence[str], *, found: str
) -> list[str]:
    """Return the quantities to draw: those `asked` for, otherwise those of the `usual` ones that were measured.

    Raises UserError if one of them was not measured, or if there is none; the message
    then reports `found`.
    """
    measured = list(table["quantity"].unique())
    wanted = asked or [name for name in usual if name in measured]
    missing = [name for name in wanted if name not in measured]
    if missing or not wanted:
        raise UserError(
            "figure.options.quantity: the table has no numbers of these quantities",
            got=", ".join(missing) or found,
            allowed=", ".join(measured),
            remedy=f"for example figure.options.quantity={measured[0]}",
        )
    return wanted


def read_numbers(spec: FigureSpec, source: Source) -> tuple[RecordedRun, DataFrame]:
    """Return a sweep and its numbers of one quantity (the first of several) along its axis, for blocks in one layer.

    Raises UserError if the table has none, and then names the general layouts, which
    draw any table.
    """
    run = source.run
    table = along(of_quantity(run.table, spec.quantity, spec.index), run.axis)
    table = table[table["index"] == table["index"].min()]
    inside = table[(table["row_layer"] == table["layer"]) & (table["row"] != "")]
    if inside.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws blocks within a layer, and the table has none",
            got=f"{spec.quantity} of the network, or of pairs across layers",
            allowed="blocks of two weights of one layer",
            remedy="figure.layout=lines or figure.layout=bars",
        )
    return run, inside


SLOPE, LEVEL = "slope", "level"
_FRAMES = ("table", "curves", "slopes", "levels")
TOP_ROWS = (Matrix.W_V.value, Matrix.W_Q.value)


@dataclass(frozen=True)
class MeasuredCurves:
    """A sweep ready for drawing: numbers, mean curves, slopes on the windows, architectures where known.

    The numbers are of one quantity along one axis, whose places are in the column x.
    Means are arithmetic or geometric, as `average` says. Panels print slopes or levels
    on the windows, as `printed` says. `paper` is the figure's page, `config` holds the
    settings of the run.
    """

    table: DataFrame
    curves: DataFrame
    slopes: DataFrame
    architectures: Architectures
    windows: list[Window]
    average: str
    axis: Axis
    quantity: str
    levels: DataFrame
    printed: str = SLOPE
    paper: Paper = field(default_factory=Paper)
    config: Mapping[str, Any] = field(default_factory=dict)

    @property
    def setting(self) -> str:
        """Width, layers and batch in words, for the note."""
        return setting_words(self.config, self.table, self.axis)

    def of(self, **choice: object) -> MeasuredCurves:
        """Return the part of the sweep with these values in its columns, e.g. of(num_layers=2)."""
        return replace(
            self, **{name: where(getattr(self, name), **choice) for name in _FRAMES}
        )

    def pages(self, *, by_depth: bool = True) -> Iterator[tuple[str, MeasuredCurves]]:
        """Yield the suffix of its page and the numbers of every network (or variant, of all depths)."""
        variants = [(variant, 0) for variant in self.curves["variant"].unique()]
        networks = networks_of(self.curves) if by_depth else variants
        for variant, depth in networks:
            page = self.of(variant=variant)
            if by_depth:
                page = page.of(num_layers=depth)
            yield page_suffix(variant, depth, networks), page

    def matrices(self) -> list[str]:
        """Return the weights whose diagonal blocks were measured, W_V and W_Q first as in the paper."""
        diagonal = self.curves[self.curves["row"] == self.curves["col"]]["row"]
        present = in_order(diagonal)
        first = [name for name in TOP_ROWS if name in present]
        return first + [name for name in present if name not in first]

    def layers(self) -> list[int]:
        """Return the layers that were measured."""
        return sorted(int(layer) for layer in self.curves["layer"].unique())

    def telling(self) -> DataFrame:
        """Return the printed number of every curve: its slope, or its level on the first window."""
        if self.printed == LEVEL:
            return self.levels.drop_duplicates(CURVE)
        return self.telling_slopes()

    def telling_slopes(self) -> DataFrame:
        """Return one slope per curve: on the first window, or on that of the smallest sigmas for sigma -> 0."""
        slopes = self.slopes.reset_index(drop=True)
        is_limit = (slopes["prediction"] == Prediction.exponent) & (
            slopes["regime"] == Regime.small_sigma
        )
        rank = (
            slopes["window_high"]
            .fillna(np.inf)
            .where(is_limit & slopes["slope"].notna(), slopes.index)
        )
        return slopes.iloc[
            rank.groupby([slopes[name] for name in CURVE], sort=False).idxmin()
        ]

    def how(self) -> str:
        """Return the note: repeats, meaning of the marks, estimator, excluded numbers."""
        mean = "geometric mean" if self.average == GEOMETRIC else "mean"
        marks = (
            f"Dots: {mean} over {seeds_words(self.table)}; {interval_words(self.table)}"
        )
        if self._has_several_laws():
            marks += "; dashed and dotted grey: power laws"
        else:
            marks += "; dashed: power law"
        if self.axis.is_sigma:
            marks += "; dotted: σ = 1"
        if len(self.curves):
            marks = _sentence(self.curves["variant"].iloc[0]) + marks
        note = f"{marks}.{made_words(self.table, self.axis, self.setting)}"
        if (self.table[X] <= 0).any():
            note += f" Not drawn: {self.axis.symbol} = 0, which has no logarithm."
        return note

    def _has_several_laws(self) -> bool:
        """Whether a panel has several power laws: for layers, for regimes, or for windows."""
        predicted = self.slopes[self.slopes["prediction"] == Prediction.exponent]
        if predicted.empty:
            return len(self.windows) > 1
        panel = ["variant", "num_layers", "row", "col", "part"]
        return bool(
            predicted[[*panel, "predicted", "regime"]]
            .drop_duplicates()
            .duplicated(panel)
            .any()
        )


def _sentence(variant: str) -> str:
    words = variant_words(variant)
    return f"{words[:1].upper()}{words[1:]}. " * bool(variant)


def read_measured(spec: FigureSpec, source: Source) -> MeasuredCurves:
    """Read the table of a sweep and its manifest, if any; average over seeds and fit slopes on the windows.

    Raises UserError if the table has no curves of blocks within layers.
    """
    run, table = read_numbers(spec, source)
    check_places(table, run.axis)
    used = list(spec.windows) or [WHOLE]
    printed = spec.choice("words", (SLOPE, LEVEL), SLOPE)
    of: dict[str, Any] = {"axis": run.axis, "quantity": spec.quantity}
    slopes = fit_slopes(table, run.architectures, used, fits_of(spec, run), **of)
    if printed == LEVEL:
        levels = window_levels(table, used, **of, average=spec.average)
    else:
        levels = slopes[:0]
    curves = growth_curves(table, **of)
    curves = _geometric(curves, table) if spec.average == GEOMETRIC else curves
    of |= {
        "levels": levels,
        "printed": printed,
        "paper": spec.paper,
        "config": run.config,
    }
    return MeasuredCurves(
        table, curves, slopes, run.architectures, used, spec.average, **of
    )


def _geometric(curves: DataFrame, table: DataFrame) -> DataFrame:
    """Return the curves with geometric means of the positive numbers, and standard errors that are factors of these."""
    numbers = counted(table)
    logs = np.log(numbers["value"].where(numbers["value"] > 0)).groupby(
        [numbers[key] for key in POINT], dropna=False
    )
    found = curves[POINT].merge(
        logs.agg(["mean", "sem"]).reset_index(), on=POINT, how="left"
    )
    mean = np.exp(found["mean"]).set_axis(curves.index)
    sem = mean * found["sem"].set_axis(curves.index)
    return curves.assign(
        mean=mean.fillna(curves["mean"]), sem=sem.where(mean.notna(), curves["sem"])
    )


def fits_of(spec: FigureSpec, run: RecordedRun) -> FitSettings:
    """Return the settings of the fits: those of the figure, with the predictions of the run."""
    return FitSettings(
        spec.average, preset=spec.preset, predictions=own_predictions(run.config)
    )


def windows_in_words(windows: Sequence[Window], axis: Axis) -> str:
    """Return the fit windows in one phrase."""
    return "; ".join(
        label(window, axis.symbol).replace(" ", "\u00a0") for window in windows
    )


def drawn_numbers(measured: MeasuredCurves) -> DataFrame:
    """Return the drawn means. Every row also holds the printed slope (or the first level) and its window."""
    beside = [
        "slope",
        "slope_se",
        "ci_low",
        "ci_high",
        "predicted",
        "prediction",
        "window_low",
        "window_high",
    ]
    if measured.printed == LEVEL:
        beside = ["level", "level_se", "window_low", "window_high"]
    fitted = measured.telling()[[*CURVE, *beside]]
    drawn = measured.curves.merge(fitted, on=CURVE, how="left", validate="many_to_one")
    return as_written(drawn, measured.axis)
