"""Loops that a monitor meets: steps of epochs, other directories, frozen layers, plain SGD, compiled parts, bridges."""

import copy
import json
import math
import warnings
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig.analysis.manifest import read_run
from hessfig.api.owner import LOCK, Owner
from hessfig.errors import UserError
from tests import watched
from tests.api.test_monitor import curvature, value
from tests.models.test_lens_bridge import bridge, tokens

pytestmark = pytest.mark.filterwarnings(
    "ignore:.*curvlinops:RuntimeWarning", "ignore:.*torch.jit:FutureWarning"
)


def failures(folder):
    made = json.loads((folder / "manifest.json").read_text())["monitor"]["failures"]
    return made


def steps(folder):
    return [*read_run(folder).table["step"]]


def moved(model):
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.01)


@pytest.mark.parametrize(
    "length", [2, 3, 7]
)  # below, at and above the steps between measurements
def test_steps_that_start_anew_every_epoch_are_told_and_every_reader_takes_the_table(
    length, tmp_path
):
    model = watched.network()
    watch = watched.monitor(model, tmp_path / "mine", quantities=["loss"])
    with pytest.warns(
        RuntimeWarning,
        match=r"the steps went back(.|\n)*monitor\(epoch \* len\(loader\) \+ number\)",
    ) as told:
        for _ in range(3):
            for number in range(length):
                watch(number)
                moved(model)
    assert len(told) == 1
    watch.close()
    assert steps(tmp_path / "mine") == [*range(0, length, watched.EVERY)]
    assert [*failures(tmp_path / "mine")] == [
        str(step) for step in range(0, length - 1, watched.EVERY)
    ]
    assert f"step 0 after step {length - 1}" in failures(tmp_path / "mine")["0"]


def test_the_remedy_for_steps_of_epochs_measures_all_of_them(tmp_path):
    model = watched.network()
    watch = watched.monitor(model, tmp_path / "mine", quantities=["loss"])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for epoch in range(3):
            for number in range(4):
                watch(epoch * 4 + number)
                watch(epoch * 4 + number)  # gradients that are accumulated
                moved(model)
    assert steps(tmp_path / "mine") == [0, 3, 6, 9]


def test_steps_that_go_back_end_the_training_where_that_is_wanted(tmp_path):
    watch = watched.monitor(
        watched.network(), tmp_path / "mine", quantities=["loss"], on_error="raise"
    )
    watch(3)
    with pytest.raises(
        UserError, match=r"the steps went back\n  got:     step 2 after step 3"
    ):
        watch(2)


def test_another_monitor_continues_a_training_that_went_back_to_a_checkpoint(tmp_path):
    model = watched.network()
    watch = watched.monitor(model, tmp_path / "mine", quantities=["loss"])
    for step in (0, 3, 6):
        kept = copy.deepcopy(model.state_dict()) if step == 3 else kept if step else {}
        watch(step)
        moved(model)
    model.load_state_dict(kept)
    watch.close()
    again = watched.monitor(model, tmp_path / "mine", quantities=["loss"])
    for step in (3, 6):
        again(step)
        model.load_state_dict({name: one * 0.9 for name, one in kept.items()})
    assert steps(tmp_path / "mine") == [0, 3, 6]


def files_of(folder):
    return {path.name for path in folder.rglob("*") if path.is_file()}


def test_a_relative_folder_is_where_the_monitor_was_made(tmp_path, monkeypatch):
    """Table, manifest and lock stay together, a second owner is kept out, and runs read the table they were made of."""
    here = tmp_path / "here"
    there = tmp_path / "there"
    here.mkdir()
    there.mkdir()
    monkeypatch.chdir(here)
    model = watched.network()
    watch = watched.monitor(model, Path("mine"), quantities=["loss"])
    watch(0)
    monkeypatch.chdir(there)
    moved(model)
    watch(3)
    assert not any(there.iterdir())
    assert steps(here / "mine") == [0, 3]
    with pytest.raises(UserError, match=r"belongs to another hessfig\.Monitor"):
        watched.monitor(model, here / "mine", quantities=["loss"])
    own = watched.monitor(model, Path("mine"), quantities=["loss"])
    own(6)
    watch.close()
    assert LOCK in files_of(there / "mine")
    assert LOCK not in files_of(here / "mine")
    assert (steps(here / "mine"), steps(there / "mine")) == ([0, 3], [6])


def test_an_owner_lets_go_of_the_folder_that_it_held(tmp_path, monkeypatch):
    for name in ("a/mine", "b/mine"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "a")
    owner = Owner(Path("mine"))
    monkeypatch.chdir(tmp_path / "b")
    other = Owner(Path("mine"))
    owner.release()
    assert (files_of(tmp_path / "a"), files_of(tmp_path / "b")) == (set(), {LOCK})
    other.release()


