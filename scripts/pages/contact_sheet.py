"""Writes all pictures of the gallery on one sheet, to look at them next to each other; nothing of it is committed."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

import kept_tables
import pictures
from PIL import Image

from hessfig.config.presets import ShippedFigure

ACROSS, WIDE = 6, 700  # pictures in a row, pixels of each
COLUMN = 3.25  # inches: a column of a conference paper


def write_contact_sheets(figures: Sequence[ShippedFigure], path: Path) -> None:
    """Write the pictures of docs/img to `path`, and to NAME-column.png those that can be redrawn, 3.25 in wide."""
    _write_sheet([file for figure in figures for file in pictures.pictures_of(figure.name, pictures.IMAGES)], path)
    with tempfile.TemporaryDirectory() as folder:
        narrow = [file for figure in figures for file in _narrow(figure, Path(folder))]
        _write_sheet(narrow, path.with_name(f"{path.stem}-column.png"))


def _narrow(figure: ShippedFigure, folder: Path) -> list[Path]:
    """Return the pictures of a figure drawn for a column, those that docs/img has; none without kept tables."""
    shown = {file.name for file in pictures.pictures_of(figure.name, pictures.IMAGES)}
    records = [pictures.read_manifest()["pictures"].get(name) for name in shown]
    sweeps = {sweep for record in records if record for sweep in record["tables"]}
    tables = pictures.read_manifest()["tables"]
    if None in records or any(kept_tables.lacking(sweep, tables) for sweep in sweeps):
        return []
    for sweep in sweeps:
        kept_tables.unpack(sweep, folder)
    drawing = pictures.draw(figure, folder, folder / "pictures", f"figure.width={COLUMN}")
    return [file for file in drawing.pictures if file.name in shown]


def _write_sheet(files: Sequence[Path], path: Path) -> None:
    """Write pictures in rows, each as wide as the others."""
    scaled = [_scaled(file) for file in files]
    rows = [scaled[start : start + ACROSS] for start in range(0, len(scaled), ACROSS)]
    sheet = Image.new("RGB", (ACROSS * WIDE, sum(max(image.height for image in row) for row in rows) or 1), "white")
    down = 0
    for row in rows:
        for place, image in enumerate(row):
            sheet.paste(image, (place * WIDE, down))
        down += max(image.height for image in row)
    sheet.save(path)


def _scaled(file: Path) -> Image.Image:
    with Image.open(file) as image:
        return image.convert("RGB").resize((WIDE - 20, round((WIDE - 20) * image.height / image.width)))
