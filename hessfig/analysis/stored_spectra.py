"""Eigenvalues and densities stored next to a table (quantities `spectrum` and `density`), block by block."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.arrays import (
    Entry,
    Form,
    Stored,
    is_listed,
    listed,
    place_of,
    read,
)
from hessfig.errors import plain
from hessfig.terms import Part

Numbers = NDArray[np.float64]
Found = TypeVar("Found")

SPECTRUM, DENSITY = "spectrum", "density"
_SPECTRUM = Form(
    SPECTRUM, "spectrum", "entries, eigenvalues_0 (n,), eigenvalues_1, ... and label"
)
_DENSITY = Form(
    DENSITY,
    "density",
    "entries, nodes_0 and weights_0 (probes, steps), half_nodes_0, ... and label",
)
_COUNTS, _NAMES = ("layer", "row_layer", "dim"), ("row", "col", "part")
_LONGEST = 1000
_ONE = 1e-6  # largest difference between one and the sum of a probe's weights


@dataclass(frozen=True)
class SpectrumKey:
    """The network, block and part of a spectrum; sigma and step are nan where they do not apply.

    `dim` is the number of rows of the block.
    """

    variant: str
    num_layers: int
    sigma: float
    step: float
    seed: int
    layer: int
    row_layer: int
    row: str
    col: str
    part: str
    dim: int

    @property
    def is_diagonal(self) -> bool:
        """Whether the block is that of a weight, or of a group of weights, with itself."""
        return self.row == self.col and self.row_layer == self.layer


@dataclass(frozen=True)
class Spectrum:
    """All eigenvalues of a block in ascending order."""

    place: SpectrumKey
    eigenvalues: Numbers


@dataclass(frozen=True)
class StoredQuadrature:
    """Nodes and weights (probes, steps) of a density by stochastic Lanczos quadrature; a probe's weights sum to 1."""

    nodes: Numbers
    weights: Numbers


@dataclass(frozen=True)
class Density:
    """The density of a block by all Lanczos steps, and by the first half of the steps of the same runs."""

    place: SpectrumKey
    whole: StoredQuadrature
    half: StoredQuadrature


def read_spectra(
    folder: Path, wanted: Callable[[SpectrumKey], bool] = lambda place: True
) -> list[Spectrum]:
    """Return the stored eigenvalues of the `wanted` blocks in the manifest's order.

    Raises UserError if no spectrum is stored, and as `arrays.read` does.
    """
    return _read(folder, _SPECTRUM, wanted, _spectrum)


def read_densities(
    folder: Path, wanted: Callable[[SpectrumKey], bool] = lambda place: True
) -> list[Density]:
    """Return the stored densities of the `wanted` blocks. Raises UserError as `read_spectra` does."""
    return _read(folder, _DENSITY, wanted, _density)


def has_spectra(folder: Path) -> bool:
    """Return whether eigenvalues are stored. Raises UserError for a broken manifest."""
    return is_listed(folder, _SPECTRUM)


def has_densities(folder: Path) -> bool:
    """Return whether densities are stored. Raises UserError for a broken manifest."""
    return is_listed(folder, _DENSITY)


def _read(
    folder: Path,
    form: Form,
    wanted: Callable[[SpectrumKey], bool],
    one: Callable[[Stored, int, SpectrumKey], Found],
) -> list[Found]:
    spectra: list[Found] = []
    for entry in listed(folder, form):
        spectra += read(folder, entry, form, partial(_take, entry, wanted, one))
    return spectra


def _take(
    entry: Entry,
    wanted: Callable[[SpectrumKey], bool],
    one: Callable[[Stored, int, SpectrumKey], Found],
    stored: Stored,
) -> list[Found]:
    entries = json.loads(str(stored["entries"].item()))
    if not isinstance(entries, list):
        raise TypeError("entries is not a list")
    places = [_place(entry, item) for item in entries]
    return [one(stored, k, place) for k, place in enumerate(places) if wanted(place)]


def _place(entry: Entry, item: Any) -> SpectrumKey:
    """Return the key of one entry. Raises ValueError or TypeError for an invalid entry."""
    odd = [key for key in _COUNTS if type(item[key]) is not int or item[key] < 0]
    for key in _NAMES:
        name = item[key]
        if not isinstance(name, str) or plain(name, most=_LONGEST) != name:
            odd.append(key)
    if not odd and item["dim"] < 1:
        odd.append("dim")
    if odd:
        raise ValueError(f"entries: {odd[0]}={item[odd[0]]!r}"[:200])
    block = {key: item[key] for key in ("layer", "row_layer", "row", "col", "dim")}
    network = {key: entry[key] for key in ("variant", "num_layers", "seed")}
    network |= place_of(entry)
    return SpectrumKey(**network, part=Part(item["part"]).value, **block)


def _spectrum(stored: Stored, k: int, place: SpectrumKey) -> Spectrum:
    values = _reals(stored, f"eigenvalues_{k}", [(place.dim,)])
    if (np.diff(values) < 0).any():
        raise ValueError(f"eigenvalues_{k} do not rise")
    return Spectrum(place, values)


def _density(stored: Stored, k: int, place: SpectrumKey) -> Density:
    return Density(place, _quadrature(stored, "", k), _quadrature(stored, "half_", k))


def _quadrature(stored: Stored, which: str, k: int) -> StoredQuadrature:
    nodes = _reals(stored, f"{which}nodes_{k}", [])
    weights = _reals(stored, f"{which}weights_{k}", [nodes.shape])
    sums = weights.sum(axis=-1)
    if (
        nodes.ndim != 2
        or not nodes.size
        or (weights < 0).any()
        or (np.abs(sums - 1) > _ONE).any()
    ):
        raise ValueError(f"{which}weights_{k}: shape {nodes.shape}, sums {sums}"[:200])
    return StoredQuadrature(nodes, weights)


def _reals(stored: Stored, name: str, shapes: Sequence[tuple[int, ...]]) -> Numbers:
    """Return an array of finite float64. Raises ValueError for anything else; any shape will do where none is named."""
    array = stored[name]
    if (
        array.dtype != np.float64
        or (shapes and array.shape not in shapes)
        or not np.isfinite(array).all()
    ):
        raise ValueError(
            f"{name}: {array.dtype} {array.shape}, or numbers that are not finite"
        )
    return np.asarray(array)
