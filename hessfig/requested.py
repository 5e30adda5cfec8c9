"""Which figure of which sweep is asked for: by settings, by what was drawn before, and everything for a report."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any, TypeVar

import hessfig
from hessfig.analysis.axis import X, along
from hessfig.analysis.manifest import read_run
from hessfig.analysis.slopes.printed import WHOLE, check_windows
from hessfig.config.compose.job import Job, compose
from hessfig.config.compose.overrides import as_word
from hessfig.config.compose.provenance import Preset, SettingDifference, manifest_of, preset_in, table_folder, unchanged
from hessfig.config.enums import Average, FigureGroup
from hessfig.config.keys import as_plain
from hessfig.config.presets import STUDY, ShippedFigure, choices, names, natural, shipped_figures, studies
from hessfig.config.schema import Config, FigureConfig
from hessfig.config.settings import settings
from hessfig.errors import UserError, command_line, typed, unknown_name, words_of_command
from hessfig.figures.parts.labels import changed_words
from hessfig.figures.parts.page import Paper
from hessfig.figures.parts.saving import file_words
from hessfig.figures.sheets import FigureSpec, check
from hessfig.files import fingerprint, is_file
from hessfig.record import FROBENIUS, TABLE, UNREADABLE, read_checked, read_sealed, sealed_text
from hessfig.register import publish
from hessfig.report.charts import library
from hessfig.report.gathered import Departure, FigureAsked, FigureRequests, SweepAsked, find_sweeps

DRAWN = "drawn"  # in a sweep's folder: how figures of the user's own were drawn
OF_STUDIES = ("width", "panels", "note", "formats", "title", "xlabel", "ylabel", "legend")
_OF_LAYOUT = ("name", "layout", "options", "x", "colour", "dashes", "where")
_OF_PAPER = tuple(key for key in OF_STUDIES if key != "formats")
_OF_REPORT = Paper(formats=("png", "svg"))
_OWN = "A figure of your own"
T = TypeVar("T")


def figure_spec(job: Job, paper: Paper | None = None) -> FigureSpec:
    """Return what to draw, for a paper (None: as the settings say); slopes are fitted as the sweep or the words say."""
    figure, asked = job.config.figure, _of_its_sweep(job)
    preset = preset_in(table_folder(asked), job.own)
    return FigureSpec(
        figure.name,
        figure.sweep,
        figure.layout,
        asked.windows,
        figure.options,
        asked.config.sweep.average.value,
        x=figure.x,
        colour=figure.colour,
        dashes=figure.dashes,
        where=figure.where,
        resamples=asked.config.resamples,
        preset=unchanged(preset),
        paper=replace(paper or paper_of(job), changed=_changed(preset)),
    )


def paper_of(job: Job) -> Paper:
    """Return the paper that the settings ask for."""
    return Paper(style=job.config.style, **{key: getattr(job.config.figure, key) for key in OF_STUDIES})


def figures_of(folder: Path, own: Path | None) -> Iterator[FigureSpec | UserError]:
    """Yield how each figure of the sweep in `folder` is drawn, the shipped ones and those drawn before, or why not."""
    for figure in shipped_figures():
        if figure.sweep == folder.name:
            yield figure_spec(compose([f"figure={figure.name}", as_word("output_dir", str(folder.parent))], own))
    for one in remembered(folder, Config().resamples):
        if found := one.spec or one.problem:
            yield found


def remember(job: Job, folder: Path) -> None:
    """Leave how a figure of the user's own was drawn next to its table: the report shows it on the sweep's page."""
    figure, asked = as_plain(job.config.figure), _of_its_sweep(job).config.sweep
    content: dict[str, Any] = {key: figure[key] for key in _OF_LAYOUT}
    content |= {"windows": as_plain(asked.windows), "average": asked.average.value}
    content["paper"] = {**{f"figure.{key}": figure[key] for key in _OF_PAPER}, "style": str(job.config.style.value)}
    content["command"] = command_line("plot", *job.words)
    place = folder / DRAWN / f"{file_words(figure['name'])}.json"
    known = [fingerprint(place)] if read_sealed(place) else []
    publish({place: sealed_text(content)}, "way of drawing", known=known)


def remembered(folder: Path, resamples: int) -> Iterator[FigureAsked]:
    """Yield every figure that `remember` left in a sweep's folder, or why it cannot be read."""
    for path in sorted((folder / DRAWN).glob("*.json")):
        try:
            yield _remembered(path, folder.name, resamples)
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
        yield FigureAsked(path.stem, _OWN, "own", folder.name, "", problem=problem)


