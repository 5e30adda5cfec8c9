"""What `hessfig report` does: say what the settings know of figures and sweeps, and have the report written."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import hessfig
from hessfig.analysis.axis import X, along
from hessfig.analysis.manifest import read_run
from hessfig.analysis.slopes.printed import WHOLE
from hessfig.cli.flags import check_format
from hessfig.cli.plot import changed_settings, remembered, spec_of
from hessfig.config.compose import Job, compose, manifest_of, preset_in
from hessfig.config.compose.provenance import SettingDifference
from hessfig.config.enums import FigureGroup, Printed
from hessfig.config.presets import STUDY, ShippedFigure, choices, natural, shipped_figures, studies
from hessfig.config.schema import FigureConfig
from hessfig.config.settings import settings
from hessfig.errors import UserError
from hessfig.figures.parts.page import Paper
from hessfig.figures.sheets import FigureSpec
from hessfig.files import is_file
from hessfig.record import FROBENIUS, TABLE
from hessfig.report.at_a_glance import write_glance
from hessfig.report.drawn_figures import Contents
from hessfig.report.gathered import Departure, FigureAsked, FigureRequests, SweepAsked, find_sweeps
from hessfig.report.written import Written, check_place, write_report


def asked_of(job: Job, name: str) -> SweepAsked:
    """Return a sweep as the settings have it; one that was named by hand has its manifest's windows."""
    is_known, folder = name in choices("sweep", job.own), Path(job.config.output_dir) / name
    of_sweep = composed(job, f"sweep={name}" if is_known else f"sweep.name={name}")
    manifest = _made(folder)
    config = None if manifest is None else manifest["config"]
    if config and not is_known:
        of_sweep = of_sweep.fitted_as(config["sweep"])
    fitted, preset = of_sweep.config.sweep, preset_in(folder, job.own) if manifest else None
    departures = None if preset is None else _departures(preset.changed)
    about = fitted.about if is_known else str((config or {"sweep": {}})["sweep"].get("about") or "")
    other = preset.of_network if preset else []
    again = quoted_anew((manifest or {}).get("command"), "run")
    return SweepAsked(
        name,
        preset.words(name) if preset else about,
        [(low, high) for low, high in fitted.windows],
        fitted.average.value,
        again or _again(job, name, config, departures or [], is_known=is_known),
        departures,
        is_known,
        preset=preset.name if preset else "",
        other=_departures(other),
    )


def composed(job: Job, *words: str) -> Job:
    """Return what other words ask of the same output folder."""
    return compose([*words, *(word for word in job.words if word.startswith("output_dir="))], job.own)


def place(job: Job) -> list[str]:
    """Return the words that say where results and the user's folder are."""
    own = ["--config-dir", str(job.own)] if job.own else []
    return [*(word for word in job.words if word.startswith("output_dir=")), *own]


def command(verb: str, *words: str) -> str:
    """Return a command ready to be pasted."""
    return shlex.join(["hessfig", verb, *words])


def is_measured(job: Job, sweep: str) -> bool:
    """Whether a sweep has a table."""
    return bool(sweep) and is_file(Path(job.config.output_dir) / sweep / TABLE)


def _made(folder: Path) -> Mapping[str, Any] | None:
    try:
        return manifest_of(folder)
    except UserError:  # the sweep's page says why
        return None


def quoted_anew(found: object, verb: str) -> str:
    """Return a command line found in a file, if it is one of `verb`: pasting it runs hessfig and nothing else."""
    with suppress(ValueError):  # quotes that do not close
        words = shlex.split(str(found or ""))
        return shlex.join(words) if words[:2] == ["hessfig", verb] else ""
    return ""


def _departures(found: Sequence[SettingDifference]) -> list[Departure]:
    return [Departure(one.key, _text(one.made), _text(one.asked)) for one in found]


def _again(
    job: Job, name: str, config: Mapping[str, Any] | None, departures: list[Departure], *, is_known: bool
) -> str:
    """Return the command that makes a sweep again: what departs from the preset is given."""
    vary = ((config or {}).get("sweep") or {}).get("vary") or {}
    words = [f"{one.key}={one.made}" for one in departures if one.key not in vary]
    if any(one.key in vary for one in departures):
        words.append(f"sweep.vary={_text(vary)}")
    return command("run", f"sweep={name}" if is_known else f"sweep.name={name}", *words, *place(job))


