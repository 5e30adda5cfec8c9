"""Hessians stored beside a table (quantity `hessian`): found through the manifest, checked, cut into blocks."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.arrays.stored import Entry, Form, Stored, listed, read
from hessfig.errors import UserError

HESSIAN = "hessian"
_FORM = Form(HESSIAN, "Hessian", f"{HESSIAN} (n, n), names, sizes and label", large=HESSIAN)


@dataclass(frozen=True)
class StoredHessian:
    """A whole Hessian; parameter k of `names` owns `sizes[k]` rows and columns.

    sigma and step are nan where they mean nothing.
    """

    variant: str
    sigma: float
    seed: int
    matrix: NDArray[np.float32]
    names: list[str]
    sizes: list[int]
    step: float = math.nan

    def borders(self) -> NDArray[np.int64]:
        """Return where the parameters begin, and the end: len(names) + 1 numbers."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def restricted(self, names: Sequence[str]) -> StoredHessian:
        """Return the Hessian of some of the parameters alone, in the stored order. Raises UserError for none."""
        kept = [k for k, name in enumerate(self.names) if name in names]
        if not kept:
            raise self._no_parameter(", ".join(names))
        borders = self.borders()
        index = np.concatenate([np.arange(borders[k], borders[k + 1]) for k in kept])
        matrix = self.matrix[np.ix_(index, index)]
        chosen = [self.names[k] for k in kept], [self.sizes[k] for k in kept]
        return StoredHessian(self.variant, self.sigma, self.seed, matrix, *chosen, self.step)

    def block(self, name: str) -> NDArray[np.float32]:
        """Return one parameter's diagonal block. Raises UserError for a parameter that is not there."""
        if name not in self.names:
            raise self._no_parameter(name)
        k, borders = self.names.index(name), self.borders()
        return self.matrix[borders[k] : borders[k + 1], borders[k] : borders[k + 1]]

    def _no_parameter(self, name: str) -> UserError:
        return UserError(
            f"the stored Hessian has no parameter {name}",
            got=name,
            allowed=", ".join(self.names),
            remedy="name others: figure.options.blocks, figure.options.weights",
        )


def read_hessians(folder: Path) -> list[StoredHessian]:
    """Return the stored Hessian of the lowest sigma and first seed of every variant, in the manifest's order.

    Raises UserError when there is none, and for files that are missing, damaged, swapped (their content or their own
    label is not what the manifest says) or not of the documented form: arrays `hessian` (n, n), `names`, `sizes` and
    `label`; nothing is unpickled.
    """
    entries = listed(folder, _FORM)
    variants = dict.fromkeys(entry["variant"] for entry in entries)
    chosen = (min((e for e in entries if e["variant"] == variant), key=_rank) for variant in variants)
    return [_read(folder, entry) for entry in chosen]


def each_hessian(folder: Path) -> Iterator[StoredHessian]:
    """Yield every stored Hessian, one at a time, in the manifest's order. Raises UserError as `read_hessians` does."""
    for entry in listed(folder, _FORM):
        yield _read(folder, entry)


def histogram(entries: NDArray[np.floating], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of all entries whose absolute value falls into each bin; zeros fall into none."""
    counts, _ = np.histogram(np.abs(entries), bins=edges)
    return counts / entries.size


def log_bins(blocks: Sequence[NDArray[np.floating]], *, per_decade: int = 12) -> NDArray[np.float64]:
    """Return logarithmic bin edges that hold all but the smallest 0.1 % of the nonzero entries.

    Raises UserError for a block without any.
    """
    sizes = [np.abs(block[(block != 0) & np.isfinite(block)]) for block in blocks]
    if not all(size.size for size in sizes):
        raise UserError(
            "a block of the stored Hessian has no entry that is finite and not zero: nothing to count",
            got=f"{sum(not size.size for size in sizes)} of {len(sizes)} blocks without any",
            allowed="blocks with at least one such entry",
            remedy="name others: figure.options.blocks",
        )
    low = np.floor(np.log10(min(np.quantile(size, 0.001) for size in sizes)))
    high = np.ceil(np.log10(max(size.max() for size in sizes)))
    return np.logspace(low, high, int(high - low) * per_decade + 1)


def _rank(entry: Entry) -> tuple[float, ...]:
    """Order by numbers: depth, sigma, step, seed."""
    coordinates = [entry[key] for key in ("num_layers", "sigma", "step", "seed")]
    return tuple(-math.inf if value is None else value for value in coordinates)


def _read(folder: Path, entry: Entry) -> StoredHessian:
    matrix, names, sizes = read(folder, entry, _FORM, _take)
    sigma, step = (math.nan if entry[key] is None else float(entry[key]) for key in ("sigma", "step"))
    return StoredHessian(entry["variant"], sigma, entry["seed"], matrix, names, sizes, step)


def _take(stored: Stored) -> tuple[NDArray[np.float32], list[str], list[int]]:
    """Return matrix, names and sizes."""
    names, sizes, matrix = stored["names"].tolist(), stored["sizes"].tolist(), stored[HESSIAN]
    whole = len(names) == len(sizes) and all(isinstance(size, int) and size > 0 for size in sizes)
    if not whole or matrix.shape != (sum(sizes), sum(sizes)) or matrix.dtype.kind != "f" or not sizes:
        raise ValueError(f"shape {matrix.shape}, sizes {sizes}"[:300])
    return matrix, [str(name) for name in names], sizes
