"""What `hessfig report` does: have the report written, and say what is in it and what is not there yet."""

from collections.abc import Iterator
from pathlib import Path

from hessfig.cli.flags import check_format
from hessfig.config.compose.job import Job
from hessfig.config.enums import Printed
from hessfig.report.at_a_glance import write_glance
from hessfig.report.drawn_figures import Contents
from hessfig.report.written import Written, check_place, write_report
from hessfig.requested import report_requests


def report(job: Job) -> int:
    """Write the report of what is in output_dir; name it, and what is not there yet."""
    check_format(job.config.format, Printed.table, Printed.pdf)
    if job.config.format == Printed.pdf:
        path, contents = write_glance(report_requests(job))
        print("\n".join([*_problems(contents), f"written: {path}"]))
        return 0
    single_file = job.config.single_file
    check_place(Path(job.config.output_dir), single_file=single_file)
    written = write_report(report_requests(job), single_file=single_file)
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
