"""Draws the pictures of the gallery and records what each was drawn from, in docs/img/manifest.json and in the PNG.

A record names the figure, the version of hessfig, a hash of the layout, the figure's entry in conf/figures.yaml without
its texts, and the hash of every table that was read.

The hash of the layout covers the syntax tree, without docstrings, of the module that draws it and of the modules of
layouts (or of its study) which that one imports. The parts that all figures share (hessfig.figures.parts,
hessfig.analysis) are not in it: each edit of them would make every picture stale, though most edits change no picture.
They are covered by what is drawn: `test_pictures_are_what_the_kept_tables_draw` redraws every picture from its kept
table and compares the pixels. It takes minutes and is marked `long`; the hashes are checked every day.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import kept_tables
import numpy as np
from PIL import Image, ImageChops
from PIL.PngImagePlugin import PngInfo

import hessfig
from hessfig.api.requested import figure_spec, paper_of
from hessfig.config.presets import STUDY, ShippedFigure, figures, shipped_figures
from hessfig.figures import sheets
from hessfig.verbs import VERBS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"
MANIFEST = IMAGES / "manifest.json"
CHUNK = "hessfig"  # the key of the record in the text chunks of a PNG
Record = dict[str, Any]
_COLOURS = 256  # of a palette
_SEEN, _FEW = 4, 0.02  # the largest invisible error of a colour (of 255), and its share of a picture
_TEXTS = ("name", "about", "group", "order")  # of an entry: where and under which words a figure is shown
_STUDY_FIGURES, _STUDY_TABLES = "hessfig.figures.study_figures", "hessfig.theory.studies"
_LAYOUTS = ("hessfig.figures.layouts.", "hessfig.studies.")


@dataclass(frozen=True)
class Drawing:
    """The pictures of a figure, the overview first, and the files that were read to draw them."""

    figure: ShippedFigure
    pictures: list[Path]
    read: frozenset[Path]

    def sweeps(self, outputs: Path) -> list[str]:
        """Return the sweeps that were read, that of the figure first."""
        inside = {path.relative_to(outputs).parts[0] for path in self.read if path.is_relative_to(outputs)}
        return sorted(inside, key=lambda sweep: (sweep != self.figure.sweep, sweep))


def draw(figure: ShippedFigure, outputs: Path, into: Path, *words: str) -> Drawing:
    """Draw a figure from outputs/SWEEP; `words` are more settings. Tables of the theory are computed, in `into`.

    Raises UserError as `hessfig plot` does.
    """
    (job,) = VERBS["plot"].jobs([f"figure={figure.name}", "figure.formats=[png]", f"output_dir={outputs}", *words])
    with _files_opened() as opened:
        if figure.layout == STUDY:
            import_module(_STUDY_TABLES).RUNS[figure.name](into)
            import_module(_STUDY_FIGURES).DRAWN[figure.name](into, paper_of(job), into=into)
        else:
            sheets.draw(figure_spec(job), outputs, into=into)
    read = frozenset(path for path in opened if figure.sweep and path.is_relative_to(outputs) and path.is_file())
    return Drawing(figure, pictures_of(figure.name, into), read)


def record_of(figure: ShippedFigure, tables: dict[str, str]) -> Record:
    """Return what a picture of a figure is drawn from today; `tables` are the hashes of its tables by sweep."""
    return {
        "figure": figure.name,
        "hessfig": hessfig.__version__,
        "layout": layout_hash(figure),
        "entry": {key: value for key, value in figures()[figure.name].items() if key not in _TEXTS},
        "tables": tables,
    }


def save(picture: Path, record: Record) -> None:
    """Write a picture to docs/img with its record, with a palette where that loses no colour."""
    chunk = PngInfo()
    chunk.add_text(CHUNK, json.dumps(record, sort_keys=True))
    with Image.open(picture) as image:
        compact(image).save(IMAGES / picture.name, optimize=True, pnginfo=chunk)


def compact(image: Image.Image) -> Image.Image:
    """Return a picture in RGB, or with a palette where that loses no colour (heat maps would)."""
    picture = image.convert("RGB")
    small = picture.quantize(_COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
    off = np.asarray(ImageChops.difference(picture, small.convert("RGB"))).max(axis=2)
    return small if (off > _SEEN).mean() < _FEW else picture


def chunk_of(picture: Path) -> Record | None:
    """Return the record in a PNG; None if it has none."""
    with Image.open(picture) as image:
        text = image.info.get(CHUNK)
    return json.loads(text) if text else None


def read_manifest() -> dict[str, Any]:
    """Return docs/img/manifest.json: `pictures`, `tables`, `costs` and `others` by name."""
    return json.loads(MANIFEST.read_text("utf-8"))


def write_manifest(manifest: dict[str, Any]) -> None:
    """Write docs/img/manifest.json."""
    MANIFEST.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")


def stale(manifest: dict[str, Any]) -> dict[str, str]:
    """Return the pictures that are older than their layout, entry or table, or that have no record, with the reason."""
    files = {path.name for path in IMAGES.glob("*.png")} - set(manifest["others"])
    reasons = dict.fromkeys(files - set(manifest["pictures"]), "no record: it was drawn before records were kept")
    reasons |= {name: reason for name in manifest["pictures"] if (reason := _stale_because(name, manifest))}
    return dict(sorted(reasons.items()))


def _stale_because(name: str, manifest: dict[str, Any]) -> str:
    """Return why a picture with a record is stale, or ""."""
    record, by_name = manifest["pictures"][name], {figure.name: figure for figure in shipped_figures()}
    if not (IMAGES / name).is_file() or record["figure"] not in by_name:
        return "there is no such picture, or no such figure"
    today = record_of(by_name[record["figure"]], record["tables"])
    if changed := [key for key in ("layout", "entry") if today[key] != record[key]]:
        return f"its {changed[0]} changed after it was drawn"
    if chunk_of(IMAGES / name) != record:
        return "the record in the PNG is not that of the manifest"
    kept = {sweep: kept_tables.kept_hash(sweep, manifest["tables"]) for sweep in record["tables"]}
    return "" if kept == record["tables"] else "it was drawn from another table than the kept one"


def pictures_of(name: str, folder: Path) -> list[Path]:
    """Return the figure's pictures, the overview first."""
    others = {f"fig{one.name}" for one in shipped_figures() if one.name.startswith(f"{name}_")}
    pages = sorted(folder.glob(f"fig{name}_*.png"), key=lambda page: (not page.stem.endswith("overview"), page.name))
    apart = [page for page in pages if not any(page.stem.startswith(other) for other in others)]
    return sorted(folder.glob(f"fig{name}.png")) + apart


