"""Save a page as PDF, PNG and SVG and its numbers as CSV: the same bytes on every run, never half a file."""

from __future__ import annotations

import io
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hessfig.files import write_bytes, write_text

# No dates and no version of the drawing library: they would change the bytes from run to run.
_FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": "hessfig"},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "hessfig"},
}


@dataclass(frozen=True)
class Page:
    """A drawn sheet: what to add to the figure's name ("" for a single sheet), the figure, its numbers."""

    suffix: str
    figure: Figure
    numbers: pd.DataFrame


def save_page(page: Page, folder: Path, name: str) -> list[Path]:
    """Write folder/fig<name><suffix>.{pdf,png,svg,csv}; return the paths. Call it inside `style.styled()`."""
    stem = f"fig{name}{page.suffix}"
    paths = save_figure(page.figure, folder, stem)
    write_text(
        folder / f"{stem}.csv", page.numbers.to_csv(index=False, float_format="%.10g", lineterminator="\n")
    )
    return [*paths, folder / f"{stem}.csv"]


def save_figure(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write folder/<stem>.{pdf,png,svg}; return the paths. Call it inside `style.styled()`."""
    FigureCanvasAgg(figure)
    return [_save(figure, folder / f"{stem}.{kind}", kind) for kind in _FORMATS]


def _save(figure: Figure, path: Path, kind: str) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=_FORMATS[kind])
    write_bytes(path, buffer.getvalue())
    return path
