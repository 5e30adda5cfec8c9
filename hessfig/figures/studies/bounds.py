"""figure=bounds: how loose the spectral bounds on the attention Hessian are, against the token scale."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessfig.figures.parts.grid import Margins, panel_grid
from hessfig.figures.parts.save import Page, save_page
from hessfig.figures.parts.style import GUIDE, matrix_colour, styled
from hessfig.figures.studies.tables import read_study
from hessfig.terms import Matrix

WHOLE = {
    "arXiv 2510.16927": ("#b2182b", "arXiv 2510.16927"),
    "norm": ("#444444", r"from $\|X\|$"),
    "diameter": ("#e08214", "from the diameter"),
}
BLOCKS = {
    "W_Q W_Q": (matrix_colour(Matrix.W_Q), "Q, Q"),
    "W_Q W_K": (matrix_colour(Matrix.W_K), "Q, K"),
    "W_Q W_V": ("#a6761d", "Q, V"),
    "W_V W_V": (matrix_colour(Matrix.W_V), "V, V"),
}


def draw(outputs: Path) -> list[Path]:
    """Read outputs/bounds/looseness.csv and write outputs/figures/figbounds.{pdf,png,svg,csv}.

    How to read it: a bound divided by the true spectral norm, median and quartiles over problems with tokens
    of size sigma; one is tight, below one would be a violation. (a) The whole Hessian. (b, c) Its blocks,
    bounded from the norm of X alone and from the token diameter; blocks with W_K in place of W_Q look alike
    and are in the CSV.

    Requires the table of hessfig.theory.bounds_study. Raises UserError when it is missing.
    """
    path = outputs / "bounds" / "looseness.csv"
    table = read_study(path)
    with styled():
        return save_page(Page("", sheet(table), table), outputs / "figures", "bounds")


def sheet(table: pd.DataFrame) -> Figure:
    """Three panels; those of the blocks share their y axis."""
    margins = Margins(left=0.48, right=0.06, top=0.2, bottom=0.32, across=0.34)
    figure, axes = panel_grid(1, 3, panel_height=1.45, margins=margins, share_y=False)
    whole, norm, diameter = axes[0]
    table = table.assign(block=table["row"] + " " + table["col"])
    draw_looseness(whole, table[table["row"] == "whole"], "bound", WHOLE)
    draw_looseness(norm, table[table["bound"] == "norm"], "block", BLOCKS)
    draw_looseness(diameter, table[table["bound"] == "diameter"], "block", BLOCKS)
    diameter.sharey(norm)
    titles = ("(a) whole Hessian", r"(b) blocks, from $\|X\|$", "(c) blocks, from the diameter")
    for ax, title in zip(axes[0], titles, strict=True):
        ax.set_title(title, loc="left")
    whole.set_ylabel("bound / spectral norm")
    whole.legend(loc="upper left")
    norm.legend(loc="upper left", ncols=2)
    return figure


def draw_looseness(ax: Axes, table: pd.DataFrame, key: str, series: dict[str, tuple[str, str]]) -> None:
    """One curve with a band of quartiles for each entry of `series`; the dashed line is tightness."""
    for name, (colour, label) in series.items():
        curve = table[table[key] == name]
        ax.plot(curve["sigma"], curve["median"], "o-", color=colour, markeredgewidth=0, label=label)
        ax.fill_between(curve["sigma"], curve["q25"], curve["q75"], color=colour, alpha=0.2, linewidth=0)
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel=r"token scale $\sigma$")
    ax.minorticks_off()
