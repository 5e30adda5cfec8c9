"""Maps of the distances between spectra of weights."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.image import AxesImage
from matplotlib.transforms import Bbox
from pandas import DataFrame, concat

from hessfig.analysis.intervals import Interval, student_interval
from hessfig.figures.parts import (
    APART,
    FigureSpec,
    Network,
    Page,
    Sheet,
    Source,
    colour_bar,
    draw_matrix,
    in_rows,
    labels,
    name_sides,
    panel_names,
    where,
    width_in,
)
from hessfig.record import NETWORK
from hessfig.studies.spectra.collected_spectra import (
    Collected,
    in_network_order,
    side_by_side,
)
from hessfig.studies.spectra.eigenvalue_plots import kernel_of
from hessfig.studies.spectra.spectral_distances import (
    FIXED,
    KERNELS,
    PAIR,
    PUBLISHED,
    Kernel,
    is_weight,
    pair_distances,
)

_COLUMNS = 2
_MANY = 20  # number of weights beyond which names do not fit next to a map of half the page's width
_DIGITS = 6.0  # font size of the numbers in cells, in points
_BAR = 0.0825  # inches: how wide a colour bar is, and how far from its map
_WRITTEN = 0.17  # inches: from this width of a cell on, its number is written in it
_STYLE = APART.replace(
    left=0.42, right=0.58, top=0.36, bottom=0.42, across=0.5, down=0.72, narrowest=0.9
)


def heterogeneity(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw the Jensen-Shannon distance of every pair of weights' spectra, one map per network, one page per part of H.

    How to read it: dark is alike, bright is different (ln 2 at most); sizes do not
    count, for eigenvalues are divided by the block's 10th largest. JS⁰ is the average
    over all pairs (their number is above the map), ± half its 95 % interval over seeds;
    networks at one state whose weights differ have none, for it averages other pairs in
    each. A network whose map is bright has blocks that ask for step sizes of their own.
    Grey: a block with fewer than 10 eigenvalues that are not zero has no distance.
    Cells are of one size in all maps. Two steps of a training share a map, the first
    one below its diagonal; more than two stand side by side. The published kernel's
    width follows from the range of each network, so that outliers alone make spectra
    alike; a fixed kernel has one width, in units of the 10th largest, for all networks
    and steps. The CSV file has the distances under both (the other one's in columns
    other_...). Requires: a sweep with `spectrum` (or `density`) of every weight
    (options `kernel`, or `variance` or `width` of the published one).
    """
    name = spec.choice("kernel", list(KERNELS), "published")
    kernel = FIXED if name == "fixed" else kernel_of(spec, PUBLISHED)
    pages = {}
    for words, states in side_by_side(source, is_weight):
        pages[words] = [_distances(one, kernel) for one in states]
    scale = _distance_scale([one.pairs for one in chain(*pages.values())])
    for words, shown in pages.items():
        first = shown[0].of
        for part in first.parts:
            end = f"_{words}" if words else ""
            if len(first.parts) > 1:
                end = f"_{part}{end}"
            sheet, numbers = _draw_page(
                shown, part, scale, _note(shown, part, kernel), spec
            )
            yield sheet.page(end, numbers)


@dataclass(frozen=True)
class _Distances:
    """The spectra at one sigma and step, with the distances of their pairs and the averages of these."""

    of: Collected
    pairs: DataFrame
    means: DataFrame

    def map_of(self, network: Network, part: str) -> tuple[DataFrame, DataFrame]:
        """Return the distances of a network's pairs for one part, and their averages."""
        place = {"variant": network[0], "num_layers": network[1], "part": part}
        return where(self.pairs, **place), where(self.means, **place)


def _note(states: Sequence[_Distances], part: str, kernel: Kernel) -> str:
    """Return what the maps of a part are computed from, and where."""
    first = states[0].of
    kind = "exact eigenvalues" if first.spectra else "Lanczos densities"
    setting = first.where(with_step=len(states) == 1)
    sides = ""
    if _is_split(states):
        below, above = (state.of.step_words for state in states)
        sides = f" Below the diagonal: {below}; above: {above}."
    return (
        f"{labels.part_words(part)}, {kind}, mean over {len(first.seeds)} seeds. Divided by the 10th largest in size;"
        f" {kernel.words}; natural logarithms.{setting}{sides}"
    )


