"""|L_{k+1}(w) - L_k(w)| against k: measured, predicted to second order, bounded, and by chance alone."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, X, along, check_places
from hessfig.analysis.curves import growth_curves
from hessfig.analysis.manifest import read_run
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.analysis.variants import as_variant, assignments
from hessfig.analysis.windows import WHOLE, label
from hessfig.errors import UserError, run_command
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid
from hessfig.figures.parts.numbers import as_written
from hessfig.figures.parts.panels import corner, draw_curve, fitted, set_decades
from hessfig.figures.parts.save import Page, file_words
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE
from hessfig.figures.parts.words import note_words, plain
from hessfig.record import LEFT_OUT

DISTANCE, DIRECTION = "landscape.distance", "landscape.direction"
_SIZE, _RMS, _NULL = "landscape_difference", "landscape_rms", "landscape_null"
_ALONG_K = (_SIZE, _RMS, "landscape_prediction", _NULL, "landscape_bound")
_SINGLE = ("largest_loss", "largest_curvature", "prediction_correlation", "prediction_slope")
_ROOM = 1e3  # below the curves, for words
_TONE, _BOUND = "#4575b4", "#d73027"


@dataclass(frozen=True)
class _Place:
    """A panel: its curves along k by quantity, its single numbers, its slopes."""

    curves: dict[str, pd.DataFrame]
    numbers: dict[str, float]
    slopes: dict[str, tuple[float, float]]
    distance: float


def landscape(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw a panel for every direction (rows) and distance (columns) of the sweep; a page for whatever else varies.

    How to read it: dots are means over orders of the samples and over seeds, bands one standard error over seeds;
    open dots root mean squares, which the grey line (chance alone) must meet whatever the network: its slope of -1 is
    automatic. Black dashes: the second-order prediction. Red: the bound, and its two terms (dots: 2 L_max / (k + 1);
    dashes: M |w - w*|^2 / (k + 1)). r and b in a corner: rank correlation and slope of losses' changes on their
    prediction. Requires: a sweep of the quantity landscape_difference along `index`.
    """
    run, axis = read_run(folder), Axis("index")
    missing = [name for name in (_SIZE, _NULL) if name not in set(run.table["quantity"])]
    if missing:
        raise UserError(
            "figure.layout=landscape draws the quantity landscape_difference, and the table has none",
            got=", ".join(run.table["quantity"].unique()),
            allowed="a sweep with landscape_difference among its quantities",
            remedy=f"{run_command(folder)} 'quantities=[landscape_difference]'",
        )
    check_places(along(run.table[run.table["quantity"] == _SIZE], axis), axis)
    others = run.table["variant"].map(_other)
    for other in others.unique():
        table = run.table[others == other]
        yield _page(
            spec,
            table,
            axis,
            other,
            f"_{file_words(other)}" if len(others.unique()) > 1 else "",
            run.first_seed,
            str((run.config.get("landscape") or {}).get("distance")),
        )


def _page(
    spec: FigureSpec, table: pd.DataFrame, axis: Axis, other: str, suffix: str, first_seed: int, fixed: str
) -> Page:
    """Draw a page; `fixed` is the distance of all numbers where the sweep does not vary it ('None': at w*)."""
    directions, distances = (_values(table, key) for key in (DIRECTION, DISTANCE))
    note = _note(spec, table, axis, other)
    figure, axes = panel_grid(
        len(directions), len(distances), note=note, margins=Margins(top=0.62, down=0.3), share_y="all"
    )
    drawn = []
    for row, direction in zip(axes, directions, strict=True):
        for ax, distance in zip(row, distances, strict=True):
            here = table[table["variant"].map(lambda v: _is_at(v, direction, distance))]  # noqa: B023
            place = _place(spec, here, axis, distance or fixed, first_seed)
            _draw(ax, place)
            drawn += [
                curve.assign(slope=place.slopes[name][0], slope_se=place.slopes[name][1])
                for name, curve in place.curves.items()
            ]
    for ax, distance in zip(axes[0], distances, strict=True):
        here = distance or fixed
        ax.set_title(f"distance {plain(here)}" if here != "None" else "at $w^*$")
    set_decades(axes[0, 0], "x")
    set_decades(axes[0, 0], "y")
    names = [f"{plain(one)}: " if one else "" for one in directions]
    only_outer_labels(axes, x="k", y=[f"{name}$|L_{{k+1}} - L_k|$" for name in names])
    low, high = axes[0, 0].get_ylim()
    axes[0, 0].set_ylim(low / _ROOM, high)
    handles, named = axes[0, -1].get_legend_handles_labels()
    figure.legend(handles, named, loc="upper center", ncols=4, columnspacing=1.0, handlelength=1.2)
    return Page(suffix, figure, as_written(pd.concat(drawn), axis))


