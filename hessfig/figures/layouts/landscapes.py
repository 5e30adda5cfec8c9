"""The loss of k samples: differences, integrals, and power laws."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, X, along, check_places, setting_name, varied_key, with_settings, without
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import RecordedRun
from hessfig.analysis.slopes.fit import FitSettings, fit_slopes
from hessfig.analysis.slopes.printed import WHOLE, Window, label, within
from hessfig.figures.parts import labels
from hessfig.figures.parts.colours import GUIDE, part_colour, shades
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.lettering import TINY
from hessfig.figures.parts.measured import fits_of
from hessfig.figures.parts.panel_sheet import ONE_SCALE, OWN_Y, Page, Sheet, height_in, in_sheets, say
from hessfig.figures.parts.panels import corner, draw_curve, fitted, in_tens, positive, why_no_line
from hessfig.figures.parts.rows import as_written, counted, different, numbers_behind, where
from hessfig.figures.parts.saving import file_words
from hessfig.figures.parts.ticks import between_decades, set_decades, set_x_scale
from hessfig.record import CURVE, FROBENIUS, NUMBER
from hessfig.terms import Group, name_order

DISTANCE, DIRECTION = "landscape.distance", "landscape.direction"
_SIZE, _RMS, _NULL = "landscape_difference", "landscape_rms", "landscape_null"
_ALONG_K = (_SIZE, _RMS, "landscape_prediction", _NULL, "landscape_bound")
_SINGLE = ("largest_loss", "largest_curvature", "prediction_correlation", "prediction_slope")
_DIFFERENCE = "$|L_{k+1} - L_k|$"
_ROOM = 1e3  # below the curves, for words
_TONE, _BOUND = "#4575b4", "#d73027"


@dataclass(frozen=True)
class _Place:
    """A panel: the differences, its curves along k by quantity, its single numbers, its slopes."""

    table: pd.DataFrame
    curves: dict[str, pd.DataFrame]
    numbers: dict[str, float]
    slopes: dict[str, tuple[float, float]]
    distance: float


def landscape(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw a panel for every direction (rows) and distance (columns) of the sweep; a page for whatever else varies.

    How to read it: dots are means over orders of the samples and over seeds (up to five as thin lines, more as the
    band of their 95 % interval); open dots root mean squares, which the grey line (chance alone) must meet whatever the
    network: its slope of -1 is automatic. Black dashes: the second-order prediction. Red: the bound, and its two terms
    (dots: 2 L_max / (k + 1); dashes: M |w - w*|^2 / (k + 1)). r and b in a corner: rank correlation and slope of
    losses' changes on their prediction. At w* there is no direction, and one panel. Requires: a sweep of the quantity
    landscape_difference along `index`.
    """
    run, axis = source.run, Axis("index")
    check_places(along(run.table[run.table["quantity"] == _SIZE], axis), axis)
    rest = run.table["variant"].map(lambda variant: without(variant, DIRECTION, DISTANCE))
    table = with_settings(run.table, DIRECTION, DISTANCE).assign(other=rest)
    fixed, others = str((run.config.get("landscape") or {}).get("distance")), table["other"].unique()
    for other in others:
        suffix = f"_{file_words(other)}" if len(others) > 1 else ""
        yield _page(spec, where(table, other=other), axis, fits_of(spec, run), fixed, suffix)


def _page(spec: FigureSpec, table: pd.DataFrame, axis: Axis, fits: FitSettings, fixed: str, suffix: str) -> Page:
    """Draw a page; `fixed` is the distance of all numbers where the sweep does not vary it ('None': at w*)."""
    directions, distances = (list(dict.fromkeys(table[key])) for key in (DIRECTION, DISTANCE))
    names = [[f"{one or 'direction'}:{distance or fixed}" for distance in distances] for one in directions]
    style = ONE_SCALE.but(height=1.3, top=0.52, down=0.3, narrowest=None)
    sheet = Sheet.grid(spec.paper, names, _note(spec, table, axis), style)
    drawn = []
    for row, column, ax in sheet:
        if row and distances[column] == "None":
            say(ax, "as above: at $w^*$\nthere is no direction")
            continue
        here = where(table, **{DIRECTION: directions[row], DISTANCE: distances[column]})
        place = _place(spec, here, axis, distances[column] or fixed, fits)
        _draw(ax, place)
        for name, curve in place.curves.items():
            drawn.append(curve.assign(slope=place.slopes[name][0], slope_se=place.slopes[name][1]))
    for which in ("x", "y"):
        set_decades(sheet.first, which)
    rows = [f"{labels.plain(one)}: {_DIFFERENCE}" if one else _DIFFERENCE for one in directions]
    places = [distance or fixed for distance in distances]
    columns = [f"distance {labels.plain(one)}" if one != "None" else "at $w^*$" for one in places]
    sheet.label("k", columns, rows, [labels.plain(one) for one in directions], _DIFFERENCE)
    low, high = sheet.first.get_ylim()
    sheet.first.set_ylim(low / _ROOM, high)
    sheet.name_above(sheet.outermost, long=1.2)
    return sheet.page(suffix, as_written(pd.concat(drawn), axis))