def _text(value: Any) -> str:
    """Return a value as the command line takes it."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_text(one)}" for key, one in value.items()) + "}"
    if isinstance(value, list):
        return f"[{','.join(map(_text, value))}]"
    return value if isinstance(value, str) else json.dumps(value)


PAPER = Paper(formats=("png", "svg"))


def report(job: Job) -> int:
    """Write the report of what is in output_dir; name it, and what is not there yet."""
    check_format(job.config.format, Printed.table, Printed.pdf)
    if job.config.format == Printed.pdf:
        path, contents = write_glance(_asked(job))
        print("\n".join([*_problems(contents), f"written: {path}"]))
        return 0
    single_file = job.config.single_file
    check_place(Path(job.config.output_dir), single_file=single_file)
    written = write_report(_asked(job), single_file=single_file)
    print("\n".join(_summary(written)))
    return 0


def _summary(written: Written) -> Iterator[str]:
    contents = written.contents
    drawn = [figure for figure in contents.figures if figure.pictures]
    pictures = sum(len(figure.pictures) for figure in drawn)
    sweeps = f"{len(contents.sweeps)} sweep{'s' * (len(contents.sweeps) != 1)}"
    shown = f"{pictures} picture{'s' * (pictures != 1)}"
    yield f"{sweeps}; {len(drawn)} of the {len(contents.figures)} figures that are known are drawn ({shown})"
    yield from _problems(contents)
    todo = contents.todo()
    if todo:
        more = "" if len(todo) == 1 else f" (and {len(todo) - 1} more, on the front page)"
        yield f"to be measured or drawn next: {todo[0].command}{more}"
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


def _asked(job: Job) -> FigureRequests:
    outputs = Path(job.config.output_dir)
    names = [name for name in find_sweeps(outputs) if name not in studies()]
    figures = _figures(job)
    figures += [one for name in names for one in _by_hand(job, name, {figure.name for figure in figures})]
    drawn = {figure.sweep for figure in figures}
    others = [_plain_figure(job, name) for name in names if name not in drawn]
    return FigureRequests(
        outputs,
        [*figures, *(one for one in others if one)],
        {name: asked_of(job, name) for name in names},
        {key: one.about for key, one in settings().items()},
        job.config.tolerance,
        job.config.resamples,
        hessfig.__version__,
        [command("report", f"output_dir={path}") for path in sorted((outputs / "multirun").glob("*"))],
    )


def _figures(job: Job) -> list[FigureAsked]:
    """Return every figure that the settings know, the paper's first and by name; the user's own where measured."""
    of_the_user = sorted(set(choices("figure", job.own)) - set(choices("figure")))
    known: list[ShippedFigure | FigureConfig] = [*shipped_figures()]
    known += (composed(job, f"figure={name}").config.figure for name in of_the_user)
    shown = [one for one in known if one.group != FigureGroup.own or is_measured(job, one.sweep)]
    return [_figure(job, one) for one in sorted(shown, key=_place_of)]


def _place_of(figure: Any) -> tuple[Any, ...]:
    return (0, natural(figure.name)) if figure.group == FigureGroup.paper else (1, figure.order, figure.name)


def _figure(job: Job, figure: ShippedFigure | FigureConfig) -> FigureAsked:
    """Return what is asked of a figure: how it is drawn if its sweep is measured, and the command for it."""
    title = choices("figure", job.own)[figure.name].removeprefix(f"Figure {figure.name}:").strip()
    made_by = command("plot", f"figure={figure.name}", *place(job))
    about = (figure.name, title[:1].upper() + title[1:], figure.group.value, figure.sweep)
    if figure.layout == STUDY:
        whole = import_module("hessfig.theory.studies").is_whole
        return FigureAsked(*about, made_by, ready=whole(Path(job.config.output_dir) / figure.name))
    if not is_measured(job, figure.sweep):
        run = command("run", f"sweep={figure.sweep}", *place(job))
        return FigureAsked(*about, f"{run} && {made_by}")
    spec, problem = _spec(job, f"figure={figure.name}")
    changed = ", ".join(spec.paper.changed) if spec else ""
    title = f"{about[1]} (changed: {changed})" if changed else about[1]
    return FigureAsked(about[0], title, *about[2:], made_by, spec, problem)


def _spec(job: Job, *words: str) -> tuple[FigureSpec | None, UserError | None]:
    """Return how to draw a figure, or why it cannot be."""
    try:
        return spec_of(composed(job, *words), PAPER), None
    except UserError as error:
        return None, error


def _by_hand(job: Job, sweep: str, known: set[str]) -> Iterator[FigureAsked]:
    """Yield the figures that `hessfig plot` drew of a sweep next to those that the settings know."""
    if not is_measured(job, sweep):
        return
    folder = Path(job.config.output_dir) / sweep
    changed = _changed(folder, job)
    for found, stem, drawn_by in remembered(folder, sweep, job.config.resamples):
        own = choices("figure", job.own).keys() - choices("figure").keys()
        if stem in own:
            continue  # its file, which is at hand, may have changed since
        name = f"{stem}_{sweep}" if stem in known else stem
        title = "" if isinstance(found, UserError) else found.paper.title
        about = (name, title or "A figure of your own", "own", sweep, quoted_anew(drawn_by, "plot"))
        if isinstance(found, UserError):
            yield FigureAsked(*about, problem=found)
        else:
            paper = replace(found.paper, note=PAPER.note, formats=PAPER.formats, changed=changed)
            yield FigureAsked(*about, replace(found, name=name, paper=paper))


def _changed(folder: Path, job: Job) -> tuple[str, ...]:
    try:
        return changed_settings(folder, job)
    except UserError:  # the sweep's page says why
        return ()


def _plain_figure(job: Job, sweep: str) -> FigureAsked | None:
    """Return a figure of a sweep that none is known of: its curves, or its numbers as bars."""
    if not is_measured(job, sweep):
        return None
    layout = "lines" if _has_curves(Path(job.config.output_dir) / sweep) else "bars"
    words = [f"figure.sweep={sweep}", f"figure.layout={layout}", f"figure.name={sweep}"]
    made_by = command("plot", *words, *place(job))
    folder = Path(job.config.output_dir) / sweep
    paper = replace(PAPER, changed=_changed(folder, job))
    spec = FigureSpec(sweep, sweep, layout, [WHOLE], _quantity_of(folder), resamples=job.config.resamples, paper=paper)
    return FigureAsked(sweep, "Everything that was measured", "own", sweep, made_by, spec)


def _quantity_of(folder: Path) -> dict[str, Any]:
    """Return the option that draws the first quantity of a table without Frobenius norms."""
    try:
        found = list(read_run(folder).table["quantity"].unique())
    except UserError:  # the figure says why
        return {}
    return {} if FROBENIUS in found else {"quantity": found[0]}


def _has_curves(folder: Path) -> bool:
    try:
        run = read_run(folder)
        return bool(along(run.table, run.axis)[X].nunique() > 1)
    except UserError:  # the figure says why
        return False
