"""Curvature along a training of one's own: numbers, bits of the training, overhead, crashes, restarts and refusals."""

import copy
import errno
import inspect
import json
import random
import warnings
from types import SimpleNamespace

import numpy
import pandas as pd
import pytest
import torch
from torch import nn
from torch.nn import functional as F

import hessfig
from hessfig import files
from hessfig.analysis.manifest import read_run
from hessfig.api import monitor as monitors
from hessfig.errors import UserError
from hessfig.sweep.monitored import OtherTraining
from hessfig.sweep.pool import start_process
from tests import watched
from tests.double_backward import hessian

pytestmark = pytest.mark.filterwarnings("ignore:.*curvlinops:RuntimeWarning")


def numbers(folder, *columns):
    table = read_run(folder).table
    return table[
        [*(columns or ("step", "quantity", "row", "part", "value", "status"))]
    ].reset_index(drop=True)


def value(folder, quantity, step):
    table = read_run(folder).table
    (found,) = table[
        (table["quantity"] == quantity)
        & (table["step"] == step)
        & (table["row"] != "x")
    ]["value"][:1]
    return float(found)


def curvature(model):
    """Return gradient and Hessian of the loss in all parameters, in float64."""
    model = copy.deepcopy(model).double().eval()
    x, y = watched.data()
    at = list(model.parameters())
    slopes = torch.autograd.grad(F.cross_entropy(model(x.double()), y), at)
    flat = torch.cat([slope.flatten() for slope in slopes])
    return flat, hessian(lambda: F.cross_entropy(model(x.double()), y), at)


def test_numbers_along_a_training_are_those_of_dense_hessians(tmp_path):
    """Adam's preconditioned eigenvalue and threshold come from the state of torch's own optimiser."""
    model = watched.network()
    optimiser = torch.optim.AdamW(
        model.parameters(), lr=0.01, betas=(0.8, 0.95), eps=1e-6
    )
    names = [
        *watched.QUANTITIES,
        "preconditioned_eigenvalue",
        "stability_threshold",
        "critical_step",
    ]
    watch = watched.monitor(
        model, tmp_path / "mine", quantities=names, optimiser=optimiser
    )
    truth = {}
    with pytest.warns(
        RuntimeWarning,
        match="preconditioned_eigenvalue is not defined before .* step 0 has none",
    ):
        watch(0)

    def look(step):
        watch(step)
        if step in (6, 12):
            slope, hessian = curvature(model)
            seconds = torch.cat(
                [
                    optimiser.state[one]["exp_avg_sq"].double().flatten()
                    for one in model.parameters()
                ]
            )
            diagonal = (1 - 0.8**step) * ((seconds / (1 - 0.95**step)).sqrt() + 1e-6)
            scaled = hessian / (diagonal[:, None] * diagonal).sqrt()
            truth[step] = (
                slope.norm(),
                torch.linalg.eigvalsh(hessian)[-1],
                torch.linalg.eigvalsh(scaled)[-1],
            )

    watched.train(model, look, optimiser=optimiser)
    table = read_run(tmp_path / "mine").table
    assert sorted(table["step"].unique()) == [0, 3, 6, 9, 12]
    for step, (slope, sharpness, scaled) in truth.items():
        found = table[(table["step"] == step) & (table["row"] != "x")]
        found = found.drop_duplicates("quantity").set_index("quantity")["value"]
        assert found["gradient_norm"] == pytest.approx(float(slope), rel=1e-10)
        assert found["largest_eigenvalue"] == pytest.approx(float(sharpness), rel=1e-6)
        assert found["preconditioned_eigenvalue"] == pytest.approx(
            float(scaled), rel=1e-6
        )
        assert found["stability_threshold"] == pytest.approx(3.6 / (0.2 * 0.01))
        assert found["critical_step"] > 0


