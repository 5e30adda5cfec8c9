"""A stored file of arrays: found through the manifest, and read only where it is what the manifest says."""

from __future__ import annotations

import hashlib
import json
import zipfile
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any, TypeVar

import numpy as np

from hessfig.analysis.manifest import read_manifest
from hessfig.errors import UserError, run_command

Entry = dict[str, Any]
Stored = Mapping[str, Any]
Found = TypeVar("Found")

_NAMED: dict[str, tuple[type, ...]] = {
    "variant": (str,),
    "num_layers": (int,),
    "seed": (int,),
    "quantity": (str,),
}
_NAMED |= {"sigma": (int, float, type(None)), "step": (int, float, type(None))}
_FILED: dict[str, tuple[type, ...]] = {**_NAMED, "file": (str,), "sha256": (str,)}
_LARGEST = 8 * 2**30  # bytes of a matrix; `run` stores none as large
_SMALL = 2**24  # bytes of names, sizes, label, eigenvalues, nodes
_TOGETHER = 2**30  # bytes of all arrays of a file without a matrix
_DAMAGES = (
    *(OSError, ValueError, KeyError, TypeError, EOFError, MemoryError, OverflowError),
    *(RecursionError, NotImplementedError, RuntimeError, zipfile.BadZipFile, zlib.error),
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
            raise ValueError(f"its {len(claimed)} arrays claim {sum(claimed.values())} bytes")


def listed(folder: Path, form: Form) -> list[Entry]:
    """Return the files of a quantity in the manifest's list of arrays, in its order.

    Raises UserError for a list whose entries are none, and when it has no file of this quantity.
    """
    found = [entry for entry in _every(folder, form) if entry["quantity"] == form.quantity]
    if not found:
        raise UserError(
            f"{folder} holds no stored {form.name}: the sweep was not run, or keeps none",
            got="no array of this quantity in manifest.json",
            allowed=f"a sweep with {form.quantity} among its quantities",
            remedy=f"{run_command(folder)} 'quantities=[{form.quantity}]'",
        )
    return found


def is_listed(folder: Path, form: Form) -> bool:
    """Return whether the manifest lists a file of this quantity. Raises UserError as `listed` does."""
    return any(entry["quantity"] == form.quantity for entry in _every(folder, form))


def read(folder: Path, entry: Entry, form: Form, take: Callable[[Stored], Found]) -> Found:
    """Return what `take` makes of the arrays of one listed file.

    Raises UserError for a file that is missing, damaged or swapped (its content or its own label is not what the
    manifest says), that claims absurd sizes, or of which `take` says by a ValueError that it is of another form.
    Nothing is unpickled, and claims are looked at before memory is taken for them.
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


def _every(folder: Path, form: Form) -> list[Entry]:
    """Return the manifest's list of arrays, each entry checked."""
    manifest = read_manifest(folder) or {}
    entries = manifest.get("arrays") or []
    for entry in entries:
        wrong = _misfit(entry)
        if wrong:
            raise _broken(folder, form, "manifest.json lists an array that is none", wrong)
    return entries


def _misfit(entry: Any) -> str:
    """Return what is wrong with an entry, or nothing; its file must lie in the sweep's folder."""
    if not isinstance(entry, dict):
        return repr(entry)[:100]
    odd = [key for key, kinds in _FILED.items() if not isinstance(entry.get(key), kinds)]
    if odd:
        return f"{odd[0]}={entry.get(odd[0])!r}"[:100]
    path = PurePosixPath(entry["file"])
    return entry["file"] if path.is_absolute() or ".." in path.parts or "\0" in entry["file"] else ""


def _check_content(path: Path, entry: Entry) -> None:
    with path.open("rb") as handle:
        digest = hashlib.file_digest(handle, "sha256").hexdigest()
    if digest != entry["sha256"]:
        raise ValueError("its sha256 is not the one in manifest.json")


def _check_sizes(path: Path, form: Form) -> None:
    with zipfile.ZipFile(path) as archive:
        form.check_claims({Path(info.filename).stem: info.file_size for info in archive.infolist()})


def _check_label(stored: Stored, entry: Entry) -> None:
    label = json.loads(str(stored["label"].item()))
    wrong = [key for key in _NAMED if label[key] != entry[key]]
    if wrong:
        raise ValueError(f"it says {wrong[0]}={label[wrong[0]]}, manifest.json says {entry[wrong[0]]}")


def _broken(folder: Path, form: Form, what: str, got: str) -> UserError:
    allowed = f"arrays {form.arrays}, as manifest.json describes them"
    return UserError(what, got=got, allowed=allowed, remedy=f"measure it again: {run_command(folder)}")
