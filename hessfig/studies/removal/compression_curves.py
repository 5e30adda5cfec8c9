"""Figures of removed and rounded weights: the loss against the share removed, rank correlations, loss against bits."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import SymmetricalLogLocator
from pandas import DataFrame, Series, concat

from hessfig.analysis.axis import along
from hessfig.analysis.intervals import fisher_interval
from hessfig.analysis.manifest import RecordedRun
from hessfig.errors import unknown_name
from hessfig.figures.parts import (
    APART,
    GUIDE,
    TINY,
    FigureSpec,
    Page,
    Sheet,
    Source,
    are_few,
    as_written,
    at_one_place,
    by_network,
    counted,
    different,
    draw_interval,
    fitting,
    in_order,
    in_rows,
    labels,
    networks_of,
    panel_names,
    points,
    seed_means,
    set_decades,
    set_y_scale,
    tone,
    where,
    width_in,
    width_of,
)
from hessfig.studies.removal.row_names import (
    OF_PRUNING,
    OF_QUANTISATION,
    ROUNDINGS,
    SALIENCIES,
    Surrogate,
)

_COLOURS = {
    **{one.value: tone(rank) for rank, one in enumerate(Surrogate)},
    "random": "#999999",
    "nearest": tone(6),
}
_COLOURS |= {"magnitude": tone(6), "taylor": tone(5)}
_MARKS = {"correlation": "o", "row_correlation": "s", "compensated_correlation": "x"}
_LOSSES = "Dashed: OBD; solid: OBS, where other weights compensate, and the rest. Geometric means"
_CORRELATIONS = (
    "Dots: single weights; squares: rows of matrices; "
    "crosses: single weights with compensation. Means by Fisher's z"
)
_LINES = ("o", "s", "^", "D", "v", "P", "X")  # markers of curves
_STYLE = APART.replace(across=0.4, bottom=0.4, narrowest=None)
# Height of a saliency in inches, blocks per line, gap between marks.
_LINE = 0.14
_ACROSS = 4
_APART = 0.22


def pruning(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the loss against the share of weights removed, one colour per saliency; rank correlations on a page apart.

    How to read it: a low curve belongs to a saliency that finds the weights the loss
    does not need. Solid lines are OBS, whose remaining weights compensate; dashed ones
    OBD. Curves are geometric means over seeds, bands their 95 % intervals (of more than
    five seeds; the CSV file always has them). Correlations are Spearman's, of the
    saliency with the true rise of the loss: mean over seeds with its 95 % interval by
    Fisher's z. Dots are single weights, squares rows of matrices, crosses single
    weights with compensation. Requires: a sweep with the quantity `pruning`, two pages
    for each block (options `at`: the place on the axis; `saliencies`: those that are
    drawn).
    """
    run, table, place = _read(spec, source, OF_PRUNING)
    blocks = different(table, "layer", "row")
    names = _chosen(spec)
    for layer, name in blocks:
        rows = where(table, layer=layer, row=name)
        suffix = f"_{name}{layer or ''}" if len(blocks) > 1 else ""
        block = f"{name}, {place}."
        if name == "all":
            block = f"All weights, {place}."
        intervals = _INTERVALS
        if are_few(rows["seed"].nunique()):
            intervals = "their 95% intervals are in the CSV file"
        note = _note(run, rows, f"{block} {_LOSSES}", intervals)
        yield _draw_pruned(rows, names, "loss", note, spec, suffix)
        note = _note(run, rows, f"{block} {_CORRELATIONS}")
        yield _draw_pruned(
            rows, names, "correlation", note, spec, f"{suffix}_correlations"
        )


def _chosen(spec: FigureSpec) -> list[str]:
    """Return the saliencies to draw (figure.options.saliencies); all by default."""
    names = spec.words("saliencies") or list(SALIENCIES)
    for name in names:
        if name not in SALIENCIES:
            raise unknown_name(
                "figure.options.saliencies: there is no such saliency",
                name,
                SALIENCIES,
                "leave it out",
            )
    return names


