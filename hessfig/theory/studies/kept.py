"""A study's tables on disk: written with a seal that names each by its hash, and whole only while the seal is true."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

import hessfig
from hessfig.files import write_text

SEAL = "sha256.json"


def keep(folder: Path, tables: Mapping[str, str]) -> list[Path]:
    """Write folder/<name>.csv for every table, then the seal (an older one is no longer true); return the paths."""
    paths = [write_text(folder / f"{name}.csv", text) for name, text in tables.items()]
    write_text(folder / SEAL, json.dumps(_seal(paths), indent=2) + "\n")
    return paths


def is_whole(folder: Path) -> bool:
    """Whether the tables that this version of hessfig writes are there, every byte of them."""
    try:
        seal = json.loads((folder / SEAL).read_text("utf-8"))
        return bool(seal["tables"]) and seal == _seal([folder / name for name in seal["tables"]])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return False


def _seal(paths: list[Path]) -> dict[str, object]:
    tables = {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}
    return {"hessfig": hessfig.__version__, "tables": tables}
