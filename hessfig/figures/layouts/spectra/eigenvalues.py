"""Eigenvalues and densities of whole networks and of every weight, networks side by side, and a table of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from hessfig.analysis.spectra.smoothing import Kernel
from hessfig.figures.layouts.spectra.collected import BlockName, Collected, Network, collected
from hessfig.figures.layouts.spectra.curves import (
    Panel,
    draw_cumulative_error,
    draw_density,
    draw_sorted,
    set_sorted_scales,
)
from hessfig.figures.layouts.spectra.numbers import extremes_page
from hessfig.figures.parts.grid import Margins, only_outer_labels, panel_grid, say
from hessfig.figures.parts.save import Page
from hessfig.figures.parts.spec import FigureSpec
from hessfig.figures.parts.style import matrix_colour, part_colour
from hessfig.figures.parts.words import symbol, variant_words, weight_words
from hessfig.terms import Part

_COLUMNS, _ROWS = 4, 10  # of panels on a page
_FLOOR = 1e-6
_SORTED, _DENSITY, _CUMULATIVE = "sorted", "density", "cumulative"
_LABELS = {_SORTED: "eigenvalue", _DENSITY: "density", _CUMULATIVE: "cumulative: error"}
_MARGINS = Margins(left=0.62, across=0.34, down=0.32, bottom=0.36)


def spectra(spec: FigureSpec, folder: Path) -> Iterator[Page]:
    """Draw sorted eigenvalues and densities: the whole network's, then every weight's, a column a network; a table.

    How to read it: eigenvalues stand over the share of them that is smaller, both ends stretched; they are linear
    below the floor. Densities: grey bars are the exact eigenvalues, dashed the same under the kernel, the band the
    95 % interval over probes of the Lanczos density (first seed; others faint), dotted half its steps. The
    cumulative's panel shows how far it is from the exact one (or half the steps from all): a band that leaves zero is
    an error that probes do not explain.
    Requires: a sweep with `spectrum`, `density` or both; the sweep's table.csv for the table (options `width` or
    `variance` of the kernel, `part` of the densities, `floor` relative to the largest eigenvalue).
    """
    part = spec.choice("part", [one.value for one in Part], Part.H.value)
    kernel, floor = kernel_of(spec), spec.number("floor") or _FLOOR
    for words, one in collected(folder):
        suffix = f"_{words}" if words else ""
        for columns, beside in _pieces(one.networks, _COLUMNS, "columns"):
            for block in one.blocks(whole=True):
                name = "" if block == (0, "all") else f"_{block[1]}{block[0] or ''}"
                kinds = [kind for kind in _LABELS if kind != _SORTED or one.spectra]
                rows = [(block, kind) for kind in kinds]
                yield _page(one, columns, rows, kernel, part=part, floor=floor, suffix=suffix + beside + name)
            for kind, name in ((_SORTED, "_weights"), (_DENSITY, "_densities")):
                weights = one.blocks(whole=False) if kind == _DENSITY or one.spectra else []
                for some, below in _pieces(weights, _ROWS, "rows"):
                    rows, end = [(block, kind) for block in some], suffix + beside + name + below
                    yield _page(one, columns, rows, kernel, part=part, floor=floor, suffix=end)
    yield from extremes_page(folder)


def kernel_of(spec: FigureSpec, default: Kernel | None = None) -> Kernel:
    """Return the kernel that the options `width` and `variance` ask for."""
    variance, width = spec.number("variance"), spec.number("width")
    if variance is None and width is None:
        return default or Kernel()
    return Kernel(width or Kernel.width, variance)


def _pieces(items: list[Any], most: int, name: str) -> Iterator[tuple[list[Any], str]]:
    """Yield lists of at most `most` items, and the words that tell them apart."""
    starts = range(0, len(items), most)
    for number, start in enumerate(starts, start=1):
        yield items[start : start + most], f"_{name}{number}" if len(starts) > 1 else ""


def _page(
    one: Collected,
    networks: list[Network],
    rows: list[tuple[BlockName, str]],
    kernel: Kernel,
    *,
    part: str,
    floor: float,
    suffix: str,
) -> Page:
    """Draw a page: a row a block and kind of panel, a column a network."""
    height = 1.15 if len(rows) <= 4 else 0.8
    figure, axes = panel_grid(
        len(rows),
        len(networks),
        note=_note(one, kernel, part, {kind for _, kind in rows}),
        panel_height=height,
        margins=_MARGINS,
        share_x=False,
        share_y=False,
    )
    numbers = []
    for panels, (block, kind) in zip(axes, rows, strict=True):
        for ax, network in zip(panels, networks, strict=True):
            found = _draw(ax, one, network, block, kind, kernel, part=part, floor=floor)
            place = {"variant": network[0], "num_layers": network[1], "layer": block[0], "row": block[1]}
            numbers.append(found.assign(**place, panel=kind))
    several = len({block for block, _ in rows}) > 1 or rows[0][0] != (0, "all")
    labels = [f"{_name(block)}: {_LABELS[kind]}" if several else _LABELS[kind] for block, kind in rows]
    only_outer_labels(axes, x="", y=labels)
    for ax, network in zip(axes[0], networks, strict=True):
        ax.set_title(_title(network, one.networks))
    for panels, (_, kind) in zip(axes, rows, strict=True):
        for ax in panels if kind != _SORTED or not several else ():
            ax.set_xlabel("share below" if kind == _SORTED else "eigenvalue", labelpad=0)
    _legend(axes[0, 0], one.parts if rows[0][1] == _SORTED else [])
    return Page(suffix, figure, pd.concat(numbers, ignore_index=True))


def _draw(
    ax: Axes,
    one: Collected,
    network: Network,
    block: BlockName,
    kind: str,
    kernel: Kernel,
    *,
    part: str,
    floor: float,
) -> pd.DataFrame:
    if kind == _SORTED:
        return _draw_parts(ax, one, network, block, floor)
    panel = Panel(one.spectra_of(network, block, part), one.densities_of(network, block, part), kernel)
    if not (panel.spectra or panel.densities):
        say(ax, "(not measured)")
        return pd.DataFrame()
    if panel.range == (0.0, 0.0):
        say(ax, "= 0 (every eigenvalue)")
        return pd.DataFrame()
    colour = part_colour(part) if block[1] == "all" else matrix_colour(block[1])
    draw = draw_density if kind == _DENSITY else draw_cumulative_error
    return draw(ax, panel, colour).assign(part=part)


def _draw_parts(ax: Axes, one: Collected, network: Network, block: BlockName, floor: float) -> pd.DataFrame:
    numbers, largest = [], 0.0
    for part in one.parts:
        spectra = one.spectra_of(network, block, part)
        if spectra:
            numbers.append(draw_sorted(ax, spectra, part).assign(part=part))
            largest = max(largest, float(numbers[-1]["mean"].abs().max()))
    set_sorted_scales(ax, largest, floor=floor)
    if not numbers:
        say(ax, "(not measured)")
        return pd.DataFrame()
    return pd.concat(numbers)


def _title(network: Network, every: list[Network]) -> str:
    depths = len({depth for _, depth in every}) > 1
    words = variant_words(network[0])
    return words + (f"{', ' if words else ''}{network[1]} layers" if depths else "")


def _name(block: BlockName) -> str:
    layer = f" {block[0]}" if block[0] > 1 else ""
    return weight_words(block[1]) + layer


def _legend(ax: Axes, parts: list[str]) -> None:
    handles = [Line2D([], [], color=part_colour(part)) for part in parts]
    if len(parts) > 1:
        ax.legend(handles, [symbol(part) for part in parts], loc="upper left")


def _note(one: Collected, kernel: Kernel, part: str, kinds: set[str]) -> str:
    """Return what the marks of a page's panels mean, and what was measured."""
    count = len(one.seeds)
    words = []
    if _SORTED in kinds:
        words.append(
            f"Sorted eigenvalues: mean over {count} seed{'s' * (count > 1)}, band: ± standard error, x: share below."
        )
    if kinds - {_SORTED}:
        exact = "grey: exact eigenvalues, dashed: the same under the kernel; " if one.spectra else ""
        probes = one.densities[0].whole.nodes.shape if one.densities else (0, 0)
        band = (
            f"band: Lanczos, {probes[0]} probes of {probes[1]} steps, 95% interval over probes (Student's t); "
            "dotted: half the steps. "
            if one.densities
            else ""
        )
        words.append(
            f"Densities of the {Part(part).label}, seed {one.seeds[0]} (faint: others): {exact}{band}{kernel.words}."
        )
    return " ".join(words) + one.where
