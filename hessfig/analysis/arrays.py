"""Reads the arrays of a sweep, such as Hessians and losses, through its manifest, and checks hashes and labels."""

from __future__ import annotations

import hashlib
import json
import math
import zipfile
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from hessfig.analysis.manifest import read_manifest
from hessfig.errors import UserError, plain, run_command

Entry = dict[str, Any]
Stored = Mapping[str, Any]
Found = TypeVar("Found")
Numbers = NDArray[np.float64]

_NAMED: dict[str, Any] = {
    "variant": str,
    "num_layers": int,
    "seed": int,
    "quantity": str,
    "sigma": int | float | None,
    "step": int | float | None,
}
_FILED = {**_NAMED, "file": str, "sha256": str}
_LARGEST = 8 * 2**30  # bytes of a matrix; `run` stores none as large
_PER_DECADE = 12  # bins of a histogram
_SMALL = 2**24  # bytes of names, sizes, label, eigenvalues, nodes
_TOGETHER = 2**30  # bytes of all arrays of a file without a matrix
_DAMAGES = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError),
    *(
        RecursionError,
        NotImplementedError,
        RuntimeError,
        zipfile.BadZipFile,
        zlib.error,
    ),
)


@dataclass(frozen=True)
class Form:
    """What the files of a quantity hold: what one is called, its arrays in words, and the array that may be large."""

    quantity: str
    name: str
    arrays: str
    large: str = ""

    def check_claims(self, claimed: Mapping[str, int]) -> None:
        """Raise ValueError for arrays that claim more bytes than `run` would have written."""
        for name, size in claimed.items():
            if size > (_LARGEST if name == self.large else _SMALL):
                raise ValueError(f"{name} claims {size} bytes")
        if not self.large and sum(claimed.values()) > _TOGETHER:
            raise ValueError(
                f"its {len(claimed)} arrays claim {sum(claimed.values())} bytes"
            )


ANY = Form("", "array", "with their labels")


def listed(folder: Path, form: Form) -> list[Entry]:
    """Return the files of a quantity in the order of the manifest's list of arrays.

    Raises UserError for an invalid list, and if it has no file of this quantity.
    """
    every = entries_of(folder, form)
    entries = [entry for entry in every if entry["quantity"] == form.quantity]
    if not entries:
        raise UserError(
            f"{folder} contains no stored {form.name}: the sweep was not run, or keeps none",
            got="no array of this quantity in manifest.json",
            allowed=f"a sweep with {form.quantity} among its quantities",
            remedy=f"{run_command(folder)} 'quantities=[{form.quantity}]'",
        )
    return entries


def is_listed(folder: Path, form: Form) -> bool:
    """Return whether the manifest lists a file of this quantity. Raises UserError as `listed` does."""
    return any(entry["quantity"] == form.quantity for entry in entries_of(folder, form))


def read(
    folder: Path, entry: Entry, form: Form, take: Callable[[Stored], Found]
) -> Found:
    """Return what `take` makes of the arrays of one listed file.

    Raises UserError for a file that is missing, damaged or swapped (its content or its
    label differs from the manifest), that declares implausible sizes, or for which
    `take` raises ValueError because of its form. Nothing is unpickled, and declared
    sizes are checked before memory is allocated.
    """
    path = folder / entry["file"]
    if not path.is_file():
        raise _broken(folder, form, f"{path} is missing", "no such file")
    try:
        _check_content(path, entry)
        _check_sizes(path, form)
        with np.load(path, allow_pickle=False) as stored:
            _check_label(stored, entry)
            return take(stored)
    except _DAMAGES as error:
        what = f"{path} is damaged, swapped or not a stored {form.name}"
        raise _broken(folder, form, what, str(error)) from error


def place_of(entry: Entry) -> dict[str, float]:
    """Return sigma and step of a listed file; nan where they do not apply."""
    place = {}
    for key in ("sigma", "step"):
        place[key] = math.nan if entry[key] is None else float(entry[key])
    return place


def entries_of(folder: Path, form: Form = ANY) -> list[Entry]:
    """Return the manifest's list of arrays of all quantities. Raises UserError for an invalid entry."""
    manifest = read_manifest(folder) or {}
    entries = manifest.get("arrays") or []
    for entry in entries:
        wrong = _misfit(entry)
        if wrong:
            raise _broken(
                folder, form, "manifest.json lists an array that is none", wrong
            )
    return entries


