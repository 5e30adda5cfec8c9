"""Sharpness against the threshold of its step size, a column a step size: does it settle there?"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd
from matplotlib.axes import Axes

from hessfig.analysis.manifest import read_run
from hessfig.analysis.training.edge import THRESHOLD, settled, shares
from hessfig.errors import UserError
from hessfig.figures.layouts.spectra.changes import tone
from hessfig.figures.layouts.training.means import (
    check_steps,
    counted,
    draw_means,
    how,
    name_columns,
    of_whole,
    scale,
)
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import GUIDE, TINY
from hessfig.figures.parts.words import plain, quantity_words

_QUANTITIES = (
    "largest_eigenvalue",
    "preconditioned_eigenvalue",
    "batch_sharpness",
    "critical_sharpness",
)


def edge(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw loss and sharpness over its threshold along the steps, a column a variant.

    How to read it: at 1 (dashed) a step of this size just settles in a quadratic: 2 / learning rate for gradient
    descent, 38 / learning rate for AdamW's preconditioned Hessian (beta1 = 0.9). Words in a panel: the mean over the
    last third of the steps, with its 95 % interval over seeds.
    Requires: the sweep's table.csv with stability_threshold (option `quantity`: which sharpness to draw, or a list).
    """
    run = read_run(folder)
    check_steps(run.table)
    measured = set(run.table["quantity"])
    wanted = spec.words("quantity") or [name for name in _QUANTITIES if name in measured]
    missing = [name for name in (*wanted, THRESHOLD) if name not in measured]
    if missing or not wanted:
        raise UserError(
            "figure.options.quantity: the table has no such sharpness, or no threshold beside it",
            got=", ".join(missing) or "no sharpness",
            allowed=", ".join(sorted(measured)),
            remedy=f"hessfig run sweep={folder.name} quantities=[largest_eigenvalue,{THRESHOLD}]",
        )
    yield _draw_page(run.table, wanted)


def _draw_page(table: pd.DataFrame, wanted: list[str]) -> Page:
    variants = list(dict.fromkeys(table["variant"]))
    margins = Margins(down=0.16)
    note = how(table, "Dashed: threshold. Words: mean over the last third of the steps / threshold.")
    rows = [*wanted, "loss"] if (table["quantity"] == "loss").any() else wanted
    figure, axes = panel_grid(len(rows), len(variants), note=note, margins=margins)
    found = []
    for name, panels in zip(rows, axes, strict=True):
        values = _values(table, name)
        for ax in panels:
            scale(ax, [values])
            ax.set_xscale("linear")  # looked at every so many steps
        for ax, variant in zip(panels, variants, strict=True):
            points = _draw_panel(ax, values[values["variant"] == variant], rows.index(name))
            found.append(points.assign(quantity=name, variant=variant))
        if name != "loss":
            _mark(panels, variants, table, name)
    labels = [plain(quantity_words(name)) + (" / threshold" if name != "loss" else "") for name in rows]
    only_outer_labels(axes, x="step", y=labels)
    name_columns(axes[0], variants)
    return Page("", figure, pd.concat(found, ignore_index=True))


def _values(table: pd.DataFrame, name: str) -> pd.DataFrame:
    if name == "loss":
        return of_whole(counted(table), name)
    every = shares(table, name)
    return every.assign(value=every["share"])


def _draw_panel(ax: Axes, rows: pd.DataFrame, rank: int) -> pd.DataFrame:
    if rows.empty:
        say(ax, "(no number)")
    return draw_means(ax, rows, colour=tone(rank))


def _mark(panels: list[Axes], variants: list[str], table: pd.DataFrame, name: str) -> None:
    ends = settled(table, name)
    for ax, variant in zip(panels, variants, strict=True):
        ax.axhline(1, color=GUIDE, linestyle="--", linewidth=0.8, zorder=0)
        if variant in ends:
            one = ends[variant]
            half = (one.high - one.low) / 2
            words = f"{one.mean:.3g}" + (f" ± {half:.2g}" if half == half else "")
            box = {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}
            ax.text(0.97, 0.9, words, transform=ax.transAxes, ha="right", fontsize=TINY, bbox=box)
