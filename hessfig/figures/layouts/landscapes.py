"""The loss of k samples: differences, integrals, and power laws."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, X, along, as_variant, assignments, check_places, short_variant
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import Run, read_run
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.analysis.slopes.printed import WHOLE, Window, label
from hessfig.errors import UserError, run_command
from hessfig.figures.parts.encoding import set_x_scale
from hessfig.figures.parts.measured import as_written
from hessfig.figures.parts.page import GUIDE, TINY, FigureSpec, Page, file_words, part_colour, shades
from hessfig.figures.parts.panel_sheet import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.panels import between_decades, corner, draw_curve, fitted, positive, set_decades, why_no_line
from hessfig.figures.parts.words import block_title, note_words, plain, quantity_words, symbol
from hessfig.record import CURVE, FROBENIUS, LEFT_OUT
from hessfig.terms import name_order

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

    How to read it: dots are means over orders of the samples and over seeds, bands 95 % intervals over seeds;
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


_ROWS = 6  # of panels on a page
_BLOCK = ["layer", "row_layer", "row", "col"]
_SHORT = 30  # ratio below which powers of ten are too far apart for ticks
_COLOUR = "#4575b4"
_LINE = 0.125  # inches that a line of a legend takes
_MOST = 0.6  # share of a panel that a legend gets at most
_STROKES: Sequence[Any] = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)))


@dataclass(frozen=True)
class Laws:
    """Curves of one sweep with a slope each; `nulls` are the quantities that chance alone gives, by quantity."""

    curves: pd.DataFrame
    slopes: pd.DataFrame
    axis: Axis
    window: Window
    nulls: Mapping[str, Sequence[str]]
    published: Mapping[str, float]


def power_laws(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw quantities along the sweep's axis, logarithmic both, with the slope of every curve.

    How to read it: a dot is a mean over seeds, its band the 95 % interval; slopes are least squares in logarithms on
    the sweep's first window, with errors from resampling seeds. Colours are parts of the Hessian (shades: variants).
    Grey lines are what chance alone gives, with their own slopes: a slope that is theirs says nothing of the network.
    Options: `quantity` (one, or a list, a column each), `chance` ({quantity: [quantities]}), `published` ({quantity:
    slope}). Requires: the sweep's table.csv.
    """
    run = read_run(folder)
    quantities = spec.words("quantity") or [FROBENIUS]
    laws = _laws(spec, run, quantities)
    check_places(along(run.table, run.axis), run.axis)
    keys = list(laws.curves[_BLOCK].drop_duplicates().itertuples(index=False, name=None))
    rank = name_order([key[2] for key in keys])
    keys.sort(key=lambda key: (key[0], rank(key[2]), rank(key[3])))
    sheets = [keys[start : start + _ROWS] for start in range(0, len(keys), _ROWS)]
    note = _law_note(run, laws, quantities)
    for number, blocks in enumerate(sheets, start=1):
        yield _law_page(laws, blocks, quantities, note, f"_sheet{number}" if len(sheets) > 1 else "")


def _laws(spec: FigureSpec, run: Run, quantities: Sequence[str]) -> Laws:
    nulls = {name: list(spec.options.get("chance", {}).get(name, ())) for name in quantities}
    windows = list(spec.windows) or [WHOLE]
    every = [*quantities, *(name for names in nulls.values() for name in names)]
    curves, slopes = [], []
    for name in every:
        table = of_quantity(run.table, name)
        curves.append(growth_curves(table, axis=run.axis, quantity=name))
        slopes.append(
            fit_slopes(
                table,
                {},
                windows[:1],
                axis=run.axis,
                quantity=name,
                average=spec.average,
                resamples=spec.resamples,
                seed=run.first_seed if spec.seed is None else spec.seed,
            )
        )
    published = spec.options.get("published", {})
    return Laws(pd.concat(curves), pd.concat(slopes), run.axis, windows[0], nulls, published)


def _law_page(laws: Laws, blocks: Sequence[tuple[Any, ...]], quantities: Sequence[str], note: str, suffix: str) -> Page:
    margins = Margins(across=0.36, down=0.2)
    figure, axes = panel_grid(len(blocks), len(quantities), note=note, margins=margins, share_y=False)
    drawn = []
    for row, block in zip(axes, blocks, strict=True):
        for ax, quantity in zip(row, quantities, strict=True):
            drawn.append(_panel(ax, laws, block, quantity))
    for ax, quantity in zip(axes[0], quantities, strict=True):
        ax.set_title(plain(quantity_words(quantity)))
    set_x_scale(axes[-1, 0], laws.curves[X])
    titles = [_title(block) for block in blocks]
    only_outer_labels(axes, x=plain(laws.axis.symbol), y=titles)
    return Page(suffix, figure, as_written(pd.concat(drawn), laws.axis))


