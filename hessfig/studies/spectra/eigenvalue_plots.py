"""Figures of sorted eigenvalues, densities and their cumulatives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator
from pandas import DataFrame, concat

from hessfig.analysis.intervals import band
from hessfig.analysis.stored_spectra import Density, Spectrum
from hessfig.figures.parts import (
    APART,
    FigureSpec,
    Network,
    Page,
    Sheet,
    Source,
    are_few,
    draw_mean,
    draw_seed,
    in_sheets,
    matrix_colour,
    name_ends,
    panel_names,
    part_colour,
    say,
    set_decades,
    spread_words,
    symbol,
    variant_words,
    weight_words,
    where,
)
from hessfig.studies.spectra.collected_spectra import (
    BlockName,
    Collected,
    by_rank,
    extremes_page,
    side_by_side,
)
from hessfig.studies.spectra.spectral_distances import (
    Banded,
    Kernel,
    cumulative,
    grid_over,
    of_eigenvalues,
    smoothed,
    span,
)
from hessfig.terms import Part

_OUTER, _INNER = 40, 80  # numbers of ranks drawn at each end, and between
_LOWEST = 1e-300  # the lower edge of an area on a logarithmic axis
_DASHED, _DOTTED = (0, (4, 1.5)), (0, (1, 1))
_HALF = "#2166ac"
_SHARES = {0.001: "0.1%", 0.1: "", 0.5: "50%", 0.9: "", 0.999: "99.9%"}


@dataclass(frozen=True)
class Panel:
    """The data of a panel for one block and part: exact eigenvalues and densities by seed, and the kernel."""

    spectra: list[Spectrum]
    densities: list[Density]
    kernel: Kernel

    @property
    def exact(self) -> Spectrum | None:
        """The exact eigenvalues of the seed of the first density (or of the first seed)."""
        seeds = {one.place.seed: one for one in self.spectra}
        firsts = self.densities or self.spectra
        return seeds.get(firsts[0].place.seed) if firsts else None

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest eigenvalue."""
        if self.exact is not None:
            return float(self.exact.eigenvalues[0]), float(self.exact.eigenvalues[-1])
        return span(self.densities[0])

    @property
    def deviation(self) -> float:
        """The standard deviation of the kernel."""
        return self.kernel.deviation(*self.range)

    @property
    def grid(self) -> np.ndarray:
        """The places at which curves are drawn."""
        return grid_over(*self.range, self.deviation)


def draw_sorted(ax: Axes, spectra: list[Spectrum], part: str) -> DataFrame:
    """Draw the eigenvalues against the share below: the mean over seeds, with thin lines or a band for the seeds."""
    count = len(spectra[0].eigenvalues)
    ranks = drawn_ranks(count)
    points = by_rank(spectra, ranks)
    shares = (points["rank"] - 0.5) / count
    ends = band(points["mean"], points["sem"], points["count"], logs=False)
    if are_few(len(spectra)):
        ends = (np.full(len(ranks), np.nan),) * 2
        for spectrum in spectra:
            draw_seed(ax, shares, spectrum.eigenvalues[ranks], colour=part_colour(part))
    style: dict[str, Any] = {"alpha": 0.25, "linewidth": 0.9, "marker": ""}
    # H lies on H_f where that is the larger part.
    if part == Part.H:
        style |= {"linestyle": _DASHED, "zorder": 3}
    draw_mean(
        ax, shares, points["mean"], (shares, *ends), colour=part_colour(part), **style
    )
    return points.assign(share=shares)


def drawn_ranks(count: int) -> list[int]:
    """Return all ranks at both ends and some between; more would be indistinguishable in print."""
    ends = [*range(min(count, _OUTER)), *range(max(0, count - _OUTER), count)]
    return sorted(
        {*ends, *np.linspace(0, count - 1, _INNER).round().astype(int).tolist()}
    )


def set_sorted_scales(ax: Axes, largest: float, *, floor: float) -> None:
    """Make x logit, which shows both ends, and y symlog, linear below `floor` times the largest eigenvalue."""
    ax.set_xscale("logit")
    ax.set_xlim(1e-4, 1 - 1e-4)
    ax.xaxis.set_major_locator(FixedLocator(list(_SHARES)))
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xticklabels(list(_SHARES.values()))
    low = floor * largest or 1.0
    ax.set_yscale("symlog", linthresh=low, linscale=0.5)
    top = int(np.floor(np.log10(largest or 1.0)))
    ticks = [10.0**power for power in range(top, int(np.ceil(np.log10(low))) - 1, -2)]
    ax.set_yticks([*(-tick for tick in ticks), 0.0, *ticks])
    ax.yaxis.set_minor_locator(NullLocator())
    ax.axhline(0, color="#999999", linewidth=0.4, zorder=0)


