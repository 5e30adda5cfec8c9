"""Implements the verbs that measure nothing: plot, slopes, check, predict, verify."""

from __future__ import annotations

import csv
import sys
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from hessfig.api.predicted import COLUMNS_PREDICTED, predicted_rows
from hessfig.api.sessions import fitted_slopes
from hessfig.cli.flags import check_format, own_words
from hessfig.cli.terminal import print_plain, show
from hessfig.config.compose.job import Job
from hessfig.config.compose.provenance import as_made, table_folder
from hessfig.config.enums import Printed
from hessfig.config.presets import STUDY, shipped_figures, theory_studies
from hessfig.errors import UserError, first_few, plain, unknown_name
from hessfig.verbs import VERBS

if TYPE_CHECKING:
    import pandas as pd


def plot_verb(job: Job) -> int:
    """Draw the chosen figure."""
    from hessfig.api.requested import paper_of

    figure = job.config.figure
    if not figure.name:
        raise _no_figure(job)
    # Refuse words that cannot be typeset before anything is read or computed.
    paper_of(job)
    for path in _study(job) if figure.layout == STUDY else _drawn(job):
        print(path)
    return 0


def _no_figure(job: Job) -> UserError:
    """Return the error to show where no figure is chosen; a sweep that is named has some, or may be drawn as lines."""
    sweep = plain(job.config.figure.sweep)
    lists = "`hessfig plot --help` lists the figures"
    if "figure.sweep" not in job.given:
        return UserError(
            "no figure chosen", got="figure=none", allowed="figure=NAME", remedy=lists
        )
    drawn = [figure.name for figure in shipped_figures() if figure.sweep == sweep]
    remedy = f"figure.name={sweep} figure.layout=lines; {lists}"
    if drawn:
        remedy = f"figure={drawn[0]}"
    return UserError(
        f"no figure of sweep {sweep} is chosen",
        got="figure=none",
        allowed=f"figure=NAME ({first_few(drawn)}), or figure.name=NAME figure.layout=LAYOUT",
        remedy=remedy,
    )


def _study(job: Job) -> list[Path]:
    """Compute the tables of a theory study unless they exist and are complete (seconds), then draw its figure."""
    from hessfig.api.requested import OF_STUDIES, paper_of

    name = job.config.figure.name
    outputs = Path(job.config.output_dir)
    if name not in theory_studies():
        got = f"figure.name={name}, figure.layout={STUDY}"
        otherwise = "figure.layout=LAYOUT for a figure of a sweep"
        raise unknown_name(
            f"there is no study {name!r}", name, theory_studies(), otherwise, got=got
        )
    of_figure = [f"figure.{key}" for key in OF_STUDIES]
    for key in set(job.given) - {"figure", "style", "output_dir", *of_figure}:
        raise UserError(
            f"the study {name} does not read {key}",
            got=f"{key}={job.given[key]}",
            allowed=", ".join(["output_dir", "style", *of_figure]),
            remedy="leave it out: the figure is computed, not measured",
        )
    tables = import_module("hessfig.theory.studies")
    if not tables.is_whole(outputs / name):
        if list((outputs / name).glob("*.csv")):
            print(
                f"note: the tables in {outputs / name} are not whole, and are computed again",
                file=sys.stderr,
            )
        tables.RUNS[name](outputs)
    return import_module("hessfig.figures.study_figures").DRAWN[name](
        outputs, paper_of(job)
    )


def _drawn(job: Job) -> list[Path]:
    from hessfig.api.requested import figure_spec, remember
    from hessfig.figures.sheets import draw

    outputs = Path(job.config.output_dir)
    spec = figure_spec(job)
    paths = draw(spec, outputs)
    if (spec.name, spec.sweep) not in {
        (figure.name, figure.sweep) for figure in shipped_figures()
    }:
        remember(job, outputs / spec.sweep)
    return paths


def slopes_verb(job: Job) -> int:
    """Fit the sweep's curves and print the slopes."""
    from hessfig.analysis.slopes.fit import ACROSS, SLOPES

    check_format(
        job.config.format,
        Printed.table,
        Printed.csv,
        Printed.json,
        Printed.markdown,
        Printed.latex,
    )
    job = as_made(job)
    if job.config.levels:
        return _levels(job)
    fitted = fitted_slopes(job)
    _print(fitted, job)
    if job.config.format != Printed.table:
        return 0
    if fitted.attrs["others"]:
        print(
            f"also in the table (quantity=NAME): {plain(', '.join(fitted.attrs['others']))}"
        )
    _say_too_few(fitted)
    print_plain(
        *sorted({reason for reason in fitted["reference"] if reason.startswith(ACROSS)})
    )
    print(
        f"written: {table_folder(job) / SLOPES} (verdicts at tolerance={job.config.tolerance:g})"
    )
    return 0


