"""Checks of counts, of the landscape and of the launcher."""

from __future__ import annotations

import math
import re

from hessfig.config.enums import Launcher, Loss
from hessfig.config.schema import Config, LandscapeConfig, LauncherConfig
from hessfig.errors import UserError


def check_count(key: str, value: int | None, *, fewest: int = 1, most: int | None = None, example: object) -> None:
    """Raise UserError for a count below `fewest` or above `most`; None, where a setting may be null, is no count."""
    if value is None or (fewest <= value and (most is None or value <= most)):
        return
    raise UserError(
        key if value < fewest else f"{key} is too large",
        got=value,
        allowed=f"a whole number >= {fewest}" if most is None else f"a whole number from {fewest} to {most}",
        remedy=f"for example {key}={example}",
    )


_MOST = 10_000_000  # beyond, a count is a slip
_FEWEST = {"permutations": 2, "first": 1, "points": 2, "draws": 2, "curvatures": 1}


def check_landscape(landscape: LandscapeConfig) -> None:
    """Raise UserError for the first setting of the landscape that means nothing."""
    counts = {name: (getattr(landscape, name), least) for name, least in _FEWEST.items()}
    if landscape.samples is not None:
        counts["samples"] = (landscape.samples, 2)
    for name, (value, least) in counts.items():
        check_count(f"landscape.{name}", value, fewest=least, most=_MOST, example=_example(name))
    lengths = {"distance": landscape.distance, "spread": landscape.spread}
    for name, length in lengths.items():
        if length is not None and not (math.isfinite(length) and length > 0):
            at = "; null is w* itself" if name == "distance" else ""
            _refuse(name, length, f"a finite number > 0{at}")


def number_of_samples(config: Config, *, size: int | None = None) -> int:
    """Return how many samples of the task's batch (of `size` samples, where no setting says it) the landscape is of.

    Raises UserError for more samples than there are, a first k beyond them, and a loss that is no mean over samples.
    """
    landscape, size = config.landscape, size or config.task.batch_size
    count = size if landscape.samples is None else landscape.samples
    if count > size:
        raise UserError(
            "landscape.samples: k would run beyond the data",
            got=count,
            allowed=f"2 to {size} (task.batch_size)",
            remedy=f"task.batch_size={count}, or landscape.samples={size}",
        )
    if landscape.first >= count:
        raise UserError(
            "landscape.first: the smallest k is beyond the data",
            got=landscape.first,
            allowed=f"1 to {count - 1}, one less than there are samples",
            remedy="landscape.first=1",
        )
    if config.task.loss == Loss.mse_sum_unshifted:
        raise UserError(
            "task.loss: the published sum of squares is a sum over everything, not a mean over samples: "
            "it grows with k, and its L_k is no average of losses of single samples",
            got=config.task.loss,
            allowed="cross_entropy, mse",
            remedy="task.loss=cross_entropy",
        )
    return count


def _refuse(name: str, got: object, allowed: str) -> None:
    remedy = f"for example landscape.{name}={_example(name)}"
    raise UserError(f"landscape.{name}", got=got, allowed=allowed, remedy=remedy)


def _example(name: str) -> object:
    default = getattr(LandscapeConfig(), name)
    return "null" if default is None else default


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
            remedy=f"for example shard={min(max(index, 1), count)}/{count}" if count else "for example shard=2/8",
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
