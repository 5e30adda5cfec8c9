"""Keeps the tables that the pictures of the gallery are drawn from, compressed in docs/tables, and unpacks them.

Of a sweep, what its figures read is kept and no more: SWEEP.csv.xz (the table),
SWEEP.json.xz (its manifest) and SWEEP.tar (arrays of cells, which are compressed
already). What would take a sweep above LARGEST bytes is left out and listed with its
size.
"""

from __future__ import annotations

import getpass
import hashlib
import io
import json
import lzma
import platform
import re
import tarfile
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from hessfig.analysis.table import read_table
from hessfig.config.compose.job import compose
from hessfig.errors import words_of_command
from hessfig.record import MANIFEST, TABLE
from hessfig.sweep.plan import Cell, Sweep

ROOT = Path(__file__).parents[2]
TABLES = ROOT / "docs" / "tables"
LARGEST = 3 * 2**19  # bytes of one sweep
_ENDINGS = {TABLE: ".csv.xz", MANIFEST: ".json.xz"}
_ARRAYS = ".tar"
_CHOSEN = ("quantities", "blocks")
_PLACE = ("variant", "num_layers", "sigma", "step", "seed")


def keep(folder: Path, read: Collection[Path]) -> dict[str, Any]:
    """Keep the files of a sweep that its figures read; return the table's hash, and the bytes kept and left out."""
    packed = _packed_texts(folder)
    arrays = sorted(
        path for path in read if path.suffix == ".npz" and path.is_relative_to(folder)
    )
    sizes = {name: len(content) for name, content in packed.items()}
    sizes |= {f"{folder.name}{_ARRAYS}": _size_together(arrays)} if arrays else {}
    left_out = _left_out(sizes)
    TABLES.mkdir(exist_ok=True)
    for ending in (*_ENDINGS.values(), _ARRAYS):
        (TABLES / f"{folder.name}{ending}").unlink(missing_ok=True)
    for name in sizes.keys() - left_out.keys():
        (TABLES / name).write_bytes(
            packed[name] if name in packed else _together(arrays, folder)
        )
    kept = {
        name: (TABLES / name).stat().st_size for name in sizes if name not in left_out
    }
    return {"sha256": table_hash(folder / TABLE), "kept": kept, "left_out": left_out}


def unpack(sweep: str, outputs: Path) -> None:
    """Write the kept files of a sweep to outputs/SWEEP, as `hessfig run` left them."""
    folder = outputs / sweep
    folder.mkdir(parents=True, exist_ok=True)
    for name, ending in _ENDINGS.items():
        if (packed := TABLES / f"{sweep}{ending}").is_file():
            (folder / name).write_bytes(lzma.decompress(packed.read_bytes()))
    if (packed := TABLES / f"{sweep}{_ARRAYS}").is_file():
        with tarfile.open(packed, "r:") as archive:
            archive.extractall(folder, filter="data")


def lacking(sweep: str, tables: Mapping[str, Any]) -> str:
    """Return what is not kept of a sweep, in words, or ""; `tables` is the manifest's part on tables."""
    if sweep not in tables:
        return f"the table of {sweep} is not kept"
    return ", ".join(
        f"{name} ({size / 1e6:.1f} MB) is not kept"
        for name, size in tables[sweep]["left_out"].items()
    )


def kept_hash(sweep: str, tables: Mapping[str, Any]) -> str:
    """Return the hash of a kept table, or "" without one; of a table that is too large to be kept, the recorded one."""
    path = TABLES / f"{sweep}{_ENDINGS[TABLE]}"
    if path.name in tables.get(sweep, {}).get("left_out", {}):
        return str(tables[sweep]["sha256"])
    return table_hash(path) if path.is_file() else ""


def table_hash(path: Path) -> str:
    """Return the SHA-256 of a table, or of a kept one as it is unpacked."""
    content = path.read_bytes()
    return hashlib.sha256(
        lzma.decompress(content) if path.suffix == ".xz" else content
    ).hexdigest()


