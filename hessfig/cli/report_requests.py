"""Collects everything that a report of an outputs folder shows, as the settings request it."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import hessfig
from hessfig.analysis.axis import X, along
from hessfig.analysis.manifest import read_run
from hessfig.analysis.slopes.printed import WHOLE
from hessfig.api.requested import changed_settings, figure_spec, remembered, requote
from hessfig.config.compose.job import Job, compose
from hessfig.config.compose.provenance import SettingDifference, manifest_of, preset_in
from hessfig.config.enums import FigureGroup
from hessfig.config.presets import STUDY, ShippedFigure, choices, names, natural, shipped_figures, theory_studies
from hessfig.config.schema import FigureConfig
from hessfig.config.settings import settings
from hessfig.errors import UserError, command_line, typed
from hessfig.figures.parts.page import Paper
from hessfig.figures.sheets import FigureSpec
from hessfig.files import is_file
from hessfig.record import FROBENIUS, TABLE
from hessfig.report.charts import library
from hessfig.report.gathered import Departure, FigureAsked, FigureRequests, SweepAsked, find_sweeps

_OF_REPORT = Paper(formats=("png", "svg"))
_OWN = "A figure of your own"
T = TypeVar("T")


def report_requests(job: Job) -> FigureRequests:
    """Return the requests of a report of output_dir: known and user-drawn figures, plain ones of other sweeps.

    Raises nothing: the report shows why something cannot be read in its place.
    """
    outputs = Path(job.config.output_dir)
    sweeps = [name for name in find_sweeps(outputs) if name not in theory_studies()]
    measured = [name for name in sweeps if _is_measured(job, name)]
    figures = _figures(job)
    known = {figure.name for figure in figures}
    figures += [figure for name in measured for figure in user_drawn_figures(job, outputs / name, known)]
    drawn = {figure.sweep for figure in figures}
    return FigureRequests(
        outputs,
        [*figures, *(_plain_figure(job, outputs / name) for name in measured if name not in drawn)],
        {name: _sweep(job, name) for name in sweeps},
        {key: spec.about for key, spec in settings().items()},
        job.config.tolerance,
        job.config.resamples,
        hessfig.__version__,
        [command_line("report", f"output_dir={path}") for path in sorted((outputs / "multirun").glob("*"))],
        library(job.config.interactive, single_file=job.config.single_file),
    )


def _sweep(job: Job, name: str) -> SweepAsked:
    """Return a sweep as the settings define it; a sweep named by hand has its manifest's windows."""
    is_known, folder = name in names("sweep", job.own), Path(job.config.output_dir) / name
    named = f"sweep={name}" if is_known else f"sweep.name={name}"
    manifest = _if_sound(manifest_of, folder) or {}
    asked, recorded = _composed(job, named), manifest.get("config", {"sweep": {}})["sweep"]
    asked = asked if is_known else asked.fitted_as(recorded)
    preset = preset_in(folder, job.own) if manifest else None
    departures = None if preset is None else _departures(preset.changed)
    about = asked.config.sweep.about if is_known else str(recorded.get("about") or "")
    return SweepAsked(
        name,
        preset.words(name) if preset else about,
        asked.windows,
        asked.config.sweep.average.value,
        requote(manifest.get("command"), "run")
        or rerun_command(job, named, recorded.get("vary") or {}, departures or []),
        departures,
        is_known,
        preset=preset.name if preset else "",
        other=_departures(preset.of_network if preset else []),
    )


def rerun_command(job: Job, named: str, vary: Mapping[str, Any], departures: list[Departure]) -> str:
    """Return the command that measures a sweep again, with every setting that departs from the preset."""
    words = [f"{departure.key}={departure.made}" for departure in departures if departure.key not in vary]
    if any(departure.key in vary for departure in departures):
        words.append(f"sweep.vary={typed(vary)}")
    return command_line("run", named, *words, *_place(job))


def _departures(differences: Sequence[SettingDifference]) -> list[Departure]:
    return [Departure(change.key, typed(change.made), typed(change.asked)) for change in differences]


def _composed(job: Job, *words: str) -> Job:
    """Compose other words for the same output folder."""
    return compose([*words, *_output_dir(job)], job.own)


def _output_dir(job: Job) -> list[str]:
    return [word for word in job.words if word.startswith("output_dir=")]


def _place(job: Job) -> list[str]:
    """Return the words that say where results and the user's folder are."""
    return [*_output_dir(job), *job.flags]