def test_critical_step_without_an_optimiser_is_that_of_gradient_descent(tmp_path):
    model = watched.network()
    watched.monitor(model, tmp_path / "mine", quantities=["critical_step"])(0)
    step, (slope, _), (x, y) = (
        value(tmp_path / "mine", "critical_step", 0),
        curvature(model),
        watched.data(),
    )

    def loss(length):
        moved = copy.deepcopy(model).double().eval()
        flat = nn.utils.parameters_to_vector(moved.parameters()) - length * slope
        nn.utils.vector_to_parameters(flat, moved.parameters())
        return F.cross_entropy(moved(x.double()), y).item()

    assert loss(0.98 * step) < loss(0.0) < loss(1.02 * step)


def test_the_training_is_the_same_to_the_bit(tmp_path):
    """Weights, gradients, modes, and the generators of torch, numpy and Python are as without a monitor."""

    def trained(*, is_watched):
        model, (x, y) = watched.network(), watched.data()
        random.seed(1), numpy.random.seed(2), torch.manual_seed(3)  # noqa: NPY002
        optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
        model[0].eval()
        watch = (
            watched.monitor(model, tmp_path / "bits", optimiser=optimiser)
            if is_watched
            else lambda step: None
        )
        for step in range(7):
            watch(step)
            scale = 1 + 0.1 * random.random() + 0.1 * numpy.random.rand()  # noqa: NPY002
            optimiser.zero_grad(set_to_none=step % 2 == 0)
            (scale * F.cross_entropy(model(x), y)).backward()
            optimiser.step()
            watch(step)
        states = [
            one
            for pair in zip(
                model.parameters(), [p.grad for p in model.parameters()], strict=True
            )
            for one in pair
        ]
        drawn = numpy.random.get_state()[1].tolist()  # noqa: NPY002
        modes = [module.training for module in model.modules()]
        return states, modes, random.getstate(), drawn, torch.get_rng_state()

    states, *rest = trained(is_watched=False)
    found, *others = trained(is_watched=True)
    assert all(
        torch.equal(one, other) for one, other in zip(states, found, strict=True)
    )
    assert rest[:-1] == others[:-1]
    assert torch.equal(rest[-1], others[-1])
    assert len(numbers(tmp_path / "bits")) > 0


def test_measuring_keeps_within_its_share_of_the_time(tmp_path, monkeypatch):
    """A step of the training takes a second, a measurement three, by a clock that the test turns."""
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(monitors.time, "perf_counter", lambda: clock.now)
    model = watched.network()
    watch = watched.monitor(
        model, tmp_path / "mine", every=5, quantities=["loss"], max_fraction=0.05
    )
    measured = watch._measured

    def slowly(step):
        clock.now += 3
        return measured(step)

    monkeypatch.setattr(watch, "_measured", slowly)
    spent = []
    with pytest.warns(
        RuntimeWarning, match="more than 5% of the training's time: some are skipped"
    ) as told:
        for step in range(401):
            watch(step)
            clock.now += 1
            spent.append(watch.budget.spent / (step + 1))
    (message,) = (str(one.message) for one in told if "skipped" in str(one.message))
    assert "one takes 3 s, so expect one every 60 s of training" in message
    assert sorted(numbers(tmp_path / "mine")["step"]) == [0, *range(120, 401, 60)]
    assert max(spent[120:]) <= 0.05 + 1e-9
    assert len([one for one in told if "skipped" in str(one.message)]) == 1
    seen = json.loads((tmp_path / "mine" / "manifest.json").read_text())["monitor"]
    assert (
        seen["budget"]["spent_seconds"] <= 0.05 * seen["budget"]["training_seconds"] + 3
    )
    assert (
        seen["skipped"]
        == watch.skipped
        == [step for step in range(5, 401, 5) if step % 60 or step == 60]
    )


