"""Maps of the errors of approximations of blocks."""

from collections.abc import Iterator
from itertools import product

import numpy as np
from matplotlib.colors import Normalize
from pandas import DataFrame, concat

from hessfig.analysis.axis import X, along
from hessfig.analysis.curves import growth_curves
from hessfig.analysis.manifest import RecordedRun
from hessfig.figures.parts import (
    OWN_Y,
    TINY,
    FigureSpec,
    Network,
    Page,
    Sheet,
    Source,
    as_written,
    at_one_place,
    by_part,
    colour_bar,
    different,
    draw_matrix,
    in_order,
    labels,
    name_sides,
    networks_of,
    page_suffix,
    reach,
    where,
    width_in,
)
from hessfig.terms import NUMBERS_OF_APPROXIMATIONS, Approximation

# Inches: height of a block, and the width of a cell from which on its number is
# written.
_ROW, _WRITTEN = (0.15, 0.19)
_STYLE = OWN_Y.replace(left=0.5, right=0.55, top=0.26, bottom=0.95, down=0.34)
_MOST = 5  # values of a setting that are drawn
_WORDS = {
    "error": "error",
    "scale_error": "error after the best scalar",
    "angle": "cosine of the angle",
}


def approximations(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw how far approximations are from the blocks of each network, one panel per network, one page per part.

    How to read it: a cell is the mean over seeds of ||B - A|| / ||B|| for the block B
    of its row and the approximation A of its column (after the best scalar factor of A;
    or the number that the note names). Light is near: 0 is the block itself, 1 no
    better than zero. Grey: the block has no such approximation. Along a training there
    is a panel for the first and for the last step, along a setting one for each of its
    first five values. Requires: a sweep with the quantity `approximations` (options
    `number`: error, scale_error or angle; `at`: one place on the axis).
    """
    run = source.run
    number = number_of(spec)
    measured = set(run.table["quantity"])
    curves = []
    for quantity, name in rows_of(number).items():
        if quantity in measured:
            points = growth_curves(run.table, run.axis, quantity)
            curves.append(points.assign(approximation=name.value))
    points = concat(curves, ignore_index=True)
    places = _places(spec, points, run)
    shown = concat([here.assign(place=words) for here, words in places])
    named = run.table["quantity"].isin(rows_of(number))
    table = along(run.table[named].assign(quantity="approximations"), run.axis)
    over = labels.seeds_words(table)
    means = over if over == labels.ONE_SEED else f"mean over {over}"
    for suffix, page_points in by_part(shown):
        words = f"{labels.part_words(page_points['part'].iloc[0])}: {_WORDS[number]}, {means}"
        wide = np.nanmax(reach(page_points, logs=False), initial=0.0)
        margin = f" 95% intervals: ± {wide:.2f} at most." * bool(wide)
        made = labels.made_words(table, run.axis, where="")
        note = f"{words}; 1: no better than zero; grey: not defined.{margin}{made}"
        yield draw_maps(page_points, number, note, spec).page(
            suffix, as_written(page_points, run.axis)
        )


def number_of(spec: FigureSpec) -> str:
    """Return the number of an approximation that is drawn (option `number`)."""
    return spec.choice("number", list(NUMBERS_OF_APPROXIMATIONS), "scale_error")


def rows_of(number: str) -> dict[str, Approximation]:
    """Return the approximations by the quantity that holds this number."""
    return {f"{name}_{number}": name for name in Approximation}


def _places(
    spec: FigureSpec, points: DataFrame, run: RecordedRun
) -> list[tuple[DataFrame, str]]:
    """Return the points at the drawn places: the ends of a training, every value of a setting, or one sigma."""
    wanted = spec.number("at")
    every = sorted(map(float, points[X].dropna().unique()))
    if wanted is not None or run.axis.is_sigma or not every:
        return [at_one_place(points, wanted, run.axis)]
    shown = {every[0], every[-1]} if run.axis.name == "step" else every[:_MOST]
    return [at_one_place(points, one, run.axis) for one in sorted(shown)]


def draw_maps(points: DataFrame, number: str, note: str, spec: FigureSpec) -> Sheet:
    """Draw one panel per network and place below each other, with a common scale from 0 to 1."""
    networks = _once(networks_of(points))
    panels = list(product(networks, points["place"].unique()))
    blocks = {key: _blocks(_of(points, *key)) for key in panels}
    columns = [name for name in Approximation if name in set(points["approximation"])]
    names = [
        [page_suffix(*network, networks).lstrip("_") + f" {place}"]
        for network, place in panels
    ]
    heights = [_ROW * max(len(own), 2) for own in blocks.values()]
    sheet = Sheet.grid(spec.paper, names, note, _STYLE.replace(height=heights))
    # Dark: far from the block.
    scale = Normalize(0.0, 1.0)
    colours = "viridis_r"
    if number == "angle":
        scale = Normalize(-1.0, 1.0)
        colours = "viridis"
    for row, _, ax in sheet:
        network, place = panels[row]
        own = blocks[panels[row]]
        means = _of(points, network, place).set_index(["layer", "row", "approximation"])
        square = means["mean"].unstack().reindex(index=own, columns=columns).to_numpy()  # noqa: PD010 - one number a cell
        words = None
        if width_in(ax) / len(columns) >= _WRITTEN:
            words = np.vectorize(_cell, otypes=[str])(square)
        image = draw_matrix(
            ax, square, scale, words=words, size=TINY - 1.4, cmap=colours
        )
        several = len({layer for layer, _ in own} - {0}) > 1
        is_last = row == len(panels) - 1
        rows = [
            labels.weight_words(name, layer if several else 0) for layer, name in own
        ]
        name_sides(ax, rows=rows, columns=[name.facts.label for name in columns])
        if not is_last:
            ax.set_xticks([])
        ax.set_title(", ".join(filter(None, (labels.variant_words(network[0]), place))))
    colour_bar(sheet.outermost, image, label=_WORDS[number])
    return sheet


def _once(networks: list[Network]) -> list[Network]:
    """Return the networks without duplicates in words: the attention setting has no meaning for an MLP."""
    return list(
        {
            (labels.variant_words(variant), depth): (variant, depth)
            for variant, depth in networks
        }.values()
    )


def _of(points: DataFrame, network: Network, place: str) -> DataFrame:
    return where(points, variant=network[0], num_layers=network[1], place=place)


def _blocks(points: DataFrame) -> list[tuple[int, str]]:
    """Return (layer, weight) of every row: layer by layer, weights in their order."""
    order = in_order(points["row"])
    blocks = different(points, "layer", "row")
    return sorted(blocks, key=lambda key: (key[0], order.index(key[1])))


def _cell(value: float) -> str:
    return f"{value:.2f}".replace("-", "−") if np.isfinite(value) else ""