def _misfit(entry: Any) -> str:
    """Return what is wrong with an entry, or ""; its file must be in the sweep's folder."""
    if not isinstance(entry, dict):
        return repr(entry)[:100]
    odd = [
        key for key, kinds in _FILED.items() if not isinstance(entry.get(key), kinds)
    ]
    if odd:
        return f"{odd[0]}={entry.get(odd[0])!r}"[:100]
    path = PurePosixPath(entry["file"])
    if path.is_absolute() or ".." in path.parts or "\0" in entry["file"]:
        return entry["file"]
    return ""


def _check_content(path: Path, entry: Entry) -> None:
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != entry["sha256"]:
        raise ValueError("its sha256 is not the one in manifest.json")


def _check_sizes(path: Path, form: Form) -> None:
    with zipfile.ZipFile(path) as archive:
        form.check_claims(
            {Path(info.filename).stem: info.file_size for info in archive.infolist()}
        )


def _check_label(stored: Stored, entry: Entry) -> None:
    label = json.loads(str(stored["label"].item()))
    wrong = [key for key in _NAMED if label[key] != entry[key]]
    if wrong:
        raise ValueError(
            f"it says {wrong[0]}={label[wrong[0]]}, manifest.json says {entry[wrong[0]]}"
        )


def _broken(folder: Path, form: Form, what: str, got: str) -> UserError:
    allowed = f"arrays {form.arrays}, as manifest.json describes them"
    return UserError(
        what,
        got=got,
        allowed=allowed,
        remedy=f"measure it again: {run_command(folder)}",
    )


HESSIAN = "hessian"
_FORM = Form(
    HESSIAN, "Hessian", f"{HESSIAN} (n, n), names, sizes and label", large=HESSIAN
)


