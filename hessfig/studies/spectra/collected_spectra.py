"""Stored spectra and densities of a sweep, collected for a figure, and the table of their extremes."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from pandas import DataFrame, concat

from hessfig.analysis.axis import SIGMA, X
from hessfig.analysis.curves import growth_curves
from hessfig.analysis.stored_spectra import (
    Density,
    Spectrum,
    SpectrumKey,
    has_densities,
    has_spectra,
    read_densities,
    read_spectra,
)
from hessfig.errors import UserError
from hessfig.figures.parts import (
    SHARED,
    SMALL,
    FigureSpec,
    Network,
    Page,
    Sheet,
    Source,
    different,
    symbol,
    variant_words,
    where,
)
from hessfig.terms import Group, Matrix, Part, name_order

BlockName = tuple[int, str]
Wanted = Callable[[SpectrumKey], bool]


@dataclass(frozen=True)
class Collected:
    """Stored spectra and densities of diagonal blocks at one sigma and step; one of the two lists may be empty."""

    spectra: list[Spectrum]
    densities: list[Density]

    @cached_property
    def places(self) -> list[SpectrumKey]:
        """The keys of all spectra and densities."""
        places = [one.place for one in self.spectra]
        places += [one.place for one in self.densities]
        return places

    @cached_property
    def networks(self) -> list[Network]:
        """(variant, num_layers) of every network, as stored."""
        networks = [(place.variant, place.num_layers) for place in self.places]
        return list(dict.fromkeys(networks))

    @cached_property
    def seeds(self) -> list[int]:
        """The seeds, starting with the first one."""
        return sorted({place.seed for place in self.places})

    def where(self, *, with_step: bool) -> str:
        """Return the common sigma, and the step, in words: ' σ = 0.2, step 300.', or ""."""
        sigmas = {place.sigma for place in self.places}
        words = [f"σ = {sigma:g}" for sigma in sigmas if not math.isnan(sigma)]
        if with_step and self.step is not None:
            words.append(self.step_words)
        return f" {', '.join(words)}." if words else ""

    @cached_property
    def step(self) -> float | None:
        """The common step of the training, if there is one."""
        steps = [place.step for place in self.places if not math.isnan(place.step)]
        return steps[0] if steps else None

    @property
    def step_words(self) -> str:
        """The step in words, or ""."""
        return "" if self.step is None else f"step {self.step:g}"

    def blocks(self, *, whole: bool) -> list[BlockName]:
        """Return (layer, name) of groups of weights (`whole`) or of single weights, in the network's order."""
        blocks = {(place.layer, place.row) for place in self.places}
        groups = list(Group)
        return in_network_order(
            [block for block in blocks if (block[1] in groups) == whole]
        )

    @cached_property
    def parts(self) -> list[str]:
        """The parts, the full Hessian last."""
        present = {place.part for place in self.places}
        return [part.value for part in Part if part in present]

    def of(self, network: Network, block: BlockName, part: str) -> Collected:
        """Return the eigenvalues and densities of a block, of each one per seed."""

        def is_of(one: Spectrum | Density) -> bool:
            place = one.place
            its_network = place.variant, place.num_layers
            its_block = place.layer, place.row
            return (its_network, its_block, place.part) == (network, block, part)

        return Collected(
            list(filter(is_of, self.spectra)), list(filter(is_of, self.densities))
        )


def in_network_order(blocks: Collection[BlockName]) -> list[BlockName]:
    """Return (layer, name) of blocks from the network's input to its output, with the unembedding last."""
    rank = name_order([name for _, name in blocks])
    return sorted(
        blocks,
        key=lambda block: (
            math.inf if block[1] == Matrix.W_U else block[0],
            rank(block[1]),
        ),
    )


def side_by_side(
    source: Source, wanted: Wanted
) -> Iterator[tuple[str, list[Collected]]]:
    """Yield (words, stored spectra of every step of a training) for every sigma; the words name one that varies.

    Networks without a sigma are collected with the others if these share a single
    sigma. Raises UserError for a sweep that was not run, and if neither spectra nor
    densities of `wanted` blocks are stored.
    """
    folder = source.folder
    measured = source.table["quantity"].unique()
    every: list[Spectrum | Density] = []
    if has_spectra(folder):
        every.extend(read_spectra(folder, wanted))
    if has_densities(folder):
        every.extend(read_densities(folder, wanted))
    if not every:
        raise UserError(
            f"{folder} contains neither eigenvalues nor densities of such blocks",
            got=f"quantities {', '.join(measured)}",
            allowed="a sweep with spectrum or density among its quantities",
            remedy=f"hessfig run sweep={folder.name} 'quantities=[spectrum]'",
        )
    sigmas = {one.place.sigma for one in every if not math.isnan(one.place.sigma)}
    of_sigma: dict[str, dict[str, Collected]] = {}
    for one in every:
        words = ""
        if len(sigmas) > 1 and one.place.sigma in sigmas:
            words = f"sigma_{one.place.sigma:g}"
        states = of_sigma.setdefault(words, {})
        state = states.setdefault(str(one.place.step), Collected([], []))
        if isinstance(one, Spectrum):
            state.spectra.append(one)
        else:
            state.densities.append(one)
    for words, states in of_sigma.items():
        yield words, list(states.values())


