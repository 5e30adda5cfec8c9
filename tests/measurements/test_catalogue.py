"""The catalogue: every row names a function that measures, and gives the rows that it promises."""

import subprocess
import sys
from dataclasses import replace

import pytest

from hessfig.analysis.manifest import read_run
from hessfig.config.enums import Data, Method, NamedDirection, State, TrainingData
from hessfig.config.of_quantities import (
    ApproximationConfig,
    DirectionsConfig,
    LandscapeConfig,
)
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, GridConfig, ModelConfig, TaskConfig
from hessfig.config.training_settings import StateConfig, TrainingConfig
from hessfig.errors import UserError
from hessfig.measurements.catalogue import CATALOGUE, CORE, quantities, quantity
from hessfig.measurements.quantity import Measured, Quantity, row_of
from hessfig.registry import row_facts
from hessfig.studies.directions import slices
from hessfig.sweep.measure import compute_cell, draw_problem, request_of
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import run_sweep
from hessfig.terms import Kind, Optimiser

CONFIG = Config(
    model=ModelConfig(d_model=2),
    task=TaskConfig(digits=3, batch_size=4),  # long enough for cascades of carries
    state=StateConfig(State.trained, step=[1]),
    training=TrainingConfig(steps=2, warmup=1, batch_size=3, evaluation_size=4),
    estimator=EstimatorConfig(num_probes=2),
    landscape=LandscapeConfig(
        distance=0.1, permutations=3, points=3, draws=2, curvatures=1, dimensions=[1, 2]
    ),
    blocks=["W_V"],
    grid=GridConfig(values=[1.0]),
    seeds=1,
)
WHOLE_TOO = {
    "held_out_loss": {"task": TaskConfig(data=Data.text, length=6, batch_size=4)},
    "rounding": {"blocks": ["W_Q", "W_K", "W_V", "W_O"]},
    "approximations": {
        "blocks": ["W_V", "all"],
        "estimator": EstimatorConfig(Method.dense),
    },
    "influence": {
        "training": replace(CONFIG.training, data=TrainingData.fixed, batch_size=4),
        "approximation": ApproximationConfig(subsets=3),
    },
    "along": {
        "blocks": ["W_V", "all"],
        "directions": DirectionsConfig(
            named=list(NamedDirection), rules=list(Optimiser), gradients=2
        ),
    },
}
ONLY_DENSE = {
    "subset_largest_eigenvalue",
    "subset_smallest_eigenvalue",
    "subset_condition_number",
}


def cell_of(**settings):
    return Sweep([("", replace(CONFIG, **settings))]).cells[0]


def twice(objective, request):
    return Measured([row_of(quantity="twice", value=2.0)])


@pytest.mark.parametrize("name", quantities())
@pytest.mark.long
def test_a_quantity_gives_the_rows_of_its_row(name, one_state, monkeypatch):
    monkeypatch.setattr(slices, "_ANGLES", 4)
    cell = cell_of(quantities=[name], output_dir=one_state, **WHOLE_TOO.get(name, {}))
    found = compute_cell(cell)
    given = {row["quantity"] for row in found.rows} | (
        {name} if name == "hessian" and found.arrays else set()
    )
    without_part = {
        row["quantity"] for row in found.rows if row["row"] and not row["part"]
    }
    facts = row_facts()  # which is what readers of tables know
    assert {row["quantity"] for row in found.rows if row["row"]} <= facts.keys()
    for row in without_part:
        assert not facts[row].has_part
    assert name not in CORE or set(quantity(name).rows) <= facts.keys()
    assert given == set(quantity(name).rows) - (
        ONLY_DENSE if name == "hessian_distance" else set()
    )


@pytest.fixture(scope="module")
def one_state(tmp_path_factory):
    return str(tmp_path_factory.mktemp("trained"))


@pytest.mark.parametrize("way", [twice, f"{__name__}:twice"])
def test_a_quantity_is_a_function_or_the_name_of_one(way):
    cell = cell_of(state=StateConfig())
    problem = draw_problem(cell)
    assert (
        Quantity("twice", way)
        .measured(problem, request_of(cell, problem))
        .rows[0]["value"]
        == 2.0
    )


def test_the_catalogue_is_read_without_torch():
    program = (
        "import sys, hessfig.measurements.catalogue; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


OF_WEIGHTS = """
from hessfig.measurements.quantity import Measured, Quantity, state_row


def measure(problem, request):
    return Measured([state_row("largest_weight", request, 1.0, block=block) for block in request.blocks])


QUANTITY = Quantity("largest_weight", measure, has_part=False)
WITH_PART = Quantity("largest_weight", measure)
"""


def test_a_quantity_of_weights_makes_a_table_that_can_be_read(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "mine.py").write_text(OF_WEIGHTS)
    own = replace(CONFIG, state=StateConfig(), quantities=["mine.py:QUANTITY"])
    run_sweep(Sweep([("", own)]))
    table = read_run(tmp_path / "outputs" / "sigma").table
    assert len(table)
    assert set(table["part"]) == {""}
    assert not (table["row"] == "").any()
    with pytest.raises(
        UserError, match="gives rows of a block without a part"
    ) as refused:
        compute_cell(cell_of(state=StateConfig(), quantities=["mine.py:WITH_PART"]))
    assert "has_part=False" in str(refused.value)


TWICE = """
from hessfig.measurements.quantity import Measured, Quantity, state_row


def measure(problem, request):
    return Measured([state_row("twice", request, value) for value in (1.0, 2.0)])


QUANTITY = Quantity("twice", measure, has_part=False)
"""


def test_two_rows_for_one_number_fail_where_they_are_made(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "twice.py").write_text(TWICE)
    with pytest.raises(UserError, match="gives two rows for one number"):
        compute_cell(cell_of(state=StateConfig(), quantities=["twice.py:QUANTITY"]))


@pytest.mark.parametrize(
    "kind", [Kind.transformer, Kind.vit, Kind.python, Kind.huggingface]
)
def test_keys_change_with_the_inputs_that_count_where_targets_may_be_ignored(kind):
    """K-FAC of 0.4.0 took the inputs of ignored targets too; of built-in networks there are none."""
    config = Config(model=ModelConfig(kind=kind))
    moved = {
        name for name, row in CATALOGUE.items() if row.version_of(config) != row.version
    }
    is_built_in = kind in (Kind.transformer, Kind.vit)
    assert moved == (
        set()
        if is_built_in
        else {"approximations", "pruning", "quantisation", "rounding", "influence"}
    )


@pytest.mark.parametrize(
    ("row", "measured"),
    [
        ("effective_rank", "spectrum"),
        ("density_mean", "density"),
        ("pattern_spread", "score_spread"),
        ("true_decrease", "predicted_decrease"),
        ("learning_rate", "stability_threshold"),
    ],
)
def test_a_row_that_is_not_a_quantity_names_the_quantity_that_has_it(row, measured):
    with pytest.raises(UserError, match=rf"remedy: +quantities=\[{measured}\]"):
        quantity(row)


def test_an_unknown_quantity_names_a_close_one():
    with pytest.raises(UserError, match="did you mean 'frobenius'"):
        quantity("frobenios")