@dataclass(frozen=True)
class StoredHessian:
    """A whole Hessian, of which parameter k of `names` has `sizes[k]` rows and columns.

    sigma and step are nan where they do not apply.
    """

    variant: str
    sigma: float
    seed: int
    matrix: NDArray[np.float32]
    names: list[str]
    sizes: list[int]
    step: float = math.nan

    def borders(self) -> NDArray[np.int64]:
        """Return the first row of each parameter, and the number of rows: len(names) + 1 numbers."""
        return np.concatenate([[0], np.cumsum(self.sizes)])

    def restricted(self, names: Sequence[str]) -> StoredHessian:
        """Return the Hessian of the given parameters in the stored order. Raises UserError if none is stored."""
        kept = [k for k, name in enumerate(self.names) if name in names]
        if not kept:
            raise self._no_parameter(", ".join(names))
        borders = self.borders()
        index = np.concatenate([np.arange(borders[k], borders[k + 1]) for k in kept])
        return replace(
            self,
            matrix=self.matrix[np.ix_(index, index)],
            names=[self.names[k] for k in kept],
            sizes=[self.sizes[k] for k in kept],
        )

    def block(self, name: str) -> NDArray[np.float32]:
        """Return the diagonal block of a parameter. Raises UserError for an unknown parameter."""
        if name not in self.names:
            raise self._no_parameter(name)
        k = self.names.index(name)
        borders = self.borders()
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

    Raises UserError if there is none, and for files that are missing, damaged, swapped
    (content or label differ from the manifest) or not of the documented form: arrays
    `hessian` (n, n), `names`, `sizes` and `label`. Nothing is unpickled.
    """
    of_variant: dict[str, list[Entry]] = {}
    for entry in listed(folder, _FORM):
        of_variant.setdefault(entry["variant"], []).append(entry)
    hessians = []
    for entries in of_variant.values():
        entry = min(entries, key=_rank)
        matrix, names, sizes = read(folder, entry, _FORM, _take)
        place = place_of(entry)
        hessians.append(
            StoredHessian(
                entry["variant"],
                seed=entry["seed"],
                matrix=matrix,
                names=names,
                sizes=sizes,
                **place,
            )
        )
    return hessians


def histogram(entries: NDArray[np.floating], edges: Numbers) -> Numbers:
    """Return the share of entries whose absolute value falls into each bin; zeros fall into no bin."""
    counts, _ = np.histogram(np.abs(entries), bins=edges)
    return counts / entries.size


def log_bins(blocks: Sequence[NDArray[np.floating]]) -> Numbers:
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
    return np.logspace(low, high, int(high - low) * _PER_DECADE + 1)


def _rank(entry: Entry) -> tuple[float, ...]:
    """Order by numbers: depth, sigma, step, seed."""
    coordinates = [entry[key] for key in ("num_layers", "sigma", "step", "seed")]
    return tuple(-math.inf if value is None else value for value in coordinates)


def _take(stored: Stored) -> tuple[NDArray[np.float32], list[str], list[int]]:
    """Return matrix, names and sizes."""
    names = stored["names"].tolist()
    sizes = stored["sizes"].tolist()
    matrix = stored[HESSIAN]
    whole = len(names) == len(sizes) and all(
        isinstance(size, int) and size > 0 for size in sizes
    )
    if (
        not whole
        or matrix.shape != (sum(sizes), sum(sizes))
        or matrix.dtype.kind != "f"
        or not sizes
    ):
        raise ValueError(f"shape {matrix.shape}, sizes {sizes}"[:300])
    return matrix, [str(name) for name in names], sizes


SLICES, DESCENT = "slices", "descent"
_PLANE = {
    "plane_places": (2, 0),
    "plane_losses": (0, 0),
    "plane_expansions": (0, 0),
    "plane_edge": (2, 0),
}
# By quantity: its arrays, with the length of every axis (0: any), and its lists of
# names.
_ARRAYS: dict[str, dict[str, tuple[int, ...]]] = {
    SLICES: {**dict.fromkeys(("distances", "losses", "expansions"), (0, 0)), **_PLANE},
    DESCENT: {
        **dict.fromkeys(
            ("losses", "model_losses", "distances", "model_distances", "gaps"), (0,)
        ),
        **dict.fromkeys(("curvatures", "run_curvatures", "line_curvatures"), (0,)),
    },
}
_NAMES_OF: dict[str, tuple[str, ...]] = {SLICES: ("rays", "plane_rays"), DESCENT: ()}
_LOSS_FORMS = {}
for _name, _arrays in _ARRAYS.items():
    _words = ", ".join([*_arrays, *_NAMES_OF[_name], "label"])
    _LOSS_FORMS[_name] = Form(_name, _name.removesuffix("s"), _words)


@dataclass(frozen=True)
class StoredLosses:
    """The arrays of one cell by name; sigma and step are nan where they do not apply."""

    variant: str
    num_layers: int
    sigma: float
    step: float
    seed: int
    numbers: Mapping[str, Numbers]
    names: Mapping[str, list[str]]

    @property
    def where(self) -> str:
        """The state in words: 'step 300', 'σ = 0.2', or ""."""
        if not math.isnan(self.step):
            return f"step {self.step:g}"
        return "" if math.isnan(self.sigma) else f"σ = {self.sigma:g}"


def read_courses(folder: Path, quantity: str) -> list[StoredLosses]:
    """Return the stored arrays of a quantity, slices or descent, in the manifest's order.

    Raises UserError if none are stored, and for files that are missing, damaged,
    swapped or of another form.
    """
    form = _LOSS_FORMS[quantity]
    courses = []
    for entry in listed(folder, form):
        numbers, names = read(folder, entry, form, partial(_take_losses, quantity))
        courses.append(
            StoredLosses(
                variant=entry["variant"],
                num_layers=entry["num_layers"],
                seed=entry["seed"],
                numbers=numbers,
                names=names,
                **place_of(entry),
            )
        )
    return courses


def _take_losses(
    quantity: str, stored: Stored
) -> tuple[dict[str, Numbers], dict[str, list[str]]]:
    """Return numbers and names of one file. Raises ValueError for arrays of another form."""
    shapes = _ARRAYS[quantity].items()
    numbers = {name: _numbers(stored, name, shape) for name, shape in shapes}
    names = {}
    for name in _NAMES_OF[quantity]:
        names[name] = [plain(str(one)) for one in stored[name].tolist()]
    if quantity == SLICES and len(names["rays"]) != len(numbers["distances"]):
        raise ValueError(
            f"{len(names['rays'])} directions, {len(numbers['distances'])} slices"
        )
    return numbers, names


def _numbers(stored: Stored, name: str, shape: tuple[int, ...]) -> Numbers:
    array = stored[name]
    fits = array.ndim == len(shape) and all(
        not want or have == want for have, want in zip(array.shape, shape, strict=True)
    )
    if array.dtype != np.float64 or not fits or not array.size:
        raise ValueError(f"{name}: {array.dtype} {array.shape}")
    return np.asarray(array)
