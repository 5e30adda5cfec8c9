"""One cell by several ranks (gloo): the same bits whatever their number, and those of one process to rounding."""

from __future__ import annotations

import csv
import os
import socket
import subprocess
import sys
from collections.abc import Callable
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
    *("model.vocabulary=64", "task.length=8", "task.batch_size=7", "memory=404MB", "blocks=[W_Q]", "parts=[H]"),
    *(f"quantities=[{','.join(QUANTITIES)}]", "estimator=hutchinson", "estimator.num_probes=4", "seeds=1"),
    *("spectrum.steps=4", "spectrum.num_probes=2", "workers=1"),
)
ALONE = """
import os
from hessfig.cli.main import main
try:
    main()
finally:
    print("left:", *(open(f"/proc/self/task/{task}/comm").read().strip() for task in os.listdir("/proc/self/task")))
"""
# What torchrun does, without a start of Python for each rank: they are forked from one that has imported what they use.
FORKED = """
import os, sys
import hessfig.sweep.together, transformers.models.gpt2.modeling_gpt2
from hessfig.cli.main import main
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

ranks, endpoint, folder, *words = sys.argv[1:]
elastic_launch(
    LaunchConfig(
        1, 1, int(ranks), rdzv_endpoint=endpoint, rdzv_backend="static", rdzv_configs={"rank": 0, "timeout": 300},
        start_method="fork", max_restarts=0, monitor_interval=0.1,
    ),
    main,
)([*words, f"output_dir={folder}"])
sys.argv[1:] = words
"""


def free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        return int(free.getsockname()[1])


def told(folder: Path, *command: str) -> str:
    """Return what a command of Python says; for ranks that no launcher starts it is rank 0 of one."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
    environment |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    done = subprocess.run(
        [sys.executable, *command],
        cwd=folder,
        capture_output=True,
        text=True,
        env=environment,
        timeout=400,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def by_forks(folder: Path, ranks: int) -> str:
    """Run the sweep by so many ranks, then by one: the process that they were forked from. Return what that says."""
    endpoint, words = f"127.0.0.1:{free_port()}", ["run", *WORDS, "ranks=true"]
    return told(
        folder,
        "-c",
        FORKED + ALONE,
        str(ranks),
        endpoint,
        str(folder / str(ranks)),
        *words,
        f"output_dir={folder / '1'}",
    )


def by_torchrun(folder: Path, ranks: int) -> str:
    """Run the sweep by so many ranks under torchrun, then by one that no launcher started; return what that says."""
    launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", f"--master-port={free_port()}"]
    words = ["-c", ALONE, "run", *WORDS, "ranks=true"]
    told(folder, *launcher, "--no-python", sys.executable, *words, f"output_dir={folder / str(ranks)}")
    return told(folder, *words, f"output_dir={folder / '1'}")


def numbers(folder: Path) -> list[tuple[str, ...]]:
    with (folder / "network" / "table.csv").open(newline="") as handle:
        return [
            tuple(row[key] for key in ("quantity", "layer", "row", "part", "value")) for row in csv.DictReader(handle)
        ]


@pytest.mark.long
@pytest.mark.timeout(900)  # four processes or more that import torch, on two cores
@pytest.mark.usefixtures("workers")
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are read from /proc, as Linux has it")
@pytest.mark.parametrize(("launch", "most"), [(by_forks, 2), pytest.param(by_torchrun, 4, marks=pytest.mark.slow)])
def test_any_number_of_ranks_gives_the_same_bits(launch: Callable[[Path, int], str], most: int, tmp_path: Path) -> None:
    """Threads of a process group that outlives its end abort the process at exit, now and then: none is left."""
    alone = runs.here("run", *WORDS, f"output_dir={tmp_path / '0'}", folder=tmp_path)
    assert alone.returncode == 0, alone.stderr
    (left,) = [line for line in launch(tmp_path, most).splitlines() if line.startswith("left:")]
    assert "gloo" not in left
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
