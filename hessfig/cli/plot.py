"""What `hessfig plot` does: a figure drawn from a sweep's table, or a study of the theory computed and drawn."""

from __future__ import annotations

import json
import shlex
import sys
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.cli.results import windows
from hessfig.config.compose import Job, compose, manifest_of, preset_in, table_folder, unchanged_preset
from hessfig.config.compose.overrides import as_word
from hessfig.config.enums import Average
from hessfig.config.keys import as_plain
from hessfig.config.presets import STUDY, choices, shipped_figures, studies
from hessfig.errors import UserError, did_you_mean, first_few, plain
from hessfig.files import fingerprint
from hessfig.record import CHECKSUM, checksum, read_checked
from hessfig.register import publish

if TYPE_CHECKING:
    from hessfig.figures.parts.page import Paper
    from hessfig.figures.sheets import FigureSpec


DRAWN = "drawn"  # in a sweep's folder: how figures of the user's own were drawn
_OF_PAPER = ("width", "panels", "note", "title", "xlabel", "ylabel", "legend")
_OF_STUDIES = ("width", "panels", "note", "formats", "title", "xlabel", "ylabel", "legend")


def plot(job: Job) -> int:
    """Draw the figure chosen."""
    figure = job.config.figure
    if not figure.name:
        raise _no_figure(job)
    _paper(job)  # words that cannot be set in type are refused before anything is read or computed
    for path in _study(job) if figure.layout == STUDY else _drawn(job):
        print(path)
    return 0


def _end(value: Any) -> float | None:
    return None if value is None else float(value)


def _no_figure(job: Job) -> UserError:
    """Return the error to show where no figure is chosen; a sweep that is named has some, or may be drawn as lines."""
    sweep, lists = plain(job.config.figure.sweep), "`hessfig plot --help` lists the figures"
    if "figure.sweep" not in job.given:
        return UserError("no figure chosen", got="figure=none", allowed="figure=NAME", remedy=lists)
    drawn = [one.name for one in shipped_figures() if one.sweep == sweep]
    return UserError(
        f"no figure of sweep {sweep} is chosen",
        got="figure=none",
        allowed=f"figure=NAME ({first_few(drawn)}), or figure.name=NAME figure.layout=LAYOUT",
        remedy=f"figure={drawn[0]}" if drawn else f"figure.name={sweep} figure.layout=lines; {lists}",
    )


def spec_of(job: Job, paper: Paper | None = None) -> FigureSpec:
    """Return what to draw, for a paper (None: as the settings say); slopes are fitted as the sweep or the words say."""
    from hessfig.figures.sheets import FigureSpec

    figure, asked = job.config.figure, _of_its_sweep(job)
    folder = table_folder(asked)
    return FigureSpec(
        figure.name,
        figure.sweep,
        figure.layout,
        windows(asked),
        figure.options,
        asked.config.sweep.average.value,
        x=figure.x,
        colour=figure.colour,
        dashes=figure.dashes,
        resamples=asked.config.resamples,
        preset=unchanged_preset(folder, job.own),
        paper=replace(paper or _paper(job), changed=changed_settings(folder, job)),
    )


def changed_settings(folder: Path, job: Job) -> tuple[str, ...]:
    """Return in words in which settings the network of a table is not its preset's."""
    from hessfig.figures.parts.labels import changed_words

    preset = preset_in(folder, job.own)
    return changed_words({one.key: one.value for one in preset.of_network}) if preset else ()


def _study(job: Job) -> list[Path]:
    """Compute the tables of a theory study unless they are there and whole (seconds), then draw its figure."""
    name, outputs = job.config.figure.name, Path(job.config.output_dir)
    if name not in studies():
        raise UserError(
            f"there is no study {name!r}",
            got=f"figure.name={name}, figure.layout={STUDY}",
            allowed=", ".join(studies()),
            remedy=did_you_mean(name, studies()) or "figure.layout=LAYOUT for a figure of a sweep",
        )
    for key in set(job.given) - {"figure", "style", "output_dir", *(f"figure.{key}" for key in _OF_STUDIES)}:
        raise UserError(
            f"the study {name} does not read {key}",
            got=f"{key}={job.given[key]}",
            allowed=", ".join(["output_dir", "style", *(f"figure.{one}" for one in _OF_STUDIES)]),
            remedy="leave it out: the figure is computed, not measured",
        )
    if not import_module("hessfig.theory.studies").is_whole(outputs / name):
        _compute(name, outputs)
    return import_module("hessfig.figures.study_figures").DRAWN[name](outputs, _paper(job))


