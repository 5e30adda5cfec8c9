"""What a sheet draws from: one sweep's curves and slopes, and the words that say how they were measured."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pandas as pd

from hessfig.analysis.curves import growth_curves
from hessfig.analysis.manifest import Architectures, read_sweep
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.analysis.table import CURVE, NETWORK
from hessfig.analysis.windows import WHOLE, Window, label
from hessfig.predictions.growth_rates import Prediction, Regime
from hessfig.terms import Matrix, Part

_TOP_ROWS = (Matrix.W_V, Matrix.W_Q)


@dataclass(frozen=True)
class Measured:
    """A sweep ready for drawing: numbers, mean curves, slopes on the windows, architectures where known."""

    table: pd.DataFrame
    curves: pd.DataFrame
    slopes: pd.DataFrame
    architectures: Architectures
    windows: list[Window]
    average: str

    def networks(self) -> list[tuple[str, int]]:
        """Return (variant, num_layers) of every network, in reading order."""
        return list(self.curves[NETWORK].drop_duplicates().itertuples(index=False, name=None))

    def of(self, **choice: object) -> Measured:
        """Return the part of the sweep with these values in its columns, e.g. of(num_layers=2)."""
        return Measured(
            _chosen(self.table, choice),
            _chosen(self.curves, choice),
            _chosen(self.slopes, choice),
            self.architectures,
            self.windows,
            self.average,
        )

    def matrices(self) -> list[Matrix]:
        """Return the weights whose diagonal blocks were measured, W_V and W_Q first as in the paper."""
        diagonal = self.curves[self.curves["row"] == self.curves["col"]]["row"]
        present = [matrix for matrix in Matrix if matrix in set(diagonal)]
        first = [matrix for matrix in _TOP_ROWS if matrix in present]
        return first + [matrix for matrix in present if matrix not in first]

    def layers(self) -> list[int]:
        """Return the layers that were measured."""
        return sorted(int(layer) for layer in self.curves["layer"].unique())

    def telling_slopes(self) -> pd.DataFrame:
        """Return one slope a curve: on the first window, or on that of the smallest sigmas for limits of sigma -> 0."""
        slopes = self.slopes.reset_index(drop=True)
        is_limit = (slopes["prediction"] == Prediction.exponent) & (slopes["regime"] == Regime.small_sigma)
        rank = slopes["window_high"].fillna(np.inf).where(is_limit & slopes["slope"].notna(), slopes.index)
        return slopes.iloc[rank.groupby([slopes[name] for name in CURVE], sort=False).idxmin()]

    def how(self, *, guides: bool = True) -> str:
        """Return the note: repeats, what the marks mean, the estimator, and what was left out."""
        dashed = "dashed: power law; " if guides else ""
        variant = "".join(f"{name}. " for name in self.curves["variant"].unique()[:1] if name)
        variant = "".join(f"{name}. " for name in self.curves["variant"].unique()[:1] if name and guides)
        repeats = seeds_words(self.table)
        marks = f"{variant}Dots: mean over {repeats}; band: ± standard error; {dashed}dotted: σ = 1."
        return f"{marks} {_estimator(self.table)}.{_left_out(self.table)}"


def read_measured(folder: Path, windows: Sequence[Window], average: str) -> Measured:
    """Read folder/table.csv (and its manifest if there), average over seeds, fit slopes on the windows."""
    table, architectures = read_sweep(folder)
    used = list(windows) or [WHOLE]
    slopes = fit_slopes(table, architectures, used, average=average)
    return Measured(table, growth_curves(table), slopes, architectures, used, average)


def window_words(windows: Sequence[Window]) -> str:
    """Return the fit windows in one phrase."""
    return "; ".join(label(window).replace(" ", "\u00a0") for window in windows)


def drawn_numbers(measured: Measured) -> pd.DataFrame:
    """Return the drawn means, with the telling slope and its window beside every point of its curve."""
    beside = ["slope", "slope_se", "predicted", "prediction", "window_low", "window_high"]
    fitted = measured.telling_slopes()[[*CURVE, *beside]]
    return measured.curves.merge(fitted, on=CURVE, how="left", validate="many_to_one")


def _chosen(frame: pd.DataFrame, choice: dict[str, object]) -> pd.DataFrame:
    wanted = np.logical_and.reduce([frame[column].to_numpy() == value for column, value in choice.items()])
    return frame[wanted]


def seeds_words(table: pd.DataFrame) -> str:
    """Return how many seeds a point rests on."""
    per_point = table.groupby([*CURVE, "sigma"])["seed"].nunique()
    fewest, most = int(per_point.min()), int(per_point.max())
    return f"{most} seeds" if fewest == most else f"{fewest} to {most} seeds"


def _estimator(table: pd.DataFrame) -> str:
    probes = sorted({int(count) for count in table["num_probes"] if count > 0})
    how = "/".join(sorted(table["estimator"].unique()))
    count = (
        f", {probes[0]} probes"
        if len(probes) == 1
        else f", {probes[0]} to {probes[-1]} probes"
        if probes
        else ""
    )
    return f"Block norms: {how}{count}, {'/'.join(sorted(table['dtype'].unique()))}"


def _left_out(table: pd.DataFrame) -> str:
    bad = int((table["status"] == "nonfinite").sum())
    return f" Left out: {bad} of {len(table)} numbers that are not finite." if bad else ""


def parts_of(frame: pd.DataFrame) -> list[Part]:
    """Return the measured parts in the order H_o, H_f, H."""
    return [part for part in Part if part in set(frame["part"])]
