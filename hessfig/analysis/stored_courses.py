"""Losses stored along directions and along descents (quantities `slices` and `descent`), cell by cell."""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.arrays import Form, Stored, listed, place_of, read
from hessfig.errors import plain

Numbers = NDArray[np.float64]
SLICES, DESCENT = "slices", "descent"
_PLANE = {"plane_places": (2, 0), "plane_losses": (0, 0), "plane_expansions": (0, 0), "plane_edge": (2, 0)}
# By quantity: its arrays, with the length of every axis (0: any), and its lists of names.
_ARRAYS: dict[str, dict[str, tuple[int, ...]]] = {
    SLICES: {**dict.fromkeys(("distances", "losses", "expansions"), (0, 0)), **_PLANE},
    DESCENT: {
        **dict.fromkeys(("losses", "model_losses", "distances", "model_distances", "gaps"), (0,)),
        **dict.fromkeys(("curvatures", "run_curvatures", "line_curvatures"), (0,)),
    },
}
_NAMES: dict[str, tuple[str, ...]] = {SLICES: ("rays", "plane_rays"), DESCENT: ()}
_FORMS = {
    name: Form(name, name.removesuffix("s"), ", ".join([*arrays, *_NAMES[name], "label"]))
    for name, arrays in _ARRAYS.items()
}


@dataclass(frozen=True)
class StoredLosses:
    """The arrays of one cell by name; sigma and step are nan where they mean nothing."""

    variant: str
    num_layers: int
    sigma: float
    step: float
    seed: int
    numbers: Mapping[str, Numbers]
    names: Mapping[str, list[str]]

    @property
    def where(self) -> str:
        """The state in words: 'step 300', 'σ = 0.2', or nothing."""
        if not math.isnan(self.step):
            return f"step {self.step:g}"
        return "" if math.isnan(self.sigma) else f"σ = {self.sigma:g}"


def read_courses(folder: Path, quantity: str) -> list[StoredLosses]:
    """Return the stored arrays of a quantity, slices or descent, in the manifest's order.

    Raises UserError where none are stored, and for files that are missing, damaged, swapped or of another form.
    """
    form, found = _FORMS[quantity], []
    for entry in listed(folder, form):
        numbers, names = read(folder, entry, form, partial(_take, quantity))
        place: dict[str, Any] = {key: entry[key] for key in ("variant", "num_layers", "seed")} | place_of(entry)
        found.append(StoredLosses(**place, numbers=numbers, names=names))
    return found


def _take(quantity: str, stored: Stored) -> tuple[dict[str, Numbers], dict[str, list[str]]]:
    """Return numbers and names of one file. Raises ValueError for arrays of another form."""
    numbers = {name: _numbers(stored, name, shape) for name, shape in _ARRAYS[quantity].items()}
    names = {name: [plain(str(one)) for one in stored[name].tolist()] for name in _NAMES[quantity]}
    if quantity == SLICES and len(names["rays"]) != len(numbers["distances"]):
        raise ValueError(f"{len(names['rays'])} directions, {len(numbers['distances'])} slices")
    return numbers, names


def _numbers(stored: Stored, name: str, shape: tuple[int, ...]) -> Numbers:
    found = stored[name]
    fits = found.ndim == len(shape) and all(
        not want or have == want for have, want in zip(found.shape, shape, strict=True)
    )
    if found.dtype != np.float64 or not fits or not found.size:
        raise ValueError(f"{name}: {found.dtype} {found.shape}")
    return np.asarray(found)