def _panel(ax: Axes, laws: Laws, block: tuple[Any, ...], quantity: str) -> pd.DataFrame:
    """Draw one panel and return its numbers, the slope of its curve beside each."""
    curves, slopes = (_of(frame, block, quantity) for frame in (laws.curves, laws.slopes))
    nulls = pd.concat([_of(laws.curves, block, name) for name in laws.nulls[quantity]] or [curves[:0]])
    shown = pd.concat([curves, nulls])
    if not positive(shown).any():
        say(ax, why_no_line(curves))
        return _beside(shown, laws)
    set_decades(ax, "y")
    drawn = shown.loc[positive(shown), "mean"]
    if drawn.max() < _SHORT * drawn.min():
        between_decades(ax, "y")
    words = [
        _draw_null(ax, laws, block, null, rank) for rank, (_, null) in enumerate(nulls.groupby("quantity", sort=False))
    ]
    several = list(curves["variant"].unique())
    for part, here in curves.groupby("part", sort=False):
        tones = shades(part_colour(str(part)) if part else _COLOUR, len(several))
        for tone, variant in zip(tones, several, strict=True):
            curve = here[here["variant"] == variant]
            slope = slopes[(slopes["part"] == part) & (slopes["variant"] == variant)].iloc[0]
            name = " ".join(filter(None, [symbol(str(part)), plain(short_variant(variant))]))
            value = fitted(slope["slope"], slope["slope_se"])
            draw_curve(ax, curve, colour=tone, label=f"{name}: {value}" if name else value)
    published = laws.published.get(quantity)
    said = [f"published: {published:g}".replace("-", "−")] if published is not None else []
    title = plain("\n".join(["slopes", *said, *words]))
    legend = ax.legend(loc="lower left", fontsize=TINY, title=title, alignment="left")
    _make_room(ax, title.count("\n") + 1 + len(legend.get_texts()))
    return _beside(shown, laws)


def _make_room(ax: Axes, lines: int) -> None:
    """Lower the end of a logarithmic axis so that `lines` of words stand below what is drawn."""
    low, high = ax.get_ylim()
    height = ax.get_figure().get_size_inches()[1] * ax.get_position().height  # type: ignore[union-attr]
    share = min(lines * _LINE / height, _MOST)
    ax.set_ylim(high * (low / high) ** (1 / (1 - share)), high)


def _draw_null(ax: Axes, laws: Laws, block: tuple[Any, ...], null: pd.DataFrame, rank: int) -> str:
    """Draw what chance gives of every variant in grey; return its name with the slope of the first of them."""
    for _, line in null[positive(null)].groupby("variant", sort=False):
        ax.plot(line[X], line["mean"], color=GUIDE, linestyle=_STROKES[rank % 3], linewidth=1.2, zorder=1)
    name = str(null["quantity"].iloc[0])
    slope = _of(laws.slopes, block, name).iloc[0]
    return f"{name.rpartition('_')[2]}: {fitted(slope['slope'], slope['slope_se'])}"


def _beside(curves: pd.DataFrame, laws: Laws) -> pd.DataFrame:
    fits = laws.slopes[[*CURVE, "slope", "slope_se", "window_low", "window_high"]]
    return curves.merge(fits, on=CURVE, how="left", validate="many_to_one")


def _of(frame: pd.DataFrame, block: tuple[Any, ...], quantity: str) -> pd.DataFrame:
    here = frame[frame["quantity"] == quantity]
    for name, value in zip(_BLOCK, block, strict=True):
        here = here[here[name] == value]
    return here


def _title(block: tuple[Any, ...]) -> str:
    layer, row_layer, row, col = block
    across = f"{row_layer},{layer}" if layer != row_layer else ""
    return block_title(row, col, across, quantity="") + (f" {layer}" if layer > 1 and not across else "")


def _law_note(run: Run, laws: Laws, quantities: Sequence[str]) -> str:
    table = pd.concat([of_quantity(run.table, name) for name in quantities])
    window = label(laws.window, laws.axis.symbol)
    chance = " Grey: chance alone." if any(laws.nulls.values()) else ""
    words = note_words(along(table, laws.axis), laws.axis, [], several_points=True)
    return f"{words} Slopes: least squares in logarithms, {window}.{chance}"
