"""One cell by several ranks (gloo): the same bits whatever their number, and those of one process to rounding."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hessfig.errors import UserError
from hessfig.sweep.plan import Sweep
from hessfig.sweep.together import planned_shares
from tests import runs
from tests.config.composing import configs

QUANTITIES = ("frobenius", "trace", "largest_eigenvalue", "density")
WORDS = (
    *("sweep=network", "model=huggingface", "task=tokens", "model.d_model=16", "model.n_heads=2", "model.n_layers=2"),
    *("model.vocabulary=64", "task.length=64", "task.batch_size=56", "memory=0.5GB", "blocks=[W_Q]", "parts=[H]"),
    *(f"quantities=[{','.join(QUANTITIES)}]", "estimator=hutchinson", "estimator.num_probes=4", "seeds=1"),
    *("spectrum.steps=4", "spectrum.num_probes=2", "workers=1"),
)
HESSFIG = "from hessfig.cli.main import main; main()"
THREADS = """
import os
from hessfig.cli.main import main
try:
    main()
finally:
    print("left:", *(open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")))
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(folder: Path, ranks: int) -> None:
    """Run the sweep by so many ranks, under torchrun."""
    port, words = f"--master-port={free_port()}", [*WORDS, f"output_dir={folder}", "ranks=true"]
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", port, "--no-python", sys.executable]
    done = subprocess.run(
        [sys.executable, *launcher, "-c", HESSFIG, "run", *words],
        capture_output=True,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def run_alone(folder: Path) -> str:
    """Run the sweep by one rank that no launcher started; return the names of the threads that were left."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", THREADS, "run", *WORDS, f"output_dir={folder}", "ranks=true"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("left:"))


def numbers(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "network" / "table.csv").open(newline="") as handle:
        return [
            tuple(row[key] for key in ("quantity", "layer", "row", "part", "value")) for row in csv.DictReader(handle)
        ]


@pytest.mark.long
@pytest.mark.timeout(900)  # four processes or more that import torch, on two cores
@pytest.mark.usefixtures("workers")
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are read from /proc, as Linux has it")
@pytest.mark.parametrize("most", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_bits(most: int, tmp_path: Path) -> None:
    """Threads of a process group that outlives its end abort the process at exit, now and then: none is left."""
    alone = runs.here("run", *WORDS, f"output_dir={tmp_path / '0'}", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr
    assert "gloo" not in run_alone(tmp_path / "1")
    run(tmp_path / str(most), most)
    found = {ranks: numbers(tmp_path / str(ranks)) for ranks in (0, 1, most)}
    assert {row[0] for row in found[1]} >= set(QUANTITIES[:3])
    assert found[1] == found[most]
    for undealt, dealt in zip(found[0], found[1], strict=True):
        assert undealt[:4] == dealt[:4]
        assert float(dealt[4]) == pytest.approx(float(undealt[4]), rel=1e-9)


def test_ranks_without_a_micro_batch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="2 ranks, 1 micro-batches"):
        planned_shares(Sweep(configs(*WORDS, "ranks=true", "task.batch_size=2")))
