"""Figure of the differences of losses of k + 1 and k samples: measured, predicted, bounded, and by chance."""

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series, concat

from hessfig.analysis.axis import Axis, X, along, check_places, with_settings, without
from hessfig.analysis.curves import growth_curves
from hessfig.analysis.slopes.fit import FitSettings, fit_slopes
from hessfig.analysis.slopes.printed import WHOLE, label
from hessfig.figures.parts import (
    GUIDE,
    ONE_SCALE,
    FigureSpec,
    Page,
    Sheet,
    Source,
    as_written,
    corner,
    counted,
    different,
    draw_curve,
    fits_of,
    in_tens,
    labels,
    page_suffix,
    say,
    set_decades,
    slope_and_half,
    where,
)

DISTANCE, DIRECTION = "landscape.distance", "landscape.direction"
_SIZE = "landscape_difference"
_RMS = "landscape_rms"
_NULL = "landscape_null"
_ALONG_K = (_SIZE, _RMS, "landscape_prediction", _NULL, "landscape_bound")
_SINGLE = ("prediction_correlation", "prediction_slope")
_DIFFERENCE = "$|L_{k+1} - L_k|$"
_FITTED = ["slope", "slope_se", "ci_low", "ci_high"]
_ROOM = 1e3  # factor of the room below the curves, for words
_TONE, _BOUND = "#4575b4", "#d73027"


@dataclass(frozen=True)
class _Place:
    """The data of a panel: its table, its curves along k by quantity, its single numbers and its slopes."""

    table: DataFrame
    curves: dict[str, DataFrame]
    numbers: dict[str, float]
    slopes: dict[str, Series]
    distance: float


def landscape(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw a panel for every distance (rows) and direction (columns) of the sweep; a page for whatever else varies.

    How to read it: dots are means over orders of the samples and over seeds (up to five
    as thin lines, more as the band of their 95 % interval); open dots root mean
    squares, which the grey line (chance alone) must meet whatever the network: its
    slope of -1 is automatic. Black dashes: the second-order prediction. Red: the bound,
    (2 L_max + M |w - w*|^2) / (k + 1). r and b in a corner: rank correlation and slope
    of losses' changes on their prediction. At w* there is no direction, and one panel.
    Requires: a sweep of the quantity landscape_difference along `index`.
    """
    run = source.run
    axis = Axis("index")
    table = along(run.table, axis)
    check_places(table[table["quantity"] == _SIZE], axis)
    rest = table["variant"].map(lambda variant: without(variant, DIRECTION, DISTANCE))
    table = with_settings(table, DIRECTION, DISTANCE).assign(other=rest)
    fixed = str((run.config.get("landscape") or {}).get("distance"))
    others = different(table, "other", "num_layers")
    for other, depth in others:
        rows = where(table, other=other, num_layers=depth)
        suffix = page_suffix(other, depth, others)
        fits = fits_of(spec, run)
        directions = list(dict.fromkeys(rows[DIRECTION]))
        distances = list(dict.fromkeys(rows[DISTANCE]))
        names = []
        for distance in distances:
            at = distance or fixed
            names.append([f"{one or 'direction'}:{at}" for one in directions])
        style = ONE_SCALE.replace(height=1.6, top=0.52, down=0.3, narrowest=None)
        sheet = Sheet.grid(spec.paper, names, _note(spec, rows, axis), style)
        drawn = []
        for row, column, ax in sheet:
            if column and distances[row] == "None":
                say(ax, "as on the left: at $w^*$\nthere is no direction")
                continue
            here = where(
                rows, **{DIRECTION: directions[column], DISTANCE: distances[row]}
            )
            place = _place(spec, here, axis, distances[row] or fixed, fits)
            _draw(ax, place)
            for name, curve in place.curves.items():
                drawn.append(
                    curve.assign(**place.slopes[name][_FITTED], **place.numbers)
                )
        set_decades(sheet.first, "x")
        set_decades(sheet.first, "y")
        places = []
        for distance in distances:
            at = distance or fixed
            places.append(
                "at $w^*$" if at == "None" else f"at distance {labels.plain(at)}"
            )
        columns = [
            f"{labels.plain(one)} direction" if one else "" for one in directions
        ]
        sides = [f"{_DIFFERENCE} {place}" for place in places]
        sheet.label("number of samples k", columns, sides, places, _DIFFERENCE)
        low, high = sheet.first.get_ylim()
        sheet.first.set_ylim(low / _ROOM, high)
        sheet.name_above(sheet.outermost, long=1.2)
        yield sheet.page(suffix, as_written(concat(drawn), axis))


def _place(
    spec: FigureSpec, table: DataFrame, axis: Axis, distance: str, fits: FitSettings
) -> _Place:
    present = [name for name in _ALONG_K if name in set(table["quantity"])]
    curves = {name: growth_curves(table, axis, name) for name in present}
    windows = list(spec.windows)[:1] or [WHOLE]
    slopes = {}
    for name in present:
        slopes[name] = fit_slopes(
            table, {}, windows, fits, axis=axis, quantity=name
        ).iloc[0]
    used = counted(table)
    numbers = {}
    for name in _SINGLE:
        numbers[name] = float(where(used, quantity=name)["value"].mean())
    differences = along(where(table, quantity=_SIZE), axis)
    length = 0.0 if distance == "None" else float(distance)
    return _Place(differences, curves, numbers, slopes, length)


def _draw(ax: Axes, place: _Place) -> None:
    null, size, rms = (place.curves[name] for name in (_NULL, _SIZE, _RMS))
    ax.plot(
        null[X],
        null["mean"],
        color=GUIDE,
        linewidth=2.2,
        alpha=0.6,
        label="chance (rms)",
        zorder=1,
    )
    draw_curve(ax, size, place.table, colour=_TONE, label="mean")
    ax.plot(
        rms[X],
        rms["mean"],
        "o",
        color=_TONE,
        fillstyle="none",
        markeredgewidth=0.5,
        label="rms",
    )
    if "landscape_prediction" in place.curves:
        predicted = place.curves["landscape_prediction"]
        ax.plot(
            predicted[X],
            predicted["mean"],
            label="2nd order",
            zorder=4,
            color="black",
            linestyle=(0, (3, 2)),
            linewidth=0.8,
        )
    bound = place.curves["landscape_bound"]
    ax.plot(bound[X], bound["mean"], color=_BOUND, linewidth=0.8, label="bound")
    loose = bound["mean"].to_numpy() / size["mean"].to_numpy()
    words = f"slope {slope_and_half(place.slopes[_SIZE])}\nbound / mean: {in_tens(np.median(loose))}"
    if place.distance:
        numbers = place.numbers
        correlation = numbers["prediction_correlation"]
        slope = in_tens(numbers["prediction_slope"])
        words += f"\n2nd order: correlation {correlation:.2f}, slope {slope}"
    corner(ax, words, "lower left")


def _note(spec: FigureSpec, table: DataFrame, axis: Axis) -> str:
    chosen = along(where(table, quantity=_SIZE), axis)
    window = label((list(spec.windows) or [WHOLE])[0], axis.symbol)
    other = without(table["other"].iloc[0], "sigma", "step")  # named as the place
    name = labels.variant_words(other) if other else ""
    words = labels.note_words(chosen, axis, [name], several_points=True)
    words = words.replace("orders, ", "").replace("probes", "orders of the samples")
    tail = "a few large losses dominate the rms. Correlation and slope: of the 2nd order with the truth"
    return f"{words} Slopes ± 95% intervals: {window}; chance has slope −1 whatever the network; {tail}."
