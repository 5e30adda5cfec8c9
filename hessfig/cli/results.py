"""What the verbs do that measure nothing: plot, slopes, check, compare and verify."""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.config.compose import Job, compose, manifest_of, matching_folder, table_folder
from hessfig.config.shipped import STUDY, choices, studies
from hessfig.errors import UserError, did_you_mean

if TYPE_CHECKING:
    from hessfig.figures.parts.paper import Paper
    from hessfig.figures.sheets import FigureSpec

_OF_STUDIES = ("width", "panels", "note", "formats")


def plot(job: Job) -> int:
    """Draw the figure chosen."""
    figure = job.config.figure
    if not figure.name:
        raise UserError(
            "no figure chosen",
            got="figure=none",
            allowed="figure=NAME",
            remedy="`hessfig plot --help` lists the figures",
        )
    for path in _study(job) if figure.layout == STUDY else _drawn(job):
        print(path)
    return 0


def slopes(job: Job) -> int:
    """Fit the sweep's curves and print the slopes."""
    from hessfig.analysis.slopes import printed
    from hessfig.analysis.slopes.fit import SLOPES, rich_table
    from hessfig.cli.terminal import show

    config = job.config
    if config.levels:
        return _levels(job)
    show(rich_table(printed.chosen(_fitted(job), rows=config.rows, parts=config.part)))
    print(f"written: {table_folder(job) / SLOPES}")
    return 0


def _levels(job: Job) -> int:
    """Print the mean levels in the windows, and their exponents in what the sweep varies."""
    from hessfig.analysis.slopes import levels, printed
    from hessfig.cli.terminal import show

    config, folder = job.config, table_folder(job)
    average, quantity = config.sweep.average.value, config.quantities[0]
    found = levels.run(folder, _windows(job), average=average, quantity=quantity, resamples=config.resamples)
    for frame in found:
        if len(frame):
            show(printed.level_table(printed.chosen(frame, rows=config.rows, parts=config.part)))
    print(f"written: {folder / levels.LEVELS}, {folder / levels.TRENDS}")
    return 0


def check(job: Job) -> int:
    """Fit the sweep's curves; return 1 when a slope is outside its tolerance, or none could be checked."""
    from hessfig.analysis.slopes import gate
    from hessfig.analysis.slopes.fit import SLOPES

    lines, code = gate.summary(_fitted(job), job.config.tolerance)
    print("\n".join([*lines, f"written: {table_folder(job) / SLOPES}"]))
    return code


def compare(job: Job) -> int:
    """Compare one sweep with a reference, or every published figure with a folder of the authors' files."""
    from hessfig.cli.compare import compare_figures, compare_sweep

    config = job.config
    if not config.reference:
        raise UserError(
            "reference is missing",
            got=f"reference={config.reference or ''}",
            allowed="reference=FILE.csv or reference=FOLDER",
            remedy="name a file of published values, or the folder of the authors' result files",
        )
    reference = Path(config.reference)
    if "sweep" not in job.given and reference.is_dir():
        compare_figures(
            lambda sweep: matching_folder(job.of_sweep(sweep)), Path(config.output_dir), reference
        )
    else:
        compare_sweep(table_folder(job), reference)
    return 0


def verify(arguments: list[str]) -> int:
    """Check statements of the theory; the settings are words of its own."""
    from hessfig.theory.verify.arguments import parse
    from hessfig.theory.verify.run import run as run_statements

    return run_statements(**parse(arguments))


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


def spec_of(job: Job, paper: Paper | None = None) -> FigureSpec:
    """Return what to draw, for a paper (None: as the settings say); slopes are fitted as the sweep or the words say."""
    from hessfig.figures.sheets import FigureSpec

    figure, asked = job.config.figure, _of_its_sweep(job)
    table_folder(asked)
    return FigureSpec(
        figure.name,
        figure.sweep,
        figure.layout,
        _windows(asked),
        figure.options,
        asked.config.sweep.average.value,
        x=figure.x,
        colour=figure.colour,
        dashes=figure.dashes,
        resamples=asked.config.resamples,
        paper=paper or _paper(job),
    )


def _paper(job: Job) -> Paper:
    from hessfig.figures.parts.paper import Paper

    figure = job.config.figure
    return Paper(figure.width, figure.note, figure.formats, figure.panels, job.config.style)


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


def _fitted(job: Job) -> Any:
    from hessfig.analysis.slopes import fit

    config = job.config
    return fit.run(
        table_folder(job),
        _windows(job),
        tolerance=config.tolerance,
        resamples=config.resamples,
        average=config.sweep.average.value,
        quantity=config.quantities[0],
    )


def _windows(job: Job) -> list[tuple[float | None, float | None]]:
    return [(low, high) for low, high in job.config.sweep.windows]
