"""Runs a command: composes and checks its settings, then carries out one or several runs of its verb."""

import hashlib
import re
import sys
from collections.abc import Callable, Sequence

from hessfig.cli.flags import Command
from hessfig.cli.terminal import print_plain
from hessfig.config.compose.job import Job
from hessfig.config.facts import OTHER_TABLE
from hessfig.config.settings import role_of
from hessfig.errors import UserError
from hessfig.verbs import Verb

Action = Callable[[Job], int]
_LONGEST = 100


def compose_and_run(verb: Verb, command: Command, action: Action) -> int:
    """Compose the settings of `command`, run `verb` with them, and return the exit code.

    Everything is checked before the first run begins.
    """
    jobs = verb.jobs(verb.in_full(command.words), command.own, several=command.several)
    if command.shows_settings:
        print("---\n".join(job.yaml() for job in jobs), end="")
        return 0
    if not command.several:
        return action(jobs[0])
    if verb.makes_table:  # refuse impossible runs now, not after hours of the first run
        from hessfig.sweep.plan import Sweep

        for job in jobs:
            Sweep(job.variants, job.asked)
    return _several(separated_jobs(jobs), action)


def separated_jobs(jobs: Sequence[Job]) -> list[Job]:
    """Return the jobs of -m; jobs that would overwrite each other's table get output_dir/multirun/<words>."""
    labels: dict[tuple[str, str], set[str]] = {}
    for job in jobs:
        labels.setdefault((job.config.output_dir, job.config.sweep.name), set()).add(_label(job))
    return [
        job.in_folder(f"{job.config.output_dir}/multirun/{_label(job)}")
        if len(labels[job.config.output_dir, job.config.sweep.name]) > 1
        else job
        for job in jobs
    ]


def _several(jobs: Sequence[Job], action: Action) -> int:
    """Carry out every run; a refused run does not stop the others."""
    codes = []
    for number, job in enumerate(jobs, 1):
        print_plain(f"run {number} of {len(jobs)}: {' '.join(job.words)}")
        try:
            codes.append(action(job))
        except UserError as error:
            print(f"error: {error}", file=sys.stderr)
            codes.append(2)
    return max(codes)


def _label(job: Job) -> str:
    """Return the settings of a run that make its table, as the name of a folder: seeds-1_model.d_model-8."""
    words = [f"{key}={value}" for key, value in job.given.items() if role_of(key) in OTHER_TABLE]
    plain = "_".join(words).replace("=", "-")
    clean = re.sub(r"[^A-Za-z0-9._-]", "", plain)[:_LONGEST]
    return clean if clean == plain else f"{clean}-{hashlib.sha256(plain.encode()).hexdigest()[:6]}"
