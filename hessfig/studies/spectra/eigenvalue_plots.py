"""Figures of sorted eigenvalues, densities and their cumulatives."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, NullLocator

from hessfig.analysis.intervals import band
from hessfig.analysis.stored_spectra import Density, Spectrum
from hessfig.figures.parts.chart_encoding import ChartEncoding
from hessfig.figures.parts.colours import matrix_colour, part_colour
from hessfig.figures.parts.figure_spec import FigureSpec, Source
from hessfig.figures.parts.labels import are_few, spread_words, symbol, variant_words, weight_words
from hessfig.figures.parts.lettering import TINY
from hessfig.figures.parts.panel_sheet import APART, Page, Sheet, in_sheets, say
from hessfig.figures.parts.panels import draw_mean, draw_seed
from hessfig.figures.parts.rows import Network
from hessfig.figures.parts.saving import panel_names
from hessfig.figures.parts.ticks import set_decades
from hessfig.studies.spectra.collected_spectra import BlockName, Collected, by_rank, extremes_page, side_by_side
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
_BINS = 60
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
        wanted = self.densities[0].place.seed if self.densities else next(iter(seeds), None)
        return seeds.get(wanted) if wanted is not None else None

    @property
    def range(self) -> tuple[float, float]:
        """The smallest and largest eigenvalue."""
        if self.exact is not None:
            return float(self.exact.eigenvalues[0]), float(self.exact.eigenvalues[-1])
        return span(self.densities[0])


def draw_sorted(ax: Axes, spectra: list[Spectrum], part: str) -> pd.DataFrame:
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
    draw_mean(ax, shares, points["mean"], (shares, *ends), colour=part_colour(part), **style)
    return points.assign(share=shares)


def drawn_ranks(count: int) -> list[int]:
    """Return all ranks at both ends and some between; more would be indistinguishable in print."""
    ends = [*range(min(count, _OUTER)), *range(max(0, count - _OUTER), count)]
    return sorted({*ends, *np.linspace(0, count - 1, _INNER).round().astype(int).tolist()})


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


def draw_density(ax: Axes, panel: Panel, colour: str) -> pd.DataFrame:
    """Draw the histogram of exact eigenvalues under the Lanczos density with its band over probes; return its numbers.

    Dashed: the exact eigenvalues under the same kernel. Dotted: half the Lanczos steps. Faint: the other seeds.
    """
    deviation = panel.kernel.deviation(*panel.range)
    grid, numbers = grid_over(*panel.range, deviation), pd.DataFrame()
    peak = [0.0]
    set_decades(ax, "y")
    if panel.exact is not None:
        values = panel.exact.eigenvalues
        heights, edges = np.histogram(values, bins=_BINS, range=(grid[0], grid[-1]), density=True)
        ax.stairs(heights, edges, fill=True, color="#d9d9d9")
        exact, _ = of_eigenvalues(values, grid, deviation)
        ax.plot(grid, exact, color="black", linestyle=_DASHED, linewidth=0.6)
        numbers, peak = pd.DataFrame({"eigenvalue": grid, "exact": exact}), [exact.max(), heights.max()]
    for density in panel.densities[1:]:
        ax.plot(grid, smoothed(density, grid, deviation).mean, color=colour, linewidth=0.4, alpha=0.5)
    if panel.densities:
        banded = smoothed(panel.densities[0], grid, deviation)
        _draw_banded(ax, banded, 0.0, colour)
        numbers = _with_band(numbers, banded)
        peak.append(banded.mean.max())
    _set_density_scale(ax, max(peak), panel, deviation)
    return numbers


def draw_cumulative_error(ax: Axes, panel: Panel, colour: str) -> pd.DataFrame:
    """Draw the error of the cumulative with its band over probes: minus the exact one, or half the steps minus all."""
    if not panel.densities:
        say(ax, "(no density)")
        return pd.DataFrame()
    deviation = panel.kernel.deviation(*panel.range)
    grid = grid_over(*panel.range, deviation)
    banded = cumulative(panel.densities[0], grid, deviation)
    truth = banded.mean
    if panel.exact is not None:
        truth = of_eigenvalues(panel.exact.eigenvalues, grid, deviation)[1]
    _draw_banded(ax, banded, truth, colour)
    ax.axhline(0, color="black", linestyle=_DASHED, linewidth=0.6)
    reach = np.nanmax([np.abs(banded.mean - truth) + np.nan_to_num(banded.margin), np.abs(banded.half - truth)])
    ax.set_ylim(-1.2 * reach or -1.0, 1.2 * reach or 1.0)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-1, 1))
    ax.yaxis.get_offset_text().set_fontsize(TINY)
    return _with_band(pd.DataFrame({"eigenvalue": grid, "exact": truth}), banded)


def _draw_banded(ax: Axes, banded: Banded, less: np.ndarray | float, colour: str) -> None:
    """Draw the mean minus `less` with its band, which is a factor on a logarithmic axis and so never reaches zero."""
    middle = banded.mean - less
    low, high = middle - banded.margin, middle + banded.margin
    if ax.get_yscale() == "log":
        low = np.where(low > 0, low, middle**2 / np.where(high > 0, high, np.nan))
    band = banded.grid, low, high
    draw_mean(ax, banded.grid, middle, band, colour=colour, alpha=0.3, linewidth=0.8, marker="")
    ax.plot(banded.grid, banded.half - less, color=_HALF, linestyle=_DOTTED, linewidth=0.8)


def _with_band(numbers: pd.DataFrame, banded: Banded) -> pd.DataFrame:
    band = {"lanczos": banded.mean, "margin": banded.margin, "half_the_steps": banded.half}
    return numbers.assign(**band) if len(numbers) else pd.DataFrame({"eigenvalue": banded.grid, **band})


def _set_density_scale(ax: Axes, peak: float, panel: Panel, deviation: float) -> None:
    """Set the lower limit of the y axis to a tenth of the density of a single eigenvalue."""
    dim = (panel.spectra[0] if panel.spectra else panel.densities[0]).place.dim
    single = 1 / (dim * deviation * np.sqrt(2 * np.pi))
    set_decades(ax, "y")
    ax.set_ylim(single / 10, 3 * max(peak, single))


_COLUMNS, _ROWS = 4, 10  # of panels on a page
_FLOOR = 1e-6
_SORTED, _DENSITY, _CUMULATIVE = "sorted", "density", "cumulative"
_LABELS = {_SORTED: "eigenvalue", _DENSITY: "density", _CUMULATIVE: "cumulative: error"}
_STYLE = APART.replace(left=0.62, across=0.34, down=0.32, bottom=0.36, narrowest=None)


def spectra(spec: FigureSpec, source: Source) -> Iterator[Page]:
    """Draw sorted eigenvalues and densities: the whole network's, then every weight's, one column per network; a table.

    How to read it: eigenvalues stand over the share of them that is smaller, both ends stretched; they are linear
    below the floor. Densities: grey bars are the exact eigenvalues, dashed the same under the kernel, the band the
    95 % interval over probes of the Lanczos density (first seed; others faint), dotted half its steps. The
    cumulative's panel (a page of its own next to eigenvalues) shows how far it is from the exact one (or half the steps
    from all): a band that leaves zero is an error that probes do not explain.
    Requires: a sweep with `spectrum`, `density` or both; the sweep's table.csv for the table (options `width` or
    `variance` of the kernel, `part` of the densities, `floor` relative to the largest eigenvalue, `weights` that have
    panels of their own, by default all).
    """
    chosen = spec.words("weights")
    part = spec.choice("part", [member.value for member in Part], Part.H.value)
    asked = _Asked(kernel_of(spec), part, spec.number("floor") or _FLOOR, spec)
    for words, states in side_by_side(source):
        first = states[0]
        needed = {_SORTED: first.spectra, _DENSITY: True, _CUMULATIVE: first.densities}
        kinds = [kind for kind in _LABELS if needed[kind]]
        weights = [block for block in first.blocks(whole=False) if chosen is None or block[1] in chosen]
        every = [_Column(state, network, len(states) > 1) for network in first.networks for state in states]
        for columns, beside in in_sheets(every, _COLUMNS, "columns"):
            suffix = (f"_{words}" if words else "") + beside
            for block in first.blocks(whole=True):
                name = "" if block == (0, "all") else f"_{block[1]}{block[0] or ''}"
                for two, end in ((kinds[:2], ""), (kinds[2:], "_error")):  # rows of a page
                    if two:
                        yield _page(columns, [(block, kind) for kind in two], asked, suffix=suffix + name + end)
            for kind, name in ((_SORTED, "_weights"), (_DENSITY, "_densities")):
                for blocks, below in in_sheets(weights, _ROWS, "rows") if weights and kind in kinds else ():
                    yield _page(columns, [(block, kind) for block in blocks], asked, suffix=suffix + name + below)
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
        words = [variant_words(self.network[0]), f"{self.network[1]} layers" if depths else ""]
        return ", ".join(filter(None, [*words, self.of.step_words if self.of_several_steps else ""]))

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
    variance, width = spec.number("variance"), spec.number("width")
    if variance is None and width is None:
        return default or Kernel()
    return Kernel(width or Kernel.width, variance)


def _page(columns: Sequence[_Column], rows: list[tuple[BlockName, str]], asked: _Asked, *, suffix: str) -> Page:
    """Draw a page: one row per block and kind of panel, one column per network and step."""
    first = columns[0].of
    names = [[f"{block[1]}{block[0] or ''}:{kind}:{column.name}" for column in columns] for block, kind in rows]
    note = _note(first, asked.kernel, asked.part, {kind for _, kind in rows})
    note += first.where_but_steps if columns[0].of_several_steps else first.where
    sheet = Sheet.grid(asked.spec.paper, names, note, _STYLE.replace(height=1.15 if len(rows) <= 4 else 0.8))
    several, numbers = len({block for block, _ in rows}) > 1 or rows[0][0] != (0, "all"), []
    for row, column, ax in sheet:
        (block, kind), (here, network) = rows[row], (columns[column].of, columns[column].network)
        place: dict[str, Any] = {"variant": network[0], "num_layers": network[1], "layer": block[0], "row": block[1]}
        place |= {"step": here.step} if columns[column].of_several_steps else {}
        numbers.append(_draw(ax, here, network, block, kind, asked).assign(**place, panel=kind))
        if kind != _SORTED or not several:
            ax.set_xlabel("share below" if kind == _SORTED else "eigenvalue", labelpad=0)
    labels = [
        f"{weight_words(name, layer if layer > 1 else 0)}: {_LABELS[kind]}" if several else _LABELS[kind]
        for (layer, name), kind in rows
    ]
    sheet.label("", [column.title for column in columns], labels)
    _legend(sheet.first, first.parts if rows[0][1] == _SORTED else [])
    drawn = pd.concat(numbers, ignore_index=True)
    x, y = ("share", "mean") if "mean" in drawn else ("eigenvalue", "lanczos")
    return sheet.page(suffix, drawn, ChartEncoding(x, y, panels=("panel", "block")))


def _draw(ax: Axes, state: Collected, network: Network, block: BlockName, kind: str, asked: _Asked) -> pd.DataFrame:
    if kind == _SORTED:
        return _draw_parts(ax, state, network, block, asked.floor)
    part = asked.part
    panel = Panel(state.spectra_of(network, block, part), state.densities_of(network, block, part), asked.kernel)
    empty = not (panel.spectra or panel.densities)
    if empty or panel.range == (0.0, 0.0):
        say(ax, "(not measured)" if empty else "= 0 (every eigenvalue)")
        return pd.DataFrame()
    colour = part_colour(part) if block[1] == "all" else matrix_colour(block[1])
    draw = draw_density if kind == _DENSITY else draw_cumulative_error
    return draw(ax, panel, colour).assign(part=part)


def _draw_parts(ax: Axes, state: Collected, network: Network, block: BlockName, floor: float) -> pd.DataFrame:
    numbers, largest = [], 0.0
    for part in state.parts:
        spectra = state.spectra_of(network, block, part)
        if spectra:
            numbers.append(draw_sorted(ax, spectra, part).assign(part=part))
            largest = max(largest, float(numbers[-1]["mean"].abs().max()))
    set_sorted_scales(ax, largest, floor=floor)
    if not numbers:
        say(ax, "(not measured)")
        return pd.DataFrame()
    return pd.concat(numbers)


def _legend(ax: Axes, parts: list[str]) -> None:
    if len(parts) > 1:
        handles = [Line2D([], [], color=part_colour(part)) for part in parts]
        ax.legend(handles, list(map(symbol, parts)), loc="upper left")


def _note(state: Collected, kernel: Kernel, part: str, kinds: set[str]) -> str:
    """Return the note of a page: meaning of the marks, and what was measured."""
    count = len(state.seeds)
    words, band = [], ""
    if _SORTED in kinds:
        means = f"mean over {count} seeds, {spread_words(count)}" if count > 1 else "1 seed"
        words.append(f"Sorted eigenvalues: {means}, x: share below.")
    if state.densities:
        probes, steps = state.densities[0].whole.nodes.shape
        band = f"band: Lanczos, {probes} probes of {steps} steps, 95% interval over probes (Student's t); "
        band += "dotted: half the steps. "
    if kinds - {_SORTED}:
        exact = "grey: exact eigenvalues, dashed: the same under the kernel; " if state.spectra else ""
        which = f"Densities of the {Part(part).label}, seed {state.seeds[0]} (faint: others)"
        words.append(f"{which}: {exact}{band}{kernel.words}.")
    return " ".join(words)