def _is_measured(job: Job, sweep: str) -> bool:
    return bool(sweep) and is_file(Path(job.config.output_dir) / sweep / TABLE)


def _if_sound(read: Callable[..., T], *of: Any) -> T | None:
    """Read something in a sweep's folder; None if it is broken, which the sweep's page reports."""
    try:
        return read(*of)
    except UserError:
        return None


def _own_figures(job: Job) -> list[str]:
    return sorted(set(names("figure", job.own)) - set(names("figure")))


def _figures(job: Job) -> list[FigureAsked]:
    """Return every figure that the settings know, the paper's first and by name; the user's own where measured."""
    known: list[ShippedFigure | FigureConfig] = [*shipped_figures()]
    known += (_composed(job, f"figure={name}").config.figure for name in _own_figures(job))
    shown = [figure for figure in known if figure.group != FigureGroup.own or _is_measured(job, figure.sweep)]
    return [_figure(job, figure) for figure in sorted(shown, key=_rank)]


def _rank(figure: Any) -> tuple[Any, ...]:
    return (0, natural(figure.name)) if figure.group == FigureGroup.paper else (1, figure.order, figure.name)


def _figure(job: Job, figure: ShippedFigure | FigureConfig) -> FigureAsked:
    """Return the request of a figure: how to draw it if its sweep is measured, and the command for it."""
    title = choices("figure", job.own)[figure.name].removeprefix(f"Figure {figure.name}:").strip()
    made_by = command_line("plot", f"figure={figure.name}", *_place(job))
    asked = FigureAsked(figure.name, title[:1].upper() + title[1:], figure.group.value, figure.sweep, made_by)
    if figure.layout == STUDY:
        whole = import_module("hessfig.theory.studies").is_whole
        return replace(asked, ready=whole(Path(job.config.output_dir) / figure.name))
    if not _is_measured(job, figure.sweep):
        return replace(asked, command=f"{command_line('run', f'sweep={figure.sweep}', *_place(job))} && {made_by}")
    try:
        spec = figure_spec(_composed(job, f"figure={figure.name}"), _OF_REPORT)
    except UserError as error:
        return replace(asked, problem=error)
    changed = f" (changed: {', '.join(spec.paper.changed)})" if spec.paper.changed else ""
    return replace(asked, title=f"{asked.title}{changed}", spec=spec)


def user_drawn_figures(job: Job, folder: Path, known: set[str]) -> Iterator[FigureAsked]:
    """Yield the figures that `hessfig plot` drew of a sweep next to those that the settings know."""
    own = _own_figures(job)  # their files, which are at hand, may have changed since
    changed = changed_settings(_if_sound(preset_in, folder, job.own))
    for stem, command, drawn in remembered(folder, job.config.resamples):
        if stem in own:
            continue
        name = f"{stem}_{folder.name}" if stem in known else stem
        if isinstance(drawn, UserError):
            yield FigureAsked(name, _OWN, "own", folder.name, command, problem=drawn)
        else:
            title = drawn.paper.title or _OWN
            yield FigureAsked(name, title, "own", folder.name, command, _for_report(drawn, name, changed))


def _for_report(spec: FigureSpec, name: str, changed: tuple[str, ...]) -> FigureSpec:
    paper = replace(spec.paper, note=_OF_REPORT.note, formats=_OF_REPORT.formats, changed=changed)
    return replace(spec, name=name, paper=paper)


def _plain_figure(job: Job, folder: Path) -> FigureAsked:
    """Return a plain figure of a sweep without a known figure: its curves, or its numbers as bars."""
    sweep, run = folder.name, _if_sound(read_run, folder)  # else the figure says why
    layout = "lines" if run and along(run.table, run.axis)[X].nunique() > 1 else "bars"
    measured = [] if run is None else list(run.table["quantity"].unique())
    options = {"quantity": measured[0]} if measured and FROBENIUS not in measured else {}
    paper = replace(_OF_REPORT, changed=changed_settings(_if_sound(preset_in, folder, job.own)))
    spec = FigureSpec(sweep, sweep, layout, [WHOLE], options, resamples=job.config.resamples, paper=paper)
    words = [f"figure.sweep={sweep}", f"figure.layout={layout}", f"figure.name={sweep}"]
    made_by = command_line("plot", *words, *_place(job))
    return FigureAsked(sweep, "Everything that was measured", "own", sweep, made_by, spec)
