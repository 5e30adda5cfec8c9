"""What `hessfig plot` does: a figure drawn from a sweep's table, or a study of the theory computed and drawn."""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.cli.results import windows
from hessfig.config.compose import Job, compose, manifest_of, preset_in, table_folder
from hessfig.config.shipped import STUDY, choices, shipped_figures, studies
from hessfig.errors import UserError, did_you_mean, first_few, plain

if TYPE_CHECKING:
    from hessfig.figures.parts.paper import Paper
    from hessfig.figures.sheets import FigureSpec

_OF_STUDIES = ("width", "panels", "note", "formats")


def plot(job: Job) -> int:
    """Draw the figure chosen."""
    figure = job.config.figure
    if not figure.name:
        raise _no_figure(job)
    for path in _study(job) if figure.layout == STUDY else _drawn(job):
        print(path)
    return 0


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
        paper=replace(paper or _paper(job), changed=changed_settings(folder, job)),
    )


def changed_settings(folder: Path, job: Job) -> tuple[str, ...]:
    """Return in words in which settings the network of a table is not its preset's."""
    from hessfig.figures.parts.words import changed_words

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
    if not import_module("hessfig.theory.studies.kept").is_whole(outputs / name):
        _compute(name, outputs)
    return import_module(f"hessfig.figures.studies.{name}").draw(outputs, _paper(job))


def _compute(name: str, outputs: Path) -> None:
    if list((outputs / name).glob("*.csv")):
        print(f"note: the tables in {outputs / name} are not whole, and are computed again", file=sys.stderr)
    import_module(f"hessfig.theory.studies.{name}").run(outputs)


def _drawn(job: Job) -> list[Path]:
    from hessfig.figures.sheets import draw

    return draw(spec_of(job), Path(job.config.output_dir))


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
    from hessfig.figures.parts.paper import Paper

    figure = job.config.figure
    return Paper(figure.width, figure.note, figure.formats, figure.panels, job.config.style)
