"""shard=auto: the share that the variables of each scheduler say, as its manual names them."""

from __future__ import annotations

import pytest

from hessfig.config.machine import WORKER, card_of, parse_shard
from hessfig.config.schedulers import SCHEDULERS, share
from hessfig.errors import UserError

SLURM = {"SLURM_ARRAY_TASK_MIN": "0", "SLURM_ARRAY_TASK_STEP": "1", "SLURM_ARRAY_TASK_COUNT": "4"}
TASKS = {
    "torchrun": ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (2, 2)),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}, (1, 3)),
    "SkyPilot": ({"SKYPILOT_NODE_RANK": "3", "SKYPILOT_NUM_NODES": "4"}, (4, 4)),
    "Kubernetes": ({"JOB_COMPLETION_INDEX": "0", "HESSFIG_SHARDS": "5"}, (1, 5)),
    "PBS": ({"PBS_ARRAY_INDEX": "2", "HESSFIG_SHARDS": "5"}, (3, 5)),
    "LSF": ({"LSB_JOBINDEX": "7", "LSB_JOBINDEX_END": "8", "LSB_JOBINDEX_STEP": "1"}, (7, 8)),
    "SGE": ({"SGE_TASK_ID": "7", "SGE_TASK_FIRST": "1", "SGE_TASK_LAST": "9", "SGE_TASK_STEPSIZE": "2"}, (4, 5)),
    "Slurm array": ({**SLURM, "SLURM_ARRAY_TASK_ID": "3", "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (4, 4)),
    "Slurm array from 10 by 5": (
        {**SLURM, "SLURM_ARRAY_TASK_MIN": "10", "SLURM_ARRAY_TASK_STEP": "5", "SLURM_ARRAY_TASK_ID": "20"},
        (3, 4),
    ),
    "srun": ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, (2, 2)),
    "srun in an array": (
        {**SLURM, "SLURM_ARRAY_TASK_ID": "1", "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"},
        (4, 8),
    ),
    "torchrun in srun": ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (6, 8)),
}


@pytest.mark.parametrize("scheduler", TASKS)
def test_a_task_knows_its_share(scheduler: str) -> None:
    variables, expected = TASKS[scheduler]
    assert share(variables) == expected


def test_every_scheduler_is_tried() -> None:
    assert {one.name for one in SCHEDULERS} <= set(TASKS)


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"SGE_TASK_ID": "undefined"},
        {"RANK": "2", "WORLD_SIZE": "2"},
        {"JOB_COMPLETION_INDEX": "0"},
        {"SLURM_PROCID": "0", "SLURM_NTASKS": "2"},
    ],
)
def test_without_a_task_there_is_no_share(variables: dict[str, str]) -> None:
    with pytest.raises(UserError, match="no scheduler says which share this is"):
        share(variables)


def test_the_setting_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert parse_shard("auto") == (2, 4)
    assert parse_shard("3/8") == (3, 8)


@pytest.mark.parametrize(
    ("worker", "cards", "card"), [(0, 1, "cuda"), (0, 4, "cuda:0"), (5, 4, "cuda:1"), (3, 0, "cuda")]
)
def test_workers_take_cards_in_turn(worker: int, cards: int, card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: cards)
    monkeypatch.setenv(WORKER, str(worker))
    assert card_of("cuda") == card
    assert (card_of("cuda:2"), card_of("cpu")) == ("cuda:2", "cpu")