def _distance_scale(every: Sequence[DataFrame]) -> Normalize:
    """Return one scale for all pages: from 0 to the largest mean distance of a pair, in steps of 0.1; ln 2 at most."""
    keys = [*NETWORK, "part", *PAIR]
    largest = max(
        (pairs.groupby(keys)["distance"].mean().max() for pairs in every),
        default=math.nan,
    )
    top = math.log(2)
    if largest > 0:
        top = min(math.ceil(10 * largest) / 10, top)
    return Normalize(0, top)


def _distances(state: Collected, kernel: Kernel) -> _Distances:
    """Return distances and averages under one kernel, with those under another in columns other_..., and its words."""
    stored = state.spectra or state.densities
    other = PUBLISHED if kernel == FIXED else FIXED
    pairs, means = pair_distances(stored, kernel)
    other_pairs, other_means = pair_distances(stored, other)
    pairs = pairs.assign(
        other_distance=other_pairs["distance"],
        kernel=kernel.words,
        other_kernel=other.words,
    )
    return _Distances(state, pairs, means.assign(other_average=other_means["average"]))


def _is_split(states: Sequence[_Distances]) -> bool:
    """Return whether both states are in one map, each on its side of the diagonal."""
    return len(states) == 2


def _draw_page(
    states: Sequence[_Distances],
    part: str,
    scale: Normalize,
    note: str,
    spec: FigureSpec,
) -> tuple[Sheet, DataFrame]:
    """Draw the maps of one part: one per network, or with more than two states a row per network.

    Return the sheet and its numbers.
    """
    networks = states[0].of.networks
    of_map = [tuple(states)] if _is_split(states) else [(state,) for state in states]
    has_step = len(of_map) > 1
    maps = list(product(networks, of_map))
    blocks = {}
    for network in networks:
        pairs, _ = states[0].map_of(network, part)
        blocks[network] = in_network_order(
            list(pairs[PAIR[:2]].drop_duplicates().itertuples(index=False, name=None))
        )
    most = max(map(len, blocks.values()))
    is_comparable = len(states) > 1 or len(set(map(tuple, blocks.values()))) == 1
    columns = 1 if most > _MANY else max(len(of_map), _COLUMNS)
    columns = min(columns, _STYLE.columns(spec.paper))
    lines = in_rows(maps, columns)
    cell = _STYLE.width(spec.paper, columns) / most
    heights = []
    for line in lines:
        heights.append(cell * max(len(blocks[network]) for network, _ in line))
    names = [_map_name(network, shown, has_step) for network, shown in maps]
    style = _STYLE.replace(height=heights, most=columns)
    sheet = Sheet.grid(spec.paper, in_rows(names, columns), note, style)
    numbers = []
    place = sheet.outermost.get_position()
    for row, column, ax in sheet:
        network, shown = lines[row][column]
        halves = []
        averages = []
        _shrink(ax, len(blocks[network]) / most, heights[row] / cell / most)
        for state in shown:
            pairs, means = state.map_of(network, part)
            average = student_interval(means["average"])
            other = student_interval(means["other_average"])
            halves.append(pairs)
            averages.append(average)
            numbers.append(_written(pairs, network, average, other, state.of.step))
        image = _draw_map(ax, halves, blocks[network], scale)
        if not is_comparable:
            averages = []
        title = _title(network, shown, averages, len(blocks[network]), has_step)
        ax.set_title(title, loc="left")
    _place_bar(sheet, place, image)
    return sheet, concat(numbers, ignore_index=True)


def _title(
    network: Network,
    shown: Sequence[_Distances],
    averages: Sequence[Interval],
    blocks: int,
    has_step: bool,
) -> str:
    """Return the network, its step if the page has several maps of it, the number of pairs, and their averages."""
    words = labels.variant_words(network[0]) or "network"
    step = shown[0].of.step_words
    if has_step and step:
        words = f"{words}, {step}"
    if averages and all(math.isnan(average.mean) for average in averages):
        return f"{words}\nno distances"
    pairs = blocks * (blocks - 1) // 2
    title = f"{words}: {pairs} {'pair' if pairs == 1 else 'pairs'}"
    if averages:
        title += f"\nJS⁰ = {' → '.join(map(_average_words, averages))}"
    return title