def _remembered(path: Path, sweep: str, resamples: int) -> FigureAsked:
    found = read_checked(path)
    windows = [(_end(low), _end(high)) for low, high in found["windows"]]
    x, colour, dashes = (found[key] and str(found[key]) for key in ("x", "colour", "dashes"))
    spec = FigureSpec(
        path.stem,
        sweep,
        str(found["layout"]),
        windows,
        dict(found["options"]),
        Average(found["average"]).value,
        x=x,
        colour=colour,
        dashes=dashes,
        where=dict(found.get("where") or {}),  # not kept before 0.3.0
        resamples=resamples,
        paper=paper_of(compose([as_word(key, value) for key, value in _paper_words(found)])),
    )
    check_windows(windows)
    check(spec)
    return FigureAsked(path.stem, spec.paper.title or _OWN, "own", sweep, _requote(found["command"], "plot"), spec)


def _end(value: Any) -> float | None:
    return None if value is None else float(value)


def _paper_words(found: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield width, title, panels ... of a figure that was drawn (before 0.3.0 they were not kept), checked by name."""
    for key, value in dict(found.get("paper") or {}).items():
        if key != "style" and key.removeprefix("figure.") not in _OF_PAPER:
            raise ValueError(f"{key} is no setting of a page")
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
        raise unknown_name(what, name, known, "figure.sweep=NAME of a sweep, or of one that was run", got=got)
    return compose([*job.words, f"sweep.name={name}"], job.own).fitted_as(manifest["config"]["sweep"])


def _changed(preset: Preset | None) -> tuple[str, ...]:
    """Return in words in which settings the network of a table is not its preset's."""
    return changed_words({one.key: one.value for one in preset.of_network}) if preset else ()


def report_requests(job: Job) -> FigureRequests:
    """Return all that a report of output_dir shows: figures by name, those drawn by hand, and a plain one of the rest.

    Nothing in it raises: what cannot be read is said where it would stand.
    """
    outputs = Path(job.config.output_dir)
    found = [name for name in find_sweeps(outputs) if name not in studies()]
    measured = [name for name in found if _is_measured(job, name)]
    figures = _figures(job)
    known = {figure.name for figure in figures}
    figures += [one for name in measured for one in _user_drawn_figures(job, outputs / name, known)]
    drawn = {figure.sweep for figure in figures}
    return FigureRequests(
        outputs,
        [*figures, *(_plain_figure(job, outputs / name) for name in measured if name not in drawn)],
        {name: _sweep(job, name) for name in found},
        {key: one.about for key, one in settings().items()},
        job.config.tolerance,
        job.config.resamples,
        hessfig.__version__,
        [command_line("report", f"output_dir={path}") for path in sorted((outputs / "multirun").glob("*"))],
        library(job.config.interactive, single_file=job.config.single_file),
    )


def _sweep(job: Job, name: str) -> SweepAsked:
    """Return a sweep as the settings have it; one that was named by hand has its manifest's windows."""
    is_known, folder = name in names("sweep", job.own), Path(job.config.output_dir) / name
    named = f"sweep={name}" if is_known else f"sweep.name={name}"
    manifest = _if_sound(manifest_of, folder) or {}
    asked, made = _composed(job, named), manifest.get("config", {"sweep": {}})["sweep"]
    asked = asked if is_known else asked.fitted_as(made)
    preset = preset_in(folder, job.own) if manifest else None
    departures = None if preset is None else _departures(preset.changed)
    about = asked.config.sweep.about if is_known else str(made.get("about") or "")
    return SweepAsked(
        name,
        preset.words(name) if preset else about,
        asked.windows,
        asked.config.sweep.average.value,
        _requote(manifest.get("command"), "run")
        or _rerun_command(job, named, made.get("vary") or {}, departures or []),
        departures,
        is_known,
        preset=preset.name if preset else "",
        other=_departures(preset.of_network if preset else []),
    )


def _rerun_command(job: Job, named: str, vary: Mapping[str, Any], departures: list[Departure]) -> str:
    """Return the command that makes a sweep again: what departs from the preset is given."""
    words = [f"{one.key}={one.made}" for one in departures if one.key not in vary]
    if any(one.key in vary for one in departures):
        words.append(f"sweep.vary={typed(vary)}")
    return command_line("run", named, *words, *_place(job))


def _departures(found: Sequence[SettingDifference]) -> list[Departure]:
    return [Departure(one.key, typed(one.made), typed(one.asked)) for one in found]


def _composed(job: Job, *words: str) -> Job:
    """Return what other words ask of the same output folder."""
    return compose([*words, *_output_dir(job)], job.own)


def _output_dir(job: Job) -> list[str]:
    return [word for word in job.words if word.startswith("output_dir=")]


def _place(job: Job) -> list[str]:
    """Return the words that say where results and the user's folder are."""
    return [*_output_dir(job), *job.flags]


def _is_measured(job: Job, sweep: str) -> bool:
    return bool(sweep) and is_file(Path(job.config.output_dir) / sweep / TABLE)


def _if_sound(read: Callable[..., T], *of: Any) -> T | None:
    """Return what is read in a sweep's folder; None where it is broken, as the page of the sweep says."""
    try:
        return read(*of)
    except UserError:
        return None


def _requote(found: object, verb: str) -> str:
    """Return a command line found in a file, if it is one of `verb`: pasting it runs hessfig and nothing else."""
    words = words_of_command(found, verb)
    return "" if words is None else command_line(verb, *words)


def _own_figures(job: Job) -> list[str]:
    return sorted(set(names("figure", job.own)) - set(names("figure")))


def _figures(job: Job) -> list[FigureAsked]:
    """Return every figure that the settings know, the paper's first and by name; the user's own where measured."""
    known: list[ShippedFigure | FigureConfig] = [*shipped_figures()]
    known += (_composed(job, f"figure={name}").config.figure for name in _own_figures(job))
    shown = [one for one in known if one.group != FigureGroup.own or _is_measured(job, one.sweep)]
    return [_figure(job, one) for one in sorted(shown, key=_rank)]


def _rank(figure: Any) -> tuple[Any, ...]:
    return (0, natural(figure.name)) if figure.group == FigureGroup.paper else (1, figure.order, figure.name)


def _figure(job: Job, figure: ShippedFigure | FigureConfig) -> FigureAsked:
    """Return what is asked of a figure: how it is drawn if its sweep is measured, and the command for it."""
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


def _user_drawn_figures(job: Job, folder: Path, known: set[str]) -> Iterator[FigureAsked]:
    """Yield the figures that `hessfig plot` drew of a sweep next to those that the settings know."""
    own = _own_figures(job)  # their files, which are at hand, may have changed since
    changed = _changed(_if_sound(preset_in, folder, job.own))
    for one in remembered(folder, job.config.resamples):
        if one.name not in own:
            name = f"{one.name}_{folder.name}" if one.name in known else one.name
            yield replace(one, name=name, spec=one.spec and _for_report(one.spec, name, changed))


def _for_report(spec: FigureSpec, name: str, changed: tuple[str, ...]) -> FigureSpec:
    paper = replace(spec.paper, note=_OF_REPORT.note, formats=_OF_REPORT.formats, changed=changed)
    return replace(spec, name=name, paper=paper)


def _plain_figure(job: Job, folder: Path) -> FigureAsked:
    """Return a figure of a sweep that none is known of: its curves, or its numbers as bars."""
    sweep, run = folder.name, _if_sound(read_run, folder)  # else the figure says why
    layout = "lines" if run and along(run.table, run.axis)[X].nunique() > 1 else "bars"
    measured = [] if run is None else list(run.table["quantity"].unique())
    options = {"quantity": measured[0]} if measured and FROBENIUS not in measured else {}
    paper = replace(_OF_REPORT, changed=_changed(_if_sound(preset_in, folder, job.own)))
    spec = FigureSpec(sweep, sweep, layout, [WHOLE], options, resamples=job.config.resamples, paper=paper)
    words = [f"figure.sweep={sweep}", f"figure.layout={layout}", f"figure.name={sweep}"]
    made_by = command_line("plot", *words, *_place(job))
    return FigureAsked(sweep, "Everything that was measured", "own", sweep, made_by, spec)
