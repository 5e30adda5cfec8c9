"""Implements `hessfig clean`: lists files that no table and no sweep uses, and removes them after confirmation."""

import sys
from pathlib import Path

from hessfig.cli.terminal import print_plain
from hessfig.config.compose.job import Job, Variants
from hessfig.config.presets import choices
from hessfig.errors import UserError, command_line
from hessfig.sweep.garbage import remove_unused, sweep_folders, unused_files


def clean_verb(job: Job) -> int:
    """List unused files and remove them after confirmation; in the folder of one sweep if it is named."""
    outputs = Path(job.config.output_dir)
    is_named = bool({"sweep", "sweep.name"} & {*job.given})
    folders = [outputs / job.config.sweep.name] if is_named else sweep_folders(outputs)
    every = [unused_files(folder, _current(job, folder.name)) for folder in folders]
    for unused in every:
        print_plain(*unused.lines())
    count = sum(len(unused.files) for unused in every)
    if not count:
        print_plain(f"nothing to remove in {outputs}: every cell is in a table, needed by a sweep, or kept as reported")
    elif job.config.dry_run or not _consents(job, count):
        print("nothing was removed")
    else:
        print(f"removed: {sum(map(remove_unused, every))} files")
    return 0


def _current(job: Job, sweep: str) -> Variants | None:
    """Return the sweep as planned now, with the given settings; None if it no longer exists."""
    if sweep == job.config.sweep.name:
        return job.variants
    return job.of_sweep(sweep).variants if sweep in choices("sweep", job.own) else None


def _consents(job: Job, count: int) -> bool:
    """Return whether to remove: yes=true, or the answer of the user. Raises UserError without a terminal."""
    if job.config.yes:
        return True
    if not (sys.stdin and sys.stdin.isatty()):
        raise UserError(
            f"clean: there is no terminal to confirm that {count} files are removed",
            got="yes=false, and no terminal",
            allowed="yes=true removes what is listed; dry_run=true lists it only",
            remedy=command_line("clean", *job.words, "yes=true"),
        )
    return input(f"Remove these {count} files? [y/N] ").strip().lower() in ("y", "yes")
