"""Stored spectra and densities of a sweep, ready to be laid out: networks, blocks, parts and seeds in order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pandas as pd

from hessfig.analysis.arrays.spectra import (
    Density,
    Place,
    Spectrum,
    has_densities,
    has_spectra,
    read_densities,
    read_spectra,
)
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.terms import Group, Part, name_order

Network = tuple[str, int]
BlockName = tuple[int, str]
Wanted = Callable[[Place], bool]


@dataclass(frozen=True)
class Collected:
    """Stored spectra and densities of diagonal blocks at one sigma and step; one of the two lists may be empty."""

    spectra: list[Spectrum]
    densities: list[Density]

    @cached_property
    def places(self) -> list[Place]:
        """Of what the numbers are."""
        return [*(one.place for one in self.spectra), *(one.place for one in self.densities)]

    @cached_property
    def networks(self) -> list[Network]:
        """(variant, num_layers) of every network, as stored."""
        return list(dict.fromkeys((place.variant, place.num_layers) for place in self.places))

    @cached_property
    def seeds(self) -> list[int]:
        """The repeats, the first one first."""
        return sorted({place.seed for place in self.places})

    @cached_property
    def where(self) -> str:
        """The sigma and step that all of it is at, in words: ' σ = 0.2, step 300.', or nothing."""
        place = self.places[0]
        words = [f"σ = {place.sigma:g}"] * (_key(place.sigma) is not None)
        words += [f"step {place.step:g}"] * (_key(place.step) is not None)
        return f" {', '.join(words)}." if words else ""

    def blocks(self, *, whole: bool) -> list[BlockName]:
        """Return (layer, name) of groups of weights (`whole`) or of single weights, in the network's order."""
        found = {(place.layer, place.row) for place in self.places if (place.row in list(Group)) == whole}
        rank = name_order([name for _, name in found])
        return sorted(found, key=lambda block: (block[0], rank(block[1])))

    @cached_property
    def parts(self) -> list[str]:
        """The parts, the full Hessian last."""
        return [part.value for part in Part if any(place.part == part for place in self.places)]

    def spectra_of(self, network: Network, block: BlockName, part: str) -> list[Spectrum]:
        """Return a block's eigenvalues, a spectrum a seed."""
        return [one for one in self.spectra if _is_of(one.place, network, block, part)]

    def densities_of(self, network: Network, block: BlockName, part: str) -> list[Density]:
        """Return a block's densities, one a seed."""
        return [one for one in self.densities if _is_of(one.place, network, block, part)]


def collected(folder: Path, wanted: Wanted | None = None) -> Iterator[tuple[str, Collected]]:
    """Yield (words, what is stored) for every sigma and step of a sweep; the words are "" where there is one alone.

    Raises UserError for a sweep that was not run, and where neither spectra nor densities of diagonal blocks are kept.
    """
    read_run(folder)
    every = Collected(
        read_spectra(folder, _both(wanted)) if has_spectra(folder) else [],
        read_densities(folder, _both(wanted)) if has_densities(folder) else [],
    )
    if not every.places:
        table = read_run(folder).table
        raise UserError(
            f"{folder} holds neither eigenvalues nor densities of such blocks",
            got=f"quantities {', '.join(table['quantity'].unique())}",
            allowed="a sweep with spectrum or density among its quantities",
            remedy=f"hessfig run sweep={folder.name} 'quantities=[spectrum]'",
        )
    coordinates = list(dict.fromkeys((_key(place.sigma), _key(place.step)) for place in every.places))
    for one in coordinates:
        yield (_words(one) if len(coordinates) > 1 else ""), _at(every, one)


def by_rank(spectra: list[Spectrum], ranks: list[int]) -> pd.DataFrame:
    """Return mean, sem and count over seeds of the eigenvalues of these ranks (0: the smallest)."""
    values = pd.DataFrame([one.eigenvalues[ranks] for one in spectra])
    return pd.DataFrame(
        {
            "rank": [rank + 1 for rank in ranks],
            "mean": values.mean(),
            "sem": values.sem(),
            "count": len(values),
        }
    )


def _both(wanted: Wanted | None) -> Wanted:
    """Want blocks on the diagonal alone, and of those the ones that are wanted."""

    def both(place: Place) -> bool:
        diagonal = place.row == place.col and place.row_layer == place.layer
        return diagonal and (wanted is None or wanted(place))

    return both


def _is_of(place: Place, network: Network, block: BlockName, part: str) -> bool:
    mine = (place.variant, place.num_layers), (place.layer, place.row), place.part
    return mine == (network, block, part)


def _key(coordinate: float) -> float | None:
    return None if math.isnan(coordinate) else coordinate


def _words(coordinates: tuple[float | None, float | None]) -> str:
    named = zip(("sigma", "step"), coordinates, strict=True)
    return "_".join(f"{name}_{value:g}" for name, value in named if value is not None)


def _at(every: Collected, coordinates: tuple[float | None, float | None]) -> Collected:
    def here(place: Place) -> bool:
        return (_key(place.sigma), _key(place.step)) == coordinates

    return Collected(
        [one for one in every.spectra if here(one.place)],
        [one for one in every.densities if here(one.place)],
    )
