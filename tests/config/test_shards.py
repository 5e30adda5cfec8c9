"""shard=auto: the share of a task of a Slurm array, from the variables that Slurm's manual names."""

import pytest

from hessfig.config.shards import array_share, parse_shard
from hessfig.errors import UserError


def slurm(*numbers):
    """Return the variables of a task: its index, and the count, the first, the last and the step of all indices."""
    names = ("ID", "COUNT", "MIN", "MAX", "STEP")
    return {
        f"SLURM_ARRAY_TASK_{name}": str(one)
        for name, one in zip(names, numbers, strict=True)
    }


@pytest.mark.parametrize("first", [0, 3])
@pytest.mark.parametrize("step", [1, 4])
@pytest.mark.parametrize("count", [1, 2, 7])
def test_the_tasks_of_an_array_share_all_cells(first, step, count):
    indices = range(first, first + step * count, step)
    shares = [
        array_share(slurm(index, count, first, indices[-1], step)) for index in indices
    ]
    assert shares == [f"{place}/{count}" for place in range(1, count + 1)]


@pytest.mark.parametrize("array", [(1, 3, 7), (0, 1, 2, 5), (2, 5), (1, 3, 4, 7)])
def test_no_task_of_an_array_with_holes_measures_anything(array):
    """Of such an array Slurm says the step 1, and a task's place among the others follows from nothing it says."""
    for index in array:
        with pytest.raises(
            UserError, match="Slurm's variables do not determine the share"
        ) as refused:
            array_share(slurm(index, len(array), min(array), max(array), 1))
        assert f"SLURM_ARRAY_TASK_ID={index}" in refused.value.got
        assert "shard=K/N" in refused.value.remedy


@pytest.mark.parametrize("name", list(slurm(3, 4, 0, 3, 1)))
@pytest.mark.parametrize("value", ["", "x", "-1", "\u0663"])
def test_a_variable_that_is_missing_or_not_a_number_is_refused(name, value):
    with pytest.raises(UserError, match="Slurm's variables do not determine the share"):
        array_share({**slurm(3, 4, 0, 3, 1), name: value})


def test_the_setting_reads_the_environment(monkeypatch):
    with pytest.raises(
        UserError, match="Slurm's variables do not determine"
    ) as refused:
        parse_shard("auto")
    assert refused.value.got == "no Slurm array"
    for name, value in slurm(1, 4, 0, 3, 1).items():
        monkeypatch.setenv(name, value)
    assert parse_shard("auto") == (2, 4)
    assert parse_shard("3/8") == (3, 8)
    for text in ("9/8", "\u00b2/8", "\u0662/8", "1/" + "8" * 5000):
        with pytest.raises(UserError, match="there is no such share of the cells"):
            parse_shard(text)
