"""The authors' result files as they are: which one holds what, and their numbers as a reference table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.comparison.references.numbers_only import load
from hessfig.analysis.comparison.references.pickle_machine import is_container
from hessfig.analysis.manifest import Architectures
from hessfig.errors import UserError, plain
from hessfig.predictions.architecture import Architecture, Attention, Kind
from hessfig.terms import Matrix, Part

# `scale=` in a file name tells the sigmas its lists run along; the linear MLP's files are on the log grid.
GRIDS = {
    "log": np.logspace(-2, 1, 20),
    "log_short": np.logspace(-1, 0, 20),
    "linear": np.linspace(0.1, 10, 20),
    "linear_short": np.linspace(0.1, 1, 20),
}
_MATRICES = {Matrix.W_V: "v", Matrix.W_Q: "q"}
_PARTS = {Part.H_o: "_outer", Part.H_f: "_func", Part.H: ""}
_COLUMNS = ["num_layers", "block", "part", "layer", "repeat", "sigma", "value"]
Quantity = tuple[int, Matrix, Part, Path]


class NothingToCompare(UserError):
    """A sweep and a reference that have nothing in common."""


def read_results(folder: Path, architectures: Architectures, sigma: np.ndarray) -> pd.DataFrame:
    """Return the published values for the networks of a sweep, in the columns of a reference table.

    `folder` is the authors' results folder, or the checkout that holds it. The grid is the one of GRIDS that
    shares most values with `sigma`. Raises NothingToCompare when no file matches, and UserError for files that
    are damaged, not shaped dict[layer][repeat] -> list, or hold anything but numbers.
    """
    folder = folder / "results" if (folder / "results").is_dir() else folder
    scale = max(GRIDS, key=lambda name: int(np.isclose(GRIDS[name][:, None], sigma, rtol=1e-6, atol=0).sum()))
    networks = {layers: network for (variant, layers), network in architectures.items() if not variant}
    wanted = [
        quantity
        for layers, network in networks.items()
        for quantity in _quantities(folder, network, layers, scale)
    ]
    found = [quantity for quantity in wanted if quantity[-1].is_file()]
    if not found:
        raise _no_file(folder, [path.name for *_, path in wanted])
    return pd.concat([_long(quantity, GRIDS[scale]) for quantity in found], ignore_index=True)


def _no_file(folder: Path, wanted: list[str]) -> NothingToCompare:
    there = sorted(path.name for path in folder.iterdir())
    unknown = "a sweep with a manifest.json and a plain variant, whose files can be named"
    return NothingToCompare(
        f"{folder} has no result file for this sweep",
        got=_some(there) if there else "an empty folder",
        allowed=_some(wanted) if wanted else unknown,
        remedy="give the `results` folder of a checkout of github.com/dalab/transformer-hessian",
    )


def _some(names: list[str]) -> str:
    """Return the first name, and how many there are beside it."""
    return plain(names[0]) + f" and {len(names) - 1} more" * (len(names) > 1)


def _quantities(folder: Path, network: Architecture, num_layers: int, scale: str) -> Iterator[Quantity]:
    """Yield (num_layers, matrix, part, path) of every file the authors may have for a network."""
    if network.kind == Kind.self_attention:
        return
    if network.kind == Kind.linear_mlp:
        yield num_layers, Matrix.W, Part.H, folder / f"mlp_num_layers={num_layers}_frob_mlp.pickle"
        return
    loss = "mse" if network.square_loss else "ce"
    stem = (
        f"norm={network.norm}_num_layers={num_layers}_scale={scale}"
        f"_residual_scaling={float(network.attention_skip)}"
        f"_linear_attention={network.attention == Attention.linear}_loss={loss}"
    )
    for matrix, letter in _MATRICES.items():
        for part, suffix in _PARTS.items():
            yield num_layers, matrix, part, folder / f"{stem}_frob_{letter}{suffix}.pickle"


def _long(quantity: Quantity, sigma: np.ndarray) -> pd.DataFrame:
    """Return a file's numbers, one a row. The authors count layers and repeats from 0, tables layers from 1."""
    num_layers, matrix, part, path = quantity
    try:
        layers = _numbered(load(path), "layers", num_layers)
        rows = [
            (num_layers, matrix.value, part.value, layer, repeat, s, _norm(value))
            for layer, key in enumerate(sorted(layers), start=1)
            for repeat, values in sorted(_numbered(layers[key], "repeats").items())
            for s, value in zip(sigma, _list_of(sigma.size, values), strict=True)
        ]
    except _AnotherShape as error:
        raise UserError(
            f"{path} is not shaped as a result file",
            got=plain(error),
            allowed=f"dict[layer][repeat] -> list of {sigma.size} norms, {num_layers} layers",
            remedy="fetch the file again",
        ) from None
    return pd.DataFrame(rows, columns=_COLUMNS)


class _AnotherShape(Exception):
    """What a file holds in place of dict[layer][repeat] -> list of norms."""


def _numbered(things: Any, what: str, count: int | None = None) -> dict[int, Any]:
    if not isinstance(things, dict):
        raise _AnotherShape(f"{_shown(things)} in place of a dict of {what}")
    if not things or any(type(key) is not int for key in things):
        raise _AnotherShape(f"{what} that are not numbered" if things else f"no {what}")
    if count is not None and len(things) != count:
        raise _AnotherShape(f"{len(things)} {what}, not {count}")
    return things


def _list_of(length: int, things: Any) -> Any:
    if not isinstance(things, list | tuple):
        raise _AnotherShape(f"{_shown(things)} in place of a list")
    if len(things) != length:
        raise _AnotherShape(f"{len(things)} numbers, not {length}")
    return things


def _norm(value: Any) -> float:
    """Return a norm as float; zeros, infinities and NaN are let through, to be counted."""
    if not isinstance(value, int | float | np.integer | np.floating) or isinstance(value, bool) or value < 0:
        raise _AnotherShape(f"{_shown(value)} is not a norm")
    return float(value)


def _shown(thing: Any) -> str:
    """Return a few words for a thing from a file, which may hold anything and any number of it."""
    if is_container(thing):
        return f"a {type(thing).__name__} of {len(thing)}"
    return plain(repr(thing), most=60)
