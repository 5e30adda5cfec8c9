"""Bundles as a stranger might send them: edited, and sealed again as hessfig seals them."""

from __future__ import annotations

import csv
import hashlib
import json
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from hessfig.record import CHECKSUM, checksum

Rows = list[dict[str, str]]


def seal(folder: Path, **settings: Any) -> Path:
    """Make table, manifest and sums of a bundle agree again; `settings` replace those of its manifest's config."""
    path = folder / "manifest.json"
    manifest = json.loads(path.read_text())
    for key, value in settings.items():
        section = manifest["config"]
        *groups, name = key.split("__")
        for group in groups:
            section = section[group]
        section[name] = value
    for one in manifest.get("arrays", []):
        one["sha256"] = _sha(folder / one["file"])
    manifest["table_sha256"] = _sha(folder / "table.csv")
    path.write_text(json.dumps({**manifest, CHECKSUM: checksum(manifest)}))
    return with_sums(folder)


def with_sums(folder: Path) -> Path:
    """Write SHA256SUMS of everything that is there."""
    sums = folder / "SHA256SUMS"
    files = sorted(one for one in folder.rglob("*") if one.is_file() and one != sums)
    sums.write_text("".join(f"{_sha(one)}  {one.relative_to(folder).as_posix()}\n" for one in files))
    return folder


def edited(folder: Path, change: Callable[[Rows], Rows]) -> Path:
    """Change the rows of a bundle's table, and seal it again."""
    path = folder / "table.csv"
    with path.open(newline="") as handle:
        rows = change(list(csv.DictReader(handle)))
    with path.open("w", newline="") as handle:
        writer = csv.DictWriter(handle, rows[0], lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    return seal(folder)


def each(**cells: Any) -> Callable[[Path], Path]:
    """Set cells of the rows that were measured; what is given as a function is made of the number that is there."""

    def changed(row: dict[str, str]) -> dict[str, str]:
        if row["status"] != "ok" or float(row["value"]) == 0:
            return row
        return {**row, **{key: repr(one(float(row[key]))) if callable(one) else one for key, one in cells.items()}}

    return lambda folder: edited(folder, lambda rows: [changed(row) for row in rows])


def other_arrays(folder: Path) -> Path:
    """Change the largest number of every stored array."""
    for path in folder.glob("cells/*/*.npz"):
        with np.load(path) as stored:
            arrays = {name: stored[name].copy() for name in stored}
        for name, values in arrays.items():
            if values.dtype.kind == "f":
                values[np.unravel_index(np.abs(values).argmax(), values.shape)] *= 1.3
                arrays[name] = values
        np.savez(path, **arrays)
    return seal(folder)


def _residuals(folder: Path) -> Path:
    def changed(row: dict[str, str]) -> dict[str, str]:
        if "eigenvalue" not in row["quantity"]:
            return row
        return {**row, "value": repr(1.3 * float(row["value"])), "error": repr(abs(float(row["value"])))}

    return edited(folder, lambda rows: [changed(row) for row in rows])


def _picture(folder: Path) -> Path:
    path = min(folder.glob("figures/*.png"))
    path.write_bytes(path.read_bytes() + b" ")
    return with_sums(folder)


def _numbers_of_a_picture(folder: Path) -> Path:
    path = min(folder.glob("figures/*.csv"))
    path.write_text(path.read_text().replace("1", "2"))
    return with_sums(folder)


def _one_more_picture(folder: Path) -> Path:
    (folder / "figures/figevil.svg").write_text("<svg xmlns='http://www.w3.org/2000/svg'/>")
    return with_sums(folder)


# Every way to make a table say what was not measured, each sealed so that all hashes are right.
FORGERIES: dict[str, Callable[[Path], Path]] = {
    "a value under a larger error": each(value=lambda x: 1.3 * x, error=lambda x: 3 * x + 1),
    "a coarser estimator": each(value=lambda x: 1.3 * x, error=lambda x: x + 1, estimator="xtrace"),
    "fewer probes": each(value=lambda x: 1.3 * x, error=lambda x: x + 1, num_probes="2"),
    "a narrower type": each(value=lambda x: 1.0005 * x, dtype="float32"),
    "cells of another configuration": each(value=lambda x: 1.3 * x, config="0123456789ab"),
    "a status": each(status="not_converged"),
    "an error left out": each(value=lambda x: 1.3 * x, error=""),
    "a residual norm": _residuals,
    "one row of all": lambda folder: edited(folder, lambda rows: rows[:1]),
    "a seed left out": lambda folder: edited(folder, lambda rows: [r for r in rows if r["seed"] == rows[0]["seed"]]),
    "a row too many": lambda folder: edited(folder, lambda rows: [*rows, {**rows[0], "seed": "77"}]),
    "stored arrays": other_arrays,
    "a picture": _picture,
    "the numbers of a picture": _numbers_of_a_picture,
    "a picture too many": _one_more_picture,
}


def zipped(path: Path, entries: dict[str, bytes], *, mode: int = 0o100644, sizes: int | None = None) -> Path:
    """Write an archive of `entries`; `sizes` replaces the size that each claims to have."""
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in entries.items():
            entry = zipfile.ZipInfo(name)
            entry.external_attr, entry.compress_type = mode << 16, zipfile.ZIP_DEFLATED
            archive.writestr(entry, content)
            entry.file_size = entry.file_size if sizes is None else sizes
    return path


def _sha(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()
