"""Dense Hessians stored beside a table (sweep.keep_dense): reading, blocks, and histograms of their entries."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.table import run_command
from hessfig.errors import UserError

_NAME = re.compile(
    r"(?:(?P<variant>.*)_)?n_layers=(?P<num_layers>\d+)_sigma=(?P<sigma>[^_]+)_seed=(?P<seed>\d+)"
)


@dataclass(frozen=True)
class DenseHessian:
    """A whole Hessian; parameter k of `names` owns `sizes[k]` consecutive rows and columns."""

    variant: str
    sigma: float
    seed: int
    matrix: NDArray[np.float32]
    names: list[str]
    sizes: list[int]

    def borders(self) -> NDArray[np.int64]:
        """Return where the parameters begin, and the end: len(names) + 1 numbers."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def restricted(self, names: Sequence[str]) -> DenseHessian:
        """Return the Hessian of some of the parameters alone, in the stored order."""
        kept = [k for k, name in enumerate(self.names) if name in names]
        borders = self.borders()
        index = np.concatenate([np.arange(borders[k], borders[k + 1]) for k in kept])
        matrix = self.matrix[np.ix_(index, index)]
        chosen = [self.names[k] for k in kept], [self.sizes[k] for k in kept]
        return DenseHessian(self.variant, self.sigma, self.seed, matrix, *chosen)

    def block(self, name: str) -> NDArray[np.float32]:
        """Return one parameter's diagonal block. Raises UserError for a parameter that is not there."""
        if name not in self.names:
            raise UserError(
                f"the stored Hessian has no parameter {name}", got=name, allowed=", ".join(self.names)
            )
        k, borders = self.names.index(name), self.borders()
        return self.matrix[borders[k] : borders[k + 1], borders[k] : borders[k + 1]]


def read_dense(folder: Path) -> list[DenseHessian]:
    """Read folder/dense/*.npz, the first seed and lowest sigma of every variant.

    Raises UserError when there is none and for files that are damaged or not of the documented form: arrays
    `hessian` (n, n), `names` and `sizes`; nothing is unpickled.
    """
    paths = sorted((folder / "dense").glob("*.npz"))
    if not paths:
        raise UserError(
            f"{folder / 'dense'} holds no dense Hessian: the sweep was not run", remedy=run_command(folder)
        )
    first: dict[str, DenseHessian] = {}
    for path in paths:
        variant = _labels(path)["variant"] or ""
        if variant not in first:
            first[variant] = _read(path)
    return list(first.values())


def histogram(entries: NDArray[np.floating], edges: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return the share of all entries whose absolute value falls into each bin; zeros fall into none."""
    counts, _ = np.histogram(np.abs(entries), bins=edges)
    return counts / entries.size


def log_bins(blocks: Sequence[NDArray[np.floating]], *, per_decade: int = 12) -> NDArray[np.float64]:
    """Return logarithmic bin edges that hold all but the smallest 0.1 % of the nonzero entries."""
    sizes = [np.abs(block[block != 0]) for block in blocks]
    low = np.floor(np.log10(min(np.quantile(size, 0.001) for size in sizes)))
    high = np.ceil(np.log10(max(size.max() for size in sizes)))
    return np.logspace(low, high, int(high - low) * per_decade + 1)


def _labels(path: Path) -> dict[str, str | None]:
    found = _NAME.fullmatch(path.stem)
    if found is None:
        form = "[VARIANT_]n_layers=N_sigma=S_seed=K.npz"
        raise UserError(f"{path} is not named as a dense Hessian", got=path.name, allowed=form)
    return found.groupdict()


def _read(path: Path) -> DenseHessian:
    labels = _labels(path)
    try:
        with np.load(path, allow_pickle=False) as stored:
            matrix, names, sizes = stored["hessian"], stored["names"].tolist(), stored["sizes"].tolist()
        if matrix.shape != (sum(sizes), sum(sizes)) or len(names) != len(sizes):
            raise ValueError(f"shape {matrix.shape}, sizes {sizes}")
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise UserError(
            f"{path} is damaged or not a dense Hessian",
            got=str(error),
            allowed="arrays hessian (n, n), names and sizes",
            remedy=f"delete it and {run_command(path.parent.parent)}",
        ) from error
    return DenseHessian(
        labels["variant"] or "", float(labels["sigma"] or 0), int(labels["seed"] or 0), matrix, names, sizes
    )
