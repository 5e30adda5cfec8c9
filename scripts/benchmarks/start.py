"""What users wait for: the first number of a toy network of their own, 20 toy cells, and commands that read or plan.

    python scripts/benchmarks/start.py --before REF    # beside the version of git at REF, with the ratio

Every number is that of a fresh process, in turn with the other version's: `measure` is the first call of
hessfig.measure on an encoder layer, after `import torch, hessfig`, on torch's own number of threads and on one;
`own` and `cells` are whole commands with two workers. `slopes`, `plot` and `report` read the table of `cells`; `plan`
is a dry run of a GPT-2 with random weights, which takes transformers. Medians over rounds, of seconds and of the
processor's seconds (without those of workers), which are more reliable where other work is going on.
"""

from __future__ import annotations

import argparse
import io
import os
import resource
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import runner
from runner import Run

from hessfig.sweep.pool import THREADS

ROOT = Path(__file__).resolve().parents[2]
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
began = time.perf_counter(), time.process_time()
hessfig.measure(problem)
print(time.perf_counter() - began[0], time.process_time() - began[1])
"""
COMMAND = [sys.executable, "-W", "ignore", "-c", "from hessfig.cli.main import main; main()"]
RUN = [*COMMAND, "run", "workers=2"]
OWN = ["sweep=network", "model.factory=factory.py:make"]
CELLS = ["sweep=sigma", "model.d_model=8", "task.digits=1", "task.batch_size=4", "grid.points=5", "seeds=4"]
GPT2 = ["sweep=network", "model=huggingface", "model.architecture=gpt2", "task=tokens", "blocks=[W_V]", "dry_run=true"]
READ = {"slopes": ["slopes", "sweep=sigma"], "plot": ["plot", "figure=3a"], "report": ["report"]}
CLOCKS = ("seconds", "cpu_seconds")


def main(words: Sequence[str] | None = None) -> None:
    """Measure, print and write what the options ask for."""
    options = runner.parse(__doc__, _options, {"rounds": 1, "width": 8}, words)
    found: dict[str, dict[str, list[Run]]] = {}
    with versions(options.before) as folders:
        for _ in range(options.rounds):
            for version, folder in folders.items():
                for name, spent in times(folder, options.width).items():
                    found.setdefault(name, {}).setdefault(version, []).append(spent)
    rows = {clock: _medians(found, clock) for clock in CLOCKS}
    for clock, table in rows.items():
        for name, row in table.items():
            print(f"{clock}, {name}: " + ", ".join(f"{one} {number:.2f}" for one, number in row.items()))
    report = {**runner.heading(options, ("before", "rounds", "width")), **rows, "rounds": found}
    runner.write_report(options, "start", report)


def _medians(found: Mapping[str, Mapping[str, list[Run]]], clock: str) -> dict[str, dict[str, float]]:
    """Return the medians over rounds of one of the two clocks, and how many times as long it took before."""
    rows = {
        name: {version: runner.medians(runs)[clock] for version, runs in row.items()} for name, row in found.items()
    }
    return {
        name: row | ({"ratio": row["before"] / row["now"]} if "before" in row else {}) for name, row in rows.items()
    }


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


def times(version: Path, width: int) -> dict[str, Run]:
    """Return what every task took, in an empty folder."""
    free = {name: value for name, value in os.environ.items() if name not in THREADS} | {"PYTHONPATH": str(version)}
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "factory.py").write_text(FACTORY)
        program = [sys.executable, "-c", PROGRAM, str(width)]
        return {
            "measure": _said(program, folder, free),
            "measure, one thread": _said(program, folder, free | THREADS),
            "own": _spent([*RUN, *OWN, f"model.options.width={width}"], folder, free),
            "cells": _spent([*RUN, *CELLS], folder, free),
            **{name: _spent([*COMMAND, *words], folder, free) for name, words in READ.items()},
            "plan": _spent([*RUN, *GPT2], folder, free),
        }


def _said(program: Sequence[str], folder: str, environment: Mapping[str, str]) -> Run:
    told = runner.said(program, environment, folder=Path(folder)).split()
    return dict(zip(CLOCKS, map(float, told), strict=True))


def _spent(command: Sequence[str], folder: str, environment: Mapping[str, str]) -> Run:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    _, spent = runner.timed(partial(runner.said, command, environment, folder=Path(folder)))
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return spent | {"cpu_seconds": own}


if __name__ == "__main__":
    main()