def _place(spec: FigureSpec, table: pd.DataFrame, axis: Axis, distance: str, fits: FitSettings) -> _Place:
    present = [name for name in _ALONG_K if name in set(table["quantity"])]
    curves = {name: growth_curves(table, axis=axis, quantity=name) for name in present}
    windows = list(spec.windows)[:1] or [WHOLE]
    slopes = {}
    for name in present:
        fit = fit_slopes(table, {}, windows, fits, axis=axis, quantity=name).iloc[0]
        slopes[name] = float(fit["slope"]), float(fit["slope_se"])
    used = counted(table)
    numbers = {name: float(where(used, quantity=name)["value"].mean()) for name in _SINGLE}
    differences = along(where(table, quantity=_SIZE), axis)
    return _Place(differences, curves, numbers, slopes, 0.0 if distance == "None" else float(distance))


def _draw(ax: Axes, place: _Place) -> None:
    null, size, rms = (place.curves[name] for name in (_NULL, _SIZE, _RMS))
    ax.plot(null[X], null["mean"], color=GUIDE, linewidth=2.2, alpha=0.6, label="chance (rms)", zorder=1)
    draw_curve(ax, size, place.table, colour=_TONE, label="mean")
    ax.plot(rms[X], rms["mean"], "o", color=_TONE, fillstyle="none", markeredgewidth=0.5, label="rms")
    if "landscape_prediction" in place.curves:
        predicted = place.curves["landscape_prediction"]
        dashed: dict[str, Any] = {"color": "black", "linestyle": (0, (3, 2)), "linewidth": 0.8}
        ax.plot(predicted[X], predicted["mean"], label="2nd order", zorder=4, **dashed)
    _draw_bound(ax, place)
    slope, error = place.slopes[_SIZE]
    loose = place.curves["landscape_bound"]["mean"].to_numpy() / size["mean"].to_numpy()
    words = f"slope {fitted(slope, error)}\nbound / mean: {in_tens(np.median(loose))}"
    if place.distance:
        found = place.numbers
        words += f"\nr = {found['prediction_correlation']:.2f}, b = {in_tens(found['prediction_slope'])}"
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


def _note(spec: FigureSpec, table: pd.DataFrame, axis: Axis) -> str:
    chosen = along(where(table, quantity=_SIZE), axis)
    window = label((list(spec.windows) or [WHOLE])[0], axis.symbol)
    words = labels.note_words(chosen, axis, [table["other"].iloc[0]], several_points=True)
    tail = "the rms scatters, for its largest losses rule it"
    return f"{words} Slopes: {window}; chance has slope −1 whatever the network; {tail}."


_ROWS = 6  # of panels on a page
_BLOCK = ["layer", "row_layer", "row", "col"]
_SHORT = 30  # ratio below which powers of ten are too far apart for ticks
_COLOUR = "#4575b4"
_LINE = 0.125  # inches that a line of a legend takes
_MOST = 0.6  # share of a panel that a legend gets at most
_STROKES: Sequence[Any] = ((0, (4, 1.5)), (0, (1.2, 1.2)), (0, (5, 1.5, 1, 1.5)))
_STRAIGHT = 0.9  # share of the variance that a line explains at least where a slope is written


@dataclass(frozen=True)
class Laws:
    """Curves of one sweep with a slope each; `nulls` are the quantities that chance alone gives, by quantity."""

    curves: pd.DataFrame
    slopes: pd.DataFrame
    table: pd.DataFrame
    axis: Axis
    window: Window
    nulls: Mapping[str, Sequence[str]]
    published: Mapping[str, float]


