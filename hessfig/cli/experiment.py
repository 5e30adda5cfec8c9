"""Implements `hessfig run`, `slice` and `status`: measures a sweep or a share of it, or prints its progress."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.cli.flags import check_format
from hessfig.cli.terminal import print_plain
from hessfig.config.compose.job import Job, compose
from hessfig.config.enums import Printed
from hessfig.record import MANIFEST

if TYPE_CHECKING:
    from hessfig.sweep.runner import Summary


def run_verb(job: Job) -> int:
    """Measure the unfinished cells and write the table; return 1 if a cell failed or is missing."""
    from hessfig.sweep.launchers import launcher_of
    from hessfig.sweep.plan import Sweep

    launcher = launcher_of(job)
    done = launcher.run(Sweep(job.variants, job.asked), print_plain)
    if done is None:
        return 0
    return report(done)


def slice_verb(job: Job) -> int:
    """Measure a sweep as `run` does, then draw the figure of this sweep."""
    from hessfig.cli.results import plot_verb

    code = run_verb(job)
    if code == 0:
        sweep = job.given["sweep"]
        plot_verb(
            compose(
                [
                    *job.words,
                    f"figure={sweep}",
                    f"figure.sweep={job.config.sweep.name}",
                ],
                job.own,
            )
        )
    return code


def status_verb(job: Job) -> int:
    """Print what is measured, what remains to be measured, and the present table."""
    from hessfig.sweep.plan import Sweep
    from hessfig.sweep.preview import progress_facts, status_lines

    check_format(job.config.format, Printed.table, Printed.json)
    sweep = Sweep(job.variants, job.asked)
    if job.config.format == Printed.json:
        from hessfig.analysis.presented import as_json

        print_plain(as_json(progress_facts(sweep)))
    else:
        print_plain(*status_lines(job, sweep))
    return 0


def report(summary: Summary) -> int:
    """Print the summary of a run; return 1 if a cell failed or is missing."""
    from hessfig.analysis.out_of_range import out_of_range
    from hessfig.sweep.preview import summarise

    print_plain(summarise(summary), *(f"note: {note}" for note in summary.notes))
    if summary.is_written:
        print_plain(
            *out_of_range(summary.table),
            f"written: {summary.table}, {summary.table.with_name(MANIFEST)}",
        )
    if summary.collect:
        print_plain(f"collect, with all shards in one folder: {summary.collect}")
    if summary.is_complete:
        return 0
    return 1
