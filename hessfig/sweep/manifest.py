"""The manifest of a run: resolved settings, versions, times and counts; no host, no user, no path."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hessfig
from hessfig.config import Config
from hessfig.config.plain import as_plain
from hessfig.files import replacing
from hessfig.sweep.plan import Allocation, digest, science
from hessfig.sweep.pool import THREADS

_PACKAGES = ("torch", "transformer-lens", "curvlinops-for-pytorch", "numpy", "hydra-core")
_NOT_SETTINGS = ("output_dir", "dry_run", "reference", "figure", "workers", "tolerance", "resamples")


def write_manifest(
    path: Path, variants: list[tuple[str, Config]], allocations: Sequence[Allocation], run: dict[str, Any]
) -> None:
    """Write settings and provenance beside the table; `run` adds start, end, counts and the table's hash.

    Each variant with its probes: one number, or those of its allocation, by column and sigma.
    """
    config = variants[0][1]
    settings = {key: value for key, value in as_plain(config).items() if key not in _NOT_SETTINGS}
    content = {
        "sweep": config.sweep.name,
        "config": settings,
        "config_hash": digest([settings, [science(varied) for _, varied in variants]]),
        "variants": [
            {"variant": name, "config": digest(science(varied))[:12], **_axes(varied, allocation)}
            for (name, varied), allocation in zip(variants, allocations, strict=True)
        ],
        **_provenance(config),
        **run,
    }
    with replacing(path) as handle:
        handle.write(json.dumps(content, indent=2) + "\n")


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _axes(config: Config, allocation: Allocation) -> dict[str, Any]:
    return {"model": as_plain(config)["model"], "probes": allocation.probes or config.estimator.num_probes}


def _provenance(config: Config) -> dict[str, Any]:
    commit = _git("rev-parse", "HEAD")
    return {
        "hessfig": hessfig.__version__,
        "git_commit": commit,
        "git_dirty": bool(_git("status", "--porcelain")) if commit else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "threads_per_worker": int(THREADS["OMP_NUM_THREADS"]),
        "device": config.device,
        "byte_order": sys.byteorder,
    }


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str | None:
    """Run git in the source tree; None when hessfig is not run from a checkout of its own."""
    root = Path(hessfig.__file__).parent.parent
    if not (root / ".git").exists():
        return None
    try:
        done = subprocess.run(
            ["git", "-C", str(root), *arguments], capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