def disagreements(folder: Path, sweep: str) -> list[str]:
    """Return how the numbers in a folder differ from what the sweep plans today; cells that failed may be missing.

    A table of some quantities or blocks alone, which claims read, is compared with the
    plan of these: the manifest has the command that chose them. Cells are compared by
    configuration (the hash of all settings on which their numbers depend), variant,
    number of layers, sigma, step and seed. Raises UserError for a
    sweep that cannot be planned here (a model is not downloaded).
    """
    table = read_table(folder / TABLE)
    manifest = json.loads((folder / MANIFEST).read_text())
    words = words_of_command(manifest["command"], "run") or []
    chosen = [word for word in words if word.partition("=")[0] in _CHOSEN]
    cells = Sweep(compose([f"sweep={sweep}", *chosen]).variants).cells
    planned = {
        _place(cell.labels, cell.variant.short_hash(cell.quantity)) for cell in cells
    }
    measured = set(_measured(table))
    with_arrays = {_place(entry, entry["quantity"]) for entry in manifest["arrays"]}
    missing = [cell for cell in cells if not _is_measured(cell, measured, with_arrays)]
    rows = [
        f"{sweep}: the table has cells that are not planned: {place}"
        for place in sorted(measured - planned)[:1]
    ]
    if len(missing) > manifest["missing_cells"]:
        rows.append(
            f"{sweep}: the table lacks {len(missing)} of {len(cells)} planned cells: {missing[0]}"
        )
    return rows


def check_names_no_machine(content: bytes, folder: Path) -> None:
    """Raise ValueError for a table or manifest that names this machine, its user or a folder outside the project."""
    names = [platform.node(), str(Path.home()), str(ROOT), str(folder.resolve().parent)]
    names += [f"/{getpass.getuser()}/"]
    text = content.decode()
    absolute = re.findall(r'(?<=["= ,])/[A-Za-z][^" ,]*', text)
    if named := [name for name in names if name in text] + absolute:
        raise ValueError(f"{folder.name} names this machine: {named[0]}")


def _packed_texts(folder: Path) -> dict[str, bytes]:
    """Return table and manifest, compressed, by the name under which they are kept."""
    texts = {
        f"{folder.name}{ending}": (folder / name).read_bytes()
        for name, ending in _ENDINGS.items()
    }
    for text in texts.values():
        check_names_no_machine(text, folder)
    return {
        name: lzma.compress(text, preset=9 | lzma.PRESET_EXTREME)
        for name, text in texts.items()
    }


def _left_out(sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the files, with their sizes, that do not fit into LARGEST bytes with those before them."""
    left_out = {}
    room = LARGEST
    for name, size in sizes.items():
        if size > room:
            left_out[name] = size
        else:
            room -= size
    return left_out


def _size_together(paths: Collection[Path]) -> int:
    """Return an upper bound of the bytes of files in a tar, with their headers and the padding."""
    return (
        sum(path.stat().st_size + 2 * tarfile.BLOCKSIZE for path in paths)
        + tarfile.RECORDSIZE
    )


def _together(paths: Collection[Path], folder: Path) -> bytes:
    """Return the files of a folder as a tar without times and owners: the same bytes in every run."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for path in paths:
            entry = tarfile.TarInfo(path.relative_to(folder).as_posix())
            entry.size = path.stat().st_size
            with path.open("rb") as handle:
                archive.addfile(entry, handle)
    return buffer.getvalue()


def _measured(table: pd.DataFrame) -> Iterator[tuple[str, ...]]:
    for row in table[["config", *_PLACE]].drop_duplicates().to_dict("records"):
        yield _place(row, row["config"])


# Adam has no second moments before its first update.
_WITHOUT_ROWS = ("preconditioned_eigenvalue", 0)


def _is_measured(
    cell: Cell, measured: set[tuple[str, ...]], with_arrays: set[tuple[str, ...]]
) -> bool:
    labels = cell.labels
    return (
        _place(labels, cell.variant.short_hash(cell.quantity)) in measured
        or _place(labels, cell.quantity) in with_arrays
        or (cell.quantity, cell.step) == _WITHOUT_ROWS
    )


def _place(labels: dict[str, Any], kind: str) -> tuple[str, ...]:
    """Return the labels of a cell as text; a sigma or step that is not there is empty."""
    values = (labels[name] for name in _PLACE)
    return kind, *(
        ""
        if pd.isna(value)
        else f"{value:.12g}"
        if isinstance(value, float)
        else str(value)
        for value in values
    )
