"""One cell by several ranks (gloo): the same bits whatever their number, and those of one process to rounding."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from hessfig.config.compose.job import compose
from hessfig.errors import UserError
from hessfig.sweep.plan import Sweep
from hessfig.sweep.together import planned_shares
from tests.runs import here

QUANTITIES = ("frobenius", "trace", "largest_eigenvalue", "density")
WORDS = (
    *("sweep=network", "model=huggingface", "task=tokens", "model.d_model=16", "model.n_heads=2", "model.n_layers=2"),
    *("model.vocabulary=64", "task.length=64", "task.batch_size=56", "memory=0.5GB", "blocks=[W_Q]", "parts=[H]"),
    *(f"quantities=[{','.join(QUANTITIES)}]", "estimator=hutchinson", "estimator.num_probes=4", "seeds=1"),
    *("spectrum.steps=4", "spectrum.num_probes=2", "workers=1"),
)
HESSFIG = ("-c", "from hessfig.cli.main import main; main()")


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def run(folder: Path, ranks: int, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the sweep by so many ranks of torchrun."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    words = ["run", *WORDS, f"output_dir={folder}", "ranks=true", *more]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, "--no-python", sys.executable, *HESSFIG, *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)


def numbers(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "network" / "table.csv").open(newline="") as handle:
        return [
            tuple(row[key] for key in ("quantity", "layer", "row", "part", "value")) for row in csv.DictReader(handle)
        ]


THREADS = """
import os
from hessfig.cli.main import main
try:
    main()
finally:
    print("left:", *(open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")))
"""


def alone(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the sweep by one rank that nothing launched."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    command = [sys.executable, "-c", THREADS, "run", *WORDS, f"output_dir={folder}", "ranks=true"]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)


@pytest.mark.usefixtures("workers")
@pytest.mark.long
@pytest.mark.timeout(900)  # four processes or more that import torch, on two cores
@pytest.mark.parametrize("most", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_bits(most: int, tmp_path: Path) -> None:
    """And a rank that is done holds no process group: threads of one abort the process at exit, now and then."""
    folders = [tmp_path / name for name in ("none", "one", "most")]
    ended = [here("run", *WORDS, f"output_dir={folders[0]}", folder=tmp_path), alone(folders[1]), run(folders[2], most)]
    assert all(done.returncode == 0 for done in ended), [done.stderr for done in ended]
    none, one, many = (numbers(folder) for folder in folders)
    assert {row[0] for row in one} >= set(QUANTITIES[:3])
    assert one == many
    for whole, dealt in zip(none, one, strict=True):
        assert whole[:4] == dealt[:4]
        assert float(dealt[4]) == pytest.approx(float(whole[4]), rel=1e-9)
    if Path("/proc/self/task").is_dir():
        (left,) = (line for line in ended[1].stdout.splitlines() if line.startswith("left:"))
        assert "gloo" not in left


def test_ranks_without_a_micro_batch_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    sweep = Sweep(compose([*WORDS, "task.batch_size=2", "ranks=true"]).variants)
    with pytest.raises(UserError, match="2 ranks, 1 micro-batches"):
        planned_shares(sweep)


@pytest.mark.slow
def test_ranks_that_are_refused_leave_nothing(tmp_path: Path) -> None:
    done = run(tmp_path, 2, "task.batch_size=2")
    assert done.returncode and "2 ranks, 1 micro-batches" in done.stdout + done.stderr
    assert not (tmp_path / "network").exists()
