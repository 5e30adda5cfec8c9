"""figure=bounds: how loose the spectral bounds on the attention Hessian are, against the token scale."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from hessfig.figures.parts.folding import panel_sheet
from hessfig.figures.parts.grid import Margins, label_side
from hessfig.figures.parts.paper import Paper
from hessfig.figures.parts.save import Page, save_sheets
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


def draw(outputs: Path, paper: Paper | None = None, *, into: Path | None = None) -> list[Path]:
    """Read outputs/bounds/looseness.csv and write outputs/figures (or `into`)/figbounds.{pdf,png,svg,csv}.

    How to read it: a bound divided by the true spectral norm, median and quartiles over problems with tokens
    of size sigma; one is tight, below one would be a violation. (a) The whole Hessian. (b, c) Its blocks,
    bounded from the norm of X alone and from the token diameter; blocks with W_K in place of W_Q look alike
    and are in the CSV.

    Requires the table of hessfig.theory.studies.bounds. Raises UserError when it is missing.
    """
    path = outputs / "bounds" / "looseness.csv"
    table = read_study(path)
    with styled(paper):
        return save_sheets([Page("", sheet(table), table)], into or outputs / "figures", "bounds")


def sheet(table: pd.DataFrame) -> Figure:
    """Three panels; those of the blocks share their y axis."""
    margins = Margins(across=0.36, down=0.56)
    sheet = panel_sheet([["a", "b", "c"]], height=1.45, margins=margins, share_y=False)
    table = table.assign(block=table["row"] + " " + table["col"])
    kinds: list[tuple[pd.DataFrame, str, dict[str, tuple[str, str]]]] = [
        (table[table["row"] == "whole"], "bound", WHOLE),
        (table[table["bound"] == "norm"], "block", BLOCKS),
        (table[table["bound"] == "diameter"], "block", BLOCKS),
    ]
    titles = ("(a) whole Hessian", r"(b) blocks, from $\|X\|$", "(c) blocks, from the diameter")
    for _, column, ax in sheet:
        draw_looseness(ax, *kinds[column])
        ax.set_title(titles[column], loc="left")
        ax.legend(loc="upper left", ncols=1 + (column > 0))
    blocks = [ax for (_, column), ax in sheet.panels.items() if column > 0]
    blocks[-1].sharey(blocks[0]) if blocks else None
    for line in sheet.lines:
        label_side(sheet.panels[line[0]], "bound / spectral norm")
    return sheet.figure


def draw_looseness(ax: Axes, table: pd.DataFrame, key: str, series: dict[str, tuple[str, str]]) -> None:
    """One curve with a band of quartiles for each entry of `series`; the dashed line is tightness."""
    for name, (colour, label) in series.items():
        curve = table[table[key] == name]
        ax.plot(curve["sigma"], curve["median"], "o-", color=colour, markeredgewidth=0, label=label)
        ax.fill_between(curve["sigma"], curve["q25"], curve["q75"], color=colour, alpha=0.2, linewidth=0)
    ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8)
    ax.set(xscale="log", yscale="log", xlabel=r"token scale $\sigma$")
    ax.minorticks_off()
