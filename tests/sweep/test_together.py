"""One cell by several ranks (gloo): the same bits whatever their number, and those of one process to rounding."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

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
    """Run the sweep by so many ranks, or by one process without ranks (0)."""
    words = [*WORDS, f"output_dir={folder}", *more]
    launcher: list[str] = []
    if ranks:
        port = f"--master-port={free_port()}"
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", port, "--no-python"]
        launcher.append(sys.executable)
        words.append("ranks=true")
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, *launcher, *HESSFIG, "run", *words]
    return subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)


def numbers(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "network" / "table.csv").open(newline="") as handle:
        return [
            tuple(row[key] for key in ("quantity", "layer", "row", "part", "value")) for row in csv.DictReader(handle)
        ]


@pytest.mark.long
@pytest.mark.timeout(900)  # four processes or more that import torch, on two cores
@pytest.mark.parametrize("most", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_bits(most: int, tmp_path: Path) -> None:
    found = {}
    for ranks in (0, 1, most):
        done = run(tmp_path / str(ranks), ranks)
        assert done.returncode == 0, done.stderr
        found[ranks] = numbers(tmp_path / str(ranks))
    assert {row[0] for row in found[1]} >= set(QUANTITIES[:3])
    assert found[1] == found[most]
    for alone, dealt in zip(found[0], found[1], strict=True):
        assert alone[:4] == dealt[:4]
        assert float(dealt[4]) == pytest.approx(float(alone[4]), rel=1e-9)


THREADS = """
import os
from hessfig.cli.main import main
try:
    main()
finally:
    print("left:", *(open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")))
"""


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are read from /proc, as Linux has it")
def test_a_rank_that_is_done_holds_no_process_group(tmp_path: Path) -> None:
    """Threads of a group that outlives its end abort the process at exit, now and then."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    words = [*WORDS, f"output_dir={tmp_path}", "ranks=true", "task.length=8", "quantities=[frobenius]"]
    command = [sys.executable, "-c", THREADS, "run", *words]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=400, check=False)
    assert done.returncode == 0, done.stderr
    left = next(line for line in done.stdout.splitlines() if line.startswith("left:"))
    assert "gloo" not in left


@pytest.mark.long
def test_ranks_without_a_micro_batch_are_refused(tmp_path: Path) -> None:
    done = run(tmp_path, 2, "task.batch_size=2")
    assert done.returncode and "2 ranks, 1 micro-batches" in done.stdout + done.stderr
    assert not (tmp_path / "network").exists()
