"""Traces: the exact routes and the sampled one against dense blocks of every architecture."""

import pytest

from hessfig.config.enums import DType, Method
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.errors import UserError
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.routes import Engines
from hessfig.sweep.measure import compute_cell, draw_problem
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Part
from tests.daily import thinned
from tests.toys import ARCHITECTURES, toy_task


def config(model, **settings):
    chosen = {
        "model": model,
        "task": toy_task(model),
        "blocks": "each",
        "quantities": ["trace"],
    }
    return Config(**{**chosen, **settings})


def traces(found):
    rows = compute_cell(Cell(Variant("", found), 0.7, 1234, "trace")).rows
    return {(row["layer"], row["col"], row["part"]): row for row in rows}


def dense_traces(found):
    cell = Cell(Variant("", found), 0.7, 1234, "trace")
    engines = Engines(draw_problem(cell), found.model, found.estimator.products)
    values = {}
    for block in cell.variant.blocks:
        pieces = dense_blocks(engines.column(block.layer, block.col, [block]))
        outer = float(pieces[block, Part.H_o].trace())
        functional = float(pieces[block, Part.H_f].trace())
        for part, value in (
            (Part.H_o, outer),
            (Part.H_f, functional),
            (Part.H, outer + functional),
        ):
            values[block.layer, block.col, part.value] = value
    return values


@pytest.mark.parametrize("name", thinned(ARCHITECTURES, 2))
def test_exact_and_dense_traces_are_those_of_dense_blocks(name):
    settings = config(
        ARCHITECTURES[name], estimator=EstimatorConfig(Method.auto, num_probes=400)
    )
    found = traces(settings)
    truth = dense_traces(settings)
    assert set(found) == set(truth)
    for key, row in found.items():
        scale = abs(truth[key[0], key[1], "H_o"]) + abs(truth[key[0], key[1], "H_f"])
        assert row["value"] == pytest.approx(
            truth[key], rel=1e-11, abs=1e-12 * scale
        ), key
        assert row["error"] == 0.0
        assert row["num_probes"] == 0
        assert row["status"] == ("structural_zero" if row["value"] == 0.0 else "ok")


def test_the_last_layer_is_exact_whatever_its_size():
    made = {}
    for d_model in (16, 17):  # 256 entries, and more
        model = ModelConfig(d_model=d_model, n_layers=2)
        found = traces(
            config(
                model,
                blocks=["W_V"],
                estimator=EstimatorConfig(Method.auto, num_probes=8),
            )
        )
        made[d_model] = {
            layer: row["estimator"]
            for (layer, _, part), row in found.items()
            if part == "H"
        }
    assert made == {16: {1: "dense", 2: "exact"}, 17: {1: "hutchinson", 2: "exact"}}


@pytest.mark.long
def test_sampled_traces_cover_the_truth_within_their_error():
    settings = config(
        ARCHITECTURES["two layers"],
        estimator=EstimatorConfig(Method.hutchinson, num_probes=300),
    )
    truth = dense_traces(settings)
    for key, row in traces(settings).items():
        assert abs(row["value"] - truth[key]) <= 4 * row["error"], key
        assert (row["num_probes"], row["estimator"]) == (300, "hutchinson")


def test_float32_says_so():
    settings = config(ARCHITECTURES["two layers"], dtype=DType.float32, blocks=["W_V"])
    assert {(row["estimator"], row["dtype"]) for row in traces(settings).values()} == {
        ("dense", "float32"),
        ("exact", "float64"),
    }


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"blocks": [["W_Q", "W_V"]]}, "cannot be had for any of these blocks"),
        (
            {"estimator": EstimatorConfig(Method.aligned)},
            "this estimator gives no trace",
        ),
        (
            {
                "model": ModelConfig(d_model=4, n_layers=2),
                "estimator": EstimatorConfig(Method.exact),
                "blocks": ["W_V"],
            },
            "no exact trace of block",
        ),
    ],
)
def test_what_has_no_trace_is_refused(settings, message):
    with pytest.raises(UserError, match=message):
        Variant("", config(**{"model": ModelConfig(d_model=4), **settings})).check()


def test_pairs_beside_diagonal_blocks_have_their_norm_and_no_trace():
    settings = config(
        ModelConfig(d_model=4),
        blocks=["W_V", ["W_Q", "W_V"]],
        quantities=["frobenius", "trace"],
    )
    Variant("", settings).check()
    found = {}
    for name in settings.quantities:
        found[name] = compute_cell(Cell(Variant("", settings), 0.7, 1, name)).rows
    assert {(row["row"], row["col"]) for row in found["trace"]} == {("W_V", "W_V")}
    assert {(row["row"], row["col"]) for row in found["frobenius"]} == {
        ("W_V", "W_V"),
        ("W_Q", "W_V"),
    }
    alone = config(ModelConfig(d_model=4), blocks=["W_V", ["W_Q", "W_V"]])
    with pytest.raises(UserError, match="trace cannot be had for a block"):
        Variant("", alone).check()
