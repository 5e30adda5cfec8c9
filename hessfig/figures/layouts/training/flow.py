"""Curvature flow: heat maps of every weight's curvature and the residual stream's length along a training."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from hessfig.analysis.interval import student_interval
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.figures.layouts.training.means import check_steps, counted, how
from hessfig.figures.parts.grid import Margins, panel_grid, say
from hessfig.figures.parts.panels import between_decades, set_decades
from hessfig.figures.parts.save import Page, page_suffix
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import TINY, matrix_colour
from hessfig.figures.parts.words import plain, quantity_words, weight_words
from hessfig.terms import name_order

_QUANTITIES = ("frobenius", "largest_eigenvalue", "gradient_norm", "weight_norm", "residual_norm")
_RESIDUAL = "residual_norm"
_SHORT = 30  # ratio below which powers of ten are too far apart for ticks


def curvature_flow(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw weights (layers, for the residual stream) against steps as heat maps, with the last step as bars beside.

    How to read it: colour is log10 of the geometric mean over seeds, its scale each panel's own; grey: nothing
    positive. Bars: the last step, with 95 % intervals over seeds.
    Requires: the sweep's table.csv along `state.step` (option `quantity`: a list; by default norms and largest
    eigenvalues of blocks of H, norms of gradient and weights, lengths of the residual stream, whichever are there).
    """
    run = read_run(folder)
    check_steps(run.table)
    measured = list(run.table["quantity"].unique())
    wanted = spec.words("quantity") or [name for name in _QUANTITIES if name in measured]
    missing = [name for name in wanted if name not in measured]
    if missing or not wanted:
        raise UserError(
            "figure.options.quantity: the table has no numbers of these quantities",
            got=", ".join(missing) or "none that has a place in the network",
            allowed=", ".join(measured),
            remedy=f"for example figure.options.quantity={measured[0]}",
        )
    networks = list(run.table[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None))
    for variant, depth in networks:
        here = run.table[(run.table["variant"] == variant) & (run.table["num_layers"] == depth)]
        yield _draw_page(here, wanted, page_suffix(variant, depth, networks))


def _draw_page(table: pd.DataFrame, wanted: list[str], suffix: str) -> Page:
    margins = Margins(left=0.8, across=0.85, down=0.42, right=0.12)
    note = how(table, "Colour: log10 of the geometric mean; its range in the title.")
    figure, axes = panel_grid(
        len(wanted), 2, note=note, margins=margins, share_x=False, share_y=False, panel_height=1.25
    )
    found = []
    for name, (left, right) in zip(wanted, axes, strict=True):
        points = _points(counted(table), name)
        if points.empty:
            for ax in (left, right):
                say(ax, "(nothing positive)")
            continue
        _heat(left, points, name)
        _bars(right, points[points["step"] == points["step"].max()])
        found.append(points.drop(columns="colour").assign(quantity=name))
    axes[-1, 0].set_xlabel("step")
    axes[-1, 1].set_xlabel("at the last step")
    return Page(suffix, figure, pd.concat(found, ignore_index=True) if found else pd.DataFrame())


def _points(table: pd.DataFrame, name: str) -> pd.DataFrame:
    """Return the geometric mean with its interval by place (weight or layer) and step, places in order."""
    rows = table[(table["quantity"] == name) & table["part"].isin(["", "H"]) & (table["index"] <= 1)]
    if name == _RESIDUAL:
        rows = rows.assign(place=rows["layer"].map("after layer {:d}".format), colour="W_O")
    else:
        rows = rows[(rows["row"] == rows["col"]) & rows["row"].str.startswith("W_")]
        several = table["num_layers"].max() > 1
        rows = rows.assign(place=_places(rows, several), colour=rows["row"])
        rank = name_order(rows["row"].unique())
        rows = rows.sort_values("row", key=lambda names: names.map(rank), kind="stable")
    rows = rows[rows["value"] > 0].sort_values("layer", kind="stable")
    found = []
    for (place, step), one in rows.groupby(["place", "step"], sort=False):
        interval = student_interval(np.log10(one["value"]))
        found.append(
            (place, one["colour"].iloc[0], step, interval.mean, interval.low, interval.high, interval.count)
        )
    return pd.DataFrame(found, columns=["place", "colour", "step", "log10", "low", "high", "count"])


def _places(rows: pd.DataFrame, several: bool) -> list[str]:
    pairs = zip(rows["row"], rows["layer"], strict=True)
    return [
        f"{weight_words(row)} {layer}" if several and layer else weight_words(row) for row, layer in pairs
    ]


def _heat(ax: Axes, points: pd.DataFrame, name: str) -> None:
    wide = points.pivot_table(index="place", columns="step", values="log10")
    wide = wide.loc[list(dict.fromkeys(points["place"]))]
    ax.imshow(wide.to_numpy(), aspect="auto", interpolation="nearest", cmap="viridis")
    ax.set_yticks(range(len(wide)), list(wide.index), fontsize=TINY)
    shown = range(0, len(wide.columns), -(-len(wide.columns) // 6))
    ax.set_xticks(list(shown), [f"{wide.columns[k]:g}" for k in shown])
    ax.xaxis.set_minor_locator(NullLocator())
    low, high = np.nanmin(wide.to_numpy()), np.nanmax(wide.to_numpy())
    ax.set_title(f"{plain(quantity_words(name))}: {10**low:.2g} to {10**high:.2g}")


def _bars(ax: Axes, last: pd.DataFrame) -> None:
    mean = 10 ** last["log10"]
    below, above = (
        mean - 10 ** last["low"].fillna(last["log10"]),
        10 ** last["high"].fillna(last["log10"]) - mean,
    )
    places = range(len(last))
    ax.barh(
        list(places),
        mean,
        xerr=[below, above],
        color=[matrix_colour(name) for name in last["colour"]],
        error_kw={"elinewidth": 0.7},
    )
    ax.set_yticks(list(places), list(last["place"]), fontsize=TINY)
    ax.set_ylim(len(last) - 0.5, -0.5)
    set_decades(ax, "x")
    low, high = ax.get_xlim()
    if high < _SHORT * low:
        between_decades(ax, "x")
