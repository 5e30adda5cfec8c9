"""What the launcher's texts mean, and which of them no cluster takes."""

import pytest

from hessfig.config.checks import check_config
from hessfig.config.enums import Launcher
from hessfig.config.machine import (
    WORKER,
    card_of,
    memory,
    memory_of_worker,
    size_in_bytes,
    slurm_memory,
)
from hessfig.config.schema import Config, LauncherConfig
from hessfig.errors import UserError


@pytest.mark.parametrize(
    ("text", "slurm", "size"),
    [
        ("16GB", "16G", 2**34),
        ("500mb", "500M", 500 * 2**20),
        ("2T", "2T", 2**41),
        ("1 KB", "1K", 1024),
    ],
)
def test_a_size_is_what_slurm_understands(text, slurm, size):
    assert slurm_memory(text) == slurm
    assert size_in_bytes(text) == size


def test_a_worker_has_the_memory_that_is_asked_of_slurm():
    asked = LauncherConfig(kind=Launcher.slurm, memory="4TB")
    assert memory_of_worker(Config(launcher=asked)) == 2**42
    assert (
        memory_of_worker(Config(launcher=LauncherConfig(kind=Launcher.slurm)))
        == memory()
    )
    assert memory_of_worker(Config(launcher=LauncherConfig(memory="4TB"))) == memory()


GOOD = [
    ("time", "90"),
    ("time", "1:30:00"),
    ("partition", "gpu,main"),
    ("memory", "8G"),
]
BAD = [("time", "1:30"), ("time", "soon"), ("memory", "16"), ("account", "")]


@pytest.mark.parametrize(("key", "value"), GOOD)
def test_what_slurm_takes_is_taken(key, value):
    check_config(Config(launcher=LauncherConfig(**{key: value})))


@pytest.mark.parametrize(("key", "value"), [*BAD, ("partition", "a\n#SBATCH --x")])
def test_what_slurm_would_not_take_is_refused(key, value):
    with pytest.raises(UserError, match=f"launcher.{key}"):
        check_config(Config(launcher=LauncherConfig(**{key: value})))


@pytest.mark.parametrize("option", ["qos=a", "-n 4", "--a\n#SBATCH --b", "--", "x"])
def test_what_is_no_option_is_refused(option):
    with pytest.raises(UserError, match=r"launcher\.options"):
        check_config(Config(launcher=LauncherConfig(options=[option])))


@pytest.mark.parametrize(
    ("worker", "cards", "card"),
    [(0, 1, "cuda"), (0, 4, "cuda:0"), (5, 4, "cuda:1"), (3, 0, "cuda")],
)
def test_workers_take_cards_in_turn(worker, cards, card, monkeypatch):
    monkeypatch.setattr("torch.cuda.device_count", lambda: cards)
    monkeypatch.setenv(WORKER, str(worker))
    assert card_of("cuda") == card
    assert (card_of("cuda:2"), card_of("cpu")) == ("cuda:2", "cpu")