def _compute(name: str, outputs: Path) -> None:
    if list((outputs / name).glob("*.csv")):
        print(f"note: the tables in {outputs / name} are not whole, and are computed again", file=sys.stderr)
    import_module("hessfig.theory.studies").RUNS[name](outputs)


def _drawn(job: Job) -> list[Path]:
    from hessfig.figures.sheets import draw

    outputs, spec = Path(job.config.output_dir), spec_of(job)
    paths = draw(spec, outputs)
    if (spec.name, spec.sweep) not in {(one.name, one.sweep) for one in shipped_figures()}:
        _remember(job, outputs / spec.sweep / DRAWN)
    return paths


def _remember(job: Job, folder: Path) -> None:
    """Leave how a figure of the user's own was drawn next to its table: the report shows it on the sweep's page."""
    from hessfig.figures.parts.saving import file_words

    figure, asked = as_plain(job.config.figure), _of_its_sweep(job).config.sweep
    content: dict[str, Any] = {key: figure[key] for key in ("name", "layout", "options", "x", "colour", "dashes")}
    content |= {"windows": as_plain(asked.windows), "average": asked.average.value}
    content["paper"] = {**{f"figure.{key}": figure[key] for key in _OF_PAPER}, "style": str(job.config.style.value)}
    content["command"] = shlex.join(["hessfig", "plot", *job.words])
    text = json.dumps({**content, CHECKSUM: checksum(content)}, indent=1) + "\n"
    place = folder / f"{file_words(figure['name'])}.json"
    publish({place: text}, "way of drawing", known=_sealed(place))


def _sealed(path: Path) -> list[str]:
    """Return the SHA-256 of what `_remember` left there, if its checksum is true."""
    with suppress(OSError, ValueError, TypeError, RecursionError):
        return [fingerprint(path)] if CHECKSUM in read_checked(path) else []
    return []


def remembered(folder: Path, sweep: str, resamples: int) -> Iterator[tuple[FigureSpec | UserError, str, str]]:
    """Yield (how it was drawn, or why that cannot be read; name; command) of every figure that `_remember` left."""
    from hessfig.analysis.slopes.printed import check_windows
    from hessfig.figures.sheets import FigureSpec, check

    for path in sorted((folder / DRAWN).glob("*.json")):
        try:
            found = read_checked(path)
            windows = [(_end(low), _end(high)) for low, high in found["windows"]]
            x, colour, dashes = (found[key] and str(found[key]) for key in ("x", "colour", "dashes"))
            spec = FigureSpec(path.stem, sweep, str(found["layout"]), windows, dict(found["options"]))
            paper = _paper(compose([as_word(key, value) for key, value in _paper_words(found)]))
            spec = replace(
                spec, x=x, colour=colour, dashes=dashes, average=Average(found["average"]).value, paper=paper
            )
            check_windows(windows)
            check(spec)
            yield replace(spec, resamples=resamples), path.stem, str(found["command"])
        except UserError as error:
            yield error, path.stem, ""
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            spoilt = UserError(
                f"{path} cannot be read",
                got=f"{type(error).__name__}: {error}"[:300],
                allowed="what `hessfig plot` leaves there",
                remedy="draw the figure again, or take the file away",
            )
            yield spoilt, path.stem, ""


def _paper_words(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield width, title, panels ... of a figure that was drawn (before 0.2.1 they were not kept), checked by name."""
    for key, value in dict(found.get("paper") or {}).items():
        if key != "style" and key.removeprefix("figure.") not in _OF_PAPER:
            raise ValueError(f"{key} is no setting of a page")
        if value is not None and value != []:
            yield key, value


def _of_its_sweep(job: Job) -> Job:
    """Return the same words asked of the figure's sweep; one that was named by hand is known by its manifest."""
    name = job.config.figure.sweep
    known = choices("sweep", job.own)
    if name in known:
        return job.of_sweep(name)
    manifest = manifest_of(Path(job.config.output_dir) / name) if name else None
    if manifest is None:
        raise UserError(
            f"figure.sweep: there is no sweep {name!r}",
            got=f"figure.sweep={name}",
            allowed=", ".join(known),
            remedy=did_you_mean(name, known) or "figure.sweep=NAME of a sweep, or of one that was run",
        )
    return compose([*job.words, f"sweep.name={name}"], job.own).fitted_as(manifest["config"]["sweep"])


def _paper(job: Job) -> Paper:
    from hessfig.figures.parts.page import Paper

    figure = job.config.figure
    words = {key: getattr(figure, key) for key in ("title", "xlabel", "ylabel", "legend")}
    return Paper(figure.width, figure.note, figure.formats, figure.panels, job.config.style, **words)