def test_a_failure_in_the_manifest_names_no_directory_of_the_machine(
    tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    watch = watched.monitor(watched.network(), Path("mine"), quantities=["loss"])

    def refused(*given):
        raise OSError(f"no room in {watch.folder}/cells")

    monkeypatch.setattr(watch._copy, "follow", refused)
    with pytest.warns(RuntimeWarning, match="was not measured"):
        watch(0)
    assert failures(tmp_path / "mine")["0"] == "OSError: no room in mine/cells"


@pytest.mark.parametrize("thawed", [True, False])
def test_other_trained_parameters_are_told_and_not_measured_as_if_they_were_the_same(
    thawed, tmp_path
):
    model = watched.network()
    model[0].requires_grad_(not thawed)
    watch = watched.monitor(model, tmp_path / "mine", quantities=["gradient_norm"])
    watch(0)
    model[0].requires_grad_(thawed)
    words = (
        r"other parameters require a gradient(.|\n)*"
        rf"0.bias: requires_grad={thawed}, 0.weight: requires_grad={thawed}"
    )
    with pytest.warns(RuntimeWarning, match=words):
        assert watch(3) == {}
    model[0].requires_grad_(not thawed)
    assert watch(6)
    watch.close()
    model[0].requires_grad_(thawed)
    # The remedy.
    own = watched.monitor(model, tmp_path / "own", quantities=["gradient_norm"])
    whole, _ = curvature(copy.deepcopy(model).requires_grad_())
    count = sum(one.numel() for one in model[0].parameters())
    expected = float(whole.norm() if thawed else whole[count:].norm())
    assert own(0)["gradient_norm"] == pytest.approx(expected, rel=1e-10)


def test_every_parameter_is_measured_whatever_is_frozen_where_that_is_asked_for(
    tmp_path,
):
    model = watched.network()
    model[0].requires_grad_(False)
    watch = watched.monitor(
        model, tmp_path / "mine", quantities=["gradient_norm"], weights=None
    )
    found = [watch(0)["gradient_norm"]]
    model[0].requires_grad_(True)
    found.append(watch(3)["gradient_norm"])
    assert found == pytest.approx([float(curvature(model)[0].norm())] * 2, rel=1e-10)


def compiled(part):
    made = torch.compile(part, backend="eager")
    return made


PARTS = {
    "a nested part": lambda model: model.__setitem__(
        0, compiled(nn.Sequential(compiled(model[0])))
    ),
    "a layer in place": lambda model: model[0].compile(backend="eager"),
}


@pytest.mark.long
@pytest.mark.parametrize("part", PARTS)
def test_a_network_with_a_compiled_part_is_followed(part, tmp_path):
    plain = watched.network()
    model = watched.network()
    PARTS[part](model)
    watch = watched.monitor(model, tmp_path / "mine", quantities=["largest_eigenvalue"])
    watched.train(plain, lambda step: None, last=3)
    watched.train(model, watch, last=3)
    for one, other in zip(plain.parameters(), model.parameters(), strict=True):
        assert torch.allclose(one, other, rtol=1e-5)
    largest = float(torch.linalg.eigvalsh(curvature(model)[1])[-1])
    assert value(tmp_path / "mine", "largest_eigenvalue", 3) == pytest.approx(
        largest, rel=1e-6
    )


def scripted(model):
    made = torch.jit.script(model)
    return made


@pytest.mark.parametrize(
    ("make", "parts"),
    [
        (scripted, "the network, 0, 1, 2, 3"),
        (
            lambda model: torch.jit.trace(model.eval(), watched.data()[0]),
            "the network, 0, 1, 2, 3",
        ),
        (lambda model: nn.Sequential(scripted(model[0]), *model[1:]), "0"),
    ],
)
def test_networks_of_torchscript_are_refused_with_a_remedy_that_works(
    make, parts, tmp_path
):
    model = make(watched.network())
    for measured in (
        lambda: watched.monitor(model, tmp_path / "mine"),
        lambda: hessfig.measure(hessfig.Problem(model.eval(), *watched.data())),
    ):
        with pytest.raises(
            UserError, match=rf"compiled by TorchScript (.|\n)*got:     {parts}\n"
        ) as refused:
            measured()
    assert "original.load_state_dict(network.state_dict())" in refused.value.remedy
    original = watched.network()
    original.load_state_dict(model.state_dict())
    assert watched.monitor(original, tmp_path / "mine", quantities=["loss"])(0)


@pytest.mark.long
@pytest.mark.parametrize("name", ["native", "gpt2", "neox"])
@pytest.mark.parametrize("listed", [False, True])
def test_a_bridge_is_followed_while_it_is_trained(name, listed, tmp_path):
    """The numbers at a later step are those of hessfig.Problem(bridge, tokens) there."""
    # One of its own: others have run the shared one.
    model = bridge.__wrapped__(name)
    x = tokens()
    options = {
        "every": 2,
        "max_fraction": None,
        "quantities": ["loss", "largest_eigenvalue"],
        "on_error": "raise",
    }
    watch = hessfig.Monitor(
        model, None, [x] if listed else x, folder=tmp_path / "mine", **options
    )
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in range(3):
        found = watch(step)
        if step < 2:
            optimiser.zero_grad()
            F.cross_entropy(
                model(x)[:, :-1].flatten(0, 1), x[:, 1:].flatten()
            ).backward()
            optimiser.step()
    table = hessfig.measure(
        hessfig.Problem(model.eval(), x),
        blocks=["all"],
        parts="H",
        quantities=["loss", "largest_eigenvalue"],
    )
    assert [*found.values()] == pytest.approx([*table["value"]], rel=1e-6)


def test_a_warm_up_that_begins_at_rate_zero_has_no_finite_threshold_and_a_critical_step(
    tmp_path,
):
    model = watched.network()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.0)
    names = ["stability_threshold", "critical_step"]
    watch = watched.monitor(
        model,
        tmp_path / "mine",
        quantities=names,
        optimiser=optimiser,
        on_error="raise",
    )
    watch(0)
    table = hessfig.read(tmp_path / "mine").table.set_index("quantity")
    assert table.loc["learning_rate", "value"] == 0
    assert table.loc["stability_threshold", "value"] == math.inf
    assert table.loc["stability_threshold", "status"] == "nonfinite"
    # Of plain gradient descent, whatever its rate is.
    assert table.loc["critical_step", "status"] == "ok"
