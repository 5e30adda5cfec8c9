"""The outputs of a run: the table with one row per number, and the manifest with settings, versions and hashes."""

import csv
import hashlib
import io
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import hessfig
from hessfig.config.keys import as_plain, in_manifest, unpinned, without_added
from hessfig.config.schema import Config
from hessfig.measurements.allocation import Allocation
from hessfig.models.protocol import kind
from hessfig.record import COLUMNS, OF_ARCHITECTURE, digest, sealed_text
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.pool import THREADS
from hessfig.sweep.store import CellStore
from hessfig.sweep.variant import Variant


@dataclass(frozen=True)
class Gathered:
    """The table of the finished cells as text, the paths of their arrays, and the missing cells of the plan."""

    text: str
    arrays: list[dict[str, Any]]
    missing: list[Cell]

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def gather_cells(cells: list[Cell], store: CellStore) -> Gathered:
    """Read every cell once, in the order of the plan, so that rows and arrays agree."""
    every = list[dict[str, Any]]()
    arrays = []
    missing = []
    for cell in cells:
        content = store.sound(cell.key)
        if content is None:
            missing.append(cell)
            continue
        rows, sha256 = content
        shared = {
            "sweep": cell.config.sweep.name,
            "config": cell.variant.short_hash(cell.quantity),
            **cell.labels,
        }
        every += ({**shared, **row} for row in rows)
        if sha256 is not None:
            file = (
                store.arrays_path(cell.key).relative_to(store.folder.parent).as_posix()
            )
            arrays.append({**cell.labels, "file": file, "sha256": sha256})
    return Gathered(table_text(every), arrays, missing)


def table_text(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return rows as the CSV text of a table."""
    buffer = io.StringIO()
    writer = csv.DictWriter(buffer, COLUMNS, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return buffer.getvalue()


_PACKAGES = (
    "torch",
    "transformer-lens",
    "curvlinops-for-pytorch",
    "numpy",
    "hydra-core",
    "transformers",
)


def manifest_text(sweep: Sweep, run: dict[str, Any]) -> str:
    """Return settings and provenance of a table; `run` adds start, end, counts, arrays and the table's hash.

    Each variant with its probes: one number, or those of its allocation, by column and
    sigma; and with the content of its networks where they are the user's own.
    """
    first = as_plain(sweep.config)
    content = {
        "sweep": sweep.name,
        "config": in_manifest(sweep.config),
        "config_hash": config_hash(sweep.variants),
        "variants": [
            _described(*pair, first)
            for pair in zip(sweep.variants, sweep.allocations, strict=True)
        ],
        **provenance(sweep.config),
        **({"notes": sweep.unread} if sweep.unread else {}),
        **run,
    }
    return sealed_text(content, indent=2)


def config_hash(variants: Sequence[Variant]) -> str:
    """Return a hash of everything on which a table's numbers depend."""
    sciences: list[Any] = []
    for variant in variants:
        sciences.extend(map(variant.science, variant.config.quantities))
    own = [networks for variant in variants if (networks := variant.networks())]
    return digest(
        [without_added(in_manifest(unpinned(variants[0].config))), sciences, *own]
    )


def now() -> str:
    """Return the time as ISO 8601 in UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def _described(
    variant: Variant, allocation: Allocation, first: dict[str, Any]
) -> dict[str, Any]:
    """Return what the manifest says of a variant; its `config` is the table's, for each quantity.

    Task and state stand there where they are not those of the `first` variant, which
    are the manifest's own.
    """
    config = variant.config
    plain = as_plain(config)
    other = {
        group: plain[group] for group in OF_ARCHITECTURE if plain[group] != first[group]
    }
    extra: dict[str, Any] = {
        "data": kind(config.model.kind).about(config),
        "networks": variant.networks(),
        "witness": variant.witness,
        "pilots": variant.left_out,
    }
    return {
        **other,
        "variant": variant.name,
        "config": {name: variant.short_hash(name) for name in config.quantities},
        "model": plain["model"],
        "probes": allocation.probes or config.estimator.num_probes,
        **{key: value for key, value in extra.items() if value},
    }


def provenance(config: Config) -> dict[str, Any]:
    """Return versions, commit, platform and device, on which a number may depend too."""
    commit = _git("rev-parse", "HEAD")
    return {
        "hessfig": hessfig.__version__,
        "git_commit": commit,
        "git_dirty": bool(_git("status", "--porcelain")) if commit else None,
        "python": platform.python_version(),
        "versions": {name: _version(name) for name in _PACKAGES},
        "platform": f"{platform.system()} {platform.machine()}",
        "cpu": _cpu(),
        "threads_per_worker": int(THREADS["OMP_NUM_THREADS"]),
        "device": config.device,
        "byte_order": sys.byteorder,
    }


def _cpu() -> str | None:
    """Return the type of the processor, as Linux or else Python tells it; never the name of the machine."""
    try:
        lines = Path("/proc/cpuinfo").read_text("utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    for line in lines:
        if line.startswith("model name"):
            return line.partition(":")[2].strip() or None
    return platform.processor() or None


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
            ["git", "-C", str(root), *arguments],
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
