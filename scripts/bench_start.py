"""What users wait for before the first number: a toy network of their own, in Python and by a run; 20 toy cells.

    python scripts/bench_start.py --before REF    # beside the version of git at REF: seconds of both, and their ratio

Every number is that of a fresh process, in turn with the other version's: `measure` is the first call of
hessfig.measure on an encoder layer, after `import torch, hessfig`, on torch's own number of threads and on one;
`own` and `cells` are whole commands with two workers. Medians over rounds.
"""

from __future__ import annotations

import argparse
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from benchmarking import heading, parse, write_report

from hessfig.sweep.pool import THREADS

ROOT = Path(__file__).resolve().parents[1]
FACTORY = """
import torch
from torch import nn

class Network(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first = nn.Linear(8, width)
        self.layer = nn.TransformerEncoderLayer(width, 2, 64, dropout=0.0, batch_first=True)
        self.last = nn.Linear(width, 3)

    def forward(self, x):
        return self.last(self.layer(self.first(x)).mean(1))

def make(seed=0, width=24):
    torch.manual_seed(seed)
    return Network(width).eval(), torch.randn(16, 6, 8), torch.randint(0, 3, (16,)), "cross_entropy"
"""
PROGRAM = """
import sys, time, warnings
warnings.simplefilter("ignore")
import torch, hessfig
from factory import make
problem = hessfig.Problem(*make(width=int(sys.argv[1])))
began = time.perf_counter()
hessfig.measure(problem)
print(time.perf_counter() - began)
"""
COMMAND = [sys.executable, "-W", "ignore", "-c", "from hessfig.cli.main import main; main()", "run", "workers=2"]
OWN = ["sweep=network", "model.factory=factory.py:make"]
CELLS = ["sweep=sigma", "model.d_model=8", "task.digits=1", "task.batch_size=4", "grid.points=5", "seeds=4"]


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write what the options ask for."""
    options = parse(__doc__, _options, {"rounds": 1, "width": 8}, words)
    found: dict[str, dict[str, list[float]]] = {}
    with versions(options.before) as folders:
        for _ in range(options.rounds):
            for version, folder in folders.items():
                for name, seconds in times(folder, options.width).items():
                    found.setdefault(name, {}).setdefault(version, []).append(round(seconds, 3))
    rows = {name: {version: median(taken) for version, taken in row.items()} for name, row in found.items()}
    for row in rows.values():
        row.update({"ratio": row["before"] / row["now"]} if "before" in row else {})
    for name, row in rows.items():
        print(f"{name}: " + ", ".join(f"{key} {number:.2f}" for key, number in row.items()))
    settings = {"before": options.before, "rounds": options.rounds, "width": options.width}
    report = {**heading(options), "settings": settings, "seconds": rows, "rounds": found}
    write_report(options.output or ROOT / "outputs/benchmarks/bench_start.json", report)


def _options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--before", metavar="REF", help="a commit of this repository to compare with")
    parser.add_argument("--width", type=int, default=24, help="d_model of the encoder layer (24: 5947 parameters)")


@contextmanager
def versions(before: str | None) -> Iterator[dict[str, Path]]:
    """Yield the folders of this version, and of the one to compare with."""
    with tempfile.TemporaryDirectory() as folder:
        if before:
            packed = subprocess.run(["git", "-C", str(ROOT), "archive", before], capture_output=True, check=True).stdout
            with tarfile.open(fileobj=io.BytesIO(packed)) as archive:
                archive.extractall(folder, filter="data")
            for name in ("conf", "data"):  # an editable installation would give it this version's
                Path(folder, "hessfig", name).symlink_to(Path(folder, name))
        yield {"now": ROOT} | ({"before": Path(folder)} if before else {})


def times(version: Path, width: int) -> dict[str, float]:
    """Return the seconds of every task, in an empty folder."""
    free = {name: value for name, value in os.environ.items() if name not in THREADS} | {"PYTHONPATH": str(version)}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "factory.py").write_text(FACTORY)
        program = [sys.executable, "-c", PROGRAM, str(width)]
        return {
            "measure": float(_output(program, folder, free)),
            "measure, one thread": float(_output(program, folder, free | THREADS)),
            "own": _seconds([*COMMAND, *OWN, f"model.options.width={width}"], folder, free),
            "cells": _seconds([*COMMAND, *CELLS], folder, free),
        }


def _seconds(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> float:
    began = time.perf_counter()
    _output(command, folder, environment)
    return time.perf_counter() - began


def _output(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> str:
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{command}: {done.stderr}")
    return done.stdout


if __name__ == "__main__":
    main()
