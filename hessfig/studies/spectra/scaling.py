"""Figures of eigenvalues against settings: scales of weights, attention sinks, Gauss-Newton ratios."""

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedFormatter, FixedLocator, NullLocator
from pandas import DataFrame, concat

from hessfig.analysis.axis import (
    Axis,
    X,
    along,
    check_places,
    varied_key,
    with_settings,
)
from hessfig.analysis.curves import of_quantity
from hessfig.errors import UserError
from hessfig.figures.parts import (
    BY_COLUMN,
    OWN_Y,
    FigureSpec,
    Network,
    Page,
    Sheet,
    Source,
    as_written,
    by_part,
    counted,
    different,
    draw_interval,
    draw_means,
    draw_seed,
    fitting,
    labels,
    mark_one,
    matrix_colour,
    name_ends,
    networks_of,
    of_network,
    panel_names,
    say,
    seed_means,
    set_decades,
    set_x_scale,
    shaded,
    tone,
    wanted_quantities,
    where,
    width_in,
    width_of,
)
from hessfig.record import NETWORK
from hessfig.terms import Group, Part

_QUANTITIES = ("largest_eigenvalue", "condition_number")
_WEIGHT = "model.scaled_weight"
_ROW = ["quantity", "layer", "row"]


_TICK = 0.3  # inches of a number below an axis


