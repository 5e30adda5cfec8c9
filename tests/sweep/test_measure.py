"""One cell to rows of the table."""

import math

import numpy
import pytest

from hessfig.config.enums import Attention, DType, Loss, Method, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.measurements import quantity as module
from hessfig.models.protocol import NetworkKind
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.weights import Layout
from tests.toys import ARCHITECTURES

Rows = dict[tuple[int, str, str, str], dict[str, object]]
TASK = TaskConfig(digits=1, batch_size=3)


def measured(*, sigma=0.3, seed=1234, **settings):
    config = Config(**{"model": ARCHITECTURES["softmax"], "task": TASK, **settings})
    rows = compute_cell(Cell(Variant("", config), sigma, seed)).rows
    return {(row["layer"], row["row"], row["col"], row["part"]): row for row in rows}


def numbers(rows):
    return {key: (row["value"], row["error"]) for key, row in rows.items()}


def test_a_row_for_every_block_and_part():
    rows = measured(model=ARCHITECTURES["two layers"])
    assert set(rows) == {
        (la, w, w, p)
        for la in (1, 2)
        for w in ("W_V", "W_Q")
        for p in ("H_o", "H_f", "H")
    }
    assert {row["num_layers"] for row in rows.values()} == {2}


def test_the_structural_zero_is_marked_and_the_others_are_not():
    status = {key: (row["status"], row["value"]) for key, row in measured().items()}
    assert status.pop((1, "W_V", "W_V", "H_f")) == ("structural_zero", 0.0)
    for name, frob in status.values():
        assert name == "ok"
        assert frob > 0


def test_without_a_functional_part_the_full_hessian_is_the_outer_one():
    rows = numbers(measured())
    assert rows[1, "W_V", "W_V", "H"] == rows[1, "W_V", "W_V", "H_o"]


def test_a_broken_promise_of_zero_is_an_error(monkeypatch):
    promising = NetworkKind(
        layout=lambda config: Layout(()), is_structural_zero=lambda *_: True
    )
    monkeypatch.setattr(module, "kind", lambda name: promising)
    with pytest.raises(ArithmeticError, match="must vanish by the network's structure"):
        measured()


@pytest.mark.long
def test_steps_are_short_enough_for_a_promised_zero_between_kinks():
    """A step across kinks of ReLU finds jumps that no second derivative at the weights has."""
    settings = {
        "model": ModelConfig(d_model=8),
        "task": TaskConfig(digits=1, batch_size=4),
        "sigma": 1.0,
        "blocks": ["W_V"],
    }
    by_differences = EstimatorConfig(Method.hutchinson, Products.differences)
    for dtype in DType:
        found = measured(estimator=by_differences, dtype=dtype, **settings)[
            1, "W_V", "W_V", "H_f"
        ]
        assert (found["status"], found["value"]) == ("structural_zero", 0.0)


def test_a_promised_zero_that_rough_products_break_did_not_converge(monkeypatch):
    monkeypatch.setattr("hessfig.measurements.block_norms.ROUGHEST", 0.0)
    promising = NetworkKind(
        layout=lambda config: Layout(()), is_structural_zero=lambda *_: True
    )
    monkeypatch.setattr(module, "kind", lambda name: promising)
    by_differences = EstimatorConfig(Method.hutchinson, Products.differences, 4)
    rows = measured(estimator=by_differences, blocks=["W_V"])
    broken = rows[1, "W_V", "W_V", "H_o"]
    assert broken["status"] == "not_converged"
    assert broken["value"] > 0


def test_overflow_is_a_row_with_a_status():
    """Chained linear attention at a large sigma leaves float32's range, as in the published data of Figure 7."""
    chain = ModelConfig(**{**vars(ARCHITECTURES["chain"]), "n_layers": 3})
    loss = TaskConfig(digits=1, batch_size=3, loss=Loss.mse_sum_unshifted)
    rows = measured(model=chain, task=loss, dtype=DType.float32, sigma=1000.0)
    assert "nonfinite" in {row["status"] for row in rows.values()}
    for row in rows.values():
        assert math.isfinite(row["value"]) == (row["status"] != "nonfinite")


def test_the_same_cell_gives_the_same_bits():
    assert numbers(measured()) == numbers(measured())


def test_a_layer_more_does_not_change_the_probes_or_weights_of_another():
    """Same weights and embeddings below, so layer 1's problem differs only by what lies above it."""
    networks = []
    for depth in (1, 2):
        config = Config(model=ModelConfig(d_model=4, n_layers=depth), task=TASK)
        networks.append(draw_problem(Cell(Variant("", config), 0.3, 7)).network)
    for name, parameter in networks[0].named_parameters():
        assert (parameter == networks[1].get_parameter(name)).all(), name


def test_blocks_are_measured_alike_whatever_is_measured_beside_them():
    alone = numbers(measured(blocks=["W_Q"]))
    together = numbers(measured(blocks=["W_V", ["W_K", "W_Q"], "W_Q"]))
    for key, value in alone.items():
        assert together[key] == value


def test_float32_is_close_to_float64():
    double = numbers(measured(dtype=DType.float64))
    single = numbers(measured(dtype=DType.float32))
    for key, (frob, _) in double.items():
        assert single[key][0] == pytest.approx(frob, rel=1e-4)


@pytest.mark.parametrize("attention", [Attention.softmax, Attention.linear])
def test_the_whole_hessian_is_plain_arrays(attention):
    model = ModelConfig(d_model=4, d_mlp=6, attention=attention)
    arrays = compute_cell(
        Cell(Variant("", Config(model=model, task=TASK)), 0.3, 1234, "hessian")
    ).arrays
    assert arrays["hessian"].dtype == numpy.float32
    assert arrays["hessian"].shape == (sum(arrays["sizes"]),) * 2
