"""Power laws along any axis: a row a block, a column a quantity, fitted slopes with errors, chance beside them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, X, along, check_places
from hessfig.analysis.curves import growth_curves, of_quantity
from hessfig.analysis.manifest import Run, read_run
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.analysis.variants import short_variant
from hessfig.analysis.windows import WHOLE, Window, label
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.looks import set_x_scale
from hessfig.figures.parts.numbers import as_written
from hessfig.figures.parts.panels import (
    between_decades,
    draw_curve,
    fitted,
    positive,
    set_decades,
    why_no_line,
)
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE, TINY, part_colour, shades
from hessfig.figures.parts.words import block_title, note_words, plain, quantity_words, symbol
from hessfig.record import CURVE, FROBENIUS
from hessfig.terms import name_order

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

    How to read it: a dot is a mean over seeds, its band one standard error; slopes are least squares in logarithms on
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
    note = _note(run, laws, quantities)
    for number, blocks in enumerate(sheets, start=1):
        yield _page(laws, blocks, quantities, note, f"_sheet{number}" if len(sheets) > 1 else "")


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


def _page(
    laws: Laws, blocks: Sequence[tuple[Any, ...]], quantities: Sequence[str], note: str, suffix: str
) -> Page:
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
        _draw_null(ax, laws, block, null, rank)
        for rank, (_, null) in enumerate(nulls.groupby("quantity", sort=False))
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


def _note(run: Run, laws: Laws, quantities: Sequence[str]) -> str:
    table = pd.concat([of_quantity(run.table, name) for name in quantities])
    window = label(laws.window, laws.axis.symbol)
    chance = " Grey: chance alone." if any(laws.nulls.values()) else ""
    words = note_words(along(table, laws.axis), laws.axis, [], several_points=True)
    return f"{words} Slopes: least squares in logarithms, {window}.{chance}"
