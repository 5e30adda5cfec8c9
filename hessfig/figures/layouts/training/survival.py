"""Does the heterogeneity between values and queries survive training? Their ratio along the steps."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.figures.layouts.spectra.changes import draw_line, seed_means
from hessfig.figures.layouts.training.means import check_steps, counted, how, name_columns, scale
from hessfig.figures.parts.grid import only_outer_labels, panel_grid, say
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE, part_colour
from hessfig.figures.parts.words import plain, quantity_words, symbol
from hessfig.terms import Part

_OVER = ("W_V", "W_Q")


def heterogeneity_trained(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw ||V|| / ||Q|| of H, H_o and H_f along the steps, a column a network, a row a layer.

    How to read it: at 1 (dashed) the blocks of values and queries are as large; geometric means over seeds, bands are
    95 % intervals of them.
    Requires: the sweep's table.csv with the diagonal blocks of W_V and W_Q along `state.step` (option `quantity`: by
    default frobenius).
    """
    run = read_run(folder)
    check_steps(run.table)
    rows = counted(run.table)
    rows = rows[(rows["quantity"] == spec.quantity) & (rows["row"] == rows["col"]) & (rows["index"] <= 1)]
    ratios = _ratios(rows)
    if ratios.empty:
        raise UserError(
            f"figure.layout={spec.layout} draws {_OVER[0]} over {_OVER[1]}, and the table has not both",
            got=", ".join(run.table["row"].unique()),
            allowed=f"diagonal blocks of {' and '.join(_OVER)}",
            remedy=f"hessfig run sweep={folder.name} 'blocks=[{','.join(_OVER)}]'",
        )
    yield _draw_page(run.table, ratios, spec.quantity)


def _ratios(rows: pd.DataFrame) -> pd.DataFrame:
    place = ["variant", "num_layers", "layer", "part", "seed", "step"]
    one, other = (rows[rows["row"] == name].groupby(place)["value"].mean() for name in _OVER)
    return (one / other).rename("value").dropna().reset_index()


def _draw_page(table: pd.DataFrame, ratios: pd.DataFrame, quantity: str) -> Page:
    variants = [name for name in dict.fromkeys(table["variant"]) if name in set(ratios["variant"])]
    layers = sorted(ratios["layer"].unique())
    note = how(table, "Geometric means of the ratio of the two blocks' norms; dashed: as large.")
    figure, axes = panel_grid(len(layers), len(variants), note=note, panel_height=1.5)
    scale(axes[0, 0], [ratios])
    points = seed_means(ratios, ["variant", "layer", "part", "step"], logs=True)
    for panels, layer in zip(axes, layers, strict=True):
        scale(panels[0], [ratios])
        for ax, variant in zip(panels, variants, strict=True):
            _draw_panel(ax, points[(points["variant"] == variant) & (points["layer"] == layer)])
    axes[0, 0].legend(loc="best")
    words = f"{_OVER[0][2:]} / {_OVER[1][2:]}: {plain(quantity_words(quantity))}"
    only_outer_labels(axes, x="step", y=[words] * len(layers))
    name_columns(axes[0], variants)
    return Page("", figure, points)


def _draw_panel(ax: Axes, points: pd.DataFrame) -> None:
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
    if points.empty:
        say(ax, "(no ratio)")
    for part in Part:
        one = points[points["part"] == part.value]
        if len(one):
            draw_line(ax, one, "step", colour=part_colour(part.value), label=symbol(part.value))
