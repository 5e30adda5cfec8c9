"""What `hessfig plot` does: a figure drawn from a sweep's table, or a study of the theory computed and drawn."""

import sys
from importlib import import_module
from pathlib import Path

from hessfig.config.compose.job import Job
from hessfig.config.presets import STUDY, shipped_figures, studies
from hessfig.errors import UserError, did_you_mean, first_few, plain
from hessfig.figures.sheets import draw
from hessfig.requested import OF_STUDIES, figure_spec, paper_of, remember


def plot(job: Job) -> int:
    """Draw the figure chosen."""
    figure = job.config.figure
    if not figure.name:
        raise _no_figure(job)
    paper_of(job)  # words that cannot be set in type are refused before anything is read or computed
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
    for key in set(job.given) - {"figure", "style", "output_dir", *(f"figure.{key}" for key in OF_STUDIES)}:
        raise UserError(
            f"the study {name} does not read {key}",
            got=f"{key}={job.given[key]}",
            allowed=", ".join(["output_dir", "style", *(f"figure.{one}" for one in OF_STUDIES)]),
            remedy="leave it out: the figure is computed, not measured",
        )
    if not import_module("hessfig.theory.studies").is_whole(outputs / name):
        _compute(name, outputs)
    return import_module("hessfig.figures.study_figures").DRAWN[name](outputs, paper_of(job))


def _compute(name: str, outputs: Path) -> None:
    if list((outputs / name).glob("*.csv")):
        print(f"note: the tables in {outputs / name} are not whole, and are computed again", file=sys.stderr)
    import_module("hessfig.theory.studies").RUNS[name](outputs)


def _drawn(job: Job) -> list[Path]:
    outputs, spec = Path(job.config.output_dir), figure_spec(job)
    paths = draw(spec, outputs)
    if (spec.name, spec.sweep) not in {(one.name, one.sweep) for one in shipped_figures()}:
        remember(job, outputs / spec.sweep)
    return paths