def draw_density(ax: Axes, panel: Panel, colour: str) -> DataFrame:
    """Draw the exact eigenvalues under the kernel as an area, and the Lanczos density with its band over probes.

    Return the numbers, with the density after half of the Lanczos steps.
    """
    deviation, grid = panel.deviation, panel.grid
    numbers = DataFrame()
    peak = [0.0]
    set_decades(ax, "y")
    if panel.exact is not None:
        exact, _ = of_eigenvalues(panel.exact.eigenvalues, grid, deviation)
        ax.fill_between(grid, exact, _LOWEST, color="#d0d0d0", linewidth=0)
        numbers = DataFrame({"eigenvalue": grid, "exact": exact})
        peak = [exact.max()]
    if panel.densities:
        banded = smoothed(panel.densities[0], grid, deviation)
        _draw_banded(ax, banded, 0.0, colour)
        numbers = _with_band(numbers, banded)
        peak.append(banded.mean.max())
    _set_density_scale(ax, max(peak), panel)
    return numbers


def draw_cumulative_error(ax: Axes, panel: Panel, colour: str) -> DataFrame:
    """Draw the error of the cumulative with its band over probes: minus the exact one, or half the steps minus all."""
    if not panel.densities:
        say(ax, "(no density)")
        return DataFrame()
    deviation, grid = panel.deviation, panel.grid
    banded = cumulative(panel.densities[0], grid, deviation)
    truth = banded.mean
    if panel.exact is not None:
        truth = of_eigenvalues(panel.exact.eigenvalues, grid, deviation)[1]
    _draw_banded(ax, banded, truth, colour)
    ax.plot(grid, banded.half - truth, color=_HALF, linestyle=_DOTTED, linewidth=0.8)
    ax.axhline(0, color="black", linestyle=_DASHED, linewidth=0.6)
    reach = np.nanmax(
        [
            np.abs(banded.mean - truth) + np.nan_to_num(banded.margin),
            np.abs(banded.half - truth),
        ]
    )
    ax.set_ylim(-1.2 * reach or -1.0, 1.2 * reach or 1.0)
    ax.yaxis.set_major_formatter(
        FuncFormatter(lambda value, _: f"{100 * value:g}".replace("-", "−"))
    )
    return _with_band(DataFrame({"eigenvalue": grid, "exact": truth}), banded)


def _draw_banded(
    ax: Axes, banded: Banded, less: np.ndarray | float, colour: str
) -> None:
    """Draw the mean minus `less` with its band, which is a factor on a logarithmic axis and so never reaches zero."""
    middle = banded.mean - less
    low, high = middle - banded.margin, middle + banded.margin
    if ax.get_yscale() == "log":
        low = np.where(low > 0, low, middle**2 / np.where(high > 0, high, np.nan))
    band = banded.grid, low, high
    draw_mean(
        ax,
        banded.grid,
        middle,
        band,
        colour=colour,
        alpha=0.3,
        linewidth=0.8,
        marker="",
    )


def _with_band(numbers: DataFrame, banded: Banded) -> DataFrame:
    band = {
        "lanczos": banded.mean,
        "margin": banded.margin,
        "half_the_steps": banded.half,
    }
    if len(numbers):
        return numbers.assign(**band)
    return DataFrame({"eigenvalue": banded.grid, **band})


def _set_density_scale(ax: Axes, peak: float, panel: Panel) -> None:
    """Set the lower limit of the y axis to a tenth of the density of a single eigenvalue."""
    dim = (panel.spectra[0] if panel.spectra else panel.densities[0]).place.dim
    single = 1 / (dim * panel.deviation * np.sqrt(2 * np.pi))
    set_decades(ax, "y")
    ax.set_ylim(single / 10, 3 * max(peak, single))


_COLUMNS, _ROWS = 4, 10  # of panels on a page
_FLOOR = 1e-6
_SORTED = "sorted"
_DENSITY = "density"
_CUMULATIVE = "cumulative"
_LABELS = {
    _SORTED: "eigenvalue",
    _DENSITY: "density",
    _CUMULATIVE: "cumulative: error (%)",
}
_PAGES = {_DENSITY: "_density", _CUMULATIVE: "_error"}
_STYLE = APART.replace(left=0.62, across=0.34, down=0.32, bottom=0.36, narrowest=None)


