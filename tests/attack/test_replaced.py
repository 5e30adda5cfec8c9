"""Files replaced while a run is at work: the cell fails by name, and the same command again gives the right number."""

import subprocess
import time

import pytest
import torch
from safetensors.torch import save_file

from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.states.initialised import build_network
from tests.runs import COMMAND, hessfig, rows

DURING = "files replaced during a run"
BETWEEN = "files replaced between runs"
ROUNDS = 2
FACTORY = """
import torch
from beside import SCALE

def make(seed):
    torch.manual_seed(seed)
    network = torch.nn.Linear(4, 3)
    network.load_state_dict(torch.load("data.pt"))
    return network, SCALE * torch.ones(5, 4), torch.zeros(5, dtype=torch.long), "cross_entropy"
"""
OWN = ["sweep=network", "model.factory=net.py:make", "seeds=2", "blocks=[weight]"]
TOY = [
    "sweep=sigma",
    "model.d_model=4",
    "task.batch_size=3",
    "task.digits=1",
    "estimator=dense",
    "parts=[H]",
]


def write_factory(folder, number):
    """Write a factory whose inputs have size `number`; the modules and the file it reads stay, once they are there."""
    (folder / "net.py").write_text(FACTORY.replace("SCALE *", f"{number} * SCALE *"))
    if not (folder / "beside.py").exists():
        (folder / "beside.py").write_text("SCALE = 1.0\n")
    if not (folder / "data.pt").exists():
        write_data(folder, 0)


def write_data(folder, number):
    """Write the file that the factory reads."""
    torch.manual_seed(number)
    torch.save(torch.nn.Linear(4, 3).state_dict(), folder / "data.pt")
    if not (folder / "net.py").exists():
        write_factory(folder, 1)


def write_state(folder, number):
    """Write weights for state.path."""
    config = Config(
        model=ModelConfig(d_model=4), task=TaskConfig(digits=1, batch_size=3)
    )
    network = build_network(config, sigma=0.3, seed=number)
    save_file(
        {name: p.detach().clone() for name, p in network.named_parameters()},
        folder / "w.safetensors",
    )


CLASSES = {
    "model.factory": (
        OWN,
        write_factory,
        "model.factory: the content of net.py:make is not what was",
    ),
    "a file it reads": (
        OWN,
        write_data,
        "model.factory: net.py:make returned something else",
    ),
    "state.path": (
        [*TOY, "state=loaded", "state.path=w.safetensors"],
        write_state,
        "state.path: the content of w.safetensors is not what was",
    ),
}


def numbers(folder):
    """Return the values of the only table there is."""
    (table,) = folder.glob("outputs/*/table.csv")
    return [row["value"] for row in rows(table)]


def undisturbed(folder, words, write, number):
    """Return the right numbers for one content of the file."""
    folder.mkdir()
    write(folder, number)
    done = hessfig("run", *words, "workers=1", folder=folder)
    assert done.returncode == 0, done.stderr
    return numbers(folder)


@pytest.mark.parametrize("what", CLASSES)
def test_files_that_change(what, tmp_path, ledger, dice):
    words, write, message = CLASSES[what]
    right = {
        number: undisturbed(tmp_path / f"right_{number}", words, write, number)
        for number in (1, 2)
    }
    assert right[1] != right[2]
    for attempt in range(ROUNDS):
        folder = tmp_path / f"during_{attempt}"
        folder.mkdir()
        write(folder, 1)
        run = subprocess.Popen(
            [COMMAND, "run", *words, "workers=1"],
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        while not list(folder.glob("outputs/*/cells")) and run.poll() is None:
            time.sleep(0.005)
        # Planned; the workers are starting.
        time.sleep(attempt * dice.uniform(0.0, 0.5))
        write(folder, 2)
        said, _ = run.communicate(timeout=200)
        named = run.returncode == 1 and message in said
        # Measured before the change.
        before = attempt > 0 and run.returncode == 0 and numbers(folder) == right[1]
        ledger.note(
            DURING,
            silent=""
            if named or before
            else f"{what}: exit {run.returncode}: {said[-300:]}",
        )
        again = hessfig("run", *words, "workers=1", folder=folder)
        sound = again.returncode == 0 and numbers(folder) == right[2]
        ledger.note(BETWEEN, silent="" if sound else f"{what}: {again.stdout[-300:]}")
    write(folder, 1)
    back = hessfig("run", *words, "workers=1", folder=folder)
    ledger.note(
        BETWEEN,
        silent=""
        if numbers(folder) == right[1]
        else f"{what}: put back: {back.stdout[-300:]}",
    )
    assert not ledger.wrong(DURING)
    assert not ledger.wrong(BETWEEN)
