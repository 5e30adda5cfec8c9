"""Settings of shard and launcher that no run can have, and what their texts mean."""

from __future__ import annotations

import re

from hessfig.config.choices import Launcher
from hessfig.config.schema import Config, LauncherConfig
from hessfig.errors import UserError

MOST_SHARDS = 100_000
_SIZE = re.compile(r"([1-9]\d{0,8})\s?([KMGT])B?", re.IGNORECASE)
_TIME = re.compile(r"[1-9]\d{0,6}|(\d{1,3}-)?\d{1,3}:[0-5]\d:[0-5]\d")
_NAME = re.compile(r"[\w.,@+:-]+")
_OPTION = re.compile(r"--[a-z][a-z0-9-]*(=[ -~]*)?")


def check_launcher(config: Config) -> None:
    """Raise UserError for a share that is none, and for settings of the launcher that Slurm could not take."""
    if config.shard is not None:
        parse_shard(config.shard)
        _check_alone(config)
    launcher = config.launcher
    _check_counts(launcher)
    _check_texts(launcher)
    for option in launcher.options:
        if not _OPTION.fullmatch(option):
            raise UserError(
                "launcher.options: an option of sbatch is --NAME or --NAME=VALUE",
                got=option,
                allowed="a list of options",
                remedy="for example 'launcher.options=[\"--qos=short\"]'",
            )


def parse_shard(text: str) -> tuple[int, int]:
    """Return (2, 8) for '2/8'. Raises UserError for what is no share of a whole."""
    found = re.fullmatch(r"(\d{1,7})/(\d{1,7})", text)
    index, count = map(int, found.groups()) if found else (0, 0)
    if not 1 <= index <= count <= MOST_SHARDS:
        raise UserError(
            "shard: there is no such share of the cells",
            got=text,
            allowed=f"K/N with 1 <= K <= N <= {MOST_SHARDS}",
            remedy=f"for example shard={min(max(index, 1), count)}/{count}"
            if count
            else "for example shard=2/8",
        )
    return index, count


def slurm_memory(text: str) -> str:
    """Return '16G' for '16GB', as sbatch takes it."""
    found = _SIZE.fullmatch(text)
    assert found is not None
    return found.group(1) + found.group(2).upper()


def size_in_bytes(text: str) -> int:
    """Return the bytes that '16GB' means to Slurm, whose units are powers of 1024."""
    size = slurm_memory(text)
    return int(size[:-1]) * 1024 ** (1 + "KMGT".index(size[-1]))


def _check_alone(config: Config) -> None:
    if config.launcher.kind == Launcher.slurm:
        raise UserError(
            "shard: the tasks of launcher=slurm are shards themselves",
            got=f"shard={config.shard}, launcher.kind=slurm",
            allowed="either of them",
            remedy="leave shard out, or launcher",
        )


def _check_counts(launcher: LauncherConfig) -> None:
    for key, value, least, most in (
        ("tasks", launcher.tasks, 1, MOST_SHARDS),
        ("cpus_per_task", launcher.cpus_per_task, 1, 10_000),
        ("gpus", launcher.gpus, 0, 1000),
    ):
        if not least <= value <= most:
            raise UserError(
                f"launcher.{key}",
                got=value,
                allowed=f"a whole number from {least} to {most}",
                remedy=f"for example launcher.{key}={max(least, 1)}",
            )


def _check_texts(launcher: LauncherConfig) -> None:
    named = "a name as Slurm has it, without blanks"
    for key, value, form, allowed, example in (
        ("time", launcher.time, _TIME, "minutes, HH:MM:SS or D-HH:MM:SS", "launcher.time=1:30:00"),
        ("memory", launcher.memory, _SIZE, "a number with KB, MB, GB or TB", "launcher.memory=16GB"),
        ("partition", launcher.partition, _NAME, named, "launcher.partition=main"),
        ("account", launcher.account, _NAME, named, "launcher.account=mine"),
    ):
        if value is not None and not form.fullmatch(value):
            raise UserError(f"launcher.{key}", got=value, allowed=allowed, remedy=f"for example {example}")
