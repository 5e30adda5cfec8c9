"""The training stage: every training once, before the cells that need it; what diverges fails by name."""

import json
import subprocess
import time
from dataclasses import replace

import pytest

from hessfig.config.enums import Method
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.config.training_settings import StateConfig
from hessfig.record import MANIFEST
from hessfig.states.training.loop import Progress
from hessfig.sweep.plan import Sweep
from hessfig.sweep.preview import describe_plan
from hessfig.sweep.runner import run_sweep
from hessfig.sweep.trainings import needs, words
from hessfig.terms import Optimiser
from tests.runs import COMMAND, hessfig, rows
from tests.toys import training_config

pytestmark = pytest.mark.usefixtures("workers")
TIMES = ("seconds",)


def table(folder):
    """Return the rows of the table without times."""
    found = rows(folder / "sigma/table.csv")
    return [
        {key: value for key, value in row.items() if key not in TIMES} for row in found
    ]


def variants(config):
    """Two variants that share their trainings: what they measure differs, not what is trained."""
    measured = replace(config.task, batch_size=3)
    return [
        ("task.batch_size=6", config),
        ("task.batch_size=3", replace(config, task=measured)),
    ]


def test_cells_share_their_trainings(tmp_path):
    config = training_config(
        tmp_path, step=[0, 3, 10], checkpoints=[1, 20], quantities=["frobenius", "loss"]
    )
    cells = Sweep(variants(config)).cells
    found = needs(cells)
    assert len(cells) == 2 * 2 * 3 * 2
    assert [(need.trajectory.seed, need.steps) for need in found] == [
        (1234, (0, 1, 3, 10)),
        (1235, (0, 1, 3, 10)),
    ]


def test_a_trained_state_has_no_pilots(tmp_path):
    model = ModelConfig(n_layers=2, d_model=17)  # the lower layer's columns are probed
    config = training_config(
        tmp_path, estimator=EstimatorConfig(Method.auto, rules=1), model=model
    )
    assert Sweep([("", config)]).pilots == []
    assert Sweep([("", replace(config, state=StateConfig()))]).pilots


@pytest.mark.long
def test_a_sweep_trains_then_measures_along_steps(tmp_path, capfd):
    config = training_config(
        tmp_path / "one", step=[0, 3, 10], quantities=["frobenius", "loss"]
    )
    summary = run_sweep(Sweep(variants(config)))
    assert (summary.measured, summary.failed) == (24, 0)
    found = table(tmp_path / "one")
    assert {row["step"] for row in found} == {"0", "3", "10"}
    assert len(list((tmp_path / "one/states").iterdir())) == 2
    assert "trained to step 10 (10 steps in " in capfd.readouterr().err
    other = replace(
        config, output_dir=str(tmp_path / "two"), workers=2, force_workers=True
    )
    run_sweep(Sweep(variants(other)))
    assert table(tmp_path / "two") == found
    again = run_sweep(Sweep(variants(config)))
    assert (again.measured, again.reused) == (0, 24)


@pytest.mark.long
def test_cells_beyond_a_divergence_fail_with_its_cause(tmp_path, capfd):
    wild = {"optimiser": Optimiser.sgd, "learning_rate": 1e30, "warmup": 0, "seeds": 1}
    summary = run_sweep(
        Sweep([("", training_config(tmp_path, step=[0, 1, 20, 30], **wild))])
    )
    said = capfd.readouterr().err
    assert summary.failed >= 2
    assert summary.measured >= 1
    assert not summary.is_complete
    assert "diverged: the training has no state at step" in said
    assert "step=20, seed=1234: Diverged: the training has no state at step" in said
    manifest = json.loads(summary.table.with_name(MANIFEST).read_text())
    assert manifest["diverged_cells"] == manifest["missing_cells"] == summary.missing
    assert [
        note.rpartition(": ")[2] for note in summary.notes if "not in the table" in note
    ] == ["their trainings diverged"]
    assert "0" in {row["step"] for row in table(tmp_path)}


def test_a_dry_run_names_the_trainings(tmp_path):
    said = describe_plan(Sweep([("", training_config(tmp_path, step=[0, 3]))]))
    assert "trainings: 2, of 3 steps" in said
    assert "2 steps 0..3" in said
    assert not (tmp_path / "states").exists()


def test_progress_is_said_in_words():
    assert words(Progress(200, 1000, 0.25, 0.5, 40.0)) == (
        "step 200 of 1000, loss 0.25, accuracy 0.5, 40 steps/s, 20 s left"
    )
    assert "accuracy" not in words(Progress(200, 1000, 0.25, float("nan"), 40.0))


RUN = [
    "run",
    "sweep=sigma",
    "state=trained",
    "state.step=[0,100,2500]",
    "estimator=hutchinson",
    "seeds=2",
    "training.steps=2500",
    "training.evaluate_every=500",
    "model.d_model=8",
    "task.digits=2",
]


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_and_another_number_of_workers(tmp_path):
    calm = tmp_path / "calm"
    disturbed = tmp_path / "disturbed"
    disturbed.mkdir()
    assert hessfig(*RUN, "workers=1", folder=calm).returncode == 0
    for kill in range(20):
        run = subprocess.Popen(
            [COMMAND, *RUN, "workers=2", "force_workers=true"], cwd=disturbed
        )
        time.sleep(4.0 + 0.6 * kill)
        run.kill()
        run.wait()
    assert (
        hessfig(*RUN, "workers=2", "force_workers=true", folder=disturbed).returncode
        == 0
    )
    assert table(disturbed / "outputs") == table(calm / "outputs")
    kept = {
        path.relative_to(calm): path
        for path in (calm / "outputs/states").rglob("step_*")
    }
    assert kept
    assert all(
        (disturbed / name).read_bytes() == path.read_bytes()
        for name, path in kept.items()
    )
