"""What `hessfig report` does: say what the settings know of figures and sweeps, and have the report written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

import hessfig
from hessfig.analysis.axis import X, along
from hessfig.analysis.manifest import read_run
from hessfig.cli.results import spec_of
from hessfig.config.choices import FigureGroup
from hessfig.config.compose import Job, compose, differences, manifest_of
from hessfig.config.schema import FigureConfig
from hessfig.config.settings import settings
from hessfig.config.shipped import STUDY, ShippedFigure, choices, natural, shipped_figures, studies
from hessfig.errors import UserError
from hessfig.figures.parts.paper import Paper
from hessfig.figures.sheets import FigureSpec
from hessfig.files import is_file
from hessfig.record import TABLE
from hessfig.report.asked import Asked, Departure, FigureAsked, SweepAsked
from hessfig.report.contents import Contents
from hessfig.report.folders import find_sweeps
from hessfig.report.written import Written, write_report

PAPER = Paper(formats=("png", "svg"))


def report(job: Job) -> int:
    """Write the report of what is in output_dir; name it, and what is not there yet."""
    written = write_report(_asked(job), single_file=job.config.single_file)
    print("\n".join(_summary(written)))
    return 0


def _summary(written: Written) -> Iterator[str]:
    contents = written.contents
    drawn = [figure for figure in contents.figures if figure.pictures]
    pictures = sum(len(figure.pictures) for figure in drawn)
    yield f"{len(contents.sweeps)} sweeps, {len(drawn)} of {len(contents.figures)} figures ({pictures} pictures)"
    yield from _problems(contents)
    todo = contents.todo()
    if todo:
        yield f"not there yet: {len(todo)} (the front page lists the commands), first: {todo[0].command}"
    more = f", {written.files} files in {written.path.parent}" if written.files > 1 else ""
    yield f"written: {written.path}{more} ({written.size / 2**20:.1f} MiB)"


def _problems(contents: Contents) -> Iterator[str]:
    for sweep in contents.sweeps:
        if sweep.problem:
            yield f"note: {sweep.problem.what}: {sweep.problem.remedy}"
        elif sweep.failures:
            yield f"note: {sweep.name}: {sum(one.count for one in sweep.failures)} cells failed"
    for figure in contents.figures:
        if figure.problem and figure.asked.sweep not in [one.name for one in contents.sweeps if one.problem]:
            yield f"note: {figure.asked.label} is not drawn: {figure.problem.what}"


def _asked(job: Job) -> Asked:
    outputs = Path(job.config.output_dir)
    names = [name for name in find_sweeps(outputs) if name not in studies()]
    figures = _figures(job)
    drawn = {figure.sweep for figure in figures}
    others = [_plain_figure(job, name) for name in names if name not in drawn]
    return Asked(
        outputs,
        [*figures, *(one for one in others if one)],
        {name: _sweep(job, name) for name in names},
        {key: one.about for key, one in settings().items()},
        job.config.tolerance,
        job.config.resamples,
        hessfig.__version__,
        [_command("report", f"output_dir={path}") for path in sorted((outputs / "multirun").glob("*"))],
    )


def _figures(job: Job) -> list[FigureAsked]:
    """Return every figure that the settings know, the paper's first and by name; the user's own where measured."""
    of_the_user = sorted(set(choices("figure", job.own)) - set(choices("figure")))
    known: list[ShippedFigure | FigureConfig] = [*shipped_figures()]
    known += (_composed(job, f"figure={name}").config.figure for name in of_the_user)
    shown = [one for one in known if one.group != FigureGroup.own or _is_measured(job, one.sweep)]
    return [_figure(job, one) for one in sorted(shown, key=_place_of)]


def _place_of(figure: Any) -> tuple[Any, ...]:
    return (0, natural(figure.name)) if figure.group == FigureGroup.paper else (1, figure.order, figure.name)


def _figure(job: Job, figure: ShippedFigure | FigureConfig) -> FigureAsked:
    """Return what is asked of a figure: how it is drawn if its sweep is measured, and the command for it."""
    title = choices("figure", job.own)[figure.name].removeprefix(f"Figure {figure.name}:").strip()
    command = _command("plot", f"figure={figure.name}", *_place(job))
    about = (figure.name, title[:1].upper() + title[1:], figure.group.value, figure.sweep)
    if figure.layout == STUDY:
        whole = import_module("hessfig.theory.studies.kept").is_whole
        return FigureAsked(*about, command, ready=whole(Path(job.config.output_dir) / figure.name))
    if not _is_measured(job, figure.sweep):
        run = _command("run", f"sweep={figure.sweep}", *_place(job))
        return FigureAsked(*about, f"{run} && {command}")
    return FigureAsked(*about, command, *_spec(job, f"figure={figure.name}"))


def _spec(job: Job, *words: str) -> tuple[FigureSpec | None, UserError | None]:
    """Return how to draw a figure, or why it cannot be."""
    try:
        return spec_of(_composed(job, *words), PAPER), None
    except UserError as error:
        return None, error


def _plain_figure(job: Job, sweep: str) -> FigureAsked | None:
    """Return a figure of a sweep that none is known of: its curves, or its numbers as bars."""
    if not _is_measured(job, sweep):
        return None
    layout = "lines" if _has_curves(Path(job.config.output_dir) / sweep) else "bars"
    words = [f"figure.sweep={sweep}", f"figure.layout={layout}", f"figure.name={sweep}"]
    command = _command("plot", *words, *_place(job))
    return FigureAsked(sweep, "Everything that was measured", "own", sweep, command, *_spec(job, *words))


def _has_curves(folder: Path) -> bool:
    try:
        run = read_run(folder)
        return bool(along(run.table, run.axis)[X].nunique() > 1)
    except UserError:  # the figure says why
        return False


def _sweep(job: Job, name: str) -> SweepAsked:
    """Return a sweep as the settings have it; one that was named by hand has its manifest's windows."""
    is_known = name in choices("sweep", job.own)
    of_sweep = _composed(job, f"sweep={name}" if is_known else f"sweep.name={name}")
    config = _made(Path(job.config.output_dir) / name)
    if config and not is_known:
        of_sweep = of_sweep.fitted_as(config["sweep"])
    fitted = of_sweep.config.sweep
    departures = None if config is None else _departures(config, of_sweep)
    about = fitted.about if is_known else str((config or {"sweep": {}})["sweep"].get("about") or "")
    windows = [(low, high) for low, high in fitted.windows]
    command = _again(job, name, config, departures or [], is_known=is_known)
    return SweepAsked(name, about, windows, fitted.average.value, command, departures, is_known)


