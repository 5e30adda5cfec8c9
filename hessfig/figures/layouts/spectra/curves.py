"""Panels of one block: sorted eigenvalues, a density with its band over the exact histogram, and its cumulative."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, NullLocator

from hessfig.analysis.arrays.spectra import Density, Spectrum
from hessfig.analysis.spectra.smoothing import (
    Banded,
    Kernel,
    cumulative,
    grid_over,
    of_eigenvalues,
    smoothed,
    span,
)
from hessfig.figures.layouts.spectra.collected import by_rank
from hessfig.figures.parts.grid import say
from hessfig.figures.parts.panels import set_decades
from hessfig.figures.parts.style import TINY, part_colour

_OUTER, _INNER = 40, 80  # ranks drawn at either end, and between
_BINS = 60
_DASHED, _DOTTED = (0, (4, 1.5)), (0, (1, 1))
_HALF = "#2166ac"
_SHARES = {0.001: "0.1%", 0.1: "", 0.5: "50%", 0.9: "", 0.999: "99.9%"}


@dataclass(frozen=True)
class Panel:
    """What is known of one block and part: exact eigenvalues and densities, seed by seed, and the kernel."""

    spectra: list[Spectrum]
    densities: list[Density]
    kernel: Kernel

    @property
    def exact(self) -> Spectrum | None:
        """The exact eigenvalues of the network that the density is of (or of the first one)."""
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
    """Draw the eigenvalues against the share that is smaller, mean over seeds with a band of one standard error."""
    count = len(spectra[0].eigenvalues)
    points = by_rank(spectra, drawn_ranks(count))
    shares = (points["rank"] - 0.5) / count
    ax.plot(shares, points["mean"], color=part_colour(part), linewidth=0.9)
    low, high = points["mean"] - points["sem"], points["mean"] + points["sem"]
    ax.fill_between(shares, low, high, color=part_colour(part), alpha=0.25, linewidth=0)
    return points.assign(share=shares)


def drawn_ranks(count: int) -> list[int]:
    """Return all ranks at either end and some between: more cannot be told apart in print."""
    ends = [*range(min(count, _OUTER)), *range(max(0, count - _OUTER), count)]
    return sorted({*ends, *np.linspace(0, count - 1, _INNER).round().astype(int).tolist()})


def set_sorted_scales(ax: Axes, largest: float, *, floor: float) -> None:
    """Make x logit, so that both ends are seen, and y symlog, linear below `floor` times the largest eigenvalue."""
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
    if panel.exact is not None:
        values = panel.exact.eigenvalues
        heights, edges = np.histogram(values, bins=_BINS, range=(grid[0], grid[-1]), density=True)
        ax.stairs(heights, edges, fill=True, color="#d9d9d9")
        exact, _ = of_eigenvalues(values, grid, deviation)
        ax.plot(grid, exact, color="black", linestyle=_DASHED, linewidth=0.6)
        numbers, peak = pd.DataFrame({"eigenvalue": grid, "exact": exact}), [exact.max(), heights.max()]
    for one in panel.densities[1:]:
        ax.plot(grid, smoothed(one, grid, deviation).mean, color=colour, linewidth=0.4, alpha=0.5)
    if panel.densities:
        found = smoothed(panel.densities[0], grid, deviation)
        _draw_banded(ax, found, 0.0, colour)
        numbers = _with_band(numbers, found)
        peak.append(found.mean.max())
    _set_density_scale(ax, max(peak), panel, deviation)
    return numbers


def draw_cumulative_error(ax: Axes, panel: Panel, colour: str) -> pd.DataFrame:
    """Draw the cumulative's error with its band over probes: less the exact one, or of half the steps less all."""
    if not panel.densities:
        say(ax, "(no density)")
        return pd.DataFrame()
    deviation = panel.kernel.deviation(*panel.range)
    grid = grid_over(*panel.range, deviation)
    found = cumulative(panel.densities[0], grid, deviation)
    truth = found.mean
    if panel.exact is not None:
        truth = of_eigenvalues(panel.exact.eigenvalues, grid, deviation)[1]
    _draw_banded(ax, found, truth, colour)
    ax.axhline(0, color="black", linestyle=_DASHED, linewidth=0.6)
    reach = np.nanmax([np.abs(found.mean - truth) + np.nan_to_num(found.margin), np.abs(found.half - truth)])
    ax.set_ylim(-1.2 * reach or -1.0, 1.2 * reach or 1.0)
    ax.ticklabel_format(axis="y", style="sci", scilimits=(-1, 1))
    ax.yaxis.get_offset_text().set_fontsize(TINY)
    return _with_band(pd.DataFrame({"eigenvalue": grid, "exact": truth}), found)


def _draw_banded(ax: Axes, found: Banded, less: np.ndarray | float, colour: str) -> None:
    middle = found.mean - less
    ax.plot(found.grid, middle, color=colour, linewidth=0.8)
    ax.fill_between(
        found.grid, middle - found.margin, middle + found.margin, color=colour, alpha=0.3, linewidth=0
    )
    ax.plot(found.grid, found.half - less, color=_HALF, linestyle=_DOTTED, linewidth=0.8)


def _with_band(numbers: pd.DataFrame, found: Banded) -> pd.DataFrame:
    band = {"lanczos": found.mean, "margin": found.margin, "half_the_steps": found.half}
    return numbers.assign(**band) if len(numbers) else pd.DataFrame({"eigenvalue": found.grid, **band})


def _set_density_scale(ax: Axes, peak: float, panel: Panel, deviation: float) -> None:
    """Go down to a tenth of what a single eigenvalue adds."""
    dim = (panel.spectra[0] if panel.spectra else panel.densities[0]).place.dim
    single = 1 / (dim * deviation * np.sqrt(2 * np.pi))
    set_decades(ax, "y")
    ax.set_ylim(single / 10, 3 * max(peak, single))