def _draw_pruned(
    rows: DataFrame,
    names: Sequence[str],
    number: str,
    note: str,
    spec: FigureSpec,
    suffix: str,
) -> Page:
    """Draw a panel per network of one number of the saliencies: the `loss`, or the `correlation`."""
    networks = networks_of(rows)
    is_loss = number == "loss"
    marks = [[f"{network}:{number}" for network in panel_names(networks)]]
    if is_loss:
        style = _STYLE.replace(top=0.5, height=2.0)
    else:
        left = 0.2 + max(width_of(SALIENCIES[name]) for name in names)
        height = _LINE * len(names) + 0.1
        style = _STYLE.replace(left=left, top=0.24, height=height)
    sheet = Sheet.grid(spec.paper, marks, note, style)
    drawn = []
    for _, column, ax in sheet:
        variant, depth = networks[column]
        draw = _draw_curves if is_loss else _draw_correlations
        numbers = draw(ax, where(rows, variant=variant, num_layers=depth), names)
        drawn.append(numbers.assign(variant=variant, num_layers=depth))
        ax.set_title(labels.variant_words(variant))
        if column and not is_loss:
            ax.set_yticklabels([])
    if is_loss:
        sheet.label_sides(["loss"])
        sheet.name_above(sheet.first, long=2.6)
    return sheet.page(suffix, *drawn)


def _read(
    spec: FigureSpec, source: Source, names: Sequence[str]
) -> tuple[RecordedRun, DataFrame, str]:
    """Return a sweep, its numbers of some quantities at one place on the axis, and this place in words."""
    run = source.run
    table = counted(run.table[run.table["quantity"].isin(names)])
    here, words = at_one_place(along(table, run.axis), spec.number("at"), run.axis)
    return run, as_written(here, run.axis), words


_INTERVALS = "with 95% intervals"


def _note(
    run: RecordedRun, rows: DataFrame, words: str, intervals: str = _INTERVALS
) -> str:
    setting = labels.setting_words(run.config, rows, run.axis)
    seeds = labels.seeds_words(along(rows, run.axis))
    return (
        f"{words} over {seeds}, {intervals}.{setting}{labels.left_out_words(run.table)}"
    )


def _draw_curves(ax: Axes, rows: DataFrame, chosen: Sequence[str]) -> DataFrame:
    same = ["sigma", "seed", "index"]
    shares = where(rows, quantity="removed_share")[[*same, "value"]].rename(
        columns={"value": "share"}
    )
    curves = []
    losses = rows[rows["quantity"].isin([f"{name}_loss" for name in chosen])]
    if (losses["value"] > 0).all():
        set_decades(ax, "y")
    measured = [name for name in chosen if f"{name}_loss" in set(losses["quantity"])]
    for rank, name in enumerate(measured):
        joined = where(losses, quantity=f"{name}_loss").merge(shares, on=same)
        points = seed_means(joined, ["share"], logs=True)
        shown = points
        if are_few(rows["seed"].nunique()):
            shown = points.assign(low=np.nan, high=np.nan)
        draw_interval(
            ax,
            shown,
            "share",
            colour=_colour(name),
            alpha=0.07,
            linestyle="--" if name.startswith("obd_") else "-",
            label=SALIENCIES[name],
            marker=_LINES[rank % len(_LINES)],
            markersize=2.8,
            linewidth=0.8,
        )
        curves.append(points.assign(saliency=name, number="loss"))
    _label_below(ax, ["share of weights removed", "share removed"])
    return concat(curves, ignore_index=True)


def _draw_correlations(ax: Axes, rows: DataFrame, chosen: Sequence[str]) -> DataFrame:
    drawn = []
    for rank, name in enumerate(chosen):
        for shift, (number, mark) in zip(
            (-_APART, 0.0, _APART), _MARKS.items(), strict=True
        ):
            values = where(rows, quantity=f"{name}_{number}")["value"]
            if values.empty:
                continue
            interval = fisher_interval(values)
            ax.errorbar(
                [interval.mean],
                [rank + shift],
                xerr=interval.reach,
                fmt=mark,
                markersize=3,
                color=_colour(name),
                elinewidth=0.7,
            )
            drawn.append({"saliency": name, "number": number, **interval.found})
    ax.axvline(0, color=GUIDE, linewidth=0.6, zorder=0)
    ax.set_yticks(
        range(len(chosen)), [SALIENCIES[name] for name in chosen], fontsize=TINY
    )
    for tick, name in zip(ax.get_yticklabels(), chosen, strict=True):
        tick.set_color(_colour(name))
    ax.set_ylim(len(chosen) - 0.4, -0.6)
    found = DataFrame(drawn)
    ax.set_xlim(min(-0.1, found["low"].min() - 0.05), 1.05)
    _label_below(ax, ["rank correlation with the true rise", "rank correlation"])
    return found


