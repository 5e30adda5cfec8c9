"""A number of several blocks against the scale of one weight after the other, in double logarithms."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, X, along, check_places, fixed_words
from hessfig.analysis.manifest import read_run
from hessfig.analysis.variants import assignments, varied_key
from hessfig.errors import UserError
from hessfig.figures.layouts.spectra.changes import draw_line, seed_means
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.looks import set_x_scale
from hessfig.figures.parts.numbers import as_written
from hessfig.figures.parts.panels import set_decades
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour
from hessfig.figures.parts.words import (
    block_words,
    estimator_words,
    left_out_words,
    part_words,
    plain,
    quantity_words,
    seeds_words,
    weight_words,
)
from hessfig.record import LEFT_OUT
from hessfig.terms import Group

_QUANTITIES = ("largest_eigenvalue", "condition_number")
_WEIGHT = "model.scaled_weight"
_ROW = ["quantity", "layer", "row"]


def weight_norms(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw a number of every block against the scale of a weight, a column a scaled weight, a row a block and number.

    How to read it: a flat line says that the number does not care how large that weight is; a straight one is a power
    law. Points are geometric means over seeds, bands 95 % intervals (Student's t of the logarithms). All columns
    meet at scale 1, which is the same network.
    Requires: the sweep's table.csv along a scale, with a varied setting for the columns (options `quantity`: a list,
    by default largest_eigenvalue and condition_number, whichever were measured; `columns`: the setting, by default
    scaled_weight).
    """
    run = read_run(folder)
    table = along(run.table, run.axis)
    check_places(table, run.axis)
    chosen = _of_quantities(table, spec.words("quantity"))
    key = varied_key(
        str(spec.options.get("columns", _WEIGHT)), table["variant"].unique(), asked="figure.options.columns"
    )
    chosen = chosen.assign(column=[assignments(variant).get(key, "") for variant in chosen["variant"]])
    parts = list(dict.fromkeys(chosen["part"]))
    for part in parts:
        suffix = f"_{part}" if len(parts) > 1 else ""
        yield _draw_page(chosen[chosen["part"] == part], run.axis, suffix)


def _draw_page(table: pd.DataFrame, axis: Axis, suffix: str) -> Page:
    counted = table[~table["status"].isin(LEFT_OUT)]
    columns = list(table["column"].unique())
    rows = list(table[_ROW].drop_duplicates().itertuples(index=False, name=None))
    part = part_words(table["part"].iloc[0])
    note = (
        f"{f'{part}: geometric' if part else 'Geometric'} mean over {seeds_words(table)}, band: 95% interval"
        f" (Student's t).{fixed_words(table, axis)} {estimator_words(table)}.{left_out_words(table)}"
    )
    margins = Margins(left=0.62, down=0.12)
    figure, axes = panel_grid(len(rows), len(columns), note=note, panel_height=1.1, margins=margins)
    points = seed_means(counted, [*_ROW, "column", X], logs=True)
    for panels, row in zip(axes, rows, strict=True):
        set_decades(panels[0], "y")
        for ax, column in zip(panels, columns, strict=True):
            here = points[points["column"] == column]
            for name, value in zip(_ROW, row, strict=True):
                here = here[here[name] == value]
            _draw_panel(ax, here, column)
    set_x_scale(axes[-1, 0], counted[X])
    labels = [
        f"{_block_words(row, layer)} {plain(quantity_words(quantity))}".strip()
        for quantity, layer, row in rows
    ]
    only_outer_labels(axes, x=plain(axis.symbol), y=labels)
    for ax, column in zip(axes[0], columns, strict=True):
        ax.set_title(f"scaled: {weight_words(column)}")
    return Page(suffix, figure, as_written(points, axis))


def _draw_panel(ax: Axes, points: pd.DataFrame, column: str) -> None:
    if points["mean"].notna().any():
        draw_line(ax, points, X, colour=matrix_colour(column))
        ax.axvline(1, color="#999999", linewidth=0.4, zorder=0)
    else:
        say(ax, "(nothing positive)")


def _block_words(row: str, layer: int) -> str:
    name = "" if row == Group.all else block_words(row, row)  # the whole network needs no name
    return name + (f" {layer}" if layer > 1 else "")


def _of_quantities(table: pd.DataFrame, asked: list[str] | None) -> pd.DataFrame:
    measured = list(table["quantity"].unique())
    wanted = asked or [name for name in _QUANTITIES if name in measured]
    chosen = table[table["quantity"].isin(wanted) & (table["index"] <= 1) & (table["row"] == table["col"])]
    missing = [name for name in wanted if name not in measured]
    if missing or chosen.empty:
        raise UserError(
            "figure.options.quantity: the table has no numbers of these quantities",
            got=", ".join(missing) or "none of largest_eigenvalue, condition_number",
            allowed=", ".join(measured),
            remedy=f"figure.options.quantity={measured[0]}",
        )
    order = {name: rank for rank, name in enumerate(wanted)}
    return chosen.sort_values("quantity", key=lambda names: names.map(order), kind="stable")
