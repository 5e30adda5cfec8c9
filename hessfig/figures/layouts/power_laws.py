"""Quantities along the axis of a sweep, with the slope of every curve."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from pandas import DataFrame, Series, concat, factorize

from hessfig.analysis.axis import (
    Axis,
    X,
    along,
    check_places,
    setting_name,
    varied_key,
    with_settings,
    without,
)
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import RecordedRun
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.analysis.slopes.printed import WHOLE, Window, label, within
from hessfig.figures.parts import (
    DASHES,
    GUIDE,
    OWN_Y,
    TINY,
    FigureSpec,
    Page,
    Sheet,
    Source,
    as_written,
    between_decades,
    counted,
    different,
    draw_curve,
    fits_of,
    height_in,
    in_sheets,
    labels,
    matrix_colour,
    matrix_mark,
    numbers_behind,
    part_colour,
    positive,
    say,
    set_decades,
    set_x_scale,
    shaded,
    slope_and_half,
    where,
    why_no_line,
)
from hessfig.record import CURVE, FROBENIUS, NUMBER
from hessfig.terms import Group, name_order

_ROWS = 6  # of panels on a page
_BLOCK = ["layer", "row_layer", "row", "col"]
_SHORT = 30  # ratio below which powers of ten are too far apart for ticks
_COLOUR = "#4575b4"
_LINE = 0.125  # height in inches of a line of the legend
_MOST = 0.6  # largest share of a panel for the legend

_STRAIGHT = (
    0.9  # smallest share of the variance that a line explains if a slope is written
)


@dataclass(frozen=True)
class Laws:
    """Curves of one sweep with one slope each; `nulls` maps quantities to those that chance alone gives."""

    curves: DataFrame
    slopes: DataFrame
    table: DataFrame
    axis: Axis
    window: Window
    nulls: Mapping[str, Sequence[str]]
    published: Mapping[str, float]


def power_laws(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw quantities along the sweep's axis, logarithmic both, with the slope of every curve.

    How to read it: a dot is a mean over seeds; up to five seeds are thin lines, more
    the band of their 95 % interval. Slopes are least squares in logarithms on the
    sweep's first window, ± half of their 95 % interval over seeds; none is written
    where a straight line explains less than 0.9 of the means' variance there: flat or
    bent curves have no power. Colours are parts of the Hessian (shades: variants). Grey
    dashed lines are what chance alone gives, with their own slopes: a slope like theirs
    is not a property of the network. Shares (accuracies) have linear axes. Options:
    `quantity` (one, or a list, a column each), `chance` ({quantity: [quantities]}),
    `published` ({quantity: slope}), `repeats` (a varied setting whose values are the
    repeats, each a mean over seeds: batches, say). Requires: the sweep's table.csv.
    """
    repeats = str(spec.options.get("repeats", ""))
    run = _over_repeats(source.run, repeats)
    quantities = spec.words("quantity") or [FROBENIUS]
    nulls = {
        name: list(spec.options.get("chance", {}).get(name, ())) for name in quantities
    }
    windows = list(spec.windows) or [WHOLE]
    fits = fits_of(spec, run)
    curves = []
    slopes = []
    tables = []
    for name in chain(quantities, *nulls.values()):
        table = along(_of_whole(of_quantity(run.table, name)), run.axis)
        curves.append(growth_curves(table, run.axis, name))
        slopes.append(
            fit_slopes(table, {}, windows[:1], fits, axis=run.axis, quantity=name)
        )
        tables.append(table)
    means, fitted_to, numbers = (concat(every) for every in (curves, slopes, tables))
    laws = Laws(
        means,
        fitted_to,
        numbers,
        run.axis,
        windows[0],
        nulls,
        spec.options.get("published", {}),
    )
    check_places(along(run.table, run.axis), run.axis)
    keys = different(laws.curves, *_BLOCK)
    rank = name_order([key[2] for key in keys])
    keys.sort(key=lambda key: (key[0], rank(key[2]), rank(key[3])))
    note = _law_note(run, laws, quantities).replace(
        "seeds", _repeats_words(repeats) or "seeds"
    )
    for blocks, suffix in in_sheets(keys, _ROWS):
        titles = [_title(block) for block in blocks]
        names = []
        for block in blocks:
            panel = _panel_name(block)
            names.append([f"{panel}:{quantity}" for quantity in quantities])
        sheet = Sheet.grid(
            spec.paper, names, note, OWN_Y.replace(height=1.3, down=0.2, narrowest=None)
        )
        drawn = [
            _panel(ax, laws, blocks[row], quantities[column])
            for row, column, ax in sheet
        ]
        set_x_scale(sheet.axes[-1], laws.curves[X])
        sheet.label(
            labels.plain(laws.axis.symbol),
            [labels.quantity_name(quantity) for quantity in quantities],
            titles,
        )
        yield sheet.page(suffix, as_written(concat(drawn), laws.axis))


