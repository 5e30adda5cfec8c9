"""Determines which figure of which sweep is drawn and how, from settings or from an earlier drawing."""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from hessfig.analysis.slopes.printed import check_windows
from hessfig.config.compose.job import Job, compose
from hessfig.config.compose.overrides import as_word
from hessfig.config.compose.provenance import (
    Preset,
    manifest_of,
    preset_in,
    table_folder,
    unchanged,
)
from hessfig.config.enums import Average
from hessfig.config.keys import as_plain
from hessfig.config.presets import STUDY, figures, names, seen_in, shipped_figures
from hessfig.config.schema import FigureConfig
from hessfig.errors import UserError, command_line, unknown_name, words_of_command
from hessfig.figures.parts.labels import changed_words
from hessfig.figures.parts.page import Paper
from hessfig.figures.parts.saving import file_words
from hessfig.figures.sheets import FigureSpec, check
from hessfig.files import fingerprint
from hessfig.record import UNREADABLE, read_checked, read_sealed, sealed_text
from hessfig.register import publish

DRAWN = "drawn"  # in a sweep's folder: how figures of the user's own were drawn
OF_STUDIES = (
    "width",
    "panels",
    "note",
    "formats",
    "title",
    "xlabel",
    "ylabel",
    "legend",
)
_ENCODING = ("x", "colour", "dashes")
_OF_LAYOUT = ("name", "layout", "options", *_ENCODING, "where")
_OF_PAGE = tuple(key for key in OF_STUDIES if key != "panels")
_OF_PAPER = tuple(key for key in OF_STUDIES if key != "formats")


def figure_spec(job: Job, paper: Paper | None = None) -> FigureSpec:
    """Return the figure to draw, for a paper (None: from the settings), with the fits of the sweep or of the words."""
    figure = job.config.figure
    asked = _of_its_sweep(job)
    preset = preset_in(table_folder(asked), job.own)
    return FigureSpec(
        figure.name,
        figure.sweep,
        figure.layout,
        asked.windows,
        figure.options,
        asked.config.sweep.average.value,
        **{key: getattr(figure, key) for key in (*_ENCODING, "where")},
        preset=unchanged(preset),
        paper=replace(
            paper or paper_of(job),
            changed=changed_settings(preset),
            seen=_seen(job, preset),
        ),
    )


def _seen(job: Job, preset: Preset | None) -> Mapping[str, str]:
    """Return what a shipped figure shows, if figure, fits and table are as shipped: others may show something else."""
    figure = as_plain(job.config.figure)
    shipped = {**as_plain(FigureConfig()), **figures().get(figure["name"], {})}
    is_own_table = (
        preset is not None
        and preset.is_whole
        and (preset.name, preset.changed) == (figure["sweep"], [])
    )
    is_figure = all(
        figure[key] == shipped[key] for key in figure if key not in _OF_PAGE
    )
    others = [
        key
        for key in job.given
        if key.partition(".")[0] not in ("figure", "style", "output_dir")
    ]
    return seen_in(figure["name"]) if is_own_table and is_figure and not others else {}


def paper_of(job: Job) -> Paper:
    """Return the page setup that the settings request; a study, whose numbers are computed, has its own titles."""
    figure = job.config.figure
    seen = seen_in(figure.name) if figure.layout == STUDY and not figure.panels else {}
    return Paper(
        style=job.config.style,
        seen=seen,
        **{key: getattr(figure, key) for key in OF_STUDIES},
    )


def figures_of(folder: Path, own: Path | None) -> Iterator[FigureSpec | UserError]:
    """Yield the specification of each figure of the sweep in `folder`, shipped or drawn before, or its error."""
    for figure in shipped_figures():
        if figure.sweep == folder.name:
            yield figure_spec(
                compose(
                    [
                        f"figure={figure.name}",
                        as_word("output_dir", str(folder.parent)),
                    ],
                    own,
                )
            )
    for _, _, drawn in remembered(folder):
        yield drawn