def _place(spec: FigureSpec, table: pd.DataFrame, axis: Axis, distance: str, first_seed: int) -> _Place:
    present = [name for name in _ALONG_K if name in set(table["quantity"])]
    curves = {name: growth_curves(table, axis=axis, quantity=name) for name in present}
    windows = list(spec.windows)[:1] or [WHOLE]
    slopes = {}
    for name in present:
        fit = fit_slopes(
            table,
            {},
            windows,
            axis=axis,
            quantity=name,
            average=spec.average,
            resamples=spec.resamples,
            seed=first_seed if spec.seed is None else spec.seed,
        ).iloc[0]
        slopes[name] = float(fit["slope"]), float(fit["slope_se"])
    counted = table[~table["status"].isin(LEFT_OUT)]
    numbers = {name: float(counted.loc[counted["quantity"] == name, "value"].mean()) for name in _SINGLE}
    return _Place(curves, numbers, slopes, 0.0 if distance == "None" else float(distance))


def _draw(ax: Axes, place: _Place) -> None:
    null, size, rms = (place.curves[name] for name in (_NULL, _SIZE, _RMS))
    ax.plot(null[X], null["mean"], color=GUIDE, linewidth=2.2, alpha=0.6, label="chance (rms)", zorder=1)
    draw_curve(ax, size, colour=_TONE, label="mean")
    ax.plot(rms[X], rms["mean"], "o", color=_TONE, fillstyle="none", markeredgewidth=0.5, label="rms")
    if "landscape_prediction" in place.curves:
        predicted = place.curves["landscape_prediction"]
        ax.plot(
            predicted[X],
            predicted["mean"],
            color="black",
            linestyle=(0, (3, 2)),
            linewidth=0.8,
            label="2nd order",
            zorder=4,
        )
    _draw_bound(ax, place)
    slope, error = place.slopes[_SIZE]
    loose = place.curves["landscape_bound"]["mean"].to_numpy() / size["mean"].to_numpy()
    words = f"slope {fitted(slope, error)}\nbound / mean: {np.median(loose):.2g}"
    if place.distance:
        found = place.numbers
        words += f"\nr = {found['prediction_correlation']:.2f}, b = {found['prediction_slope']:.2f}"
    corner(ax, words, "lower left")


def _draw_bound(ax: Axes, place: _Place) -> None:
    """Draw the bound and its two terms."""
    bound, numbers = place.curves["landscape_bound"], place.numbers
    k = bound[X].to_numpy()
    ax.plot(k, bound["mean"], color=_BOUND, linewidth=0.8, label="bound")
    line: dict[str, Any] = {"color": _BOUND, "linewidth": 0.6}
    ax.plot(k, 2 * numbers["largest_loss"] / (k + 1), linestyle=":", label="loss term", **line)
    if place.distance:
        term = numbers["largest_curvature"] * place.distance**2 / (k + 1)
        ax.plot(k, term, linestyle="--", label="curvature term", **line)


def _note(spec: FigureSpec, table: pd.DataFrame, axis: Axis, other: str) -> str:
    chosen = along(table[table["quantity"] == _SIZE], axis)
    window = label((list(spec.windows) or [WHOLE])[0], axis.symbol)
    words = note_words(chosen, axis, [other], several_points=True)
    return f"{words} Slopes: {window}; chance has slope −1 whatever the network."


def _values(table: pd.DataFrame, key: str) -> list[str]:
    """Return the values of a setting in the order of the sweep; "" where it is not varied."""
    return list(dict.fromkeys(assignments(variant).get(key, "") for variant in table["variant"]))


def _is_at(variant: str, direction: str, distance: str) -> bool:
    settings = assignments(variant)
    return (settings.get(DIRECTION, ""), settings.get(DISTANCE, "")) == (direction, distance)


def _other(variant: str) -> str:
    settings = assignments(variant)
    return as_variant({key: value for key, value in settings.items() if key not in (DIRECTION, DISTANCE)})
