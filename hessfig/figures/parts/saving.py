"""Saving of pages: the files of a page, their names, and the suffixes that distinguish several networks."""

import hashlib
import io
import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from pathlib import Path, PurePath
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from hessfig.analysis.axis import as_variant, last_word, settings_of, short_variant
from hessfig.errors import UserError, did_you_mean
from hessfig.figures.parts.page import Paper, page_box, relabel
from hessfig.figures.parts.panel_sheet import Page
from hessfig.register import publish

# No dates and no version of matplotlib, so that files are the same bytes in every run.
_FORMATS: dict[str, dict[str, Any]] = {
    "pdf": {
        "CreationDate": None,
        "ModDate": None,
        "Producer": None,
        "Creator": "hessfig",
    },
    "png": {"Software": None},
    "svg": {"Date": None, "Creator": "hessfig"},
}

_UNSAFE = re.compile(r"[^A-Za-z0-9._=-]")
_LONGEST = 120


def save_sheets(
    pages: Iterable[Page], folder: Path, name: str, paper: Paper
) -> list[Path]:
    """Write every sheet of a figure by save_page; return the paths. Raises UserError as save_each does."""
    saved: list[Path] = []
    for _, paths in save_each(pages, folder, name, paper):
        saved.extend(paths)
    return saved


def save_each(
    pages: Iterable[Page], folder: Path, name: str, paper: Paper
) -> Iterator[tuple[Page, list[Path]]]:
    """Write every sheet of a figure by save_page; yield the page with its paths.

    Raises UserError for panels that no sheet has, before any file is written.
    """
    if paper.panels:
        # The names of all panels are known once all sheets are drawn.
        pages = list(pages)
        offered = dict.fromkeys(chain(*(page.panels for page in pages)))
        _check_panels(paper.panels, list(offered))
    for page in pages:
        yield page, save_page(page, folder, name, paper)


def _check_panels(asked: Sequence[str], offered: Sequence[str]) -> None:
    for name in asked:
        if not offered:
            raise UserError(
                "figure.panels: no panel can be picked here",
                got=name,
                allowed="the whole figure",
                remedy="leave it out",
            )
        if name not in offered:
            otherwise = f"for example figure.panels=[{offered[0]}]"
            raise UserError(
                f"figure.panels: there is no panel {name!r}",
                got=name,
                allowed=", ".join(offered),
                remedy=did_you_mean(name, offered) or otherwise,
            )


def save_page(page: Page, folder: Path, name: str, paper: Paper) -> list[Path]:
    """Write folder/fig<name><suffix>.{pdf,png,svg,csv}, all or none; return the paths. Call it inside `styled()`.

    The paper names the formats. A note that the paper leaves out is written to .txt. A
    sheet without any of the paper's panels is skipped. File names consist of plain
    characters, so that no name leads out of `folder`.
    """
    if not page.figure.get_visible():
        return []
    stem = file_words(f"fig{name}{page.suffix}")
    relabel(page.figure, **paper.labels(page.suffix))
    files: dict[Path, str | bytes] = {
        **_pictures(page.figure, folder / stem, paper.formats)
    }
    if not paper.note and page.figure.get_label():
        files[folder / f"{stem}.txt"] = f"{page.figure.get_label()}\n"
    files[folder / f"{stem}.csv"] = page.numbers.to_csv(
        index=False, float_format="%.10g", lineterminator="\n"
    )
    return publish(files, "figure")


def file_words(text: str) -> str:
    """Return `text` with _ in place of every character except letters, digits and ._=-; a very long text is cut."""
    words = _UNSAFE.sub("_", text)
    if len(words) <= _LONGEST:
        return words
    return f"{words[:100]}_{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def page_suffix(variant: str, num_layers: int, networks: list[tuple[str, int]]) -> str:
    """Return the suffix that distinguishes this network's files from the others': the variant's values, the depth."""
    variants = list(dict.fromkeys(name for name, _ in networks))
    several_depths = len({depth for _, depth in networks}) > 1
    words = f"_{_distinct(variant, variants)}" if len(variants) > 1 else ""
    return words + f"_depth{num_layers}" * several_depths


def panel_names(networks: list[tuple[str, int]]) -> list[str]:
    """Return a name for the panels of each network: the suffix of its file, or 'network' for a single network."""
    return [
        page_suffix(*network, networks).lstrip("_") or "network" for network in networks
    ]


def variant_names(variants: Sequence[str]) -> list[str]:
    """Return a name for the panels of each variant."""
    return panel_names([(variant, 0) for variant in variants])


def _pictures(figure: Figure, path: Path, formats: Sequence[str]) -> dict[Path, bytes]:
    FigureCanvasAgg(figure)
    pictures = {}
    for kind in _FORMATS:
        if kind in formats:
            named = path.with_name(f"{path.name}.{kind}")
            buffer = io.BytesIO()
            figure.savefig(
                buffer,
                format=kind,
                metadata=_FORMATS[kind],
                bbox_inches=page_box(figure),
            )
            pictures[named] = buffer.getvalue()
    return pictures


def _distinct(variant: str, variants: list[str]) -> str:
    """Return a variant in words, with a number if another variant has the same words."""
    words = _words(variant)
    same = [other for other in variants if _words(other) == words]
    return words if len(same) == 1 else f"{words}_{same.index(variant) + 1}"


def _words(variant: str) -> str:
    settings = settings_of(variant)
    named = dict(settings)
    for key, value in settings.items():
        if last_word(key) == "path":
            named[key] = PurePath(value).name
    return file_words(short_variant(as_variant(named)).replace("=", "_")) or "plain"