def remember(job: Job, folder: Path) -> None:
    """Store the specification of a user's own figure next to its table, for the report."""
    figure = as_plain(job.config.figure)
    asked = _of_its_sweep(job).config.sweep
    content: dict[str, Any] = {key: figure[key] for key in _OF_LAYOUT}
    content |= {"windows": as_plain(asked.windows), "average": asked.average.value}
    content["paper"] = {
        **{f"figure.{key}": figure[key] for key in _OF_PAPER},
        "style": str(job.config.style.value),
    }
    content["command"] = command_line("plot", *job.words)
    place = folder / DRAWN / f"{file_words(figure['name'])}.json"
    known = [fingerprint(place)] if read_sealed(place) else []
    publish({place: sealed_text(content)}, "way of drawing", known=known)


def remembered(folder: Path) -> Iterator[tuple[str, str, FigureSpec | UserError]]:
    """Yield (name, command, how it is drawn) of every figure that `remember` left in a sweep's folder.

    For a figure that cannot be read, yields the error without a command.
    """
    for path in sorted((folder / DRAWN).glob("*.json")):
        try:
            yield path.stem, *_remembered(path, folder.name)
            continue
        except UserError as error:
            problem = error
        except UNREADABLE as error:
            problem = UserError(
                f"{path} cannot be read",
                got=f"{type(error).__name__}: {error}"[:300],
                allowed="what `hessfig plot` leaves there",
                remedy="draw the figure again, or take the file away",
            )
        yield path.stem, "", problem


def _remembered(path: Path, sweep: str) -> tuple[str, FigureSpec]:
    content = read_checked(path)
    windows = [(_end(low), _end(high)) for low, high in content["windows"]]
    x, colour, dashes = (
        content[key] and str(content[key]) for key in ("x", "colour", "dashes")
    )
    spec = FigureSpec(
        path.stem,
        sweep,
        str(content["layout"]),
        windows,
        dict(content["options"]),
        Average(content["average"]).value,
        x=x,
        colour=colour,
        dashes=dashes,
        where=dict(content.get("where") or {}),  # not kept before 0.3.0
        paper=paper_of(
            compose([as_word(key, value) for key, value in _paper_words(content)])
        ),
    )
    check_windows(windows)
    check(spec)
    return requote(content["command"], "plot"), spec


def _end(value: Any) -> float | None:
    return None if value is None else float(value)


def _paper_words(drawn: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield width, title, panels ... of a figure that was drawn (before 0.3.0 they were not kept), checked by name."""
    for key, value in dict(drawn.get("paper") or {}).items():
        if key != "style" and key.removeprefix("figure.") not in _OF_PAPER:
            raise ValueError(f"{key} is not a setting of a page")
        if value is not None and value != []:
            yield key, value


def _of_its_sweep(job: Job) -> Job:
    """Return the same words asked of the figure's sweep; one that was named by hand is known by its manifest."""
    name = job.config.figure.sweep
    known = names("sweep", job.own)
    if name in known:
        return job.of_sweep(name)
    manifest = manifest_of(Path(job.config.output_dir) / name) if name else None
    if manifest is None:
        what, got = f"figure.sweep: there is no sweep {name!r}", f"figure.sweep={name}"
        remedy = f"output_dir=FOLDER, where FOLDER/{name}/table.csv is; or figure.sweep=NAME of another sweep"
        raise unknown_name(what, name, known, remedy, got=got)
    return compose([*job.words, f"sweep.name={name}"], job.own).fitted_as(
        manifest["config"]["sweep"]
    )


def changed_settings(preset: Preset | None) -> tuple[str, ...]:
    """Return the settings in which the network of a table differs from its preset's, in words."""
    if preset:
        return changed_words({each.key: each.value for each in preset.of_network})
    return ()


def requote(quoted: object, verb: str) -> str:
    """Return a command line from a file if it is one of `verb`, quoted so that it runs only hessfig."""
    words = words_of_command(quoted, verb)
    return "" if words is None else command_line(verb, *words)
