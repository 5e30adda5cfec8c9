"""Quantities of the landscape as rows: true numbers in the right columns, and settings that are refused."""

from dataclasses import replace

import pytest
import torch

from hessfig.config.checks import check_config
from hessfig.config.enums import Loss, Method, Norm, SampleDirection
from hessfig.config.of_quantities import LandscapeConfig
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.curvature.gradients import LossGradient, loss_of
from hessfig.curvature.problem import Batch
from hessfig.errors import UserError
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.variant import Variant
from tests.double_backward import hessian
from tests.measured_rows import values
from tests.toys import toy_config

COUNT = 12


def config(**landscape):
    chosen = {"points": 4, "permutations": 30, "draws": 3, "curvatures": 2, **landscape}
    return toy_config(
        model=ModelConfig(d_model=4, d_mlp=6, norm=Norm.pre),
        task=TaskConfig(digits=1, batch_size=COUNT, seed=1),
        blocks=["W_V", ["W_Q", "W_V"]],
        estimator=EstimatorConfig(Method.dense),
        landscape=LandscapeConfig(**chosen),
    )


def cell(settings, quantity):
    return Cell(Variant("", replace(settings, quantities=[quantity])), 0.4, 1, quantity)


def numbers(settings, quantity, name="", part=""):
    rows = compute_cell(cell(settings, quantity)).rows
    return values(rows, "index", quantity=name or quantity, part=part)


def test_at_the_state_itself_differences_are_those_of_its_losses():
    found = compute_cell(cell(config(), "landscape_difference"))
    losses = found.arrays["losses"]
    assert losses.mean() == pytest.approx(
        LossGradient(draw_problem(cell(config(), "landscape_difference"))).loss
    )
    null = values(found.rows, "index", quantity="landscape_null")
    assert list(null) == [1, 2, 5, 11]
    assert null[5] == pytest.approx(losses.std(ddof=1) * (1 + 1 / 5) ** 0.5 / 6)
    for row in found.rows:
        if row["quantity"] == "landscape_rms":
            assert row["num_probes"] == 30
            assert row["row"] == ""
            assert abs(row["value"] - null[row["index"]]) < 5 * row["error"]
    bound = values(found.rows, "index", quantity="landscape_bound")
    assert bound[5] == pytest.approx(2 * losses.max() / 6)
    assert "landscape_prediction" not in {row["quantity"] for row in found.rows}


@pytest.mark.long
def test_a_short_way_off_the_prediction_is_the_truth():
    near = config(distance=1e-4, direction=SampleDirection.gradient)
    truth = numbers(near, "landscape_difference")
    predicted = numbers(near, "landscape_difference", "landscape_prediction")
    assert predicted == pytest.approx(truth, rel=1e-6)
    assert numbers(near, "landscape_difference", "prediction_slope")[
        None
    ] == pytest.approx(1, abs=1e-4)
    assert numbers(near, "landscape_difference", "prediction_correlation")[
        None
    ] == pytest.approx(1, abs=1e-6)
    assert truth != numbers(config(), "landscape_difference")


def test_integrals_of_a_vanishing_spread_are_the_differences_themselves():
    tiny = config(spread=1e-12)
    found = numbers(tiny, "landscape_integrals", "delta_2_null")
    null = numbers(config(), "landscape_difference", "landscape_null")
    assert found == pytest.approx({k: value**2 for k, value in null.items()}, rel=1e-6)
    assert set(numbers(tiny, "landscape_integrals", "delta_1")) == set(null)


def test_the_last_gradient_is_that_of_all_samples_and_the_first_those_of_single_ones():
    every = cell(config(permutations=100), "stationarity")
    by_name = {(row["quantity"], row["index"]): row for row in compute_cell(every).rows}
    whole = float(LossGradient(draw_problem(every)).flat.norm())
    assert by_name["stationarity", COUNT]["value"] == pytest.approx(whole, rel=1e-10)
    for k in (1, 2, 5):
        rms = by_name["stationarity_rms", k]
        expected = by_name["stationarity_expected", k]
        assert abs(rms["value"] - expected["value"]) < 5 * rms["error"]


def test_hessians_of_nested_subsets_against_dense_ones():
    settings = config(first=2)
    problem = draw_problem(cell(settings, "hessian_distance"))
    weight = problem.layout.side(1, "W_V")[0].parameter
    at = problem.network.get_parameter(weight).requires_grad_()

    def block(count):
        batch = problem.batch
        first = Batch(batch.inputs[:count], batch.targets[:count], batch.scored)
        return hessian(lambda: loss_of(replace(problem, batch=first)), [at])

    whole = block(COUNT)
    rows = compute_cell(cell(settings, "hessian_distance")).rows
    by_name = values(rows, "quantity", "index", row="W_V", col="W_V", part="H")
    for k in (2, 4, COUNT):
        here = block(k)
        distance = float((here - whole).norm() / whole.norm())
        assert by_name["hessian_distance", k] == pytest.approx(
            distance, rel=1e-7, abs=1e-12
        )
        assert by_name["subset_norm", k] == pytest.approx(float(here.norm()), rel=1e-7)
        largest = float(torch.linalg.eigvalsh((here + here.T) / 2)[-1])
        assert by_name["subset_largest_eigenvalue", k] == pytest.approx(
            largest, rel=1e-7
        )
    assert {k for name, k in by_name if name == "hessian_distance"} == {2, 4, 7, COUNT}


def test_shared_test_vectors_estimate_the_distance():
    exact = compute_cell(cell(config(first=2), "hessian_distance")).rows
    probed = replace(
        config(first=2), estimator=EstimatorConfig(Method.hutchinson, num_probes=200)
    )
    found = compute_cell(cell(probed, "hessian_distance")).rows
    place = ("quantity", "row", "col", "part", "index")
    truth = values(exact, *place)
    for row in found:
        assert not row["quantity"].endswith("eigenvalue")
        if row["quantity"] in ("hessian_distance", "subset_norm"):
            off = abs(row["value"] - truth[tuple(row[name] for name in place)])
            assert off < 5 * row["error"] + 1e-12


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            config(samples=COUNT + 1),
            rf"beyond the data[\s\S]*2 to {COUNT}[\s\S]*task.batch_size={COUNT + 1}",
        ),
        (config(first=COUNT), "the smallest k is beyond the data"),
        (
            replace(
                config(), task=TaskConfig(batch_size=4, loss=Loss.mse_sum_unshifted)
            ),
            "sum over everything",
        ),
    ],
)
@pytest.mark.parametrize(
    "quantity", ["landscape_difference", "stationarity", "hessian_distance"]
)
def test_samples_that_are_not_there(settings, message, quantity):
    with pytest.raises(UserError, match=message):
        Sweep([("", replace(settings, quantities=[quantity]))])


@pytest.mark.parametrize("distance", [0.0, -1.0, float("nan"), float("inf")])
def test_a_distance_is_positive(distance):
    with pytest.raises(
        UserError, match=r"landscape.distance[\s\S]*> 0; null is w\* itself"
    ):
        check_config(config(distance=distance))


@pytest.mark.parametrize(
    "setting",
    [{"permutations": 1}, {"points": 1}, {"first": 0}, {"samples": 1}, {"spread": 0.0}],
)
def test_settings_that_mean_nothing(setting):
    with pytest.raises(UserError, match=f"landscape.{next(iter(setting))}"):
        check_config(config(**setting))