def _say_too_few(fitted: pd.DataFrame) -> None:
    """Print what to do about curves with fewer points than a slope needs."""
    from hessfig.analysis.slopes.printed import SlopeVerdict

    few = fitted[fitted["verdict"] == SlopeVerdict.too_few_points]
    for axis in dict.fromkeys(few["axis"]):
        if axis == "sigma":
            more = "for example grid.values=[0.1,0.3,1] or grid.points=10"
        else:
            more = "in the sweep"
        print_plain(
            f"too few points: a slope needs three values of {axis} in its window, each with a positive mean; measure "
            f"more of them ({more}), or widen the window (sweep.windows)"
        )


def _print(frame: pd.DataFrame, job: Job) -> None:
    """Print the requested lines: for a terminal, as the rows of the file, or as LaTeX or Markdown only."""
    from hessfig.analysis import presented
    from hessfig.analysis.slopes import printed

    lines = printed.chosen(frame, rows=job.config.rows, parts=job.config.part)
    if job.config.format == Printed.table:
        show(printed.rich_table(lines))
        return
    if job.config.format == Printed.csv:
        print_plain(presented.as_csv(lines).rstrip("\n"))
        return
    if job.config.format == Printed.json:
        print_plain(presented.as_json({"rows": lines}))
        return
    _, heads, rows = printed.cells(lines)
    if job.config.format == Printed.latex:
        print_plain(*presented.latex_table(heads, rows))
    else:
        print_plain(
            *presented.markdown_table(
                heads, (map(presented.unmarked, row) for row in rows)
            )
        )


def _levels(job: Job) -> int:
    """Print the mean levels in the windows, and their exponents in what the sweep varies."""
    from hessfig.analysis.slopes import levels

    check_format(job.config.format, Printed.table, Printed.markdown, Printed.latex)
    config = job.config
    folder = table_folder(job)
    tables = levels.run(
        folder,
        job.windows,
        average=config.sweep.average.value,
        quantity=config.quantity,
        among=job.given.get("quantities"),
    )
    for frame in tables:
        if len(frame):
            _print(frame, job)
    if config.format == Printed.table:
        print(f"written: {folder / levels.LEVELS}, {folder / levels.TRENDS}")
    return 0


def check_verb(job: Job) -> int:
    """Fit the sweep's curves; return 1 when a slope is outside its tolerance, or none could be checked."""
    from hessfig.analysis.presented import as_json
    from hessfig.analysis.slopes import gate
    from hessfig.analysis.slopes.fit import SLOPES

    check_format(job.config.format, Printed.table, Printed.json)
    job = as_made(job)
    slopes = fitted_slopes(job)
    tolerance = job.config.tolerance
    lines, code = gate.summary(slopes, tolerance)
    if job.config.format == Printed.json:
        print_plain(
            as_json(
                {
                    "passes": code == 0,
                    "tolerance": tolerance,
                    "lines": lines,
                    "slopes": slopes,
                }
            )
        )
        return code
    print(
        "\n".join(
            [
                *lines,
                f"written: {table_folder(job) / SLOPES} (verdicts at tolerance={tolerance:g})",
            ]
        )
    )
    return code


def predict_verb(job: Job) -> int:
    """Print the predictions of every variant, as a table or as CSV."""
    check_format(job.config.format, Printed.table, Printed.csv)
    rows = list(predicted_rows(job))
    if job.config.format == Printed.csv:
        writer = csv.DictWriter(sys.stdout, COLUMNS_PREDICTED, lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
        return 0
    from hessfig.analysis.presented import terminal_table

    names = [name for name in COLUMNS_PREDICTED if name != "zero"]
    cells = [[str(row[name]) for name in names] for row in rows]
    title = f"Predicted: ||block||_F ~ {job.config.powers_of}^exponent"
    show(terminal_table(names, cells, title=title, wrapped=("variant", "reason")))
    return 0


def verify_verb(arguments: list[str]) -> int:
    """Verify statements of the theory; the verb has settings of its own."""
    from hessfig.theory.verification import parse
    from hessfig.theory.verification import run as run_statements

    return run_statements(**parse(own_words(VERBS["verify"], arguments)), show=show)
