"""What sheets along a training share: lines of a quantity of the whole network, and words of variants."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.axis import Axis, along
from hessfig.analysis.variants import assignments, short_variant
from hessfig.errors import UserError
from hessfig.figures.layouts.spectra.changes import draw_line, seed_means
from hessfig.figures.parts.grid import width_in
from hessfig.figures.parts.looks import set_x_scale, set_y_scale
from hessfig.figures.parts.style import fitting, points
from hessfig.figures.parts.words import estimator_words, left_out_words, seeds_words
from hessfig.record import LEFT_OUT

STEP = "step"


def counted(table: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that count."""
    return table[~table["status"].isin(LEFT_OUT)]


def of_whole(table: pd.DataFrame, quantity: str, part: str = "") -> pd.DataFrame:
    """Return the numbers of a quantity of the whole network, the first of several."""
    rows = table[(table["quantity"] == quantity) & table["row"].isin(["", "all"]) & (table["index"] <= 1)]
    return rows[(rows["part"] == part) | (rows["part"] == "")]


def check_steps(table: pd.DataFrame) -> None:
    """Raise UserError for a table without steps."""
    if table[STEP].notna().sum() == 0:
        raise UserError(
            f"{table['sweep'].iloc[0]}: no number of this table has a step",
            got="initialised or loaded states",
            allowed="a sweep along a training",
            remedy="hessfig run sweep=training",
        )


def draw_means(
    ax: Axes, rows: pd.DataFrame, *, colour: str, label: str = "", x: str = STEP, **line: object
) -> pd.DataFrame:
    """Draw means over seeds along the steps and return them; the axis is scaled beforehand (`scale`)."""
    means = seed_means(rows, [x])
    if means["mean"].notna().any():
        draw_line(ax, means, x, colour=colour, label=label, **line)
    return means


def scale(ax: Axes, rows: Sequence[pd.DataFrame], x: str = STEP) -> None:
    """Set both scales of a panel to what all its rows need."""
    every = pd.concat([one[[x, "value"]] for one in rows])
    if len(every):
        set_x_scale(ax, every[x])
        if not set_y_scale(ax, every["value"]):
            ax.ticklabel_format(axis="y", scilimits=(-3, 5))


def how(table: pd.DataFrame, words: str) -> str:
    """Return the note of a sheet: `words`, then repeats, estimators and what was left out."""
    table = along(table, Axis(STEP))
    return (
        f"{words} Mean over {seeds_words(table)}, band: 95% interval (Student's t)."
        f" {estimator_words(table)}.{left_out_words(table)}"
    )


def name_columns(panels: Iterable[Axes], variants: Sequence[str]) -> None:
    """Write a variant over each of a row of panels: its settings, or its values alone where there is less room."""
    for ax, variant in zip(panels, variants, strict=True):
        settings = assignments(variant)
        names = [short_variant(variant).replace(",", ", "), ", ".join(settings.values())]
        ax.set_title(fitting(names, width_in(ax), points("axes.titlesize")) if settings else "as configured")