def test_notes_of_skipped_steps_take_little_of_the_time(tmp_path, monkeypatch):
    """A step of the training takes a second, a note in the manifest two: 5 % allow one in 400 s.

    Besides, one is made whenever the list of skipped steps has doubled.
    """
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(monitors.time, "perf_counter", lambda: clock.now)
    watch = watched.monitor(
        watched.network(),
        tmp_path / "mine",
        every=1,
        quantities=["loss"],
        max_fraction=0.05,
    )
    noted = []

    def slowly(budget, *, every):
        noted.append(budget["training_seconds"])
        clock.now += 2

    monkeypatch.setattr(watch._course, "note", slowly)
    monkeypatch.setattr(watch.budget, "allows", lambda: not watch.budget.training)
    with pytest.warns(RuntimeWarning, match="some are skipped"):
        for step in range(1001):
            watch(step)
            clock.now += 1
    assert noted == [*(2**power for power in range(10)), 912]
    assert watch.budget.spent == 22


def run(folder, killed_at):
    folder.mkdir(exist_ok=True)
    process = start_process(watched.main, folder, killed_at)
    process.join()
    return process.exitcode


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """The folder of a training that was watched to its end."""
    folder = tmp_path_factory.mktemp("watched") / "whole"
    watched.train(model := watched.network(), watched.monitor(model, folder))
    return folder