def spectra(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw sorted eigenvalues and densities: the whole network's, then every weight's, one column per network; a table.

    How to read it: eigenvalues stand over the share of them that is smaller, both ends
    stretched; they are linear below the floor. Densities have a page of their own: the
    grey area is the exact eigenvalues under the kernel, the line the Lanczos density of
    the first seed, the band its 95 % interval over probes. The page of errors shows how
    far the cumulative is from the exact one (or, dotted, that of half the steps from
    all): a band that leaves zero is an error that probes do not explain. Requires: a
    sweep with `spectrum`, `density` or both; the sweep's table.csv for the table
    (options `width` or `variance` of the kernel, `part` of the densities, `floor`
    relative to the largest eigenvalue, `weights` that have panels of their own, by
    default all).
    """
    chosen = spec.words("weights")
    part = spec.choice("part", [member.value for member in Part], Part.H.value)
    asked = _Asked(kernel_of(spec), part, spec.number("floor") or _FLOOR, spec)
    for words, states in side_by_side(source, attrgetter("is_diagonal")):
        first = states[0]
        needed = {_SORTED: first.spectra, _DENSITY: True, _CUMULATIVE: first.densities}
        kinds = [kind for kind in _LABELS if needed[kind]]
        weights = first.blocks(whole=False)
        if chosen is not None:
            weights = [block for block in weights if block[1] in chosen]
        every: list[_Column] = []
        for network in first.networks:
            every.extend(_Column(one, network, len(states) > 1) for one in states)
        for columns, beside in in_sheets(every, _COLUMNS, "columns"):
            suffix = f"_{words}{beside}" if words else beside
            for block in first.blocks(whole=True):
                name = "" if block == (0, "all") else f"_{block[1]}{block[0] or ''}"
                # Without eigenvalues, densities come first.
                for rank, kind in enumerate(kinds):
                    end = suffix + name
                    if rank:
                        end += _PAGES[kind]
                    yield _page(columns, [block], kind, asked, suffix=end)
            for kind, name in ((_SORTED, "_weights"), (_DENSITY, "_densities")):
                if not weights or kind not in kinds:
                    continue
                for blocks, below in in_sheets(weights, _ROWS, "rows"):
                    end = suffix + name + below
                    yield _page(columns, blocks, kind, asked, suffix=end)
    yield from extremes_page(source.table, spec)


@dataclass(frozen=True)
class _Column:
    """A column of panels: a network at one sigma and step, and whether the page has several steps."""

    of: Collected
    network: Network
    of_several_steps: bool

    @property
    def title(self) -> str:
        """The network and, if there are several steps, the step."""
        depths = len({depth for _, depth in self.of.networks}) > 1
        words = [variant_words(self.network[0])]
        if depths:
            words.append(f"{self.network[1]} layers")
        if self.of_several_steps:
            words.append(self.of.step_words)
        return ", ".join(filter(None, words))

    @property
    def name(self) -> str:
        """The name of its panels."""
        named = panel_names(self.of.networks)[self.of.networks.index(self.network)]
        return f"{named}:{self.of.step_words}" if self.of_several_steps else named


@dataclass(frozen=True)
class _Asked:
    """Settings of every panel: kernel, part of the densities, floor of the linear range, and the figure."""

    kernel: Kernel
    part: str
    floor: float
    spec: FigureSpec


def kernel_of(spec: FigureSpec, default: Kernel | None = None) -> Kernel:
    """Return the kernel of the options `width` and `variance`."""
    variance = spec.number("variance")
    width = spec.number("width")
    if variance is None and width is None:
        return default or Kernel()
    return Kernel(width or Kernel.width, variance)


def _page(
    columns: Sequence[_Column],
    blocks: Sequence[BlockName],
    kind: str,
    asked: _Asked,
    *,
    suffix: str,
) -> Page:
    """Draw a page of one kind of panel: one row per block, one column per network and step."""
    first = columns[0].of
    several = len(blocks) > 1 or blocks[0] != (0, "all")
    names = []
    for layer, name in blocks:
        row = f"{name}{layer or ''}:{kind}"
        names.append([f"{row}:{column.name}" for column in columns])
    note = _note(first, asked.kernel, asked.part, kind)
    note += first.where(with_step=not columns[0].of_several_steps)
    height = 0.8
    if len(blocks) <= 4:
        height = 1.5 if len(blocks) == 1 else 1.15
    style = _STYLE.replace(height=height)
    if kind == _SORTED:
        style = style.replace(
            share_x=True, share_y="row", across=0.14, down=0.16, right=0.26
        )
    sheet = Sheet.grid(asked.spec.paper, names, note, style)
    numbers = []
    for line, column, ax in sheet:
        block = blocks[line]
        here = columns[column].of
        network = columns[column].network
        place: dict[str, Any] = {
            "variant": network[0],
            "num_layers": network[1],
            "layer": block[0],
            "row": block[1],
        }
        if columns[column].of_several_steps:
            place["step"] = here.step
        drawn = _draw(ax, here, network, block, kind, asked)
        numbers.append(drawn.assign(**place, panel=kind, column=column))
        if kind != _SORTED:
            ax.set_xlabel("eigenvalue", labelpad=0)
    short = [""] * len(blocks)
    labels = [_LABELS[kind]] * len(blocks)
    if several:
        short = [
            weight_words(name, layer if layer > 1 else 0) for layer, name in blocks
        ]
        labels = [f"{words}: {_LABELS[kind]}" for words in short]
    titles = [column.title for column in columns]
    below = "share below" if kind == _SORTED else ""
    sheet.label(below, titles, labels, short, _LABELS[kind])
    every = concat(numbers, ignore_index=True)
    if kind == _SORTED:
        _scale_rows(sheet, blocks, every, asked.floor)
    return sheet.page(suffix, every.drop(columns="column"))


def _draw(
    ax: Axes,
    state: Collected,
    network: Network,
    block: BlockName,
    kind: str,
    asked: _Asked,
) -> DataFrame:
    if kind == _SORTED:
        return _draw_parts(ax, state, network, block)
    part = asked.part
    own = state.of(network, block, part)
    panel = Panel(own.spectra, own.densities, asked.kernel)
    empty = not own.places
    if empty or panel.range == (0.0, 0.0):
        say(ax, "(not measured)" if empty else "= 0 (every eigenvalue)")
        return DataFrame()
    colour = part_colour(part) if block[1] == "all" else matrix_colour(block[1])
    draw = draw_density if kind == _DENSITY else draw_cumulative_error
    return draw(ax, panel, colour).assign(part=part)


def _draw_parts(
    ax: Axes, state: Collected, network: Network, block: BlockName
) -> DataFrame:
    numbers = []
    for part in state.parts:
        spectra = state.of(network, block, part).spectra
        if spectra:
            numbers.append(draw_sorted(ax, spectra, part).assign(part=part))
    if not numbers:
        say(ax, "(not measured)")
    return concat(numbers or [DataFrame()])


def _scale_rows(
    sheet: Sheet, blocks: Sequence[BlockName], drawn: DataFrame, floor: float
) -> None:
    """Give every row the scale of its largest eigenvalue, and name the parts where the lines of each line end."""
    for row, (layer, name) in enumerate(blocks):
        here = where(drawn, layer=layer, row=name)
        largest = float(here["mean"].abs().max()) if len(here) else 0.0
        for ax in sheet.row(row):
            set_sorted_scales(ax, largest, floor=floor)
    for line in sheet.lines:
        last = line[-1]
        layer, name = blocks[last[0]]
        here = where(drawn, layer=layer, row=name, column=last[1])
        ends = []
        if len(here):
            for part, y in here.groupby("part", sort=False)["mean"].last().items():
                ends.append((y, symbol(str(part)), part_colour(str(part))))
        name_ends(sheet.panels[last], ends)


def _note(state: Collected, kernel: Kernel, part: str, kind: str) -> str:
    """Return the note of a page: meaning of the marks, and what was measured."""
    if kind == _SORTED:
        count = len(state.seeds)
        means = "1 seed"
        if count > 1:
            means = f"mean over {count} seeds, {spread_words(count)}"
        return f"Eigenvalues over the share of them that is smaller, {means}."
    marks = ["grey: exact eigenvalues"] if state.spectra and kind == _DENSITY else []
    if state.densities:
        probes, steps = state.densities[0].whole.nodes.shape
        marks.append(
            f"line and band: Lanczos, {probes} probes of {steps} steps, 95% interval over probes (Student's t)"
        )
    if kind == _CUMULATIVE:
        marks.append("dotted: half the steps")
    what = "Density" if kind == _DENSITY else "Error of the cumulative"
    return f"{what} of the {Part(part).label}, seed {state.seeds[0]}; {'; '.join([*marks, kernel.words])}."
