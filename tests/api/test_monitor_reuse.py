"""A monitor's folder: numbers of another function are never taken, one monitor at a time, sealed tables, lost cells."""

import functools
import gc
import itertools
import json
import os
import time
import warnings
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.analysis import manifest
from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from hessfig.sweep.monitored import OtherTraining
from hessfig.sweep.pool import start_process
from tests import watched
from tests.daily import daily

X, Y = watched.data()
Case = dict[str, Any]


class Net(nn.Module):
    """A network with attributes of every kind that change what it computes and that no state holds."""

    def __init__(self, **more):
        super().__init__()
        torch.manual_seed(0)
        self.a = nn.Linear(3, 4)
        self.b = nn.Linear(4, 2)
        self.c = nn.Linear(4, 2)
        self.activation = torch.tanh
        self.scale = 1.0
        self.tables = [1.0, {"gain": 1.0}]
        self.mask = torch.ones(4)
        self.register_buffer("held", torch.ones(4))
        for name, value in more.items():
            setattr(self, name, value)

    def activate(self, x):
        return self.activation(x)

    def forward(self, x, mode="plain"):
        hidden = (
            self.activate(self.a(x))
            * self.scale
            * self.tables[1]["gain"]
            * self.mask
            * self.held
        )
        hidden = 2 * hidden if mode == "double" else hidden
        return {"scores": self.b(hidden), "others": self.c(hidden)}


def scaled(gain):
    return lambda outputs, targets: gain * F.cross_entropy(outputs, targets)


def hooked():
    network = Net()
    network.a.register_forward_hook(lambda module, inputs, output: 2 * output)
    return network


def words(mode):
    return {"batch": ({"x": X, "mode": mode}, Y)}


OTHERS = {
    "outputs": ({}, {"outputs": "others"}),
    "a closure": ({"loss": scaled(1.0)}, {"loss": scaled(2.0)}),
    "an entry of the batch that is no tensor": (words("plain"), words("double")),
    "the order of batches": (
        {"batch": [(X[:4], Y[:4]), (X[4:], Y[4:])]},
        {"batch": [(X[4:], Y[4:]), (X[:4], Y[:4])]},
    ),
}


def watch(folder, *, network=Net, **given):
    settings = {"loss": "cross_entropy", "batch": (X, Y), "outputs": "scores", **given}
    loss = settings.pop("loss")
    batch = settings.pop("batch")
    chosen = {
        "every": 1,
        "quantities": ["loss", "gradient_norm", "largest_eigenvalue"],
        "max_fraction": None,
    }
    return hessfig.Monitor(
        network(), loss, batch, folder=folder, **{**chosen, **settings}
    )


def sharpness(watching, step):
    return watching(step)["largest_eigenvalue/all/H"]


@pytest.mark.parametrize("what", OTHERS)
@pytest.mark.long
def test_no_number_of_another_function_is_taken(what, tmp_path):
    """At the step that was measured, and at a later one, in the same folder; the same function goes on."""
    first, other = OTHERS[what]
    before = sharpness(watch(tmp_path / "mine", **first), 0)
    assert sharpness(watch(tmp_path / "mine", **first), 0) == before
    for step in (0, 3):
        with pytest.raises(
            OtherTraining,
            match=r"(another training|other settings)(.|\n)*overwrite=True",
        ):
            watch(tmp_path / "mine", **other)(step)
    truth = sharpness(watch(tmp_path / "truth", **other), 0)
    assert sharpness(watch(tmp_path / "mine", overwrite=True, **other), 0) == truth
    if what != "the order of batches":
        assert truth != pytest.approx(before, rel=1e-6)


def updated(network, **rule):
    """Return Adam after two updates of `network`, whose weights are put back."""
    before = {name: one.clone() for name, one in network.state_dict().items()}
    optimiser = torch.optim.Adam(network.parameters(), lr=0.01, **rule)
    for _ in range(2):
        optimiser.zero_grad()
        F.cross_entropy(network(X)["scores"], Y).backward()
        optimiser.step()
    network.load_state_dict(before)
    return optimiser


@pytest.mark.parametrize(
    "rule",
    daily([{"betas": (0.9, 0.9)}, {"eps": 1.0}, {"betas": (0.5, 0.999)}], {"eps": 1.0}),
)
def test_no_number_of_another_optimiser_is_taken(tmp_path, rule):
    """Of the same weights: its settings and moments count where a quantity needs them, and nowhere else."""

    def measured(folder, name="preconditioned_eigenvalue", **rule):
        network = Net()
        given = {
            "optimiser": updated(network, **rule),
            "quantities": [name],
            "on_error": "raise",
        }
        watching = watch(tmp_path / folder, network=lambda: network, **given)
        try:
            return watching(0)
        finally:
            watching.close()

    before = measured("mine")
    assert before
    assert measured("mine") == before
    with pytest.raises(OtherTraining, match="not of what step 0 is now"):
        measured("mine", **rule)
    assert measured("truth", **rule) != before
    assert measured("loss", "loss") == measured("loss", "loss", **rule)


