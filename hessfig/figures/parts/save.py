"""Save a page as PDF, PNG and SVG and its numbers as CSV: the same bytes on every run, never half a file.

Names of files hold plain characters only: no text that anybody may have chosen leads out of the figures' folder.
"""

from __future__ import annotations

import hashlib
import io
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pandas as pd
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hessfig.analysis.variants import short_variant
from hessfig.errors import UserError, did_you_mean
from hessfig.figures.parts.paper import paper
from hessfig.files import write_bytes, write_text

# No dates and no version of the drawing library: they would change the bytes from run to run.
_FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {"CreationDate": None, "ModDate": None, "Producer": None, "Creator": "hessfig"},
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "hessfig"},
}

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]")
_LONGEST = 120


@dataclass(frozen=True)
class Page:
    """A drawn sheet: what to add to the figure's name ("" for a single sheet), the figure, its numbers."""

    suffix: str
    figure: Figure
    numbers: pd.DataFrame


def save_sheets(pages: Iterable[Page], folder: Path, name: str) -> list[Path]:
    """Write every sheet of a figure by save_page; return the paths.

    Raises UserError, before anything is written, for panels that no sheet has.
    """
    if paper().panels:
        pages = list(pages)  # what panels there are is known when all sheets are laid out
        _check_panels()
    return [path for page in pages for path in save_page(page, folder, name)]


def _check_panels() -> None:
    offered = list(paper().offered)
    for name in paper().panels:
        if name not in offered:
            raise UserError(
                f"figure.panels: there is no panel {name!r}"
                if offered
                else "figure.panels: no panel can be picked here",
                got=name,
                allowed=", ".join(offered) or "the whole figure",
                remedy=did_you_mean(name, offered)
                or (f"for example figure.panels=[{offered[0]}]" if offered else "leave it out"),
            )


def save_page(page: Page, folder: Path, name: str) -> list[Path]:
    """Write folder/fig<name><suffix>.{pdf,png,svg,csv}; return the paths. Call it inside `style.styled()`.

    The formats are the paper's; the note that a paper leaves out is written to .txt. A sheet without any of the panels
    that the paper asks for is left out. Names are made of plain characters: nothing leads out of `folder`.
    """
    if not page.figure.get_visible():
        return []
    stem = file_words(f"fig{name}{page.suffix}")
    paths = save_figure(page.figure, folder, stem)
    if not paper().note and page.figure.get_label():
        paths.append(write_text(folder / f"{stem}.txt", f"{page.figure.get_label()}\n"))
    write_text(
        folder / f"{stem}.csv", page.numbers.to_csv(index=False, float_format="%.10g", lineterminator="\n")
    )
    return [*paths, folder / f"{stem}.csv"]


def save_figure(figure: Figure, folder: Path, stem: str) -> list[Path]:
    """Write folder/<stem>.{pdf,png,svg}, those of the paper; return the paths. Call it inside `style.styled()`."""
    FigureCanvasAgg(figure)
    return [_save(figure, folder / f"{stem}.{kind}", kind) for kind in _FORMATS if kind in paper().formats]


def file_words(text: str) -> str:
    """Return `text` with every character that is not a letter, digit or one of ._=- as _, cut if very long."""
    words = _UNSAFE.sub("_", text)
    return (
        words if len(words) <= _LONGEST else f"{words[:100]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"
    )


def page_suffix(variant: str, num_layers: int, networks: list[tuple[str, int]]) -> str:
    """Return what tells this network's file name from the others': the variant's values, the depth."""
    variants = list(dict.fromkeys(name for name, _ in networks))
    several_depths = len({depth for _, depth in networks}) > 1
    words = f"_{_distinct(variant, variants)}" if len(variants) > 1 else ""
    return words + (f"_depth{num_layers}" if several_depths else "")


def _save(figure: Figure, path: Path, kind: str) -> Path:
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, metadata=_FORMATS[kind])
    write_bytes(path, buffer.getvalue())
    return path


def _distinct(variant: str, variants: list[str]) -> str:
    """Return a variant's words, with a number where another variant has the same ones."""
    words = _words(variant)
    same = [other for other in variants if _words(other) == words]
    return words if len(same) == 1 else f"{words}_{same.index(variant) + 1}"


def _words(variant: str) -> str:
    return file_words(short_variant(variant).replace("=", "_")) or "plain"