@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("killed_at", [7, 11, 12])
@pytest.mark.long
def test_a_kill_keeps_what_is_measured_and_a_restart_goes_on(
    killed_at, whole, tmp_path
):
    """Killed as a cell, a manifest or a table appears; each step writes three cells, arrays, a manifest and a table."""
    folder = tmp_path / "killed"
    assert run(folder, killed_at) == -9
    kept = numbers(folder / "watched")
    assert kept.equals(
        numbers(whole)[lambda table: table["step"] <= kept["step"].max()].reset_index(
            drop=True
        )
    )
    assert kept["step"].max() == 3 * ((killed_at - 1) // 6 - 1)
    assert run(folder, 0) == 0
    columns = ["step", "quantity", "value"]
    again = numbers(folder / "watched", *columns)
    truth = numbers(whole, *columns)
    pd.testing.assert_frame_equal(again, truth, rtol=1e-6)


def test_a_restart_measures_again_what_came_after_its_checkpoint(tmp_path):
    model = watched.network()
    watched.train(model, watched.monitor(model, tmp_path / "mine"), last=9)
    before = numbers(tmp_path / "mine")
    with torch.no_grad():
        model[0].weight.mul_(0.5)  # another branch from step 6 on
    watched.train(model, watched.monitor(model, tmp_path / "mine"), first=6, last=9)
    after = numbers(tmp_path / "mine")
    early = before["step"] < 6
    assert after[early].equals(before[early])
    assert (after[~early]["value"] != before[~early]["value"]).all()
    assert len(after) == len(before)


def test_a_folder_of_something_else_is_refused(tmp_path):
    model = watched.network()
    watched.train(model, watched.monitor(model, tmp_path / "mine"), last=3)
    with pytest.raises(OtherTraining, match=r"other settings(.|\n)*overwrite=True"):
        watched.monitor(model, tmp_path / "mine", quantities=["loss"])
    with pytest.raises(OtherTraining, match=r"another training(.|\n)*another folder"):
        watched.monitor(model, tmp_path / "mine")(0)
    watched.monitor(model, tmp_path / "mine", overwrite=True)(0)
    assert {*numbers(tmp_path / "mine")["step"]} == {0}
    (tmp_path / "sweep").mkdir()
    (tmp_path / "sweep" / "table.csv").write_text("x\n")
    with pytest.raises(OtherTraining, match="a table without a manifest"):
        watched.monitor(model, tmp_path / "sweep")


@pytest.mark.long
def test_every_reader_takes_the_folder(tmp_path, cli):
    model = watched.network()
    watched.train(
        model,
        watched.monitor(
            model, tmp_path / "outputs" / "mine", blocks=["0.weight", "all"]
        ),
    )
    figure = [
        "figure.name=mine",
        "figure.sweep=mine",
        "figure.layout=lines",
        "figure.formats=[svg]",
    ]
    assert cli("plot", *figure, "figure.options.quantity=largest_eigenvalue").code == 0
    assert (
        "largest eigenvalue"
        in (tmp_path / "outputs" / "figures" / "figmine.svg").read_text()
    )
    shown = cli("slopes", "sweep.name=mine", "quantity=largest_eigenvalue")
    assert shown.code == 0
    assert "log step" in shown.out
    assert "step ≤ 1" not in shown.out
    checked = cli("check", "sweep.name=mine", "quantity=largest_eigenvalue")
    assert checked.code == 1
    assert "no" in checked.out
    assert cli("report").code == 0


def test_one_process_of_several_measures(tmp_path, monkeypatch):
    monkeypatch.setenv("RANK", "1")
    model = watched.network()
    watch = watched.monitor(model, tmp_path / "mine")
    assert watch(0) == {}
    assert watch.skipped == []
    assert not (tmp_path / "mine").exists()


class Grows(nn.Module):
    """A network whose parameters may be replaced."""

    def __init__(self):
        super().__init__()
        self.map = nn.Linear(3, 2)

    def forward(self, x):
        return self.map(x)


def failures(folder):
    """The steps that the manifest says were not measured."""
    return [*json.loads((folder / "manifest.json").read_text())["monitor"]["failures"]]


def test_a_network_that_changes_its_shapes_is_reported(tmp_path):
    """The training goes on; with on_error="raise" it ends."""
    for on_error in ("warn", "raise"):
        model = Grows()
        watch = watched.monitor(
            model, tmp_path / on_error, on_error=on_error, quantities=["loss"]
        )
        watch(0)
        model.map = nn.Linear(3, 4)
        if on_error == "raise":
            with pytest.raises(
                UserError,
                match=r"changed its parameters(.|\n)*map.bias: \(4,\) \(was \(2,\)\)",
            ):
                watch(3)
            continue
        with pytest.warns(
            RuntimeWarning,
            match="step 3 was not measured: UserError: Monitor: the network changed",
        ):
            assert watch(3) == {}
        assert failures(tmp_path / on_error) == ["3"]
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            watch(6)  # told once
        model.map = nn.Linear(3, 2)
        watch(9)
        assert failures(tmp_path / on_error) == ["3", "6"]
        assert {*numbers(tmp_path / on_error)["step"]} == {0, 9}


def test_failures_are_not_noted_beside_a_table_of_another_training(tmp_path):
    folder = tmp_path / "mine"
    model = Grows()
    watched.monitor(model, folder, quantities=["loss"])(0)
    before = (folder / "manifest.json").read_bytes()
    watch = watched.monitor(model, folder, quantities=["loss"], overwrite=True)
    model.map = nn.Linear(3, 4)
    with pytest.warns(RuntimeWarning, match="step 3 was not measured"):
        watch(3)
    assert (folder / "manifest.json").read_bytes() == before
    fresh = watched.monitor(model, tmp_path / "fresh", quantities=["loss"])
    model.map = nn.Linear(3, 2)
    with pytest.warns(RuntimeWarning, match="step 0 was not measured"):
        fresh(0)
    assert failures(tmp_path / "fresh") == ["0"]
    assert not (tmp_path / "fresh" / "table.csv").exists()


def test_a_full_disk_loses_nothing_once_there_is_room(tmp_path, monkeypatch):
    watch = watched.monitor(watched.network(), tmp_path / "mine", quantities=["loss"])
    watch(0)
    with monkeypatch.context() as full:
        full.setattr(
            files,
            "_settle",
            lambda handle: (_ for _ in ()).throw(
                OSError(errno.ENOSPC, "No space left")
            ),
        )
        with pytest.warns(
            RuntimeWarning, match="step 3 was not measured: UserError: the disk is full"
        ):
            watch(3)
    watch(6)
    assert [*numbers(tmp_path / "mine")["step"]] == [0, 3, 6]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"loss": lambda f, y: f},
            r"the loss does not return one real number(.|\n)*\.mean\(\)",
        ),
        (
            {"batch": (torch.ones(2, 5), torch.ones(2).long())},
            "cannot take the batch: it raises RuntimeError",
        ),
        ({"quantities": ["preconditioned_eigenvalue"]}, "optimiser: there is none"),
        ({"quantities": ["sharpness"]}, "no such quantity"),
        ({"optimiser": "adam"}, "optimiser: a str"),
        ({"every": 0}, "every"),
        ({"log": "paper"}, "no such logger"),
    ],
)
def test_what_cannot_be_watched_is_refused(changes, message, tmp_path):
    given = {
        "network": watched.network(),
        "loss": "cross_entropy",
        "batch": watched.data(),
        **changes,
    }
    with pytest.raises(UserError, match=message):
        hessfig.Monitor(
            given.pop("network"),
            given.pop("loss"),
            given.pop("batch"),
            folder=tmp_path / "mine",
            **given,
        )
    assert not (tmp_path / "mine" / "table.csv").exists()


