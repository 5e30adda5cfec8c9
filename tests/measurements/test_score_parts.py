"""Every quantity of parts of the split at the scores, each against the eigenvalues; and what is refused."""

import numpy as np
import pytest

import hessfig
from hessfig.config.enums import Data, Kind, Method, Norm
from hessfig.config.schema import Config
from hessfig.config.science import (
    EstimatorConfig,
    ModelConfig,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.errors import UserError
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import AT_SCORES, PARTS, Part
from tests.foreign_networks import mlp
from tests.toys import toy_task

MODEL = ModelConfig(d_model=4, d_mlp=6, n_layers=2, n_heads=2, norm=Norm.pre)


def cell(name, model=MODEL, **settings):
    chosen = {
        "task": toy_task(model),
        "blocks": ["query_key"],
        "parts": [*AT_SCORES, Part.H],
        "estimator": EstimatorConfig(Method.dense),
        "spectrum": SpectrumConfig(steps=40, num_probes=64),
        "quantities": [name],
    }
    variant = Variant("", Config(model=model, **{**chosen, **settings}))
    variant.check()
    return Cell(variant, 0.7, 1234, name)


def values(found, quantity):
    made = {}
    for row in found.rows:
        if row["quantity"] == quantity and row["index"] is None:
            made[(row["layer"], row["part"])] = [row["value"], row["error"]]
    return made


def eigenvalues(found):
    """Return the stored spectra, in the order of the rows."""
    places = dict.fromkeys((row["layer"], row["part"]) for row in found.rows)
    made = {}
    for number, place in enumerate(places):
        made[place] = found.arrays[f"eigenvalues_{number}"]
    return made


@pytest.mark.long
def test_every_quantity_agrees_with_the_eigenvalues():
    spectra = eigenvalues(compute_cell(cell("spectrum")))
    assert {part for _, part in spectra} == {"H_oT", "H_fT", "H"}
    norms = values(compute_cell(cell("frobenius")), "frobenius")
    traces = values(compute_cell(cell("trace")), "trace")
    largest = values(compute_cell(cell("largest_eigenvalue")), "largest_eigenvalue")
    smallest = values(compute_cell(cell("smallest_eigenvalue")), "smallest_eigenvalue")
    second = values(compute_cell(cell("density")), "density_second_moment")
    for place, found in spectra.items():
        scale = np.abs(found).max()
        assert norms[place][0] == pytest.approx(
            np.sqrt(np.square(found).sum()), rel=1e-11
        )
        assert traces[place][0] == pytest.approx(
            found.sum(), abs=1e-11 * scale * len(found)
        )
        assert largest[place][0] == pytest.approx(found[-1], abs=1e-6 * scale)
        assert smallest[place][0] == pytest.approx(found[0], abs=1e-6 * scale)
        assert (
            abs(second[place][0] - np.square(found).mean())
            <= 4 * second[place][1] + 1e-12 * scale**2
        )


def test_the_functional_part_has_pairs_of_eigenvalues_and_no_trace():
    spectra = eigenvalues(compute_cell(cell("spectrum")))
    for layer in (1, 2):
        found = spectra[layer, "H_fT"]
        assert np.allclose(found, -found[::-1], atol=1e-12 * found[-1])
        assert values(compute_cell(cell("trace")), "trace")[layer, "H_fT"] == [0.0, 0.0]


def test_single_weights_are_structural_zeros():
    rows = compute_cell(cell("frobenius", blocks=["W_Q", "W_K", ["W_Q", "W_K"]])).rows
    status = {}
    for row in rows:
        if row["layer"] == 1:
            status[(row["row"], row["col"], row["part"])] = row["status"]
    assert (
        status["W_Q", "W_Q", "H_fT"]
        == status["W_K", "W_K", "H_fT"]
        == "structural_zero"
    )
    assert status["W_Q", "W_K", "H_fT"] == status["W_Q", "W_Q", "H_oT"] == "ok"


@pytest.mark.parametrize("method", [Method.auto, Method.aligned, Method.hutchinson])
def test_the_outer_part_of_one_weight_is_its_hessian(method):
    settings = {"blocks": ["W_Q"], "estimator": EstimatorConfig(method, num_probes=8)}
    found = values(compute_cell(cell("frobenius", **settings)), "frobenius")
    for layer in (1, 2):
        (ours, error), (whole, other) = found[layer, "H_oT"], found[layer, "H"]
        assert abs(ours - whole) <= (4 * (error + other) or 1e-14 * whole)


def test_distances_of_subsets():
    rows = compute_cell(
        cell("hessian_distance", task=toy_task(MODEL, batch_size=8))
    ).rows
    last = [
        row
        for row in rows
        if row["quantity"] == "hessian_distance" and row["index"] == 8
    ]
    assert {row["part"] for row in last} == {"H_oT", "H_fT", "H"}
    for row in last:
        assert row["value"] == pytest.approx(0, abs=1e-12)


def test_keys_of_the_other_parts_stay():
    plain = cell("frobenius", parts=list(PARTS), blocks=["W_Q"])
    assert plain.science["settings"]["parts"] == ["H", "H_f", "H_o"]
    assert plain.key != cell("frobenius", parts=[Part.H_oT], blocks=["W_Q"]).key


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        (
            {"blocks": ["W_V"]},
            r"block \(W_V, W_V\) of layer 1 has none.*blocks=\[query_key\]",
        ),
        ({"blocks": [["query_key", "W_Q"]]}, "pairs, inside a layer"),
        ({"blocks": [["W_Q@1", "W_K@2"]]}, "inside a layer"),
        (
            {"model": ModelConfig(kind=Kind.mlp, d_model=4), "blocks": ["W_in"]},
            "kind=mlp.*transformer.*self_attention",
        ),
        (
            {
                "blocks": ["W_Q"],
                "estimator": EstimatorConfig(Method.xtrace, num_probes=4),
            },
            "estimator=xtrace",
        ),
        ({"estimator": EstimatorConfig(Method.exact)}, "H_fT alone has an exact norm"),
    ],
)
def test_what_has_no_such_parts_is_refused(settings, words):
    with pytest.raises(UserError, match=f"(?s){words}"):
        cell("frobenius", **settings)


def test_networks_of_others_are_refused():
    with pytest.raises(UserError, match=r"H_oT.*attention scores"):
        hessfig.measure(mlp()[0], parts=["H_oT"])


def test_pictures_have_scores_too():
    model = ModelConfig(kind=Kind.vit, d_model=4, n_heads=2, patch=4)
    task = TaskConfig(data=Data.digits, batch_size=3)
    found = values(compute_cell(cell("frobenius", model, task=task)), "frobenius")
    for part in ("H_oT", "H_fT", "H"):
        assert found[1, part][0] > 0
