"""Trainings: the same bits however they are interrupted, plain torch's numbers, and files that vouch for themselves."""

import json
import shutil
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.nn import functional as F

from hessfig.config.enums import Attention, DType, Kind, State, TrainingData
from hessfig.config.schema import ModelConfig
from hessfig.config.science import TaskConfig
from hessfig.config.training_settings import StateConfig
from hessfig.states.initialised import build_network
from hessfig.states.point import drawn
from hessfig.states.training import checkpoints, loop
from hessfig.states.training.checkpoints import COLUMNS, Folder
from hessfig.states.training.loop import Diverged, ensure
from hessfig.states.training.step_rules import learning_rate
from hessfig.states.training.trajectory import Trajectory
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.tasks.examples import training_batch
from hessfig.terms import Optimiser
from tests.daily import thinned
from tests.toys import ARCHITECTURES, training_config

STEPS = (0, 3, 30)


def trajectory(folder, **settings):
    return Trajectory(training_config(folder, **settings), 0.3, 1)


def files(one):
    return {path.name: path.read_bytes() for path in sorted(one.folder.iterdir())}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training kept at three steps, in one go."""
    one = trajectory(tmp_path_factory.mktemp("whole"))
    assert ensure(one, STEPS) == 30
    return one


@pytest.fixture
def copied(whole, tmp_path):
    """A copy of it, to be damaged."""
    shutil.copytree(whole.folder.parent, tmp_path / "states")
    return trajectory(tmp_path)


def test_nothing_is_trained_twice(whole):
    assert ensure(whole, STEPS) == 0
    assert not (whole.folder / "resume.safetensors").exists()


@pytest.mark.parametrize("stops", [(3,), (0, 30), (3, 17, 29)], ids=str)
@pytest.mark.long
def test_the_same_bits_after_stops_anywhere(whole, tmp_path, stops, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    other = trajectory(tmp_path)
    assert sum(ensure(other, [stop]) for stop in stops) == stops[-1]
    ensure(other, STEPS)
    found = files(other)
    assert {name: found[name] for name in files(whole)} == files(whole)


def test_what_is_left_for_resuming_is_gone_on_from(whole, tmp_path, monkeypatch):
    monkeypatch.setattr(loop, "SAVE_EVERY", 0.0)
    other = trajectory(tmp_path)

    class Stopped(Exception):
        pass

    def stop(progress):
        if progress.step == 12:
            raise Stopped

    monkeypatch.setattr(loop, "REPORT_EVERY", 0.0)
    with pytest.raises(Stopped):
        ensure(other, [30], stop)
    assert [path.name for path in other.folder.glob("*.safetensors")] == [
        "resume.safetensors"
    ]
    assert ensure(other, [30]) == 18
    ensure(other, STEPS)
    assert files(other) == files(whole)


def left_for_resuming(folder, monkeypatch):
    """Return a training that was stopped at step 12, with what it left."""
    one = trajectory(folder)
    with monkeypatch.context() as patched:
        patched.setattr(Folder, "forget_resuming", lambda self, step: None)
        patched.setattr(loop, "SAVE_EVERY", 0.0)
        ensure(one, [12])
    for path in one.folder.glob("step_*"):
        path.unlink()
    return one


def test_a_flipped_bit_in_the_step_of_what_is_left_for_resuming_is_seen(
    whole, tmp_path, monkeypatch, capsys
):
    one = left_for_resuming(tmp_path, monkeypatch)
    path = one.folder / "resume.safetensors"
    content = path.read_bytes()
    assert content.count(rb"\"step\": 12") == 1
    # 2 is 0 with one bit more.
    path.write_bytes(content.replace(rb"\"step\": 12", rb"\"step\": 10"))
    assert ensure(one, STEPS) == 30
    assert files(one) == files(whole)
    assert (
        "resume.safetensors: its checksum, key or step is not that of its content"
        in capsys.readouterr().err
    )


def of_version_020(path, step):
    """Write a checkpoint as 0.2.0 did: its checksum is of the numbers alone."""
    with safe_open(path, framework="pt") as handle:
        about = json.loads(handle.metadata()["hessfig"])
    about = {
        "key": about["key"],
        "step": step,
        "checksum": checkpoints._checksum(load_file(path)),
    }
    save_file(load_file(path), path, {"hessfig": json.dumps(about, sort_keys=True)})


@pytest.mark.parametrize("step", thinned([12, 10], 2))
def test_checkpoints_of_version_020_are_gone_on_from_where_their_log_ends(
    whole, tmp_path, monkeypatch, step
):
    one = left_for_resuming(tmp_path, monkeypatch)
    of_version_020(one.folder / "resume.safetensors", step)
    assert ensure(one, STEPS) == (18 + 3 if step == 12 else 30)
    assert Folder(one).missing(STEPS) == []


def test_states_of_version_020_are_read(copied):
    for step in STEPS:
        for path in (
            Folder(copied).weights_path(step),
            Folder(copied).optimiser_path(step),
        ):
            of_version_020(path, step)
    assert ensure(copied, STEPS) == 0


def test_a_state_asked_for_later_comes_from_the_nearest_before_it(copied):
    assert ensure(copied, [10]) == 7
    assert ensure(copied, [8, 12]) == 5 + 2


def test_step_zero_is_the_initial_network_bit_by_bit(whole):
    config = whole.config
    first = replace(config, state=StateConfig())
    trained = drawn(config, sigma=0.3, seed=1, step=0).network
    untrained = drawn(first, sigma=0.3, seed=1, step=0).network
    for name, weight in untrained.named_parameters():
        assert torch.equal(trained.get_parameter(name), weight)
    assert (
        load_file(Folder(whole).weights_path(0))["head.weight"].dtype == torch.float64
    )


@pytest.mark.parametrize("optimiser", thinned(["adamw", "adam", "sgd", "gd"], 2))
def test_a_training_is_that_of_a_plain_loop(tmp_path, optimiser):
    data = TrainingData.fixed if optimiser == "gd" else TrainingData.fresh
    # a large eps: the keys' biases have no gradient but rounding, which adam would blow
    # up to steps
    one = trajectory(
        tmp_path, optimiser=Optimiser(optimiser), eps=1e-3, momentum=0.5, data=data
    )
    one = Trajectory(
        replace(one.config, training=replace(one.config.training, dtype=DType.float64)),
        0.3,
        1,
    )
    ensure(one, [20])
    network = build_network(
        replace(one.config, dtype=DType.float64), sigma=0.3, seed=1
    ).requires_grad_(True)
    settings = {"lr": 1e-3, "weight_decay": 0.1}
    if optimiser in ("adamw", "adam"):
        kind = torch.optim.AdamW if optimiser == "adamw" else torch.optim.Adam
        plain = kind(network.parameters(), betas=(0.9, 0.98), eps=1e-3, **settings)
    else:
        plain = torch.optim.SGD(
            network.parameters(), momentum=0.5 * (optimiser == "sgd"), **settings
        )
    for step in range(1, 21):
        batch = training_batch(one.config, seed=1, step=step)
        plain.zero_grad()
        logits = network(batch.inputs)[:, batch.scored]
        F.cross_entropy(logits.flatten(0, 1), batch.targets.flatten()).backward()
        plain.param_groups[0]["lr"] = learning_rate(one.config.training, step)
        plain.step()
    kept = Folder(one).weights(20) or {}
    for name, parameter in network.named_parameters():
        torch.testing.assert_close(
            kept[name], parameter.detach(), rtol=1e-9, atol=1e-12
        )


def test_the_log_says_what_every_update_did(whole):
    lines = (whole.folder / "training.csv").read_text().splitlines()
    assert lines[0].split(",") == list(COLUMNS)
    assert [int(line.partition(",")[0]) for line in lines[1:]] == list(range(1, 31))
    rates = [float(line.split(",")[2]) for line in lines[1:]]
    assert rates[:5] == pytest.approx([2e-4, 4e-4, 6e-4, 8e-4, 1e-3])
    assert rates[5] == pytest.approx(1e-3)
    assert rates[-1] < rates[-2] < rates[10]
    assert [bool(line.split(",")[4]) for line in lines[1:]] == [
        step % 10 == 0 for step in range(1, 31)
    ]


def test_what_it_is_stands_beside_it(whole):
    said = json.loads((whole.folder / "training.json").read_text())
    assert said["key"] == whole.folder.name
    assert said["settings"]["training"]["betas"] == [0.9, 0.98]
    assert said["label"]["seed"] == 1
    assert said["checksum"]


SAME = [
    {"checkpoints": [5]},
    {"evaluate_every": 3},
    {"evaluation_size": 7},
    {"momentum": 0.5},
    {"step": [1, 2]},
    {"dtype": DType.float32, "workers": 7},
    {"blocks": ["W_Q"]},
    {"task": TaskConfig(digits=2, batch_size=9, seed=4)},
]
OTHER = [
    {"learning_rate": 2e-3},
    {"steps": 31},
    {"batch_size": 5},
    {"betas": [0.9, 0.99]},
    {"cascades": 0.3},
    {"optimiser": Optimiser.adam},
    {"data": TrainingData.fixed},
    {"task": TaskConfig(digits=3)},
    {"model": ModelConfig(d_model=4)},
    {"model": replace(training_config("").model, attention=Attention.linear)},
]


@pytest.mark.parametrize("settings", SAME, ids=str)
def test_the_key_ignores_what_does_not_move_a_weight(settings, tmp_path):
    assert trajectory(tmp_path, **settings).key == trajectory(tmp_path).key


@pytest.mark.parametrize("settings", OTHER, ids=str)
def test_the_key_sees_what_does(settings, tmp_path):
    assert trajectory(tmp_path, **settings).key != trajectory(tmp_path).key


def test_a_constant_schedule_has_no_end_and_a_fixed_set_is_the_tasks(tmp_path):
    keys = {
        trajectory(tmp_path, schedule="constant", steps=steps).key for steps in (30, 60)
    }
    assert len(keys) == 1
    fixed = {"data": TrainingData.fixed}
    tasks = [TaskConfig(digits=2, batch_size=6, seed=seed) for seed in (0, 1)]
    assert len({trajectory(tmp_path, task=task, **fixed).key for task in tasks}) == 2


def test_cells_of_other_steps_have_other_keys_and_other_probes(tmp_path):
    variant = Variant("", training_config(tmp_path, step=[0, 3]))
    assert variant.steps() == [0, 3]
    assert len({Cell(variant, 0.3, 1, step=step).key for step in (0, 3)}) == 2
    assert str(Cell(variant, 0.3, 1, step=3)) == "n_layers=1, sigma=0.3, step=3, seed=1"


DAMAGES = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-9]),
    "empty": lambda path: path.write_bytes(b""),
    "altered": lambda path: path.write_bytes(path.read_bytes()[:-1] + b"\x01"),
    "of another step": lambda path: shutil.copy(
        path.with_name(path.name.replace("030", "003")), path
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize(
    "name", ["step_000030.safetensors", "step_000030.optimiser.safetensors"]
)
@pytest.mark.long
def test_a_damaged_checkpoint_is_named_and_computed_again(copied, damage, name, capsys):
    sound = files(copied)
    DAMAGES[damage](copied.folder / name)
    assert ensure(copied, STEPS) == 27
    assert name in capsys.readouterr().err
    assert files(copied) == sound


def test_a_checkpoint_of_other_settings_is_not_believed(whole, tmp_path, capsys):
    other = trajectory(tmp_path, learning_rate=2e-3)
    shutil.copytree(whole.folder, other.folder)
    assert ensure(other, [3]) == 3
    assert "key or step is not that of its content" in capsys.readouterr().err
    assert Folder(other).weights(3) is not None


def test_a_diverged_training_keeps_its_states_up_to_there(tmp_path):
    one = trajectory(tmp_path, optimiser=Optimiser.sgd, learning_rate=1e30, warmup=0)
    with pytest.raises(Diverged, match=r"no state at step \d and beyond: ") as caught:
        ensure(one, [0, 1, 30])
    assert Folder(one).missing([0, 30]) == [30]
    assert Folder(one).divergence() == (caught.value.step, caught.value.cause)
    assert (one.folder / "training.csv").exists()
    with pytest.raises(Diverged, match=f"step {caught.value.step} and beyond"):
        ensure(one, [30])


TRAINED = {
    name: model
    for name, model in ARCHITECTURES.items()
    if model.kind != Kind.self_attention
}


@pytest.mark.parametrize("name", thinned(TRAINED, 3))
def test_every_ablation_can_be_trained(name, tmp_path):
    config = training_config(
        tmp_path, step=3, model=TRAINED[name], learning_rate=1e-2, warmup=0
    )
    first = drawn(config, sigma=0.3, seed=1, step=0).network.state_dict()
    last = drawn(config, sigma=0.3, seed=1, step=3).network.state_dict()
    for tensor in last.values():
        assert tensor.isfinite().all()
    assert not torch.equal(first["tok_embed.weight"], last["tok_embed.weight"])


def test_a_checkpoint_is_a_file_that_state_loaded_takes(whole):
    config = replace(whole.config, dtype=DType.float64)
    path = Folder(whole).weights_path(30)
    file = replace(config, state=StateConfig(State.loaded, str(path)))
    found = compute_cell(Cell(Variant("", config), 0.3, 1, step=30)).rows
    again = compute_cell(Cell(Variant("", file), None, 1)).rows
    for row, other in zip(found, again, strict=True):
        assert row["value"] == other["value"]


def test_measuring_a_state_trains_for_it(tmp_path):
    config = training_config(tmp_path, step=2)
    assert compute_cell(Cell(Variant("", config), 0.3, 1, step=2)).rows
    assert Folder(Trajectory(config, 0.3, 1)).missing([2]) == []
