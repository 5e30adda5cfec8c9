"""Draws the pictures of the gallery and records what each was drawn from in docs/img/manifest.json.

A record names the figure, the version of hessfig, and the hash of every table that was
read. Whether a picture is what this code draws,
`test_pictures_are_what_the_kept_tables_draw` decides: it redraws it from its kept
tables and compares the pixels (marked `long`).
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageChops

import hessfig
from hessfig.api.requested import figure_spec, paper_of
from hessfig.config.presets import STUDY, ShippedFigure, shipped_figures
from hessfig.figures import sheets
from hessfig.verbs import VERBS

ROOT = Path(__file__).parents[2]
IMAGES = ROOT / "docs" / "img"
MANIFEST = IMAGES / "manifest.json"
Record = dict[str, Any]
_COLOURS = 256  # of a palette
# The largest invisible error of a colour (of 255), and its share of a picture.
_SEEN, _FEW = (4, 0.02)
_STUDY_FIGURES = "hessfig.figures.study_figures"
_STUDY_TABLES = "hessfig.theory.studies"


@dataclass(frozen=True)
class Drawing:
    """The pictures of a figure, the overview first, and the files that were read to draw them."""

    figure: ShippedFigure
    pictures: list[Path]
    read: frozenset[Path]

    def sweeps(self, outputs: Path) -> list[str]:
        """Return the sweeps that were read, that of the figure first."""
        inside = {
            path.relative_to(outputs).parts[0]
            for path in self.read
            if path.is_relative_to(outputs)
        }
        return sorted(inside, key=lambda sweep: (sweep != self.figure.sweep, sweep))


def draw(figure: ShippedFigure, outputs: Path, into: Path, *words: str) -> Drawing:
    """Draw a figure from outputs/SWEEP; `words` are more settings. Tables of the theory are computed, in `into`.

    Raises UserError as `hessfig plot` does.
    """
    job = VERBS["plot"].job(
        [
            f"figure={figure.name}",
            "figure.formats=[png]",
            f"output_dir={outputs}",
            *words,
        ]
    )
    with _files_opened() as opened:
        if figure.layout == STUDY:
            import_module(_STUDY_TABLES).RUNS[figure.name](into)
            import_module(_STUDY_FIGURES).DRAWN[figure.name](
                into, paper_of(job), into=into
            )
        else:
            sheets.draw(figure_spec(job), outputs, into=into)
    read = frozenset(
        path
        for path in opened
        if figure.sweep and path.is_relative_to(outputs) and path.is_file()
    )
    return Drawing(figure, pictures_of(figure.name, into), read)


def record_of(figure: ShippedFigure, tables: dict[str, str]) -> Record:
    """Return what a picture of a figure is drawn from; `tables` are the hashes of its tables by sweep."""
    return {"figure": figure.name, "hessfig": hessfig.__version__, "tables": tables}


def save(picture: Path) -> None:
    """Write a picture to docs/img, with a palette where that loses no colour."""
    with Image.open(picture) as image:
        compact(image).save(IMAGES / picture.name, optimize=True)


def compact(image: Image.Image) -> Image.Image:
    """Return a picture in RGB, or with a palette where that loses no colour (heat maps would)."""
    picture = image.convert("RGB")
    small = picture.quantize(
        _COLOURS, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE
    )
    off = np.asarray(ImageChops.difference(picture, small.convert("RGB"))).max(axis=2)
    return small if (off > _SEEN).mean() < _FEW else picture


def read_manifest() -> dict[str, Any]:
    """Return docs/img/manifest.json: `pictures`, `tables`, `costs` and `others` by name."""
    return json.loads(MANIFEST.read_text("utf-8"))


def write_manifest(manifest: dict[str, Any]) -> None:
    """Write docs/img/manifest.json."""
    MANIFEST.write_text(json.dumps(manifest, indent=1, sort_keys=True) + "\n", "utf-8")


def pictures_of(name: str, folder: Path) -> list[Path]:
    """Return the figure's pictures, the overview first."""
    others = {
        f"fig{one.name}" for one in shipped_figures() if one.name.startswith(f"{name}_")
    }
    pages = sorted(
        folder.glob(f"fig{name}_*.png"),
        key=lambda page: (not page.stem.endswith("overview"), page.name),
    )
    apart = [
        page
        for page in pages
        if not any(page.stem.startswith(other) for other in others)
    ]
    return sorted(folder.glob(f"fig{name}.png")) + apart


_OPENED: list[set[Path]] = []


def _note_opened(event: str, arguments: tuple[Any, ...]) -> None:
    if event == "open" and _OPENED and isinstance(arguments[0], str | os.PathLike):
        _OPENED[-1].add(Path(os.fspath(arguments[0])))


@cache
def _listen() -> None:
    """Have every file noted from the first drawing on: a hook cannot be taken away again, and slows what follows."""
    sys.addaudithook(_note_opened)


@contextmanager
def _files_opened() -> Iterator[set[Path]]:
    """Collect the files that are opened meanwhile: what a layout reads, whatever it is."""
    _listen()
    _OPENED.append(set())
    try:
        yield _OPENED[-1]
    finally:
        _OPENED.pop()