def power_laws(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw quantities along the sweep's axis, logarithmic both, with the slope of every curve.

    How to read it: a dot is a mean over seeds; up to five seeds are thin lines, more the band of their 95 % interval.
    Slopes are least squares in logarithms on the sweep's first window, with errors from resampling seeds; none is
    written where a straight line explains less than 0.9 of the means' variance there: flat or bent curves have no
    power. Colours are parts of the Hessian (shades: variants). Grey dashed lines are what chance alone gives, with
    their own slopes: a slope like theirs is no property of the network. Shares (accuracies) have linear axes.
    Options: `quantity` (one, or a list, a column each), `chance` ({quantity: [quantities]}), `published` ({quantity:
    slope}), `repeats` (a varied setting whose values are the repeats, each a mean over seeds: batches, say). Requires:
    the sweep's table.csv.
    """
    repeats = str(spec.options.get("repeats", ""))
    run = _over_repeats(source.run, repeats)
    quantities = spec.words("quantity") or [FROBENIUS]
    laws = _laws(spec, run, quantities)
    check_places(along(run.table, run.axis), run.axis)
    keys = different(laws.curves, *_BLOCK)
    rank = name_order([key[2] for key in keys])
    keys.sort(key=lambda key: (key[0], rank(key[2]), rank(key[3])))
    note = _law_note(run, laws, quantities).replace("seeds", _repeats_words(repeats) or "seeds")
    for blocks, suffix in in_sheets(keys, _ROWS):
        sheet, drawn = _law_sheet(spec, laws, blocks, quantities, note)
        yield sheet.page(suffix, drawn)


def _laws(spec: FigureSpec, run: RecordedRun, quantities: Sequence[str]) -> Laws:
    nulls = {name: list(spec.options.get("chance", {}).get(name, ())) for name in quantities}
    windows, fits = list(spec.windows) or [WHOLE], fits_of(spec, run)
    curves, slopes, tables = [], [], []
    for name in [*quantities, *(name for names in nulls.values() for name in names)]:
        table = along(_of_whole(of_quantity(run.table, name)), run.axis)
        curves.append(growth_curves(table, axis=run.axis, quantity=name))
        slopes.append(fit_slopes(table, {}, windows[:1], fits, axis=run.axis, quantity=name))
        tables.append(table)
    means, fitted_to, numbers = (pd.concat(every) for every in (curves, slopes, tables))
    return Laws(means, fitted_to, numbers, run.axis, windows[0], nulls, spec.options.get("published", {}))


def _of_whole(table: pd.DataFrame) -> pd.DataFrame:
    """Return numbers with those of the network (an accuracy, say) as numbers of its whole Hessian: in one row."""
    return table.assign(row=table["row"].replace("", Group.all.value), col=table["col"].replace("", Group.all.value))


def _repeats_words(asked: str) -> str:
    """Return what the repeats are where they are the values of a setting: batches of a task's seed."""
    words = asked and f"values of {labels.plain(setting_name(asked))}"
    return "batches" if asked == "task.seed" else words


def _over_repeats(run: RecordedRun, asked: str) -> RecordedRun:
    """Return a sweep whose seeds are the values of a varied setting, each with the means over its own seeds."""
    if not asked:
        return run
    key = varied_key(asked, run.table["variant"].unique(), asked="figure.options.repeats")
    rest, own = run.table["variant"].map(lambda variant: without(variant, key)), with_settings(run.table, key)[key]
    table = run.table.assign(variant=rest, seed=pd.factorize(own)[0])
    numbers = counted(table).groupby(NUMBER, sort=False, dropna=False, as_index=False)
    means = numbers.agg({name: "mean" if name == "value" else "first" for name in table if name not in NUMBER})
    return replace(run, table=means[list(table)])


def _law_sheet(
    spec: FigureSpec, laws: Laws, blocks: Sequence[tuple[Any, ...]], quantities: Sequence[str], note: str
) -> tuple[Sheet, pd.DataFrame]:
    titles = [_title(block) for block in blocks]
    names = [[f"{_panel_name(block)}:{quantity}" for quantity in quantities] for block in blocks]
    sheet = Sheet.grid(spec.paper, names, note, OWN_Y.but(height=1.3, down=0.2, narrowest=None))
    drawn = [_panel(ax, laws, blocks[row], quantities[column]) for row, column, ax in sheet]
    set_x_scale(sheet.axes[-1], laws.curves[X])
    sheet.label(
        labels.plain(laws.axis.symbol),
        [labels.plain(labels.quantity_words(quantity)) for quantity in quantities],
        titles,
    )
    return sheet, as_written(pd.concat(drawn), laws.axis)


def _panel_name(block: tuple[Any, ...]) -> str:
    layer, row_layer, row, col = block
    name = labels.block_name(row, col) or "network"
    return name + (f"@{row_layer},{layer}" if layer != row_layer else f"{layer}" if layer > 1 else "")


def _panel(ax: Axes, laws: Laws, block: tuple[Any, ...], quantity: str) -> pd.DataFrame:
    """Draw one panel and return its numbers, the slope of its curve next to each."""
    curves, slopes = (_of(frame, block, quantity) for frame in (laws.curves, laws.slopes))
    nulls = pd.concat([_of(laws.curves, block, name) for name in laws.nulls[quantity]] or [curves[:0]])
    shown = pd.concat([curves, nulls])
    if not positive(shown).any():
        say(ax, why_no_line(curves))
        return _beside(shown, laws)
    _set_scale(ax, shown, quantity)
    for rank, (_, null) in enumerate(nulls.groupby("quantity", sort=False)):
        _draw_null(ax, laws, block, null, rank)
    several = list(curves["variant"].unique())
    for part, here in curves.groupby("part", sort=False):
        tones = shades(part_colour(str(part)) if part else _COLOUR, len(several))
        for tone, variant in zip(tones, several, strict=True):
            curve, slope = where(here, variant=variant), where(slopes, part=part, variant=variant).iloc[0]
            names = [labels.symbol(str(part)) if len(set(curves["part"])) > 1 else "", labels.variant_words(variant)]
            label = _labelled(", ".join(filter(None, names)), curve, slope, laws)
            draw_curve(ax, curve, numbers_behind(curve, laws.table), colour=tone, label=label)
    _write_slopes(ax, laws.published.get(quantity))
    return _beside(shown, laws)


def _set_scale(ax: Axes, shown: pd.DataFrame, quantity: str) -> None:
    """Make the y axis logarithmic, with ticks that its length holds; linear for shares."""
    if quantity.endswith("accuracy"):
        return
    set_decades(ax, "y")
    drawn = shown.loc[positive(shown), "mean"]
    if drawn.max() < _SHORT * drawn.min():
        between_decades(ax, "y")


def _labelled(name: str, curve: pd.DataFrame, slope: pd.Series, laws: Laws) -> str:
    """Return the name of a curve with its slope, if a straight line describes it on the window."""
    value = f"slope {fitted(slope['slope'], slope['slope_se'])}" if _is_straight(curve, laws) else ""
    return ": ".join(filter(None, [name, value]))


def _is_straight(curve: pd.DataFrame, laws: Laws) -> bool:
    """Return whether a power law describes a curve on the window: by the share of variance that a line explains."""
    drawn = curve[positive(curve) & within(curve[X], laws.window)]
    logs = np.log(drawn[[X, "mean"]].to_numpy(float))
    return len(drawn) > 2 and bool((logs.std(axis=0) > 0).all() and np.corrcoef(logs.T)[0, 1] ** 2 >= _STRAIGHT)


def _write_slopes(ax: Axes, published: float | None) -> None:
    """Write the legend, in room of its own: names and slopes, and the published one."""
    title = f"published slope {published:g}".replace("-", "−") if published is not None else None
    if not ax.get_legend_handles_labels()[1] and title is None:
        return
    legend = ax.legend(loc="lower left", fontsize=TINY, title=title, alignment="left")
    if ax.get_yscale() == "log":
        _make_room(ax, int(title is not None) + len(legend.get_texts()))


def _make_room(ax: Axes, lines: int) -> None:
    """Lower the end of a logarithmic axis so that `lines` of words stand below what is drawn."""
    low, high = ax.get_ylim()
    share = min(lines * _LINE / height_in(ax), _MOST)
    ax.set_ylim(high * (low / high) ** (1 / (1 - share)), high)


def _draw_null(ax: Axes, laws: Laws, block: tuple[Any, ...], null: pd.DataFrame, rank: int) -> None:
    """Draw what chance gives of every variant in grey, dashed; the first is named, with its slope."""
    slope = _of(laws.slopes, block, str(null["quantity"].iloc[0])).iloc[0]
    label = f"chance: slope {fitted(slope['slope'], slope['slope_se'])}"
    for first, (_, line) in enumerate(null[positive(null)].groupby("variant", sort=False)):
        style: dict[str, Any] = {"color": GUIDE, "linestyle": _STROKES[rank % 3], "linewidth": 1.2, "zorder": 5}
        ax.plot(line[X], line["mean"], label="_" if first else label, **style)


def _beside(curves: pd.DataFrame, laws: Laws) -> pd.DataFrame:
    fits = laws.slopes[[*CURVE, "slope", "slope_se", "window_low", "window_high"]]
    return curves.merge(fits, on=CURVE, how="left", validate="many_to_one")


def _of(frame: pd.DataFrame, block: tuple[Any, ...], quantity: str) -> pd.DataFrame:
    return where(frame, quantity=quantity, **dict(zip(_BLOCK, block, strict=True)))


def _title(block: tuple[Any, ...]) -> str:
    layer, row_layer, row, col = block
    across = f"{row_layer},{layer}" if layer != row_layer else ""
    return labels.block_title(row, col, across, quantity="") + (f" {layer}" if layer > 1 and not across else "")


def _law_note(run: RecordedRun, laws: Laws, quantities: Sequence[str]) -> str:
    table = pd.concat([of_quantity(run.table, name) for name in quantities])
    window = label(laws.window, laws.axis.symbol)
    chance = " Grey dashes: chance alone." if any(laws.nulls.values()) else ""
    words = labels.note_words(along(table, laws.axis), laws.axis, [], several_points=True)
    if not any(_is_straight(curve, laws) for _, curve in laws.curves.groupby(CURVE)):
        return words + chance
    return f"{words} Slopes: least squares in logarithms, {window}, where a line explains 0.9 of the variance.{chance}"