def _label_below(ax: Axes, candidates: Sequence[str]) -> None:
    """Write the first x label that does not reach the panels beside this one."""
    room = width_in(ax) + _STYLE.right
    ax.set_xlabel(fitting(candidates, room, points("axes.labelsize")))


def _colour(name: str) -> str:
    return _COLOURS[name.partition("_")[2] if name not in _COLOURS else name]


def quantisation(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the rise of the loss against the bits of rounded weights, one panel per block, one page per network.

    How to read it: dark red rounds every weight to its nearest level; the others are
    GPTQ, where later weights make up for the rounding of earlier ones, with the matrix
    of the legend. Means over seeds, bands are 95 % intervals (Student's t). A rise
    below zero is a loss that rounding happens to lower; the scale is linear around
    zero. Requires: a sweep with the quantity `quantisation` (option `at`: the place on
    the axis).
    """
    run, table, place = _read(spec, source, OF_QUANTISATION)
    for suffix, (variant, _), rows in by_network(table):
        order = ["all", *in_order(rows["row"])]
        blocks = different(rows, "layer", "row")
        blocks.sort(key=lambda key: (order.index(key[1]), key[0]))
        words = ", ".join(filter(None, [labels.variant_words(variant), place]))
        lines = in_rows(blocks, _ACROSS)
        names = [[f"{name}{layer or ''}" for layer, name in line] for line in lines]
        style = APART.replace(height=1.3, down=0.36, narrowest=None, most=_ACROSS)
        sheet = Sheet.grid(
            spec.paper, names, _note(run, rows, f"{words}: means"), style
        )
        drawn = []
        for line, column, ax in sheet:
            layer, name = lines[line][column]
            points = _draw_bits(ax, where(rows, layer=layer, row=name))
            drawn.append(points.assign(variant=variant, layer=layer, row=name))
            ax.set_title("all matrices" if name == "all" else labels.weight_words(name))
            if (line, column) == (len(lines) - 1, len(lines[-1]) - 1):
                if column < _ACROSS - 1:
                    beside: dict[str, Any] = {
                        "loc": "upper left",
                        "bbox_to_anchor": (1.02, 1),
                    }
                else:
                    beside = {"loc": "best"}
                ax.legend(fontsize=TINY, handlelength=1.2, **beside)
            if column == 0:
                ax.set_ylabel("rise of the loss")
            if line == len(lines) - 1:
                ax.set_xlabel("bits")
        yield sheet.page(suffix, *drawn)


def _draw_bits(ax: Axes, rows: DataFrame) -> DataFrame:
    rounded = rows.rename(columns={"index": "bits"})
    names = [name for name in ROUNDINGS if f"{name}_increase" in set(rows["quantity"])]
    curves = []
    for name in names:
        here = where(rounded, quantity=f"{name}_increase")
        curves.append(seed_means(here, ["bits"]).assign(rounding=name))
    _set_scale(ax, concat(curves)["mean"])
    for name, curve in zip(names, curves, strict=True):
        draw_interval(
            ax,
            curve,
            "bits",
            colour=_colour(name),
            label=ROUNDINGS[name],
            markersize=2,
            alpha=0.1,
        )
    ax.set_xticks(sorted(rows["index"].unique()))
    ax.invert_xaxis()
    return concat(curves, ignore_index=True)


def _set_scale(ax: Axes, means: Series) -> None:
    """Make the y axis logarithmic; if means are zero or negative, it is linear up to a tenth of the smallest rise."""
    rises = means[means > 0]
    if len(rises) == 0 or (means > 0).all():
        set_y_scale(ax, means)
        return
    ax.set_yscale(
        "symlog", linthresh=10 ** math.floor(math.log10(rises.quantile(0.25)))
    )
    locator = SymmetricalLogLocator(ax.yaxis.get_transform())
    locator.set_params(numticks=5)
    ax.yaxis.set_major_locator(locator)
    ax.axhline(0, color=GUIDE, linewidth=0.6, zorder=0)
