"""shard=auto: the share that the variables of each scheduler say, as its manual names them."""

from __future__ import annotations

import pytest

from hessfig.config.machine import WORKER, card_of
from hessfig.config.schedulers import SCHEDULERS, parse_shard, share
from hessfig.errors import UserError

_ARRAY = ("ID", "COUNT", "MIN", "MAX", "STEP")


def slurm(*numbers: object) -> dict[str, str]:
    """Return what a task of a Slurm array is told: its index, and count, least, largest and step of all indices."""
    return {f"SLURM_ARRAY_TASK_{name}": str(one) for name, one in zip(_ARRAY, numbers, strict=True)}


SLURM = slurm(3, 4, 0, 3, 1)
STEP = {"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}
TASKS = {
    "torchrun": ({"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}, (2, 2)),
    "Open MPI": ({"OMPI_COMM_WORLD_RANK": "0", "OMPI_COMM_WORLD_SIZE": "3"}, (1, 3)),
    "SkyPilot": ({"SKYPILOT_NODE_RANK": "3", "SKYPILOT_NUM_NODES": "4"}, (4, 4)),
    "Kubernetes": ({"JOB_COMPLETION_INDEX": "0", "HESSFIG_SHARDS": "5"}, (1, 5)),
    "PBS": ({"PBS_ARRAY_INDEX": "2", "HESSFIG_SHARDS": "5"}, (3, 5)),
    "LSF": ({"LSB_JOBINDEX": "7", "LSB_JOBINDEX_END": "8", "LSB_JOBINDEX_STEP": "1"}, (7, 8)),
    "SGE": ({"SGE_TASK_ID": "7", "SGE_TASK_FIRST": "1", "SGE_TASK_LAST": "9", "SGE_TASK_STEPSIZE": "2"}, (4, 5)),
    "Slurm array": ({**SLURM, "SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, (4, 4)),
    "Slurm array from 10 by 5": (slurm(20, 4, 10, 25, 5), (3, 4)),
    "Slurm array resubmitted from 2 to 3": (slurm(3, 2, 2, 3, 1), (2, 2)),
    "Slurm array of one": (slurm(3, 1, 3, 3, 1), (1, 1)),
    "srun": ({"SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"}, (2, 2)),
    "srun in an array": (
        {**slurm(1, 4, 0, 3, 1), "SLURM_PROCID": "1", "SLURM_NTASKS": "2", "SLURM_STEP_ID": "0"},
        (4, 8),
    ),
    "torchrun in srun": ({"RANK": "5", "WORLD_SIZE": "8", "SLURM_PROCID": "1", "SLURM_NTASKS": "2"}, (6, 8)),
    "a container's ranks in an array": ({"RANK": "0", "WORLD_SIZE": "1", **slurm(5, 8, 0, 7, 1)}, (6, 8)),
    "a container's ranks in Kubernetes": (
        {"RANK": "0", "WORLD_SIZE": "1", "JOB_COMPLETION_INDEX": "5", "HESSFIG_SHARDS": "8"},
        (6, 8),
    ),
    "a container's ranks in PBS": (
        {"RANK": "0", "WORLD_SIZE": "1", "PBS_ARRAY_INDEX": "5", "HESSFIG_SHARDS": "8"},
        (6, 8),
    ),
    "a container's ranks in srun": (
        {"RANK": "0", "WORLD_SIZE": "1", "SLURM_PROCID": "5", "SLURM_NTASKS": "8", "SLURM_STEP_ID": "0"},
        (6, 8),
    ),
    "a container's ranks, and no more": ({"RANK": "0", "WORLD_SIZE": "1"}, (1, 1)),
    "torchrun in every task of an array": ({"RANK": "1", "WORLD_SIZE": "2", **slurm(2, 4, 0, 3, 1)}, (6, 8)),
    "torchrun in every task of PBS": (
        {"RANK": "1", "WORLD_SIZE": "2", "PBS_ARRAY_INDEX": "2", "HESSFIG_SHARDS": "4"},
        (6, 8),
    ),
    "mpirun in every task of SGE": (
        {
            **{"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2", "SGE_TASK_ID": "3", "SGE_TASK_FIRST": "1"},
            **{"SGE_TASK_LAST": "4", "SGE_TASK_STEPSIZE": "1"},
        },
        (6, 8),
    ),
    "torchrun in a job of SGE without tasks": ({"RANK": "1", "WORLD_SIZE": "2", "SGE_TASK_ID": "undefined"}, (2, 2)),
    "torchrun in a job of LSF without tasks": (
        {"RANK": "1", "WORLD_SIZE": "2", "LSB_JOBINDEX": "0", "LSB_JOBINDEX_END": "0", "LSB_JOBINDEX_STEP": "0"},
        (2, 2),
    ),
    "ranks set from srun's": ({"RANK": "1", "WORLD_SIZE": "2", **STEP}, (2, 2)),
    "ranks set from srun's in an array": ({"RANK": "1", "WORLD_SIZE": "2", **STEP, **slurm(2, 4, 0, 3, 1)}, (6, 8)),
    "a torchrun in every task of srun": ({"RANK": "1", "WORLD_SIZE": "4", "GROUP_WORLD_SIZE": "1", **STEP}, (6, 8)),
    "one torchrun over all tasks of srun": ({"RANK": "6", "WORLD_SIZE": "8", "GROUP_WORLD_SIZE": "2", **STEP}, (7, 8)),
}


@pytest.mark.parametrize("scheduler", TASKS)
def test_a_task_knows_its_share(scheduler: str) -> None:
    variables, expected = TASKS[scheduler]
    assert share(variables) == expected


def test_every_scheduler_is_tried() -> None:
    assert {one.name for one in SCHEDULERS} <= set(TASKS)


REFUSED = {
    "nothing": ({}, "none of their variables"),
    "no array of SGE": ({"SGE_TASK_ID": "undefined"}, "SGE: SGE_TASK_ID=undefined, no SGE_TASK_FIRST"),
    "a rank too many": ({"RANK": "2", "WORLD_SIZE": "2"}, "3/2"),
    "Kubernetes without a number": ({"JOB_COMPLETION_INDEX": "0"}, "Kubernetes: no HESSFIG_SHARDS"),
    "half of torchrun": ({"RANK": "1"}, "torchrun: no WORLD_SIZE"),
    "the other half": ({"WORLD_SIZE": "2"}, "torchrun: no RANK"),
    "a digit that is none": ({"RANK": "²", "WORLD_SIZE": "4"}, "torchrun: RANK=²"),
    "another": ({"RANK": "٢", "WORLD_SIZE": "4"}, "torchrun: RANK=٢"),
    "a number too long": ({"RANK": "1", "WORLD_SIZE": "4" * 5000}, f"torchrun: WORLD_SIZE={'4' * 20}..."),
    "less than none": ({"RANK": "-1", "WORLD_SIZE": "4"}, "torchrun: RANK=-1"),
} | {
    f"Slurm without {name}": ({key: one for key, one in SLURM.items() if key != name}, f"Slurm array: no {name}")
    for name in SLURM
}


@pytest.mark.parametrize("case", REFUSED)
def test_without_a_task_there_is_no_share(case: str) -> None:
    """The variable that is missing is named, where others of its scheduler are there."""
    variables, words = REFUSED[case]
    with pytest.raises(UserError, match="no scheduler says which share this is") as refused:
        share(variables)
    assert refused.value.got.startswith(words)


AGAINST = {
    "ranks of neither kind in srun": ({"RANK": "1", "WORLD_SIZE": "4", **STEP}, "torchrun and srun"),
    "ranks turned round": ({"RANK": "0", "WORLD_SIZE": "2", **STEP}, "torchrun and srun"),
    "nodes that are not those of srun": (
        {"RANK": "1", "WORLD_SIZE": "12", "GROUP_WORLD_SIZE": "3", **STEP},
        "torchrun and srun",
    ),
    "mpirun and srun": ({"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "3", **STEP}, "Open MPI and srun"),
    "two arrays": ({**SLURM, "PBS_ARRAY_INDEX": "2", "HESSFIG_SHARDS": "5"}, "PBS and Slurm array"),
}


@pytest.mark.parametrize("case", AGAINST)
def test_schedulers_that_contradict_each_other_are_refused_by_name(case: str) -> None:
    variables, names = AGAINST[case]
    with pytest.raises(UserError, match=f"{names} contradict each other") as refused:
        share(variables)
    held = {name: one for name, one in variables.items() if f"{name}={one}" in str(refused.value.got)}
    unset = refused.value.remedy.partition("unset ")[2].split()
    assert unset
    assert set(unset) <= set(held)
    assert share({name: one for name, one in variables.items() if name not in unset})[1] > 1


@pytest.mark.parametrize("index", ["0", "2"])
def test_an_array_that_does_not_say_how_many_tasks_it_has_is_refused_inside_a_launcher_too(index: str) -> None:
    """Else every task of the array would measure what the others measure."""
    with pytest.raises(UserError, match="no scheduler says which share this is") as refused:
        share({"RANK": "1", "WORLD_SIZE": "2", "PBS_ARRAY_INDEX": index})
    assert refused.value.got == "PBS: no HESSFIG_SHARDS"


def test_the_processes_of_every_task_share_all_cells() -> None:
    told = [{"RANK": str(rank), "WORLD_SIZE": "3", **slurm(task, 4, 0, 3, 1)} for task in range(4) for rank in range(3)]
    assert [share(one) for one in told] == [(place, 12) for place in range(1, 13)]


ARRAYS = {"1,3,7": (1, 3, 7), "0-2,5": (0, 1, 2, 5), "2,5": (2, 5), "1,3,4,7": (1, 3, 4, 7)}


@pytest.mark.parametrize("array", ARRAYS)
def test_no_task_of_an_array_with_holes_measures_anything(array: str) -> None:
    """Of such an array Slurm says the step 1, and a task's place among the others follows from nothing it says."""
    indices = ARRAYS[array]
    for index in indices:
        with pytest.raises(UserError, match="the indices of this Slurm array have holes") as refused:
            share(slurm(index, len(indices), min(indices), max(indices), 1))
        assert "shard=K/N" in refused.value.remedy


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_tasks_of_an_array_share_all_cells(first: int, step: int, count: int) -> None:
    indices = range(first, first + step * count, step)
    told = [slurm(index, count, first, indices[-1], step) for index in indices]
    assert [share(one) for one in told] == [(place, count) for place in range(1, count + 1)]


@pytest.mark.parametrize("array", [{}, SLURM])
@pytest.mark.parametrize("step", [{}, {"SLURM_STEP_ID": "4294967291"}])
def test_a_batch_script_of_several_tasks_lacks_srun(array: dict[str, str], step: dict[str, str]) -> None:
    """Slurm's number for the batch script itself (2^32 - 5) is no step of srun."""
    with pytest.raises(UserError, match="srun is missing") as refused:
        share({**array, **step, "SLURM_PROCID": "0", "SLURM_NTASKS": "4"})
    assert refused.value.remedy.startswith("srun hessfig run")


def test_the_setting_reads_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert parse_shard("auto") == (2, 4)
    assert parse_shard("3/8") == (3, 8)
    monkeypatch.setenv("WORLD_SIZE", "100000000")
    for text in ("auto", "9/8", "²/8", "٢/8", "1/" + "8" * 5000):
        with pytest.raises(UserError, match="there is no such share of the cells"):
            parse_shard(text)


@pytest.mark.parametrize(
    ("worker", "cards", "card"), [(0, 1, "cuda"), (0, 4, "cuda:0"), (5, 4, "cuda:1"), (3, 0, "cuda")]
)
def test_workers_take_cards_in_turn(worker: int, cards: int, card: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.cuda.device_count", lambda: cards)
    monkeypatch.setenv(WORKER, str(worker))
    assert card_of("cuda") == card
    assert (card_of("cuda:2"), card_of("cpu")) == ("cuda:2", "cpu")