def layout_hash(figure: ShippedFigure) -> str:
    """Return the hash of the code of a figure's layout; see the module's docstring for what it covers."""
    if figure.layout == STUDY:
        return code_hash(_STUDY_FIGURES, _STUDY_TABLES)
    return code_hash(*_layout_modules(sheets.LAYOUTS[figure.layout].drawn_by.partition(":")[0]))


def code_hash(*modules: str) -> str:
    """Return a hash of the syntax trees of modules, which comments, docstrings and line breaks do not change."""
    trees = [(module, _plain(_tree(module))) for module in sorted(modules)]
    return hashlib.sha256(repr(trees).encode()).hexdigest()[:16]


def _layout_modules(module: str) -> set[str]:
    """Return a module of layouts and those which it imports, directly or through others."""
    modules, waiting = set[str](), [module]
    while waiting:
        modules.add(name := waiting.pop())
        imported = (node for node in ast.walk(_tree(name)) if isinstance(node, ast.ImportFrom) and node.module)
        named = {f"{node.module}.{alias.name}" for node in imported for alias in node.names}
        candidates = {part for name in named for part in (name, name.rpartition(".")[0]) if part.startswith(_LAYOUTS)}
        waiting += [part for part in candidates - modules if _is_module(part)]
    return modules


def _is_module(name: str) -> bool:
    return (ROOT / name.replace(".", "/")).with_suffix(".py").is_file()


def _tree(module: str) -> ast.Module:
    return ast.parse((ROOT / module.replace(".", "/")).with_suffix(".py").read_text("utf-8"))


def _plain(node: object) -> object:
    """Return a syntax tree as nested tuples, without docstrings, places and fields that are empty."""
    if isinstance(node, list):
        return [_plain(entry) for entry in node]
    if not isinstance(node, ast.AST):
        return node
    fields = [(name, value) for name, value in ast.iter_fields(node) if value is not None and value != []]
    return type(node).__name__, [(name, _plain(_undocumented(value))) for name, value in fields]


def _undocumented(value: object) -> object:
    """Return the statements of a body without its docstring; any other value as it is."""
    if isinstance(value, list) and isinstance(value[0], ast.Expr) and isinstance(value[0].value, ast.Constant):
        return value[1:]
    return value


_OPENED: list[set[Path]] = []


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _OPENED and isinstance(arguments[0], str | os.PathLike):
        _OPENED[-1].add(Path(os.fspath(arguments[0])))


sys.addaudithook(_note_opened)


@contextmanager
def _files_opened() -> Iterator[set[Path]]:
    """Collect the files that are opened meanwhile: what a layout reads, whatever it is."""
    _OPENED.append(set())
    try:
        yield _OPENED[-1]
    finally:
        _OPENED.pop()