def _of_whole(table: DataFrame) -> DataFrame:
    """Return the numbers, with those of the network (such as an accuracy) in the row of its whole Hessian."""
    return table.assign(
        row=table["row"].replace("", Group.all.value),
        col=table["col"].replace("", Group.all.value),
    )


def _repeats_words(asked: str) -> str:
    """Return in words what the repeats are if they are values of a setting, such as batches of a task's seed."""
    words = asked and f"values of {labels.plain(setting_name(asked))}"
    return "batches" if asked == "task.seed" else words


def _over_repeats(run: RecordedRun, asked: str) -> RecordedRun:
    """Return a sweep whose seeds are the values of a varied setting, each with the means over its own seeds."""
    if not asked:
        return run
    key = varied_key(
        asked, run.table["variant"].unique(), asked="figure.options.repeats"
    )
    rest = run.table["variant"].map(lambda variant: without(variant, key))
    own = with_settings(run.table, key)[key]
    table = run.table.assign(variant=rest, seed=factorize(own)[0])
    numbers = counted(table).groupby(NUMBER, sort=False, dropna=False, as_index=False)
    kinds = dict.fromkeys([name for name in table if name not in NUMBER], "first")
    means = numbers.agg(kinds | {"value": "mean"})
    return replace(run, table=means[list(table)])


def _panel_name(block: tuple[Any, ...]) -> str:
    layer, row_layer, row, col = block
    name = labels.block_name(row, col) or "network"
    if layer != row_layer:
        return f"{name}@{row_layer},{layer}"
    return f"{name}{layer}" if layer > 1 else name


def _panel(ax: Axes, laws: Laws, block: tuple[Any, ...], quantity: str) -> DataFrame:
    """Draw one panel and return its numbers, the slope of its curve next to each."""
    curves = _of(laws.curves, block, quantity)
    slopes = _of(laws.slopes, block, quantity)
    chance = [_of(laws.curves, block, name) for name in laws.nulls[quantity]]
    nulls = concat(chance or [curves[:0]])
    shown = concat([curves, nulls])
    if not positive(shown).any():
        say(ax, why_no_line(curves))
        return _beside(shown, laws)
    _set_scale(ax, shown, quantity)
    for rank, (_, null) in enumerate(nulls.groupby("quantity", sort=False)):
        _draw_null(ax, laws, block, null, rank)
    several = list(curves["variant"].unique())
    for part, here in curves.groupby("part", sort=False):
        colour = _colour(block, str(part), curves)
        for tone, variant in shaded(colour, several):
            curve = where(here, variant=variant)
            slope = where(slopes, part=part, variant=variant).iloc[0]
            names = [labels.variant_words(variant)]
            if len(set(curves["part"])) > 1:
                names.insert(0, labels.symbol(str(part)))
            label = _labelled(", ".join(filter(None, names)), curve, slope, laws)
            draw_curve(
                ax, curve, numbers_behind(curve, laws.table), colour=tone, label=label
            )
    _write_slopes(ax, laws.published.get(quantity))
    return _beside(shown, laws)


def _colour(block: tuple[Any, ...], part: str, curves: DataFrame) -> str:
    """Return the colour of a curve: of its weight if the panel has one part of one weight, else of its part."""
    _, _, row, col = block
    if row == col and matrix_mark(row) and len(set(curves["part"])) == 1:
        return matrix_colour(row)
    return part_colour(part) if part else _COLOUR