def _made(folder: Path) -> Mapping[str, Any] | None:
    try:
        manifest = manifest_of(folder)
    except UserError:  # the sweep's page says why
        return None
    return None if manifest is None else manifest["config"]


def _departures(config: Mapping[str, Any], job: Job) -> list[Departure]:
    return [Departure(one.key, _text(one.made), _text(one.asked)) for one in differences(config, job)]


def _again(
    job: Job, name: str, config: Mapping[str, Any] | None, departures: list[Departure], *, is_known: bool
) -> str:
    """Return the command that makes a sweep again: what departs from the preset is given."""
    vary = ((config or {}).get("sweep") or {}).get("vary") or {}
    words = [f"{one.key}={one.made}" for one in departures if one.key not in vary]
    if any(one.key in vary for one in departures):
        words.append(f"sweep.vary={_text(vary)}")
    return _command("run", f"sweep={name}" if is_known else f"sweep.name={name}", *words, *_place(job))


def _composed(job: Job, *words: str) -> Job:
    return compose([*words, *(word for word in job.words if word.startswith("output_dir="))], job.own)


def _place(job: Job) -> list[str]:
    own = ["--config-dir", str(job.own)] if job.own else []
    return [*(word for word in job.words if word.startswith("output_dir=")), *own]


def _command(verb: str, *words: str) -> str:
    return shlex.join(["hessfig", verb, *words])


def _is_measured(job: Job, sweep: str) -> bool:
    return bool(sweep) and is_file(Path(job.config.output_dir) / sweep / TABLE)


def _text(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)