def weight_norms(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw a number of every block against the scale of a weight: a column per weight, a row per block and number.

    How to read it: a flat line means that the number does not depend on that weight's
    size; a straight one is a power law. Points are geometric means over seeds; up to
    five seeds are thin lines, each parallel to the others where they share a law, more
    the band of their 95 % interval (Student's t of the logarithms). All columns meet at
    scale 1 (grey), which is the same network. Requires: the sweep's table.csv along a
    scale, with a varied setting for the columns (options `quantity`: a list, by default
    largest_eigenvalue and condition_number, whichever has a number; `columns`: the
    setting, by default scaled_weight).
    """
    axis = source.run.axis
    table = along(source.table, axis)
    check_places(table, axis)
    chosen = _of_quantities(table, spec.words("quantity"))
    asked = str(spec.options.get("columns", _WEIGHT))
    key = varied_key(asked, table["variant"].unique(), asked="figure.options.columns")
    every = with_settings(chosen, key).rename(columns={key: "column"})
    for suffix, page in by_part(every):
        columns = list(page["column"].unique())
        rows = different(page, *_ROW)
        part = labels.part_words(page["part"].iloc[0])
        means = f"{part}: geometric mean" if part else "Geometric mean"
        words = f"{means} over {labels.seeds_words(page)}, {labels.spread_words(page['seed'].nunique())}."
        names = []
        for quantity, layer, row in rows:
            block = f"{row}{layer if layer > 1 else ''}:{quantity}"
            names.append([f"{block}:{column}" for column in columns])
        note = words + labels.made_words(page, axis)
        style = BY_COLUMN.replace(left=0.62, down=0.12, height=1.1)
        sheet = Sheet.grid(spec.paper, names, note, style)
        numbers = counted(page)
        drawn = []
        for ax in sheet.axes:
            set_decades(ax, "y")
        for row, column, ax in sheet:
            here = where(
                numbers,
                column=columns[column],
                **dict(zip(_ROW, rows[row], strict=True)),
            )
            drawn.append(
                draw_means(
                    ax, here, *_ROW, "column", X, colour=matrix_colour(columns[column])
                )
            )
            if drawn[-1]["mean"].notna().any():
                ax.axvline(1, color="#999999", linewidth=0.4, zorder=0)
            else:
                say(ax, "(nothing positive)")
        places = np.sort(numbers[X].unique())
        set_x_scale(sheet.axes[-1], numbers[X])
        named = places[:: math.ceil(len(places) * _TICK / width_in(sheet.first))]
        sheet.axes[-1].xaxis.set_major_locator(FixedLocator(named.tolist()))
        sheet.axes[-1].xaxis.set_major_formatter(
            FixedFormatter([f"{place:g}" for place in named])
        )
        titles = [f"scaled: {labels.weight_words(column)}" for column in columns]
        along_x = fitting(
            [labels.plain(axis.symbol), labels.plain(axis.symbol.split()[0])],
            0.9 * width_in(sheet.first),
        )
        sheet.label(along_x, titles, [_row_words(*row) for row in rows])
        yield sheet.page(suffix, as_written(concat(drawn, ignore_index=True), axis))


def _row_words(quantity: str, layer: int, row: str) -> str:
    # The whole network needs no name.
    block = "" if row == Group.all else labels.block_words(row, row)
    which = block + (f" {layer}" if layer > 1 else "")
    return f"{which} {labels.quantity_name(quantity)}".strip()


def _of_quantities(table: DataFrame, asked: list[str] | None) -> DataFrame:
    none_measured = "none of largest_eigenvalue, condition_number"
    known = counted(table)["quantity"].unique()
    wanted = wanted_quantities(
        table,
        asked,
        [name for name in _QUANTITIES if name in known],
        found=none_measured,
    )
    chosen = table[
        table["quantity"].isin(wanted)
        & (table["index"] <= 1)
        & (table["row"] == table["col"])
    ]
    if chosen.empty:
        wanted_quantities(table, None, (), found=none_measured)
    return chosen.sort_values(
        "quantity", key=lambda names: names.map(wanted.index), kind="stable"
    )


LARGEST = "largest_eigenvalue"
SMALLEST = "smallest_eigenvalue"
QUANTILES = "density_quantile"
EXACT_QUANTILES = "eigenvalue_quantile"
_CURVE = [*NETWORK, X]
_PLACE = [*_CURVE, "seed"]
_BULK = (5, 95)
_MARKS = "os^Dv"
_LEAST = 0.1  # decades below which nothing counts as a change (docs/claims.md)
_OUTLIER, _QUANTILE, _SIZE = "#b2182b", "#2166ac", "#333333"


def sinks(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw outermost eigenvalues and bulk quantiles along the axis, and how far apart they are; one column per kind.

    How to read it: red lines are the largest and smallest eigenvalue, blue ones the 5,
    25, 50, 75 and 95 % quantiles. A spectrum that stretches has red lines that leave
    zero while the blue ones close in on it. The lower row says it in one number, the
    outermost eigenvalue in size over the width of the bulk (95 less 5 % quantile): by
    which factor it changes from the first place on, seed by seed. A Lanczos density's
    quantiles are no finer than its nodes. Up to five seeds are thin lines, more the
    band of their 95 % interval (Student's t). Requires: the sweep's table.csv with
    `largest_eigenvalue`, `smallest_eigenvalue` and `density` of one block, or with
    `spectrum` (option `block`: all by default; of a group that layers have, one page
    per layer).
    """
    axis = source.run.axis
    block = str(spec.options.get("block", "all"))
    table = where(along(source.table, axis), row=block, col=block)
    _check_stretch(table, block)
    table = table[
        table["quantity"].isin([LARGEST, SMALLEST, QUANTILES, EXACT_QUANTILES])
    ]
    check_places(table, axis)
    for part_suffix, of_part in by_part(table):
        for layer, page in of_part.groupby("layer"):
            suffix = part_suffix + f"_layer{layer}" * bool(layer)
            yield _draw_stretch(page, axis, spec, suffix)


def outstanding(table: DataFrame) -> DataFrame:
    """Return the largest |eigenvalue| over the width of the bulk, by network, place and seed."""
    ends = table[table["quantity"].isin([LARGEST, SMALLEST]) & (table["index"] <= 1)]
    outer = ends["value"].abs().groupby([ends[name] for name in _PLACE]).max()
    low, high = (
        _quantile(table, percent).groupby(_PLACE)["value"].mean() for percent in _BULK
    )
    width = (high - low).where(high > low)
    return (outer / width).dropna().rename("value").reset_index()


def _draw_stretch(page: DataFrame, axis: Axis, spec: FigureSpec, suffix: str) -> Page:
    rows = counted(page)
    networks = networks_of(rows)
    floor = _floor(rows)
    first = f"{axis.symbol} = {rows[X].min():g}"
    spread = labels.spread_words(rows["seed"].nunique())
    about = labels.part_words(page["part"].iloc[0])
    note = (
        f"{about}: mean over {labels.seeds_words(page)}, {spread}. Below: seed by seed, relative to {first},"
        " with the 95% interval of the mean (grey: within a tenth of a decade of it)."
        f"{labels.made_words(page, axis)}"
    )
    names = [
        [f"{network}:{kind}" for network in panel_names(networks)]
        for kind in ("eigenvalue", "ratio")
    ]
    sheet = Sheet.grid(
        spec.paper, names, note, BY_COLUMN.replace(left=0.62, down=0.16, height=1.5)
    )
    numbers = []
    for row, column, ax in sorted(sheet, key=lambda cell: (cell[1], cell[0])):
        here = of_network(rows, networks[column])
        if row == 0:
            numbers.append(_draw_ends(ax, here, floor))
        else:
            numbers.append(_draw_changes(ax, outstanding(here)))
    set_x_scale(sheet.axes[-1], rows[X])
    titles = [labels.variant_words(variant) or "network" for variant, _ in networks]
    sheet.label(axis.symbol, titles, ["eigenvalue", "outermost / bulk width"])
    for ax in sheet.row(0)[-1:]:
        ax.legend(loc="best", ncols=2)
    return sheet.page(suffix, as_written(concat(numbers, ignore_index=True), axis))


def _draw_ends(ax: Axes, here: DataFrame, floor: float) -> DataFrame:
    ax.set_yscale("symlog", linthresh=floor, linscale=0.4)
    ax.yaxis.set_minor_locator(NullLocator())
    shown = []
    percents = sorted(_quantiles(here)["index"].unique())
    for colour, percent in shaded(_QUANTILE, percents):
        points = draw_means(
            ax, _quantile(here, percent), *_CURVE, colour=colour, label=f"{percent}%"
        )
        shown.append(points.assign(shown=f"quantile_{percent}"))
    for quantity, words in ((LARGEST, "largest, smallest"), (SMALLEST, "")):
        rows = here[(here["quantity"] == quantity) & (here["index"] <= 1)]
        points = draw_means(ax, rows, *_CURVE, colour=_OUTLIER, label=words or "_")
        shown.append(points.assign(shown=quantity))
    ax.axhline(0, color="#999999", linewidth=0.4, zorder=0)
    return concat(shown)


def _draw_changes(ax: Axes, rows: DataFrame) -> DataFrame:
    """Draw the factor between each seed's number and that at its first place, which removes differences of size."""
    set_decades(ax, "y")
    start = rows[rows[X] == rows[X].min()].set_index("seed")["value"]
    changes = rows.assign(value=rows["value"] / rows["seed"].map(start))
    ax.axhspan(10**-_LEAST, 10**_LEAST, color="#eeeeee", zorder=0)
    for _, run in changes.sort_values(X).groupby("seed"):
        draw_seed(ax, run[X], run["value"], colour=_SIZE)
    points = seed_means(changes, _CURVE, logs=True)
    draw_interval(ax, points, X, colour=_SIZE)
    return points.assign(shown="outermost_over_bulk_relative")


def _floor(counted: DataFrame) -> float:
    """Return the value below which the axis is linear: the smallest width of a bulk, or a millionth of the outliers."""
    low, high = (
        _quantile(counted, percent).groupby(["variant", X])["value"].mean().abs()
        for percent in _BULK
    )
    widths = np.concatenate([low.to_numpy(), high.to_numpy()])
    largest = float(counted[counted["quantity"] == LARGEST]["value"].abs().max()) or 1.0
    smallest = float(widths[widths > 0].min()) if (widths > 0).any() else largest
    return max(10 ** np.floor(np.log10(smallest)), 1e-6 * largest)


def _quantiles(table: DataFrame) -> DataFrame:
    """Return the quantiles; exact ones if there are any."""
    exact = table[table["quantity"] == EXACT_QUANTILES]
    return exact if len(exact) else table[table["quantity"] == QUANTILES]


def _quantile(table: DataFrame, percent: int) -> DataFrame:
    return where(_quantiles(table), index=percent)


def _check_stretch(table: DataFrame, block: str) -> None:
    measured = set(table["quantity"])
    missing = [name for name in (LARGEST, SMALLEST) if name not in measured]
    if not measured & {QUANTILES, EXACT_QUANTILES}:
        missing.append(QUANTILES)
    if missing:
        raise UserError(
            f"the table has no {', '.join(missing)} of the block {block}",
            got=", ".join(sorted(measured)) or "nothing of this block",
            allowed="a sweep with largest_eigenvalue, smallest_eigenvalue and density, or with spectrum",
            remedy="figure.options.block=all, or 'quantities=[largest_eigenvalue,smallest_eigenvalue,density]'",
        )


def gauss_newton(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the ratio of the largest eigenvalues of H_o and H along the axis, one line per network, above both of them.

    How to read it: where the ratio is 1 the Gauss-Newton part stands for the Hessian;
    below, the functional part adds curvature that it misses, above, one that cancels.
    Ratios are taken seed by seed; means are geometric; up to five seeds are thin lines,
    more the band of their 95 % interval (Student's t). In the lower panel H is solid
    and H_o dashed. Requires: the sweep's table.csv with `largest_eigenvalue` (or
    `spectrum`) of one block, parts H_o and H (options `block`: all by default; `up_to`:
    the last place on the axis).
    """
    axis = source.run.axis
    block = str(spec.options.get("block", "all"))
    last = spec.number("up_to")
    table = where(along(of_quantity(source.table, LARGEST), axis), row=block, col=block)
    table = table[(table["index"] <= 1) & (last is None or table[X] <= last)]
    _check_proxies(table, block)
    check_places(table, axis)
    of_parts = ratios(table)
    note = (
        f"Geometric mean over {labels.seeds_words(table)}, {labels.spread_words(table['seed'].nunique())}. A ratio of 1"
        f" means that the Gauss-Newton part explains the whole eigenvalue. Below: solid {Part.H.label}, dashed"
        f" {Part.H_o.label}.{labels.made_words(table, axis)}"
    )
    named = _named(table)
    room = max(map(width_of, named.values())) + 0.1
    beside = room < _WIDEST * spec.paper.inches  # otherwise a legend names the lines
    style = OWN_Y.replace(right=room if beside else 0.1, top=0.12, height=1.5)
    sheet = Sheet.grid(spec.paper, [[_RATIO], ["eigenvalue"]], note, style)
    set_x_scale(sheet.axes[-1], of_parts[X])
    numbers: list[DataFrame] = []
    for row, _, ax in sheet:
        kind = list(_DRAWN)[row]
        lines = list(_draw_lines(ax, of_parts, named, kind))
        numbers.extend(lines)
        if beside:
            name_ends(ax, _ends(lines, named))
        elif kind == _RATIO:
            ax.legend(loc="best")
        if kind == _RATIO:
            ax.axhline(1, color="black", linewidth=0.5, linestyle=(0, (4, 1.5)))
        mark_one(ax, axis)
        ax.set_ylabel(_SIDES[kind])
    sheet.axes[-1].set_xlabel(axis.symbol)
    _align_labels(sheet)
    yield sheet.page("", as_written(concat(numbers, ignore_index=True), axis))


def ratios(table: DataFrame) -> DataFrame:
    """Return the largest eigenvalue of H_o over that of H by network, place and seed, if that of H is positive."""
    wide = (
        counted(table)
        .pivot_table(index=_PLACE, columns="part", values="value")
        .reset_index()
    )
    return wide.assign(
        ratio=(wide[Part.H_o.value] / wide[Part.H.value]).where(wide[Part.H.value] > 0)
    )


_RATIO = "ratio"
_WIDEST = 0.45  # largest share of the page's width for the names of lines
_DRAWN: dict[str, tuple[tuple[str, Any], ...]] = {
    _RATIO: ((_RATIO, "-"),),
    LARGEST: ((Part.H.value, "-"), (Part.H_o.value, (0, (3, 1.5)))),
}


_SIDES = {
    _RATIO: r"$\lambda_1(H_\mathrm{o})\,/\,\lambda_1(H)$",
    LARGEST: "largest eigenvalue",
}


def _draw_lines(
    ax: Axes, of_parts: DataFrame, named: dict[Network, str], kind: str
) -> Iterator[DataFrame]:
    """Draw the lines of a panel with one colour and marker per network; yield their means."""
    set_decades(ax, "y")
    for rank, (network, words) in enumerate(named.items()):
        here = of_network(of_parts, network)
        for name, dashes in _DRAWN[kind]:
            means = draw_means(
                ax,
                here.assign(value=here[name]),
                *_CURVE,
                colour=tone(rank),
                label=words * (kind == _RATIO),
                linestyle=dashes,
                marker=_MARKS[rank % len(_MARKS)],
                markersize=2.6,
            )
            yield means.assign(shown=kind, part=name * (kind != _RATIO))


def _ends(
    lines: list[DataFrame], named: dict[Network, str]
) -> list[tuple[float, str, Any]]:
    """Return (last mean, words, colour) of every network: of its ratio, or of H."""
    lasts = {}
    for means in lines:
        drawn = means.dropna(subset=["mean"])
        if len(drawn) and set(drawn["part"]) <= {"", Part.H.value}:
            lasts[tuple(drawn[NETWORK].iloc[0])] = float(drawn["mean"].iloc[-1])
    ends = []
    for rank, (network, words) in enumerate(named.items()):
        if network in lasts:
            ends.append((lasts[network], words, tone(rank)))
    return ends


def _align_labels(sheet: Sheet) -> None:
    """Align the y labels of all lines behind the widest tick labels; matplotlib aligns panels of one grid only."""
    grid = sheet.figure.add_gridspec(len(sheet.axes), 1)
    for number, ax in enumerate(sheet.axes):
        place = ax.get_position()
        ax.set_subplotspec(grid[number, 0])
        ax.set_position(place)
    sheet.figure.align_ylabels(sheet.axes)


def _named(table: DataFrame) -> dict[Network, str]:
    """Return {network: words}. Networks with the same words (an MLP has no kind of attention) are drawn once."""
    several = len(set(table["num_layers"])) > 1
    named: dict[str, Network] = {}
    for variant, depth in networks_of(table):
        words = labels.variant_words(variant) + (f", {depth} layers" if several else "")
        named.setdefault(words or "network", (variant, depth))
    return {network: words for words, network in named.items()}


def _check_proxies(table: DataFrame, block: str) -> None:
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