def _set_scale(ax: Axes, shown: DataFrame, quantity: str) -> None:
    """Make the y axis logarithmic, with ticks that fit its length, or linear for shares."""
    if quantity.endswith("accuracy"):
        return
    set_decades(ax, "y")
    drawn = shown.loc[positive(shown), "mean"]
    if drawn.max() < _SHORT * drawn.min():
        between_decades(ax, "y")


def _labelled(name: str, curve: DataFrame, slope: Series, laws: Laws) -> str:
    """Return the name of a curve with its slope, if a straight line describes it on the window."""
    value = f"slope {slope_and_half(slope)}" if _is_straight(curve, laws) else ""
    return ": ".join(filter(None, [name, value]))


def _is_straight(curve: DataFrame, laws: Laws) -> bool:
    """Return whether a power law describes a curve on the window, by the share of variance that a line explains."""
    drawn = curve[positive(curve) & within(curve[X], laws.window)]
    logs = np.log(drawn[[X, "mean"]].to_numpy(float))
    return len(drawn) > 2 and bool(
        (logs.std(axis=0) > 0).all() and np.corrcoef(logs.T)[0, 1] ** 2 >= _STRAIGHT
    )


def _write_slopes(ax: Axes, published: float | None) -> None:
    """Write the legend with names, slopes and the published slope into a reserved part of the panel."""
    if published is not None:
        title = f"published slope {published:g}".replace("-", "−")
    else:
        title = None
    if not ax.get_legend_handles_labels()[1] and title is None:
        return
    legend = ax.legend(loc="lower left", fontsize=TINY, title=title, alignment="left")
    if ax.get_yscale() == "log":
        _make_room(ax, int(title is not None) + len(legend.get_texts()))


def _make_room(ax: Axes, lines: int) -> None:
    """Lower the end of a logarithmic axis so that `lines` lines of words fit below the curves."""
    low, high = ax.get_ylim()
    share = min(lines * _LINE / height_in(ax), _MOST)
    ax.set_ylim(high * (low / high) ** (1 / (1 - share)), high)


def _draw_null(
    ax: Axes, laws: Laws, block: tuple[Any, ...], null: DataFrame, rank: int
) -> None:
    """Draw the values that chance gives for every variant in grey dashes; the first has a name and a slope."""
    slope = _of(laws.slopes, block, str(null["quantity"].iloc[0])).iloc[0]
    label = f"chance: slope {slope_and_half(slope)}"
    for first, (_, line) in enumerate(
        null[positive(null)].groupby("variant", sort=False)
    ):
        ax.plot(
            line[X],
            line["mean"],
            label="_" if first else label,
            color=GUIDE,
            linestyle=DASHES[1 + rank % 3],
            linewidth=1.2,
            zorder=5,
        )


def _beside(curves: DataFrame, laws: Laws) -> DataFrame:
    fits = laws.slopes[
        [*CURVE, "slope", "slope_se", "ci_low", "ci_high", "window_low", "window_high"]
    ]
    return curves.merge(fits, on=CURVE, how="left", validate="many_to_one")


def _of(frame: DataFrame, block: tuple[Any, ...], quantity: str) -> DataFrame:
    return where(frame, quantity=quantity, **dict(zip(_BLOCK, block, strict=True)))


def _title(block: tuple[Any, ...]) -> str:
    layer, row_layer, row, col = block
    across = f"{row_layer},{layer}" if layer != row_layer else ""
    title = labels.block_title(row, col, across, quantity="")
    if layer > 1 and not across:
        title += f" {layer}"
    return title


def _law_note(run: RecordedRun, laws: Laws, quantities: Sequence[str]) -> str:
    table = concat([of_quantity(run.table, name) for name in quantities])
    window = label(laws.window, laws.axis.symbol)
    chance = " Grey dashes: chance alone." * any(laws.nulls.values())
    words = labels.note_words(
        along(table, laws.axis), laws.axis, [], several_points=True
    )
    if not any(_is_straight(curve, laws) for _, curve in laws.curves.groupby(CURVE)):
        return words + chance
    fits = f"Slopes ± 95% intervals: least squares in logarithms, {window}, where a line explains 0.9 of the variance."
    return f"{words} {fits}{chance}"
