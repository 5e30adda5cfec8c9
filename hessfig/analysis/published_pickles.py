"""The authors' result files as they are: which one holds what, and an unpickler that admits numbers only."""

from __future__ import annotations

import pickle
from collections import OrderedDict, defaultdict
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from hessfig.analysis.manifest import Architectures
from hessfig.errors import UserError
from hessfig.terms import Matrix, Part
from hessfig.theory.architecture import Architecture, Attention, Kind

# `scale=` in a file name tells the sigmas its lists run along; the linear MLP's files are on the log grid.
GRIDS = {
    "log": np.logspace(-2, 1, 20),
    "log_short": np.logspace(-1, 0, 20),
    "linear": np.linspace(0.1, 10, 20),
    "linear_short": np.linspace(0.1, 1, 20),
}
_MATRICES = {Matrix.W_V: "v", Matrix.W_Q: "q"}
_PARTS = {Part.H_o: "_outer", Part.H_f: "_func", Part.H: ""}
_ALLOWED = "numbers, dicts, lists, tuples and numpy scalars or arrays"
Quantity = tuple[int, Matrix, Part, Path]


def read_results(folder: Path, architectures: Architectures, sigma: np.ndarray) -> pd.DataFrame:
    """Return the published values for the networks of a sweep, in the columns of a reference table.

    The grid is the one of GRIDS that shares most values with `sigma`. Raises UserError when no file matches
    and for files that are damaged, not shaped dict[layer][repeat] -> list, or hold anything but numbers.
    """
    scale = max(GRIDS, key=lambda name: int(np.isclose(GRIDS[name][:, None], sigma, rtol=1e-6, atol=0).sum()))
    plain = {layers: network for (variant, layers), network in architectures.items() if not variant}
    wanted = [
        quantity
        for layers, network in plain.items()
        for quantity in _quantities(folder, network, layers, scale)
    ]
    found = [quantity for quantity in wanted if quantity[-1].is_file()]
    if not found:
        raise UserError(
            f"{folder} has no result file for this sweep",
            got=", ".join(sorted(path.name for path in folder.glob("*.pickle"))[:3]) or "no *.pickle at all",
            allowed=", ".join(path.name for *_, path in wanted[:3])
            or "the sweep's manifest.json, to know the names",
            remedy="give the `results` folder of a checkout of dalab/transformer-hessian",
        )
    return pd.concat([_long(quantity, GRIDS[scale]) for quantity in found], ignore_index=True)


def load(path: Path) -> Any:
    """Unpickle a file of numbers. Raises UserError naming whatever else is in it, before it is built."""
    try:
        with path.open("rb") as handle:
            return _NumbersOnly(handle, path).load()
    except UserError:
        raise
    except Exception as error:  # a damaged pickle can raise nearly anything
        raise UserError(
            f"{path} is damaged or cut short",
            got=f"{type(error).__name__}: {error}",
            allowed=f"a pickle of {_ALLOWED}",
            remedy="fetch the file again",
        ) from error


class _NumbersOnly(pickle.Unpickler):
    """Builds numbers and containers; every other name found in the file is refused."""

    def __init__(self, handle: Any, path: Path) -> None:
        super().__init__(handle)
        self._path = path

    def find_class(self, module: str, name: str) -> Any:
        module = module.replace("numpy.core.", "numpy._core.")
        if (module, name) in _BUILDERS:
            return _BUILDERS[module, name]
        raise UserError(
            f"{self._path}: refused to load {module}.{name}",
            got=f"{module}.{name}",
            allowed=_ALLOWED,
            remedy="do not use this file; fetch the published one",
        )


def _latin1(text: str, encoding: str) -> bytes:
    """Stand in for _codecs.encode, by which old protocols spell bytes."""
    if encoding != "latin1":
        raise ValueError(f"bytes in encoding {encoding!r}")
    return text.encode("latin1")


_BUILDERS: Mapping[tuple[str, str], Callable[..., Any]] = {
    ("numpy._core.multiarray", "scalar"): np._core.multiarray.scalar,  # type: ignore[attr-defined]
    ("numpy._core.multiarray", "_reconstruct"): np._core.multiarray._reconstruct,  # type: ignore[attr-defined]
    ("numpy._core.numeric", "_frombuffer"): np._core.numeric._frombuffer,  # type: ignore[attr-defined]
    ("numpy", "ndarray"): np.ndarray,
    ("numpy", "dtype"): np.dtype,
    ("_codecs", "encode"): _latin1,
    ("collections", "OrderedDict"): OrderedDict,
    ("collections", "defaultdict"): defaultdict,
    ("builtins", "dict"): dict,
    ("builtins", "list"): list,
}


def _quantities(folder: Path, network: Architecture, num_layers: int, scale: str) -> Iterator[Quantity]:
    """Yield (num_layers, matrix, part, path) of every file the authors have for a network."""
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
    num_layers, matrix, part, path = quantity
    layers = load(path)
    try:
        rows = [
            (num_layers, matrix.value, part.value, layer, repeat, s, float(value))
            for layer, by_repeat in enumerate((layers[key] for key in sorted(layers)), start=1)
            for repeat, values in sorted(by_repeat.items())
            for s, value in zip(sigma, values, strict=True)
        ]
    except (TypeError, ValueError, AttributeError) as error:
        raise UserError(
            f"{path} is not shaped as a result file",
            got=str(error),
            allowed=f"dict[layer][repeat] -> list of {sigma.size} numbers, {num_layers} layers",
            remedy="fetch the file again",
        ) from error
    return pd.DataFrame(rows, columns=["num_layers", "block", "part", "layer", "repeat", "sigma", "value"])
