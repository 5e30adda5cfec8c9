"""Eigenvalues against settings: scaled weights, stretches, proxies, changes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import NullLocator

from hessfig.analysis.axis import Axis, X, along, assignments, check_places, fixed_words, varied_key
from hessfig.analysis.curves import of_quantity
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.figures.parts.encoding import set_x_scale
from hessfig.figures.parts.measured import as_written
from hessfig.figures.parts.page import TONES, FigureSpec, Page, matrix_colour, shades
from hessfig.figures.parts.panel_sheet import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.panels import mark_one, set_decades
from hessfig.figures.parts.words import (
    block_words,
    estimator_words,
    left_out_words,
    part_words,
    plain,
    quantity_words,
    seeds_words,
    variant_words,
    weight_words,
)
from hessfig.record import LEFT_OUT
from hessfig.terms import Group, Part


def seed_means(rows: pd.DataFrame, by: Sequence[str], name: str = "value", *, logs: bool = False) -> pd.DataFrame:
    """Return mean, low, high (95 %, Student's t over seeds) and count of `name` for each place in `by`.

    With `logs` the mean is geometric, and so is its interval; what is not positive is left out then.
    """
    values = rows[name].where(rows[name] > 0) if logs else rows[name]
    found = []
    for key, one in rows.assign(used=values).groupby(list(by), sort=True, dropna=False):
        interval = student_interval(np.log10(one["used"]) if logs else one["used"])
        ends = np.array([interval.mean, interval.low, interval.high])
        mean, low, high = 10**ends if logs else ends
        place = dict(zip(by, key, strict=True))
        found.append({**place, "mean": mean, "low": low, "high": high, "count": interval.count})
    return pd.DataFrame(found, columns=[*by, "mean", "low", "high", "count"])


def draw_line(ax: Axes, points: pd.DataFrame, x: str, *, colour: Any, label: str = "", **line: Any) -> None:
    """Draw means against the column `x` with the band of their intervals; on logarithmic axes what is positive."""
    drawn = points[np.isfinite(points["mean"])].sort_values(x)
    if ax.get_yscale() == "log":
        drawn = drawn[drawn["mean"] > 0]
    style = {"marker": "o", "markeredgewidth": 0, "markersize": 2.0, **line}
    ax.plot(drawn[x], drawn["mean"], color=colour, label=label, **style)
    low, high = drawn["low"], drawn["high"]
    if ax.get_yscale() == "log":  # as factors: an interval of few seeds on a logarithmic axis must not reach zero
        high = np.maximum(high, drawn["mean"])
        low = np.where(low > 0, low, drawn["mean"] ** 2 / high)
    ax.fill_between(drawn[x], low, high, color=colour, alpha=0.2, linewidth=0)


def tone(rank: int) -> str:
    """Return the colour of the `rank`-th line of a panel whose lines are of no weight and no part."""
    return TONES[rank % len(TONES)]


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
        yield _draw_scaled(chosen[chosen["part"] == part], run.axis, suffix)


def _draw_scaled(table: pd.DataFrame, axis: Axis, suffix: str) -> Page:
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
    labels = [f"{_block_words(row, layer)} {plain(quantity_words(quantity))}".strip() for quantity, layer, row in rows]
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


LARGEST, SMALLEST, QUANTILES = "largest_eigenvalue", "smallest_eigenvalue", "density_quantile"
EXACT_QUANTILES, CONDITION = "eigenvalue_quantile", "condition_number"
_PLACE = ["variant", "num_layers", X, "seed"]
_BULK = (5, 95)
_OUTLIER, _QUANTILE, _SIZE = "#b2182b", "#2166ac", "#333333"


def sinks(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw outermost eigenvalues and bulk quantiles along the axis, and how far apart they are; a column a kind.

    How to read it: red lines are the largest and smallest eigenvalue, blue ones the 5, 25, 50, 75 and 95 % quantiles.
    A spectrum that stretches has red lines that leave zero while the blue ones close in on it. The lower row says it in
    one number, the outermost eigenvalue in size over the width of the bulk (95 less 5 % quantile; geometric mean);
    the last row is the condition number, where all eigenvalues are known: a Lanczos density has no smallest one, and
    its quantiles are no finer than its nodes. Bands: 95 % interval over seeds (Student's t).
    Requires: the sweep's table.csv with `largest_eigenvalue`, `smallest_eigenvalue` and `density` of one block, or
    with `spectrum` (option `block`: all by default).
    """
    run = read_run(folder)
    block = str(spec.options.get("block", "all"))
    table = along(run.table, run.axis)
    table = table[(table["row"] == block) & (table["col"] == block)]
    _check_stretch(table, block)
    check_places(table, run.axis)
    parts = list(dict.fromkeys(table["part"]))
    for part in parts:
        suffix = f"_{part}" if len(parts) > 1 else ""
        yield _draw_stretch(table[table["part"] == part], run.axis, suffix)


def outstanding(table: pd.DataFrame) -> pd.DataFrame:
    """Return the outermost eigenvalue in size over the bulk's width, by network, place and seed."""
    ends = table[table["quantity"].isin([LARGEST, SMALLEST]) & (table["index"] <= 1)]
    outer = ends.assign(value=ends["value"].abs()).groupby(_PLACE)["value"].max()
    low, high = (_quantile(table, percent).groupby(_PLACE)["value"].mean() for percent in _BULK)
    width = (high - low).where(high > low)
    return (outer / width).dropna().rename("value").reset_index()


def _draw_stretch(table: pd.DataFrame, axis: Axis, suffix: str) -> Page:
    counted = table[~table["status"].isin(LEFT_OUT)]
    networks = list(counted[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None))
    labels = ["eigenvalue", "outermost / bulk width"]
    labels += ["condition number"] * bool((counted["quantity"] == CONDITION).any())
    note = (
        f"{part_words(table['part'].iloc[0])}: mean over {seeds_words(table)}, band: 95% interval (Student's t); lower"
        f" rows: geometric mean.{fixed_words(table, axis)} {estimator_words(table)}.{left_out_words(table)}"
    )
    margins = Margins(left=0.62, down=0.16)
    figure, axes = panel_grid(len(labels), len(networks), note=note, panel_height=1.5, margins=margins)
    numbers, floor = [], _floor(counted)
    for panels, (variant, depth) in zip(axes.T, networks, strict=True):
        here = counted[(counted["variant"] == variant) & (counted["num_layers"] == depth)]
        numbers.append(_draw_ends(panels[0], here, floor))
        numbers.append(_draw_sizes(panels[1], outstanding(here), "outermost_over_bulk"))
        if len(labels) > 2:
            numbers.append(_draw_sizes(panels[2], here[here["quantity"] == CONDITION], CONDITION))
        panels[0].set_title(variant_words(variant) or "network")
    set_x_scale(axes[-1, 0], counted[X])
    only_outer_labels(axes, x=axis.symbol, y=labels)
    axes[0, -1].legend(loc="best", ncols=2)
    return Page(suffix, figure, as_written(pd.concat(numbers, ignore_index=True), axis))


def _draw_ends(ax: Axes, here: pd.DataFrame, floor: float) -> pd.DataFrame:
    ax.set_yscale("symlog", linthresh=floor, linscale=0.4)
    ax.yaxis.set_minor_locator(NullLocator())
    found = []
    percents = sorted(_quantiles(here)["index"].unique())
    for percent, colour in zip(percents, shades(_QUANTILE, len(percents)), strict=True):
        points = seed_means(_quantile(here, percent), ["variant", "num_layers", X])
        draw_line(ax, points, X, colour=colour, label=f"{percent}%")
        found.append(points.assign(shown=f"quantile_{percent}"))
    for quantity, words in ((LARGEST, "largest, smallest"), (SMALLEST, "")):
        rows = here[(here["quantity"] == quantity) & (here["index"] <= 1)]
        points = seed_means(rows, ["variant", "num_layers", X])
        draw_line(ax, points, X, colour=_OUTLIER, label=words or "_")
        found.append(points.assign(shown=quantity))
    ax.axhline(0, color="#999999", linewidth=0.4, zorder=0)
    return pd.concat(found)


def _draw_sizes(ax: Axes, rows: pd.DataFrame, shown: str) -> pd.DataFrame:
    set_decades(ax, "y")
    points = seed_means(rows, ["variant", "num_layers", X], logs=True)
    draw_line(ax, points, X, colour=_SIZE)
    return points.assign(shown=shown)


def _floor(counted: pd.DataFrame) -> float:
    """Return where the axis becomes linear: at the smallest width of a bulk, or a millionth of the outliers."""
    low, high = (_quantile(counted, percent).groupby(["variant", X])["value"].mean().abs() for percent in _BULK)
    widths = np.concatenate([low.to_numpy(), high.to_numpy()])
    largest = float(counted[counted["quantity"] == LARGEST]["value"].abs().max()) or 1.0
    smallest = float(widths[widths > 0].min()) if (widths > 0).any() else largest
    return max(10 ** np.floor(np.log10(smallest)), 1e-6 * largest)


def _quantiles(table: pd.DataFrame) -> pd.DataFrame:
    """Return the quantiles, exact ones where there are some."""
    exact = table[table["quantity"] == EXACT_QUANTILES]
    return exact if len(exact) else table[table["quantity"] == QUANTILES]


def _quantile(table: pd.DataFrame, percent: int) -> pd.DataFrame:
    found = _quantiles(table)
    return found[found["index"] == percent]


def _check_stretch(table: pd.DataFrame, block: str) -> None:
    measured = set(table["quantity"])
    missing = [name for name in (LARGEST, SMALLEST) if name not in measured]
    missing += [] if measured & {QUANTILES, EXACT_QUANTILES} else [QUANTILES]
    if missing:
        raise UserError(
            f"the table has no {', '.join(missing)} of the block {block}",
            got=", ".join(sorted(measured)) or "nothing of this block",
            allowed="a sweep with largest_eigenvalue, smallest_eigenvalue and density, or with spectrum",
            remedy="figure.options.block=all, or 'quantities=[largest_eigenvalue,smallest_eigenvalue,density]'",
        )


_LARGEST = "largest_eigenvalue"


def gauss_newton(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw the ratio of the largest eigenvalues of H_o and H along the axis, a line a network, above both of them.

    How to read it: where the ratio is 1 the Gauss-Newton part stands for the Hessian; below, the functional part adds
    curvature that it misses, above, one that cancels. Ratios are taken seed by seed; means are geometric, bands 95 %
    intervals over seeds (Student's t). In the lower panel H is solid and H_o dashed.
    Requires: the sweep's table.csv with `largest_eigenvalue` (or `spectrum`) of one block, parts H_o and H (option
    `block`: all by default).
    """
    run = read_run(folder)
    block = str(spec.options.get("block", "all"))
    table = along(of_quantity(run.table, _LARGEST), run.axis)
    table = table[(table["row"] == block) & (table["col"] == block) & (table["index"] <= 1)]
    _check_proxies(table, block)
    check_places(table, run.axis)
    yield _draw_proxies(table, run.axis)


def ratios(table: pd.DataFrame) -> pd.DataFrame:
    """Return H_o's largest eigenvalue over H's by network, place and seed; none where H's is not positive."""
    counted = table[~table["status"].isin(LEFT_OUT)]
    wide = counted.pivot_table(index=_PLACE, columns="part", values="value").reset_index()
    return wide.assign(ratio=(wide[Part.H_o.value] / wide[Part.H.value]).where(wide[Part.H.value] > 0))


def _draw_proxies(table: pd.DataFrame, axis: Axis) -> Page:
    found = ratios(table)
    note = (
        f"Geometric mean over {seeds_words(table)}, band: 95% interval (Student's t). Below: solid {Part.H.label},"
        f" dashed {Part.H_o.label}.{fixed_words(table, axis)} {estimator_words(table)}.{left_out_words(table)}"
    )
    figure, axes = panel_grid(2, 1, note=note, panel_height=1.5, margins=Margins(right=0.1, top=0.12), share_y=False)
    upper, lower = axes[:, 0]
    set_x_scale(lower, found[X])
    for ax in (upper, lower):
        set_decades(ax, "y")
    ratio = seed_means(found, ["variant", "num_layers", X], "ratio", logs=True)
    numbers = [ratio.assign(shown="ratio", part="")]
    sizes = [
        seed_means(found, ["variant", "num_layers", X], part.value, logs=True).assign(shown=_LARGEST, part=part.value)
        for part in (Part.H, Part.H_o)
    ]
    for rank, (network, words) in enumerate(_named(table).items()):
        draw_line(upper, _of(ratio, network), X, colour=tone(rank), label=words)
        for one, dashes in zip(sizes, ("-", (0, (3, 1.5))), strict=True):
            draw_line(lower, _of(one, network), X, colour=tone(rank), linestyle=dashes)
    upper.axhline(1, color="black", linewidth=0.5, linestyle=(0, (4, 1.5)))
    upper.legend(loc="best")
    for ax in (upper, lower):
        mark_one(ax, axis)
    upper.set_ylabel(r"$\lambda_1(H_\mathrm{o})\,/\,\lambda_1(H)$")
    lower.set_ylabel("largest eigenvalue")
    lower.set_xlabel(axis.symbol)
    figure.align_ylabels([upper, lower])
    return Page("", figure, as_written(pd.concat([*numbers, *sizes], ignore_index=True), axis))


def _named(table: pd.DataFrame) -> dict[tuple[str, int], str]:
    """Return {network: words}; networks that read alike are one (an MLP has no kind of attention) and drawn once."""
    networks = table[["variant", "num_layers"]].drop_duplicates().itertuples(index=False, name=None)
    several = len(set(table["num_layers"])) > 1
    named: dict[str, tuple[str, int]] = {}
    for variant, depth in networks:
        words = variant_words(variant) + (f", {depth} layers" if several else "")
        named.setdefault(words or "network", (variant, depth))
    return {network: words for words, network in named.items()}


def _of(points: pd.DataFrame, network: tuple[str, int]) -> pd.DataFrame:
    return points[(points["variant"] == network[0]) & (points["num_layers"] == network[1])]


def _check_proxies(table: pd.DataFrame, block: str) -> None:
    parts = sorted(set(table["part"]))
    if not {Part.H, Part.H_o} <= set(parts):
        raise UserError(
            f"figure.options.block: no largest eigenvalues of H_o and H of the block {block}",
            got=f"parts {', '.join(parts) or 'none'}",
            allowed="a block measured with parts=[H_o,H]",
            remedy="figure.options.block=all, or run the sweep with parts=[H_o,H]",
        )
    if not np.isfinite(table["value"]).any():
        raise UserError(
            f"no largest eigenvalue of the block {block} is finite",
            got=f"{len(table)} rows",
            allowed="finite numbers",
            remedy="measure it at other sigmas: grid.values=[0.1,1]",
        )
