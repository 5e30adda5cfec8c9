"""Arrays stored next to a table, and those of its repetition: which of them are equal."""

from dataclasses import replace
from pathlib import Path

import numpy as np

from hessfig.analysis.arrays import ANY, HESSIAN, Entry, Stored, entries_of, read

# Differences relative to the largest entry: rounding in float64, and of what is stored in float32.
_ROUNDING = {"float64": 1e-9, "float32": 1e-6}
_VECTORS, _OF_VECTORS = "vectors", 1e-3  # eigenvectors: up to their signs, and by how much rounding turns them
_LABEL = "label"
_NAMED = ("variant", "num_layers", "sigma", "step", "seed", "quantity")


def unequal_arrays(first: Path, second: Path) -> tuple[int, list[str]]:
    """Return how many files of arrays two sweeps' folders have, and in words those that are not equal in both.

    Raises UserError for a file that is damaged, or not the one of its manifest.
    """
    ours, theirs = ({_place(entry): entry for entry in entries_of(folder)} for folder in (first, second))
    both = ours.keys() & theirs.keys()
    other = [place for place in both if not _are_equal(_content(first, ours[place]), _content(second, theirs[place]))]
    lost = [(*place, "missing") for place in ours.keys() ^ theirs.keys()]
    return len(ours.keys() | theirs.keys()), [", ".join(place) for place in sorted([*other, *lost])]


def _place(entry: Entry) -> tuple[str, ...]:
    """Return what tells a file of arrays from the others; a place is a sigma to nine digits."""
    return tuple(f"{name}={_text(entry[name])}" for name in _NAMED if entry[name] not in ("", None))


def _text(value: object) -> str:
    return f"{value:.9g}" if isinstance(value, float) else str(value)


def _content(folder: Path, entry: Entry) -> dict[str, np.ndarray]:
    return read(folder, entry, replace(ANY, large=HESSIAN), _every)


def _every(stored: Stored) -> dict[str, np.ndarray]:
    return {name: np.asarray(stored[name]) for name in stored if name != _LABEL}


def _are_equal(ours: dict[str, np.ndarray], theirs: dict[str, np.ndarray]) -> bool:
    return ours.keys() == theirs.keys() and all(_is_equal(name, ours[name], theirs[name]) for name in ours)


def _is_equal(name: str, a: np.ndarray, b: np.ndarray) -> bool:
    if a.shape != b.shape or a.dtype != b.dtype:
        return False
    if a.dtype.kind != "f" or not a.size:
        return bool(np.array_equal(a, b))
    if name.startswith(_VECTORS):
        a, b = np.abs(a), np.abs(b)
    size = max(np.abs(b[np.isfinite(b)]).max(initial=0.0), np.finfo(b.dtype).tiny)
    most = _OF_VECTORS if name.startswith(_VECTORS) else _ROUNDING.get(a.dtype.name, _ROUNDING["float32"])
    return bool(np.allclose(a, b, rtol=0.0, atol=most * size, equal_nan=True))
