"""Implements `hessfig report`: gathers what the page says of every sweep in an outputs folder, and writes it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

import pandas as pd

import hessfig
from hessfig.analysis.manifest import read_manifest, read_run
from hessfig.api.requested import figures_of, requote
from hessfig.api.sessions import fitted_slopes
from hessfig.cli.terminal import print_plain
from hessfig.config.compose.job import Job, compose
from hessfig.config.compose.provenance import as_made, preset_in
from hessfig.config.presets import names, shipped_figures
from hessfig.errors import UserError, command_line, run_command, typed
from hessfig.figures.sheets import FigureSpec, draw
from hessfig.record import MANIFEST, TABLE
from hessfig.register import check_replaceable, publish
from hessfig.report.page import Picture, SweepSection, page

_KIND, _FILE = "report", "report.html"
_LINKED = (TABLE, MANIFEST, "slopes.csv", "comparison.csv")


def report_verb(job: Job) -> int:
    """Write output_dir/report.html, one page on every sweep in output_dir; print its path and what is missing."""
    outputs = Path(job.config.output_dir)
    path = outputs / _FILE
    check_replaceable([path], _KIND)
    sections = [_section(job, folder) for folder in _measured(outputs)]
    content = page(sections, hessfig.__version__).encode()
    publish({path: content}, _KIND)
    for section in sections:
        for problem in section.problems:
            what = problem.what.removeprefix(f"{section.name}: ")
            print_plain(f"note: {section.name}: {what} ({problem.got})")
    pictures = sum(len(section.pictures) for section in sections)
    print_plain(
        f"sweeps: {len(sections)}, pictures: {pictures}",
        f"written: {path} ({len(content) / 2**20:.1f} MiB)",
    )
    return 0


def _measured(outputs: Path) -> list[Path]:
    """Return the folders of sweeps that have a table, by name."""
    return sorted(path.parent for path in outputs.glob(f"*/{TABLE}"))


def _section(job: Job, folder: Path) -> SweepSection:
    """Return what the report says of a sweep. What cannot be read or drawn is among its problems."""
    problems: list[UserError] = []
    try:
        run = read_run(folder)
        manifest = read_manifest(folder) or {}
        preset = preset_in(folder, job.own)
    except UserError as error:
        return SweepSection(
            folder.name,
            "",
            "its table cannot be read",
            run_command(folder),
            problems=[error],
        )
    if preset:
        about = preset.words(folder.name)
    else:
        about = str(run.config.get("sweep", {}).get("about") or "")
    pictures = list(_pictures(job, folder, problems))
    slopes = _slopes(job, folder, has_steps=run.axis.name == "step", problems=problems)
    links = {
        name: f"{folder.name}/{name}" for name in _LINKED if (folder / name).is_file()
    }
    missing = manifest.get("missing_cells", 0)
    return SweepSection(
        folder.name,
        about,
        f"{len(run.table)} numbers" + (f", {missing} cells missing" if missing else ""),
        requote(manifest.get("command"), "run") or run_command(folder),
        [
            (one.key, typed(one.made), typed(one.asked))
            for one in (preset.changed if preset else ())
        ],
        pictures,
        slopes,
        links,
        problems,
    )


def _pictures(job: Job, folder: Path, problems: list[UserError]) -> Iterator[Picture]:
    """Yield the pages of every figure of a sweep: the shipped ones and those that were drawn before."""
    titles = {figure.name: figure.title for figure in shipped_figures()}
    for spec in figures_of(folder, job.own):
        try:
            yield from _drawn(spec, folder.parent, titles)
        except UserError as error:
            problems.append(error)


def _drawn(
    spec: FigureSpec | UserError, outputs: Path, titles: dict[str, str]
) -> Iterator[Picture]:
    if isinstance(spec, UserError):
        raise spec
    command = command_line("plot", f"figure={spec.name}", f"output_dir={outputs}")
    as_png = replace(spec, paper=replace(spec.paper, formats=("png",)))
    with TemporaryDirectory(prefix="hessfig-") as temporary:
        for path in draw(as_png, outputs, into=Path(temporary)):
            if path.suffix == ".png":
                yield Picture(
                    path.read_bytes(), titles.get(spec.name, spec.name), command
                )


def _slopes(
    job: Job, folder: Path, *, has_steps: bool, problems: list[UserError]
) -> pd.DataFrame | None:
    """Return the slopes of a sweep, which stand in its slopes.csv too; None along training steps."""
    if has_steps:
        return None
    key = "sweep" if folder.name in names("sweep", job.own) else "sweep.name"
    try:
        asked = compose(
            [
                f"{key}={folder.name}",
                f"output_dir={folder.parent}",
                f"tolerance={job.config.tolerance}",
            ],
            job.own,
        )
        slopes = fitted_slopes(as_made(asked))
    except UserError as error:
        problems.append(error)
        return None
    if slopes["slope"].notna().any():
        return slopes
    return None