def _place_bar(sheet: Sheet, place: Bbox, image: AxesImage) -> None:
    """Draw the colour bar to the right of the first line, with the largest possible height of a map.

    Below a map of few weights there is room for it.
    """
    small = sheet.outermost.get_position()
    if small.height < place.height / 2:
        figure: Any = sheet.outermost.figure
        wide = _BAR / figure.get_figheight()
        bar = figure.add_axes(
            (place.x0, place.y0, place.width, wide), label="<colorbar>"
        )
        figure.colorbar(image, cax=bar, orientation="horizontal", label="distance")
        return
    sheet.outermost.set_position(place)
    colour_bar(sheet.outermost, image, gap=_BAR, wide=_BAR, label="distance")
    sheet.outermost.set_position(small)


def _map_name(network: Network, shown: Sequence[_Distances], has_step: bool) -> str:
    of = shown[0].of
    name = panel_names(of.networks)[of.networks.index(network)]
    return f"{name}:{of.step_words}" if has_step else name


def _shrink(ax: Axes, share: float, of_height: float) -> None:
    """Shrink a map of fewer weights towards its upper left corner, so that all cells of a page have the same size."""
    box = ax.get_position()
    high = box.height * share / of_height
    ax.set_position((box.x0, box.y1 - high, box.width * share, high))


def _draw_map(
    ax: Axes,
    halves: Sequence[DataFrame],
    names: Sequence[tuple[int, str]],
    scale: Normalize,
) -> AxesImage:
    """Draw the mean distances of all pairs: those of the first of two tables below the diagonal."""
    square, *above = (_square(pairs, names) for pairs in halves)
    for other in above:
        square = np.tril(square) + np.triu(other, 1)
    words = None
    if width_in(ax) / max(len(names), 1) >= _WRITTEN:
        words = np.vectorize(_cell_words, otypes=[str])(square)
    style = {"cmap": "magma", "aspect": "equal", "missing": "#bbbbbb"}
    image = draw_matrix(ax, square, scale, words=words, size=_DIGITS, **style)
    alone = Counter(name for _, name in names)
    words_of = []
    for layer, name in names:
        words_of.append(labels.weight_words(name, layer if alone[name] > 1 else 0))
    name_sides(ax, rows=words_of, columns=words_of)
    return image


def _cell_words(value: float) -> str:
    return f"{value:.2f}".lstrip("0") if value > 0 else ""


def _square(pairs: DataFrame, names: Sequence[tuple[int, str]]) -> np.ndarray:
    means = pairs.groupby(PAIR)["distance"].mean().unstack(PAIR[2:])  # noqa: PD010 - one mean a pair
    return means.reindex(index=names, columns=names).to_numpy()


def _average_words(interval: Interval) -> str:
    """Return in words the average with its margin."""
    words = f"{interval.mean:.3f}"
    if math.isfinite(interval.low):
        words += f" ± {interval.mean - interval.low:.3f}"
    return words


def _written(
    pairs: DataFrame,
    network: Network,
    interval: Interval,
    other: Interval,
    step: float | None,
) -> DataFrame:
    """Return mean, standard error and count of every pair, with the network's average next to them."""
    grouped = pairs.groupby(PAIR, sort=False)
    rows = grouped["distance"].agg(["mean", "sem", "count"])
    rows = rows.assign(other_mean=grouped["other_distance"].mean()).reset_index()
    rows["variant"], rows["num_layers"] = network
    rows["part"] = pairs["part"].iloc[0]
    if step is not None:
        rows["step"] = step
    for name, average in {"average": interval, "other_average": other}.items():
        rows[name] = average.mean
        rows[f"{name}_low"] = average.low
        rows[f"{name}_high"] = average.high
    for name in ("kernel", "other_kernel"):
        rows[name] = pairs[name].iloc[0]
    return rows