class Wrapping(torch.optim.Optimizer):
    """An optimiser around another, as that of accelerate."""

    def __init__(self, held):
        super().__init__(held, {})
        self.optimizer = torch.optim.Adam(held)


class Overriding(torch.optim.Adam):
    def step(self, closure=None):
        return super().step(closure)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda all: torch.optim.SGD(all, momentum=0.9, dampening=0.5), "dampening"),
        (lambda all: torch.optim.RMSprop(all), "RMSprop"),
        (lambda all: Overriding(all), "Overriding, which overrides step of Adam"),
        (
            lambda all: Wrapping(all),
            r"which wraps another(.|\n)*optimiser.optimizer, if .* of this Adam",
        ),
        (
            lambda all: torch.optim.Adam(
                [{"params": [one], "lr": n + 1.0} for n, one in enumerate(all)]
            ),
            "groups of parameters differ in lr",
        ),
    ],
)
def test_step_rules_that_are_not_known_are_refused(make, message, tmp_path):
    model = watched.network()
    with pytest.raises(UserError, match=message):
        watched.monitor(
            model,
            tmp_path,
            quantities=["preconditioned_eigenvalue"],
            optimiser=make(list(model.parameters())),
        )


def test_numbers_that_read_no_optimiser_are_measured_with_every_one(tmp_path):
    model = watched.network()
    optimiser = torch.optim.RMSprop(model.parameters())
    monitor = watched.monitor(model, tmp_path, quantities=["loss"], optimiser=optimiser)
    assert "loss" in monitor(0)


def test_a_keyword_that_does_not_exist_is_answered_with_the_one_that_was_meant(
    tmp_path,
):
    with pytest.raises(
        TypeError,
        match=r"unexpected keyword argument 'quantity': did you mean 'quantities'\?",
    ):
        watched.monitor(watched.network(), tmp_path, quantity=["loss"])


def test_a_measure_stands_alone(tmp_path):
    """Settings next to it would be ignored, those with their default too."""
    given = {"folder": tmp_path, "measure": hessfig.Measure(quantities="loss")}
    with pytest.raises(
        UserError, match=r"which contains these settings\n  got:     seed, parts"
    ):
        hessfig.Monitor(
            watched.network(),
            "cross_entropy",
            watched.data(),
            seed=0,
            parts=None,
            **given,
        )


def test_every_setting_of_a_measure_is_a_parameter_of_the_monitor():
    of_monitor = inspect.signature(hessfig.Monitor).parameters
    assert {*inspect.signature(hessfig.Measure).parameters} <= {*of_monitor}
    assert all(one.kind != one.VAR_KEYWORD for one in of_monitor.values())
