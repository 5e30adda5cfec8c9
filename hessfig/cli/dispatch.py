"""Runs a command: composes and checks its settings, then carries out its verb."""

from collections.abc import Callable

from hessfig.cli.flags import Command
from hessfig.config.compose.job import Job
from hessfig.verbs import Verb


def compose_and_run(verb: Verb, command: Command, action: Callable[[Job], int]) -> int:
    """Compose the settings of `command`, run `verb` with them, and return the exit code."""
    job = verb.job(verb.in_full(command.words), command.own)
    if command.shows_settings:
        print(job.yaml(), end="")
        return 0
    return action(job)
