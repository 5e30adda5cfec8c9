"""Reads the setting `shard`: the share of a sweep's cells that this process measures."""

import os
import re
from collections.abc import Mapping

from hessfig.config.schema import MOST_SHARDS
from hessfig.errors import UserError, plain

_ARRAY = "SLURM_ARRAY_TASK_"  # with ID, COUNT, MIN and STEP: the variables of a task of a job array


def parse_shard(text: str) -> tuple[int, int]:
    """Return (2, 8) for '2/8', and the place of a Slurm array's task for 'auto'. Raises UserError for other texts."""
    if text == "auto":
        text = array_share(os.environ)
    match = re.fullmatch("([0-9]{1,7})/([0-9]{1,7})", text)
    index, count = map(int, match.groups()) if match else (0, 0)
    if not 1 <= index <= count <= MOST_SHARDS:
        raise UserError(
            "shard: there is no such share of the cells",
            got=plain(text),
            allowed=f"auto, or K/N with 1 <= K <= N <= {MOST_SHARDS}",
            remedy=f"for example shard={min(max(index, 1), count)}/{count}"
            if count
            else "for example shard=2/8",
        )
    return index, count


def array_share(environment: Mapping[str, str]) -> str:
    """Return '3/4' for the third of four tasks of a Slurm array.

    Of indices first, first + step, first + 2 step, ... Slurm gives all tasks the count,
    the first and the step. Raises UserError outside of arrays, and for indices with
    holes (1,3,7), of which a task cannot know its place.
    """
    named = {
        name: environment.get(_ARRAY + name, "")
        for name in ("ID", "COUNT", "MIN", "MAX", "STEP")
    }
    if all(value.isascii() and value.isdigit() for value in named.values()):
        task, count, first, last, step = map(int, named.values())
        if step and first + (count - 1) * step == last and (task - first) % step == 0:
            return f"{(task - first) // step + 1}/{count}"
    raise UserError(
        "shard=auto: Slurm's variables do not determine the share",
        got=", ".join(
            f"{_ARRAY}{name}={plain(value)}" for name, value in named.items() if value
        )
        or "no Slurm array",
        allowed="a task of a Slurm array whose indices have equal steps (sbatch --array=0-7)",
        remedy="shard=K/N, for example shard=2/8 for the second of eight",
    )
