"""Stored eigenvalues and densities as a sweep leaves them, made of spectra that are known."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.record import COLUMNS
from tests.analysis.synthetic import CONFIG

Values = NDArray[np.float64]


def entry_of(row: str, part: str, dim: int, *, layer: int = 1) -> dict[str, Any]:
    """Return what a file says of one of its blocks."""
    return {
        "layer": layer,
        "row_layer": layer,
        "row": row,
        "col": row,
        "part": part,
        "dim": dim,
    }


def store_spectrum(
    folder: Path,
    blocks: Mapping[tuple[str, str], Values],
    variant: str = "",
    **changes: Any,
) -> dict[str, Any]:
    """Write the eigenvalues of {(weight, part): values}; return the file's entry in the manifest.

    `changes`: words of the label (seed, sigma, ...) or arrays themselves (None leaves
    one out).
    """
    entries = [
        entry_of(row, part, len(values)) for (row, part), values in blocks.items()
    ]
    held: dict[str, Any] = {"entries": json.dumps(entries)}
    held |= {
        f"eigenvalues_{k}": np.sort(values) for k, values in enumerate(blocks.values())
    }
    return _store(folder, "spectrum", variant, held, changes)


def store_density(
    folder: Path,
    blocks: Mapping[tuple[str, str], Values],
    variant: str = "",
    *,
    num_probes: int = 4,
    steps: int = 12,
    **changes: Any,
) -> dict[str, Any]:
    """Write densities of diagonal matrices with these eigenvalues by plain Lanczos runs; return the file's entry."""
    entries = [
        entry_of(row, part, len(values)) for (row, part), values in blocks.items()
    ]
    held: dict[str, Any] = {"entries": json.dumps(entries)}
    for k, values in enumerate(blocks.values()):
        for which, count in (("", steps), ("half_", steps // 2)):
            runs = [lanczos(values, count, seed=probe) for probe in range(num_probes)]
            held[f"{which}nodes_{k}"] = np.stack([nodes for nodes, _ in runs])
            held[f"{which}weights_{k}"] = np.stack([weights for _, weights in runs])
    return _store(folder, "density", variant, held, changes)


def lanczos(values: Values, steps: int, *, seed: int) -> tuple[Values, Values]:
    """Return Gauss nodes and weights of a random vector's measure on `values`, padded with weight 0 at 0."""
    # Signs would know a diagonal matrix at once.
    start = np.random.default_rng(seed).normal(size=len(values))
    basis = np.empty((0, len(values)))
    vector = start / np.linalg.norm(start)
    diagonal = []
    beside = []
    for _ in range(min(steps, len(np.unique(values)))):
        basis = np.vstack([basis, vector])
        product = values * vector
        diagonal.append(vector @ product)
        for _ in range(2):
            product = product - basis.T @ (basis @ product)
        beside.append(np.linalg.norm(product))
        vector = product / beside[-1] if beside[-1] > 0 else product
    found, vectors = np.linalg.eigh(
        np.diag(diagonal) + np.diag(beside[:-1], 1) + np.diag(beside[:-1], -1)
    )
    missing = (0, steps - len(found))
    return np.pad(found, missing), np.pad(vectors[0] ** 2, missing)


def write_manifest(
    folder: Path,
    entries: Sequence[Any],
    settings: dict[str, Any] = CONFIG,
    table: bool = False,
) -> Path:
    """Write a manifest that lists the entries (true of the table beside it, if there is one)."""
    said: dict[str, Any] = {"config": settings, "arrays": list(entries)}
    if table:
        said["table_sha256"] = hashlib.sha256(
            (folder / "table.csv").read_bytes()
        ).hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "manifest.json").write_text(json.dumps(said))
    return folder


def _store(
    folder: Path,
    quantity: str,
    variant: str,
    held: dict[str, Any],
    changes: dict[str, Any],
) -> dict[str, Any]:
    said = {
        "variant": variant,
        "num_layers": 1,
        "sigma": 0.2,
        "step": None,
        "seed": 1234,
    }
    said = {**said, "quantity": quantity}
    said |= {key: value for key, value in changes.items() if key in said}
    held = {**held, "label": json.dumps({"key": "k", **said})}
    held |= {key: value for key, value in changes.items() if key not in said}
    name = hashlib.sha256(json.dumps(said).encode()).hexdigest()[:24]
    path = folder / "cells" / name[:2] / f"{name}.npz"
    path.parent.mkdir(parents=True, exist_ok=True)
    np.savez_compressed(
        path, **{key: value for key, value in held.items() if value is not None}
    )
    return {
        **said,
        "file": str(path.relative_to(folder)),
        "sha256": hashlib.sha256(path.read_bytes()).hexdigest(),
    }


def spectral_table(
    rows: Sequence[Mapping[str, Any]], sweep: str = "spectra"
) -> pd.DataFrame:
    """Return a table as `read_table` does: each row names what it differs in, the whole network's H by default."""
    shared = {
        "sweep": sweep,
        "variant": "",
        "num_layers": 1,
        "layer": 0,
        "row_layer": 0,
        "row": "all",
        "part": "H",
        "quantity": "largest_eigenvalue",
        "index": 0,
        "error": 0.0,
        "sigma": 0.2,
        "step": math.nan,
        "seed": 1234,
        "num_probes": 0,
        "estimator": "dense",
        "dtype": "float64",
        "status": "ok",
        "seconds": 0.1,
    }
    found = [{**shared, **row} for row in rows]
    return pd.DataFrame(
        [
            {"col": row["row"], "config": f"{row['variant']}{row['num_layers']}", **row}
            for row in found
        ],
        columns=COLUMNS,
    )