def test_what_differs_is_named(tmp_path):
    watch(tmp_path / "mine")(0)
    with pytest.raises(OtherTraining, match="where these were others: the network\n"):
        watch(tmp_path / "mine", network=lambda: Net(scale=2.0))(0)
    with pytest.raises(OtherTraining, match="where these were others: module a\n"):
        watch(tmp_path / "mine", network=hooked)(0)
    with pytest.raises(OtherTraining, match="where these were others: buffer held\n"):
        watch(tmp_path / "mine", network=lambda: Net(held=2 * torch.ones(4)))(0)
    with pytest.raises(OtherTraining, match="where these were others: the loss\n"):
        watch(tmp_path / "mine", loss=scaled(2.0))(0)


def test_attributes_that_a_training_moves_are_measured_as_they_are(tmp_path):
    """A temperature, say: the copy follows it, and a restart goes on where it has been seen to move."""
    network = Net()
    watching = watch(tmp_path / "mine", network=lambda: network)
    found = []
    for step in range(3):
        network.scale = 1.0 + step
        network.seen = network.a.weight * 2  # what a forward pass may leave behind
        found.append(sharpness(watching, step))
    at = [functools.partial(Net, scale=1.0 + number) for number in range(3)]
    truth = [
        sharpness(watch(tmp_path / f"at{number}", network=one), 0)
        for number, one in enumerate(at)
    ]
    assert found == pytest.approx(truth, rel=1e-9)
    watching.close()
    network.scale, network.seen = 4.0, None
    watch(tmp_path / "mine", network=lambda: network)(3)
    assert sorted(read_run(tmp_path / "mine").table["step"].unique()) == [0, 1, 2, 3]


def test_a_batch_that_the_training_writes_into_stays_what_it_was(tmp_path):
    batch = X.clone().double()
    watching = watch(tmp_path / "mine", batch=(batch, Y))
    before = sharpness(watching, 0)
    batch.zero_()
    assert sharpness(watching, 1) == pytest.approx(before, rel=1e-9)


