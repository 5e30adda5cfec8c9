"""Rows and arrays of spectra, extremes and densities of networks, each against the others and against oracles."""

import json

import numpy as np
import pytest
import torch

import hessfig
from hessfig.config.enums import Attention, DType, Method, Probes, Products
from hessfig.config.schema import Config
from hessfig.config.science import (
    EstimatorConfig,
    ModelConfig,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.curvature import ColumnOperator, Square
from hessfig.errors import UserError
from hessfig.measurements.catalogue import CATALOGUE
from hessfig.sweep.measure import compute_cell, draw_problem, request_of
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import PARTS, Part
from tests.daily import thinned
from tests.toys import ARCHITECTURES, toy_task

SMALL = SpectrumConfig(steps=30, num_probes=8, k=2)
EXACT = EstimatorConfig(Method.dense)


def cell(name, model, **settings):
    chosen = {
        "model": model,
        "task": toy_task(model),
        "blocks": "each",
        "spectrum": SMALL,
        "quantities": [name],
    }
    parts = [Part(part) for part in settings.pop("parts", list(PARTS))]
    config = Config(**{**chosen, "estimator": EXACT, "parts": parts, **settings})
    variant = Variant("", config)
    variant.check()
    return Cell(variant, 0.7, 1234, name)


def found(name, model, **settings):
    return compute_cell(cell(name, model, **settings))


def by_place(measured, quantity):
    found = {}
    for row in measured.rows:
        if row["quantity"] == quantity:
            found[(row["layer"], row["col"], row["part"], row["index"])] = row
    return found


@pytest.mark.parametrize(
    "name", thinned(["softmax", "pre", "two layers", "linear", "linear mlp", "bare"], 2)
)
def test_spectra_have_the_trace_and_the_norm_of_the_other_quantities(name):
    model = ARCHITECTURES[name]
    spectrum = found("spectrum", model)
    norms = by_place(found("frobenius", model), "frobenius")
    traces = by_place(found("trace", model), "trace")
    labels = json.loads(str(spectrum.arrays["entries"]))
    assert len(labels) == len(norms) == len(traces)
    for k, label in enumerate(labels):
        values = spectrum.arrays[f"eigenvalues_{k}"]
        at = (label["layer"], label["col"], label["part"], None)
        norm = norms[at]["value"]
        trace = traces[at]["value"]
        assert values.dtype == np.float64
        assert len(values) == label["dim"]
        assert bool((np.diff(values) >= 0).all())
        assert np.sqrt(np.square(values).sum()) == pytest.approx(
            norm, rel=1e-11, abs=1e-15
        )
        assert values.sum() == pytest.approx(
            trace, rel=1e-9, abs=1e-12 * len(values) * norm + 1e-15
        )
        rank = by_place(spectrum, "effective_rank")[at]["value"]
        assert rank == pytest.approx(
            np.abs(values).sum() ** 2 / np.square(values).sum() if norm else 0.0,
            rel=1e-9,
        )


@pytest.mark.parametrize("probes", Probes)
@pytest.mark.long
def test_densities_have_mean_and_second_moment_within_their_errors(probes):
    model = ARCHITECTURES["softmax"]
    settings = SpectrumConfig(steps=12, num_probes=40, probes=probes)
    blocks = ["W_Q", "W_V", "W_out"]
    density = found("density", model, spectrum=settings, blocks=blocks)
    whole = found("spectrum", model, blocks=blocks)
    labels = json.loads(str(whole.arrays["entries"]))
    assert labels[0]["cut"] == 1e-10
    for k, label in enumerate(labels):
        values = whole.arrays[f"eigenvalues_{k}"]
        for power, quantity in ((1, "density_mean"), (2, "density_second_moment")):
            row = by_place(density, quantity)[
                label["layer"], label["col"], label["part"], None
            ]
            assert (
                abs(row["value"] - (values**power).mean())
                <= 4 * row["error"] + 1e-12 * np.abs(values).max()
            )
            assert row["num_probes"] == 40


def test_quantiles_of_a_density_are_those_of_the_spectrum():
    """As many steps as there are eigenvalues: nodes are exact, the cumulative there is off by the weights alone."""
    model = ARCHITECTURES["softmax"]
    settings = SpectrumConfig(steps=48, num_probes=60)
    density = found("density", model, spectrum=settings, blocks=["W_in"], parts=["H"])
    values = found("spectrum", model, blocks=["W_in"], parts=["H"]).arrays[
        "eigenvalues_0"
    ]
    rows = by_place(density, "density_quantile")
    rounding = 1e-12 * np.abs(values).max()
    assert [index for *_, index in rows] == [5, 25, 50, 75, 95]
    for (*_, percent), row in rows.items():
        assert np.abs(values - row["value"]).min() <= rounding
        below = np.mean(values < row["value"] + -1 * rounding)
        upto = np.mean(values < row["value"] + 1 * rounding)
        assert below - 0.06 <= percent / 100 <= upto + 0.06


def test_one_probe_has_no_error():
    rows = found(
        "density",
        ARCHITECTURES["softmax"],
        spectrum=SpectrumConfig(num_probes=1, steps=5),
    ).rows
    assert {row["error"] for row in rows} == {None}


def test_a_part_that_vanishes_by_theorem_has_eigenvalues_of_exactly_zero():
    """H_f of the value weight of the last layer: no rank, no condition, nothing that is not a number but that."""
    model = ModelConfig(d_model=4, d_mlp=6, attention=Attention.linear)
    for name in ("spectrum", "density", "largest_eigenvalue", "smallest_eigenvalue"):
        rows = found(
            name, model, blocks=["W_V"], parts=["H_f"], spectrum=SpectrumConfig(steps=5)
        ).rows
        for row in rows:
            no_number = row["quantity"] == "condition_number"
            assert row["status"] == ("nonfinite" if no_number else "structural_zero")
            assert np.isnan(row["value"]) if no_number else row["value"] == 0.0


@pytest.mark.parametrize(
    "name", ["spectrum", "density", "largest_eigenvalue", "smallest_eigenvalue"]
)
def test_a_block_that_is_not_finite_says_so_and_the_rest_goes_on(name):
    """Finite outputs, and a derivative in one weight whose square is beyond any double."""
    import hessfig

    class Huge(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.first = torch.nn.Parameter(torch.zeros(2, 2, dtype=torch.float64))
            self.second = torch.nn.Parameter(torch.ones(2, 2, dtype=torch.float64))

        def forward(self, x):
            return x @ self.second + 1e200 * (x @ self.first)

    problem = hessfig.Problem(
        Huge(), torch.ones(3, 2).double(), torch.zeros(3, 2).double(), loss="mse"
    )
    table = hessfig.measure(
        problem, blocks=["first", "second"], parts=["H_o"], quantities=[name]
    )
    status = {col: set(rows["status"]) for col, rows in table.groupby("col")}
    singular = {"nonfinite"} if name == "spectrum" else set()  # its condition number
    assert status == {"first": {"nonfinite"}, "second": {"ok"} | singular}
    given = {
        col: set(zip(rows["quantity"], rows["index"], strict=True))
        for col, rows in table.groupby("col")
    }
    assert len(given["first"]) == len(given["second"])
    assert len(json.loads(str(table.attrs["arrays"][name]["entries"]))) == 1


@pytest.mark.parametrize(
    "name", ["density", "largest_eigenvalue", "smallest_eigenvalue"]
)
def test_float32_products_serve_float64_recurrences(name):
    settings = SpectrumConfig(steps=30, tolerance=1e-4)
    model = ARCHITECTURES["softmax"]
    asked = {"blocks": ["W_V"], "parts": ["H"], "spectrum": settings}
    rough = found(name, model, dtype=DType.float32, **asked)
    fine = found(name, model, dtype=DType.float64, **asked)
    for row, truth in zip(rough.rows, fine.rows, strict=True):
        assert (row["status"], row["dtype"]) == ("ok", "float32")
        if row["quantity"] != "density_quantile":
            assert row["value"] == pytest.approx(truth["value"], rel=1e-3, abs=1e-4)
    for key, value in rough.arrays.items():
        if key != "entries":
            assert value.dtype == np.float64


@pytest.mark.parametrize("end", thinned(["largest", "smallest"], 2))
def test_large_blocks_on_the_tape_take_products_in_float32_first(end, monkeypatch):
    """Large ones alone, in float64, on the tape; the numbers agree with float64's within both residuals."""
    from hessfig.models import routes

    model = ARCHITECTURES["softmax"]
    asked = {"blocks": ["all"], "parts": ["H"], "spectrum": SpectrumConfig()}
    fine = found(f"{end}_eigenvalue", model, **asked)
    monkeypatch.setattr(routes, "LARGE", 1)
    rough = found(f"{end}_eigenvalue", model, **asked)
    labels = [json.loads(str(one.arrays["entries"]))[0] for one in (fine, rough)]
    assert labels[0]["rough_products"] == 0 < labels[1]["rough_products"]
    assert labels[1]["products"] < labels[0]["products"]
    assert fine.rows[0]["status"] == rough.rows[0]["status"] == "ok"
    assert (
        abs(fine.rows[0]["value"] - rough.rows[0]["value"]) <= 1e-6 * labels[0]["scale"]
    )
    for change in (
        {"dtype": DType.float32},
        {"estimator": EstimatorConfig(products=Products.curvlinops)},
    ):
        other = found(
            f"{end}_eigenvalue", model, **{**asked, "blocks": ["W_V"], **change}
        )
        assert json.loads(str(other.arrays["entries"]))[0]["rough_products"] == 0


def test_vectors_are_kept_for_warm_starts():
    from hessfig.curvature.spectral.lanczos import Square
    from hessfig.models.routes import Engines

    asked = cell(
        "largest_eigenvalue", ARCHITECTURES["softmax"], blocks=["W_Q"], parts=["H"]
    )
    kept = compute_cell(asked).arrays
    problem = draw_problem(asked)
    (block,) = request_of(asked, problem).blocks
    engines = Engines(problem, asked.config.model, asked.config.estimator.products)
    operator = Square(
        engines.column(block.layer, block.col, [block]), block, asked.config.parts[0]
    )
    vectors = torch.from_numpy(kept["vectors_0"])
    np.testing.assert_allclose(
        operator.matmat(vectors).numpy(),
        kept["vectors_0"] * kept["values_0"],
        atol=1e-6 * kept["values_0"][0],
    )


def test_only_what_changes_a_number_is_in_its_key():
    model = ARCHITECTURES["softmax"]
    keys = {
        name: {
            change: cell(name, model, spectrum=SpectrumConfig(**{change: value})).key
            for change, value in {
                "k": 2,
                "steps": 7,
                "num_probes": 3,
                "cut": 1e-3,
                "tolerance": 1e-3,
            }.items()
        }
        for name in ("spectrum", "density", "largest_eigenvalue", "frobenius")
    }
    own = {name: cell(name, model, spectrum=SpectrumConfig()).key for name in keys}
    changed = {
        name: {c for c, key in found.items() if key != own[name]}
        for name, found in keys.items()
    }
    assert changed == {
        "spectrum": {"k", "cut"},
        "density": {"steps", "num_probes"},
        "largest_eigenvalue": {"k", "steps", "tolerance"},
        "frobenius": set(),
    }


@pytest.mark.parametrize(
    ("name", "settings", "message"),
    [
        (
            "density",
            {"blocks": [["W_Q", "W_V"]]},
            "cannot be had for any of these blocks",
        ),
        (
            "largest_eigenvalue",
            {"spectrum": SpectrumConfig(k=17), "blocks": ["W_Q"]},
            "fewer eigenvalues",
        ),
        (
            "spectrum",
            {"model": ModelConfig(d_model=128)},
            "would take 4.3 GB(.|\n)*8660(.|\n)*density",
        ),
        (
            "spectrum",
            {"quantities": ["largest_eigenvalue", "spectrum"]},
            "give the same rows",
        ),
    ],
)
def test_what_cannot_be_had_is_refused(name, settings, message):
    with pytest.raises(UserError, match=message) as caught:
        cell(name, **{"model": ARCHITECTURES["softmax"], **settings})
    assert caught.value.allowed
    assert caught.value.remedy


@pytest.mark.parametrize("name", ["spectrum", "density", "largest_eigenvalue"])
def test_costs_are_known_beforehand(name):
    asked = cell(name, ARCHITECTURES["softmax"])
    assert CATALOGUE[name].operations(asked.config, asked.variant.layout) > 0


@pytest.mark.parametrize("dtype", ["float64", "float32"])
@pytest.mark.parametrize("quantity", ["largest_eigenvalue", "spectrum"])
def test_a_block_that_vanishes_up_to_rounding_need_not_be_symmetric(quantity, dtype):
    """A bias that the next norm removes: its whole block is rounding, of terms that cancel."""
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Conv1d(5, 4, 1),
        torch.nn.InstanceNorm1d(4, affine=True),
        torch.nn.Tanh(),
        torch.nn.Flatten(),
        torch.nn.Linear(16, 3),
    )
    problem = hessfig.Problem(network, torch.randn(6, 5, 4), torch.randint(0, 3, (6,)))
    table = hessfig.measure(
        problem, blocks=["0.bias"], quantities=[quantity], dtype=dtype
    )
    largest = table[table["quantity"] == "largest_eigenvalue"]
    assert len(largest) == 3
    eps = torch.finfo(getattr(torch, dtype)).eps
    assert largest["value"].abs().max() <= 10 * eps


@pytest.mark.parametrize("quantity", ["spectrum", "largest_eigenvalue", "density"])
def test_the_key_bias_of_a_softmax_has_a_spectrum_of_rounding(quantity):
    """A shift of all keys changes no pattern: a built-in block that is rounding, not symmetric."""
    model = ModelConfig(
        n_layers=1, d_model=4, d_mlp=6, norm="pre", attention_skip=False
    )
    task = TaskConfig(digits=1, batch_size=8, seed=5)
    config = Config(model=model, task=task, blocks=["b_K"], quantities=[quantity])
    variant = Variant("", config)
    variant.check()
    rows = compute_cell(Cell(variant, 1.0, 1234, quantity)).rows
    eigenvalues = []
    for row in rows:
        if row["quantity"].endswith(("eigenvalue", "quantile")):
            eigenvalues.append(row["value"])
    assert eigenvalues
    assert max(map(abs, eigenvalues)) < 1e-15


def test_products_that_are_not_symmetric_beside_a_large_hessian_are_refused():
    """A sum of products that is wrong by a millionth of the whole Hessian is no rounding."""
    network = torch.nn.Linear(3, 2)
    problem = hessfig.Problem(network, torch.eye(3), torch.tensor([0, 1, 1]))
    objective = problem.objective("float64")
    square = Square(ColumnOperator(objective, 0, "bias", ["bias"]), "bias", Part.H)
    square.check_symmetric(1e-17, 1e-17)
    with pytest.raises(ArithmeticError, match="not those of a symmetric operator"):
        square.check_symmetric(1e-6, 1e-6)
