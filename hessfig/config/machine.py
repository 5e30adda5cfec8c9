"""Finds the cores, memory and GPU of this machine, and checks settings against them."""

import os
import re
import resource
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from typing import Any

from hessfig.config.enums import Launcher
from hessfig.config.schema import SIZE, Config
from hessfig.errors import UserError, too_few_files

WORKER = "HESSFIG_WORKER"  # the number of a worker process, from 0
# In any case, and a worker; a run with one worker has got by with 16.
_OPEN_FILES = (32, 4)
_OF_THE_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Return how many cores this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory of this machine, or of its container."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        return min(whole, int(_OF_THE_CONTAINER.read_text()))
    return whole


def memory_of_worker(config: Config) -> int:
    """Return the memory in bytes where cells are measured: that requested of Slurm, or this machine's."""
    asked = config.launcher.memory if config.launcher.kind == Launcher.slurm else None
    return memory() if asked is None else size_in_bytes(asked)


def check_machine(config: Config) -> None:
    """Raise UserError for a device that this machine does not have, and for more workers than it can hold.

    More workers than cores slow each other down; each worker opens a few files.
    """
    check_device(config.device)
    workers = cores() if config.workers == "auto" else config.workers
    if workers > cores() and not config.force_workers:
        raise UserError(
            "workers: more than this machine has cores",
            got=workers,
            allowed=f"auto, or 1 to {cores()}",
            remedy=f"workers=auto, or force_workers=true workers={workers}",
        )
    _check_open_files(workers)


def _check_open_files(workers: int) -> None:
    """Raise the soft limit of open files if need be. Raises UserError where the hard one is lower than workers need."""
    needed = _OPEN_FILES[0] + _OPEN_FILES[1] * workers
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if 0 <= soft < needed:
        if 0 <= hard < needed:
            raise too_few_files(f"at most {hard}, and {workers} workers need {needed}")
        resource.setrlimit(resource.RLIMIT_NOFILE, (needed, hard))


def check_device(device: str) -> None:
    """Raise UserError when `device` is not there (imports torch only for devices other than the CPU)."""
    check_device_name(device)
    kind = device.partition(":")[0]
    if kind == "cuda" and not import_module("torch").cuda.is_available():
        raise UserError(
            "device: there is no usable CUDA GPU on this machine",
            got=device,
            allowed="cpu",
            remedy="device=cpu",
        )


def card_of(device: str) -> str:
    """Return the card of this worker: worker i of device=cuda takes card i mod n of the n that are visible."""
    if device != "cuda":
        return device
    count = import_module("torch").cuda.device_count()
    return f"cuda:{int(os.environ.get(WORKER, '0')) % count}" if count > 1 else device


def check_device_name(device: str) -> None:
    """Raise UserError for a text that names no device on any machine."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError(
            "device: this is not a device",
            got=device,
            allowed="cpu, cuda or cuda:N",
            remedy="device=cpu",
        )


def slurm_memory(text: str) -> str:
    """Return '16G' for '16GB', as sbatch takes it."""
    match = re.fullmatch(SIZE, text)
    assert match is not None
    return match.group(1) + match.group(2).upper()


def size_in_bytes(text: str) -> int:
    """Return the bytes that '16GB' means to Slurm, whose units are powers of 1024."""
    size = slurm_memory(text)
    return int(size[:-1]) * 1024 ** (1 + "KMGT".index(size[-1]))


_UNITS = {
    "KB": 1e3,
    "MB": 1e6,
    "GB": 1e9,
    "TB": 1e12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}


def bytes_of(text: Any) -> float:
    """Return the bytes that '16GB' or '512MiB' means. Raises UserError for anything else."""
    match = re.fullmatch(
        r"\s*(\d+(?:\.\d+)?)\s*([KMGT]i?B)\s*", str(text), flags=re.IGNORECASE
    )
    if match is None or float(match[1]) <= 0:
        raise UserError(
            "memory: this is not a size",
            got=text,
            allowed="a number and KB, MB, GB, TB (or GiB, ...)",
            remedy="memory=8GB",
        )
    return float(match[1]) * _UNITS[match[2].upper()]
