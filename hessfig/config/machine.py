"""What this machine has: cores, memory, a GPU; and settings that ask for more."""

from __future__ import annotations

import os
from contextlib import suppress
from importlib import import_module
from pathlib import Path

from hessfig.config.choices import Launcher
from hessfig.config.launcher_checks import size_in_bytes
from hessfig.config.schema import Config
from hessfig.errors import UserError

_OF_THE_CONTAINER = Path("/sys/fs/cgroup/memory.max")


def cores() -> int:
    """Return how many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def memory() -> int:
    """Return the bytes of memory of this machine, or of its container."""
    whole = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    with suppress(OSError, ValueError):  # no container, or one without a limit
        return min(whole, int(_OF_THE_CONTAINER.read_text()))
    return whole


def memory_of_worker(config: Config) -> int:
    """Return the bytes that there are where it is measured: those asked of Slurm, or this machine's."""
    asked = config.launcher.memory if config.launcher.kind == Launcher.slurm else None
    return memory() if asked is None else size_in_bytes(asked)


def check_workers(config: Config) -> None:
    """Raise UserError for more workers than cores: they slow each other down, and each needs memory."""
    if config.workers != "auto" and config.workers > cores() and not config.force_workers:
        raise UserError(
            "workers: more than this machine has cores",
            got=config.workers,
            allowed=f"auto, or 1 to {cores()}",
            remedy=f"workers=auto, or force_workers=true workers={config.workers}",
        )


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


def check_device_name(device: str) -> None:
    """Raise UserError for what is no device on any machine."""
    if device.partition(":")[0] not in ("cpu", "cuda"):
        raise UserError("device", got=device, allowed="cpu, cuda or cuda:N", remedy="device=cpu")
