"""Reads the shipped configuration files: the choices of every group, and the figures in their order."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Any

from hessfig.config.enums import FigureGroup, Published
from hessfig.config.schema import GROUPS, FigureConfig
from hessfig.config.settings import is_setting

STUDY = "study"
EVERY_PAGE = "*"  # in ShippedFigure.seen, instead of the suffix of a page


@dataclass(frozen=True)
class ShippedFigure:
    """A figure of conf/figures.yaml; `title` is its line `about`. A study has no sweep.

    `seen` holds what its own table shows, in a sentence, by the suffix of the page, or
    by EVERY_PAGE.
    """

    name: str
    title: str
    seen: Mapping[str, str]
    sweep: str
    layout: str
    group: FigureGroup
    order: int
    published: Published


def choices(group: str, own: Path | None = None) -> dict[str, str]:
    """Return {choice: one line about it} of a group: the shipped ones, then those in the user's folder `own`."""
    shipped = {
        name: _about(path.read_text("utf-8")) for name, path in _of_group(group, own)
    }
    if group == "figure":
        return {name: figures()[name]["about"] for name in sorted(figures())} | shipped
    return shipped


def names(group: str, own: Path | None = None) -> list[str]:
    """Return the choices of a group alone, in the same order: no file is read."""
    in_files = [*dict(_of_group(group, own))]
    if group == "figure":
        return [*sorted(figures()), *in_files]
    return in_files


@cache
def figures() -> dict[str, dict[str, Any]]:
    """Return {name: settings} of the shipped figures, which share a file.

    `about` is a line about each, `seen` a sentence about its numbers (or one for each
    page).

    A figure draws the sweep of its name unless it names another.
    """
    body = _parsed(files("hessfig.conf").joinpath("figures.yaml").read_text("utf-8"))
    return {
        name: {"name": name, "sweep": name, **settings}
        for name, settings in body.items()
    }


def seen_in(name: str) -> Mapping[str, str]:
    """Return what a shipped figure of its own table shows, as ShippedFigure.seen; empty for a name that is none."""
    seen = figures().get(name, {}).get("seen", {})
    return {EVERY_PAGE: seen} if isinstance(seen, str) else seen


def settings_in(group: str, choice: str, own: Path | None = None) -> dict[str, Any]:
    """Return {dotted key: value} of the file of a choice; choices of other groups by their group."""
    file = dict(_of_group(group, own)).get(choice)
    if file is None:
        return {}
    text = file.read_text("utf-8")
    body = _parsed(text)
    prefix = f"{group}."
    if "@package _global_" in text:
        prefix = ""
    chosen = dict[str, Any]()
    for entry in body.get("defaults") or ():
        if isinstance(entry, dict):
            chosen |= {
                str(key).rpartition("/")[2]: value for key, value in entry.items()
            }
    return {key: value for key, value in chosen.items() if key in GROUPS} | dict(
        _flat(body, prefix)
    )


def _flat(body: Mapping[Any, Any], prefix: str) -> Iterator[tuple[str, Any]]:
    for key, value in body.items():
        if is_setting(f"{prefix}{key}"):
            yield f"{prefix}{key}", value
        elif isinstance(value, dict):
            yield from _flat(value, f"{prefix}{key}.")


def shipped_figures() -> list[ShippedFigure]:
    """Return the shipped figures in the order in which `make figures` draws them (all but group own)."""
    shown = (
        _figure(settings) for name, settings in figures().items() if name != "none"
    )
    return sorted(shown, key=lambda figure: (figure.order, figure.name))


def theory_studies() -> list[str]:
    """Return the names of the figures that are computed without a sweep."""
    return [figure.name for figure in shipped_figures() if figure.layout == STUDY]


def natural(name: str) -> list[tuple[bool, int, str]]:
    """Return a key that sorts 3b before 10, and numbers before words."""
    pieces = re.findall(r"\d+|\D+", name)
    return [
        (not piece.isdigit(), int(piece) if piece.isdigit() else 0, piece)
        for piece in pieces
    ]


def _of_group(group: str, own: Path | None) -> Iterator[tuple[str, Traversable | Path]]:
    """Yield (name, file) of every choice, those of the user's folder last."""
    yield from _files(_shipped(group))
    if own:
        yield from _files(own / group)


def _shipped(group: str) -> Traversable:
    return files("hessfig.conf").joinpath(group)


def _files(folder: Traversable | Path) -> Iterator[tuple[str, Traversable | Path]]:
    entries = folder.iterdir() if folder.is_dir() else iter(())
    for entry in sorted(entries, key=lambda entry: entry.name):
        if entry.name.endswith(".yaml"):
            yield entry.name.removesuffix(".yaml"), entry


def _figure(body: Mapping[str, Any]) -> ShippedFigure:
    return ShippedFigure(
        name=body["name"],
        title=body["about"],
        seen=seen_in(body["name"]),
        sweep=body["sweep"],
        layout=body["layout"],
        group=FigureGroup(body["group"]),
        order=body.get("order", FigureConfig.order),
        published=Published(body.get("published", FigureConfig.published)),
    )


def _about(text: str) -> str:
    sweep = _parsed(text).get("sweep")
    if isinstance(sweep, dict) and sweep.get("about"):
        return str(sweep["about"])
    return _comment(text)


def _comment(text: str) -> str:
    lines = (
        line[2:]
        for line in text.splitlines()
        if line.startswith("# ") and "@package" not in line
    )
    return next(lines, "")


@cache
def _parsed(text: str) -> Mapping[str, Any]:
    """Return the file's settings; none for a file that is no YAML mapping (composing it tells why)."""
    import yaml

    try:
        # In C: seven times as fast.
        body = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, ValueError, RecursionError):
        return {}
    return body if isinstance(body, dict) else {}