def by_rank(spectra: list[Spectrum], ranks: list[int]) -> DataFrame:
    """Return mean, sem and count over seeds of the eigenvalues with these ranks (0: the smallest)."""
    values = DataFrame([one.eigenvalues[ranks] for one in spectra])
    counted = {
        "rank": [rank + 1 for rank in ranks],
        "mean": values.mean(),
        "sem": values.sem(),
        "count": len(values),
    }
    return DataFrame(counted)


_WORDS = {
    "largest_eigenvalue": "largest",
    "smallest_eigenvalue": "smallest",
    "share_negative": "share < 0",
    "effective_rank": "effective rank",
    "condition_number": "condition number",
    "density_mean": "trace / n",
    "density_second_moment": "norm² / n",
}
_KEY = ["variant", "num_layers", "layer", "row", "part", X]
_LINE = 0.12  # height of a row in inches
_FIRST = 0.27  # share of the page that the first column takes
_ROUNDING = 1e-12  # eigenvalues below this share of the largest are zero up to rounding
# Shown if there are no exact eigenvalues.
_MOMENTS = ("density_mean", "density_second_moment")


def extremes_page(table: DataFrame, spec: FigureSpec) -> Iterator[Page]:
    """Yield a page with a table of mean ± standard error over seeds for the whole network; the CSV has all blocks.

    Of a quantity with several numbers (index), the table has the outermost. Without
    such quantities there is no page.
    """
    names = [name for name in _WORDS if name in set(table["quantity"])]
    if len(names) > len(_MOMENTS):
        names = [name for name in names if name not in _MOMENTS]
    if not names:
        return
    first = table[table["quantity"].isin(names) & (table["index"] <= 1)]
    curves = [growth_curves(first, SIGMA, name) for name in names]
    points = concat(curves)
    shown = points[points["row"].isin(list(Group)) & (points["layer"] == 0)]
    if shown.empty:
        shown = points
    known = set(shown[np.isfinite(shown["mean"])]["quantity"])
    names = [name for name in names if name in known]
    seeds = len(set(table["seed"]))
    keys = different(shown, *_KEY)
    note = f"Mean ± standard error over {seeds} seeds. Every block's numbers are in the file of this page."
    style = SHARED.replace(
        left=0.08, top=0.1, bottom=0.05, height=_LINE * (len(keys) + 2)
    )
    sheet = Sheet.grid(spec.paper, [["table"]], note, style)
    ax = sheet.first
    ax.set_axis_off()
    ax.set(xlim=(0, 1), ylim=(len(keys) + 1.5, -0.5))
    width = (1 - _FIRST) / len(names)
    places = [0.0, *(_FIRST + width * (np.arange(len(names)) + 0.5))]
    header = ["", *(_WORDS[name] for name in names)]
    for x, word in zip(places, header, strict=True):
        ax.text(
            x, 0, word, weight="bold", ha="left" if x == 0 else "center", size=SMALL
        )
    ax.axhline(0.4, color="black", linewidth=0.5)
    for line, key in enumerate(keys, start=1):
        ax.text(0, line + 0.2, _row_words(key, keys), size=SMALL)
        for x, name in zip(places[1:], names, strict=True):
            ax.text(x, line + 0.2, _number(shown, key, name), ha="center", size=SMALL)
    written = points.drop(columns="is_zero").rename(columns={X: "sigma"})
    yield sheet.page("_table", written)


def _row_words(key: tuple[object, ...], keys: list[tuple[object, ...]]) -> str:
    """Return the network and part of a row in words, with block, depth and sigma if several are shown."""
    variant, depth, layer, row, part, sigma = key
    texts = {
        1: f"{depth} layers",
        3: f"{row} {layer or ''}".strip(),
        5: f"σ = {sigma:g}",
    }
    words = [variant_words(str(variant))]
    for place, text in texts.items():
        if len({str(one[place]) for one in keys}) > 1:
            words.append(text)
    return f"{symbol(str(part))}  {', '.join(filter(None, words))}"


def _number(points: DataFrame, key: tuple[object, ...], name: str) -> str:
    chosen = where(points, quantity=name, **dict(zip(_KEY, key, strict=True)))
    if chosen.empty or not np.isfinite(chosen["mean"].iloc[0]):
        return "—"
    mean, error = chosen[["mean", "sem"]].iloc[0]
    is_small = abs(mean) < _ROUNDING * points["mean"].abs().max()
    if is_small and abs(mean) <= max(2 * error, _ROUNDING):
        return "0"
    if np.isfinite(error):
        return f"{_short(mean)} ± {_short(error, digits=1)}"
    return _short(mean)


def _short(value: float, *, digits: int = 3) -> str:
    """Return a number with the given number of digits: 1.23e7, 0.0012, −4e−16."""
    if 10 <= abs(value) < 100 and digits == 1:
        words = f"{value:.0f}"
    else:
        words = f"{value:.{digits}g}"
    words = re.sub(r"e([+-])0?", lambda found: "e" + found[1].strip("+"), words)
    return words.replace("-", "−")