class Once(torch.autograd.Function):
    """The identity, whose gradient is random."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, slope):
        return slope * (1 + 1e-9 * torch.rand((), dtype=slope.dtype))


class Random(Net):
    def activate(self, x):
        return torch.tanh(Once.apply(x))


def test_what_differs_from_call_to_call_is_never_reused_and_that_is_said_once(tmp_path):
    watching = watch(tmp_path / "mine", network=Random, quantities=["gradient_norm"])
    with pytest.warns(
        RuntimeWarning,
        match="will measure again what was measured: two calls with the same weights",
    ):
        watching(0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        watching(1)
    watching.close()
    with pytest.raises(OtherTraining, match="not of what step 0 is now"):
        watch(tmp_path / "mine", network=Random, quantities=["gradient_norm"])(0)


def test_a_loss_that_is_no_number_leaves_gradients_modes_buffers_and_generators_as_they_were(
    tmp_path,
):
    torch.manual_seed(0)
    network = nn.Sequential(
        nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2)
    ).train()
    (network(X).sum() * float("nan")).backward()
    with torch.no_grad():
        network[0].weight[0, 0] = float("nan")

    def state():
        torch_state = [torch.get_rng_state(), *network.buffers()]
        for one in network.parameters():
            torch_state += [one, one.grad]
        bits = [one.detach().numpy().tobytes() for one in torch_state]
        grads = [id(one.grad) for one in network.parameters()]
        return bits, grads, [one.training for one in network.modules()]

    before = state()
    watching = watched.monitor(
        network, tmp_path / "mine", quantities=["loss", "gradient_norm"]
    )
    watching(0)
    watching(3)
    assert state() == before
    assert {*read_run(tmp_path / "mine").table["status"]} == {"nonfinite"}


def test_one_monitor_in_a_folder_while_it_lives(tmp_path):
    first = watch(tmp_path / "mine")
    first(0)
    for given in ({}, {"overwrite": True}):
        with pytest.raises(
            UserError,
            match=r"mine belongs to another(.|\n)*of this process(.|\n)*close\(\)",
        ):
            watch(tmp_path / "mine", **given)
    watch(tmp_path / "other")
    first(1)
    first.close()
    with pytest.raises(UserError, match="it was closed"):
        first(2)
    second = watch(tmp_path / "mine")
    second(2)
    assert sorted(read_run(tmp_path / "mine").table["step"].unique()) == [0, 1, 2]
    second._network.watched_by = (
        second  # a cycle: only the collector finds that it is dead
    )
    del second
    watch(tmp_path / "mine").close()
    assert not (tmp_path / "mine" / ".owner").exists()
    gc.collect()


@pytest.mark.usefixtures("workers")
def test_one_monitor_in_a_folder_among_processes(tmp_path):
    """Its owner is killed with SIGKILL: the folder is free at once."""
    holder = start_process(watched.hold, tmp_path / "mine")
    while not (tmp_path / "ready").exists():
        assert holder.is_alive()
        time.sleep(0.05)
    with pytest.raises(
        UserError, match=f"belongs to another(.|\n)*that of process {holder.pid} lives"
    ):
        watched.monitor(watched.network(), tmp_path / "mine", quantities=["loss"])
    holder.kill()
    holder.join()
    watched.monitor(watched.network(), tmp_path / "mine", quantities=["loss"])(3)
    assert sorted(read_run(tmp_path / "mine").table["step"]) == [0, 3]


def test_a_forked_child_does_not_free_the_folder(tmp_path):
    (tmp_path / "mine").mkdir()
    from hessfig.api.owner import Owner

    owner = Owner(tmp_path / "mine")
    child = os.fork()
    if not child:
        owner.release()
        os._exit(0)
    os.waitpid(child, 0)
    assert (tmp_path / "mine" / ".owner").exists()
    with pytest.raises(UserError, match="belongs to another"):
        Owner(tmp_path / "mine")
    owner.release()
    Owner(tmp_path / "mine").release()


@pytest.fixture
def measured(tmp_path):
    watching = watched.monitor(
        watched.network(), tmp_path / "mine", quantities=["loss", "gradient_norm"]
    )
    for step in (0, 3, 6, 9):
        watching(step)
    watching.close()
    return tmp_path / "mine"


@pytest.mark.parametrize("name", ["table.csv", "manifest.json"])
def test_a_flipped_bit_is_refused(measured, name, monkeypatch):
    """In the table, in what the manifest says, and in the name of its checksum."""
    monkeypatch.setattr(manifest, "_PAUSE", 0.0)
    monkeypatch.setattr(manifest, "_LOOKS", 1)
    path = measured / name
    whole = path.read_bytes()
    places = [*range(0, len(whole), max(1, len(whole) // 60))]
    if name == "manifest.json":
        places += range(whole.find(b'"checksum"') + 1, whole.find(b'"checksum"') + 9)
    silent = []
    for place, bit in itertools.product(places, (1, 32)):
        content = bytearray(whole)
        content[place] ^= bit
        path.write_bytes(bytes(content))
        try:
            read_run(measured)
        except UserError:
            continue
        # 1e-17 and 1E-17 are one number.
        if name == "table.csv" or json.loads(content) != json.loads(whole):
            silent.append((place, bit))
    path.write_bytes(whole)
    read_run(measured)
    assert silent == []


def test_an_edited_value_is_refused_by_readers(measured, cli):
    table = measured / "table.csv"
    table.write_text(table.read_text().replace(",0.", ",1.", 1))
    for verb in (
        ["slopes", "sweep.name=mine", "quantity=loss"],
        ["check", "sweep.name=mine", "quantity=loss"],
    ):
        shown = cli(*verb, f"output_dir={measured.parent}")
        assert shown.code == 2
        assert "from another config or run" in shown.err


def test_a_kill_between_manifest_and_table_leaves_a_readable_folder(
    measured, monkeypatch
):
    from hessfig.sweep import monitored

    write = monitored.write_text

    def killed(path, content):
        if path.name == "table.csv":
            raise KeyboardInterrupt
        return write(path, content)

    before = (measured / "table.csv").read_bytes()
    watching = watched.monitor(
        watched.network(), measured, quantities=["loss", "gradient_norm"]
    )
    monkeypatch.setattr(monitored, "write_text", killed)
    with pytest.raises(KeyboardInterrupt):
        watching(12)
    assert (measured / "table.csv").read_bytes() == before
    assert sorted(read_run(measured).table["step"].unique()) == [0, 3, 6, 9]


def test_lost_measurements_are_told(measured):
    for path in sorted((measured / "cells").glob("*/*.json"))[:3]:
        path.unlink()
    steps = [
        (step, name)
        for step, name, key in json.loads((measured / "manifest.json").read_text())[
            "monitor"
        ]["cells"]
        if not (measured / "cells" / key[:2] / f"{key}.json").exists()
    ]
    named = ", ".join(dict.fromkeys(str(step) for step, _ in steps))
    with pytest.warns(
        RuntimeWarning, match=rf"3 of 8 measurements are lost(.|\n)*\(steps {named}\)"
    ):
        watching = watched.monitor(
            watched.network(), measured, quantities=["loss", "gradient_norm"]
        )
    watching(12)
    made = json.loads((measured / "manifest.json").read_text())
    assert made["missing_cells"] == 3
    assert made["monitor"]["lost"] == [[*one] for one in steps]
    assert (
        len(read_run(measured).table.drop_duplicates(["step", "quantity"])) == 8 - 3 + 2
    )
