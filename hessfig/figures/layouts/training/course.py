"""The course of a training: loss, accuracy, gradients and their noise, sharpness beside its thresholds."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.manifest import read_run
from hessfig.figures.layouts.spectra.changes import tone
from hessfig.figures.layouts.training.means import check_steps, counted, draw_means, how, of_whole, scale
from hessfig.figures.parts.grid import Margins, panel_grid, say
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE
from hessfig.figures.parts.words import symbol
from hessfig.terms import Part

_SHARE, _THRESHOLD = "Share of unseen sums right", "Preconditioned, and threshold"
_HEADROOM = 1e3  # times the largest value that a threshold is drawn for
# Panels: title, and the lines in it (quantity, part, name).
_PANELS = (
    ("Loss", (("loss", "", ""),)),
    (_SHARE, (("accuracy", "", "all"), ("cascade_accuracy", "", "three carries"))),
    ("Norms", (("gradient_norm", "", "gradient"), ("weight_norm", "", "weights"))),
    (
        "Outermost eigenvalues",
        (
            ("largest_eigenvalue", "H", "largest, H"),
            ("largest_eigenvalue", "H_o", "largest, H_o"),
            ("smallest_eigenvalue", "H", "smallest, H"),
            ("smallest_eigenvalue", "H_o", "smallest, H_o"),
        ),
    ),
    (
        _THRESHOLD,
        (("preconditioned_eigenvalue", "H", "of P⁻¹H"), ("stability_threshold", "", "threshold")),
    ),
    (
        "Sharpness along the steps",
        (("batch_sharpness", "", "of batches"), ("critical_sharpness", "", "2 / critical step")),
    ),
    (
        "Noise of gradients",
        (
            ("gradient_covariance", "", "tr C"),
            ("gradient_covariance_eigenvalue", "", "largest of C"),
        ),
    ),
    ("Spread of attention", (("score_spread", "", "scores"), ("pattern_spread", "", "weights"))),
    ("Trace", (("trace", "H", "H"), ("trace", "H_o", "H_o"))),
)
_COLUMNS = 3


def training(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw what a training does, a page a network: a panel for each group of quantities that was measured.

    How to read it: means over seeds along the steps, bands are 95 % intervals; scales are logarithmic where the numbers
    span them. The dashed line is the sharpness from which on a step of that size does not settle in a quadratic.
    Requires: the sweep's table.csv along `state.step`.
    """
    del spec
    run = read_run(folder)
    check_steps(run.table)
    networks = list(run.table[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None))
    for variant, depth in networks:
        here = run.table[(run.table["variant"] == variant) & (run.table["num_layers"] == depth)]
        yield _draw_page(here, page_suffix(variant, depth, networks))


def _draw_page(table: pd.DataFrame, suffix: str) -> Page:
    panels = [(title, found) for title, lines in _PANELS if (found := _found(counted(table), lines))]
    rows = -(-len(panels) // _COLUMNS)
    margins = Margins(across=0.42, down=0.34)
    figure, axes = panel_grid(
        max(rows, 1), _COLUMNS, note=how(table, ""), margins=margins, share_x=False, share_y=False
    )
    places = list(axes.ravel())
    drawn = [_draw_panel(ax, title, lines) for ax, (title, lines) in zip(places, panels, strict=False)]
    for ax in places[len(panels) :]:
        ax.set_axis_off()
        if not panels:
            say(ax, "(nothing of the whole network)")
    for ax in axes[-1]:
        ax.set_xlabel("step")
    return Page(suffix, figure, pd.concat([pd.DataFrame(), *drawn], ignore_index=True))


def _found(
    table: pd.DataFrame, lines: tuple[tuple[str, str, str], ...]
) -> list[tuple[str, str, pd.DataFrame]]:
    chosen = [(quantity, name, of_whole(table, quantity, part)) for quantity, part, name in lines]
    return [(quantity, name, _one_a_seed(rows)) for quantity, name, rows in chosen if len(rows)]


def _one_a_seed(rows: pd.DataFrame) -> pd.DataFrame:
    """Return one number a seed and step: of several the first (digits, eigenvalues), of layers the mean."""
    first = rows[rows["index"] == rows["index"].min()]
    return first.groupby(["seed", "step"], as_index=False)["value"].mean()


def _draw_panel(ax: Axes, title: str, lines: list[tuple[str, str, pd.DataFrame]]) -> pd.DataFrame:
    scale(ax, [rows for _, _, rows in lines])
    if title == _SHARE:
        ax.set_yscale("linear")
    found = []
    for rank, (quantity, name, rows) in enumerate(lines):
        guide = quantity == "stability_threshold"
        style = {"linestyle": "--", "marker": ""} if guide else {}
        points = draw_means(ax, rows, colour=GUIDE if guide else tone(rank), label=_words(name), **style)
        found.append(points.assign(panel=title, quantity=quantity, line=name))
    if title == _SHARE:
        ax.set_ylim(-0.02, 1.02)
    if title == _THRESHOLD:
        _keep_in_sight(
            ax, pd.concat([rows for quantity, _, rows in lines if quantity != "stability_threshold"])
        )
    ax.set_title(title)
    if len(lines) > 1:
        ax.legend(loc="best")
    return pd.concat(found)


def _keep_in_sight(ax: Axes, rows: pd.DataFrame) -> None:
    """End the axis above what is compared with a threshold: a rate that falls to zero has none in the end."""
    if len(rows) and ax.get_ylim()[1] > _HEADROOM * rows["value"].max() > 0:
        ax.set_ylim(top=_HEADROOM * rows["value"].max())


def _words(name: str) -> str:
    """Return the name of a line with its part, if it ends with one, as a symbol."""
    before, _, part = name.rpartition(" ")
    return f"{before} {symbol(part)}".strip() if part in list(Part) else name
