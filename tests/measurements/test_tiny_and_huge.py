"""A loss times a power of two has numbers times that power: nothing on the way is squared out of range."""

import math

import pytest
import torch

import hessfig
from hessfig.curvature.rounding import deviation, norm, norm_of_all, unit_of
from tests.draws import draws, tanh_network

pytestmark = pytest.mark.long

FAR = (2.0**-900, 2.0**-600, 2.0**-540, 2.0**540, 2.0**900)
NARROW = (2.0**-100, 2.0**-80, 2.0**80, 2.0**100)
KEYS = ["row", "col", "part", "quantity", "index"]


def problem(scale, batches=1):
    torch.manual_seed(0)
    network = tanh_network(3, 4, 2).double()
    x = torch.randn(6, 3).double()
    y = torch.randn(6, 2).double()
    x, y = (
        (x, y) if batches == 1 else ([*x.split(6 // batches)], [*y.split(6 // batches)])
    )
    return hessfig.Problem(
        network,
        x,
        y,
        lambda outputs, targets: scale * (outputs - targets).square().mean(),
    )


def measured(scale, batches=1, **asked):
    asked = {"blocks": ["0.weight", "2.bias"], **asked}
    table = hessfig.measure(problem(scale, batches), **asked)
    return table.set_index(KEYS)[["value", "error", "status"]]


def compare(scale, found, truth, *, rel=1e-10):
    assert found.index.equals(truth.index)
    assert (found["status"] == truth["status"]).all()
    for column in ("value", "error"):
        there = found[column].astype(float) / scale
        assert there.tolist() == pytest.approx(
            truth[column].astype(float).tolist(), rel=rel, abs=1e-16, nan_ok=True
        )


NORMS = ["frobenius", "largest_eigenvalue", "smallest_eigenvalue", "gradient_norm"]
ALIGNED = {"estimator": "aligned", "quantities": NORMS, "num_probes": 6}
EVERY = {"quantities": ["trace", *NORMS], "num_probes": 6}
XTRACE = {"quantities": ["frobenius", "trace"], "num_probes": 4, "blocks": "0.weight"}
ASKED = {
    **{name: {**EVERY, "estimator": name} for name in ("dense", "hutchinson", "auto")},
    "aligned": ALIGNED,
    **{
        f"xtrace {parts}": {**XTRACE, "estimator": "xtrace", "parts": parts}
        for parts in ("H", "H_o")
    },
}


@pytest.mark.parametrize("scale", FAR)
@pytest.mark.parametrize("name", ASKED)
def test_norms_traces_and_eigenvalues_scale(name, scale):
    compare(scale, measured(scale, **ASKED[name]), measured(1.0, **ASKED[name]))


@pytest.mark.parametrize("scale", NARROW)
@pytest.mark.parametrize("name", [*ASKED][:4])
def test_float32_scales(name, scale):
    asked = {**ASKED[name], "parts": ["H", "H_o"], "dtype": "float32"}
    asked["quantities"] = asked["quantities"][:-2]
    compare(scale, measured(scale, **asked), measured(1.0, **asked), rel=1e-4)


@pytest.mark.parametrize("scale", FAR)
def test_all_parts_are_there_whatever_the_size(scale):
    """None of the checks takes a small loss for none: the split, the batches' weights, the products."""
    found = measured(scale, batches=3)
    truth = measured(1.0, batches=3)
    assert {*found.index.get_level_values("part")} == {"H", "H_o", "H_f"}
    compare(scale, found, truth)


@pytest.mark.parametrize("scale", FAR)
def test_densities_and_spectra_scale(scale):
    asked = {
        "quantities": ["density", "spectrum"],
        "parts": "H",
        "spectrum": {"steps": 8, "num_probes": 3},
    }
    found = measured(scale, **asked)
    truth = measured(1.0, **asked)
    names = found.index.get_level_values("quantity")
    linear = names.str.contains("eigenvalue|density_mean|density_quantile")
    compare(scale, found[linear], truth[linear])
    plain = names.isin(["rank", "effective_rank", "share_negative", "condition_number"])
    compare(1.0, found[plain], truth[plain])


@pytest.mark.parametrize("scale", FAR)
def test_curvatures_along_directions_scale(scale):
    asked = {
        "quantities": ["along"],
        "parts": "H",
        "directions": {"named": ["gradient", "sign", "random"]},
    }
    found = measured(scale, **asked)
    truth = measured(1.0, **asked)
    names = found.index.get_level_values("quantity")
    linear = names.str.endswith(("_curvature", "_product", "_slope")) | (
        names == "gradient_direction_length"
    )
    compare(scale, found[linear], truth[linear])
    compare(1.0, found[~linear], truth[~linear])


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_lengths_of_any_size(dtype):
    x = torch.tensor([3.0, -4.0, 0.0], dtype=dtype)
    info = torch.finfo(dtype)
    for unit in (
        1.0,
        info.tiny,
        2.0**-60 * info.tiny**0.5,
        2.0**60 / info.tiny**0.5,
        2.0 ** (math.log2(1 / info.tiny) - 4),
    ):
        assert norm(unit * x) == 5.0 * unit
        assert deviation(unit * x) == pytest.approx(float(x.std()) * unit, rel=1e-6)
        assert norm_of_all([unit * x, unit * x.double()], math.nan) == pytest.approx(
            50**0.5 * unit, rel=1e-6
        )
    assert norm(0 * x) == 0.0
    assert math.isnan(norm(x / 0))
    assert norm(torch.tensor([math.inf, 1.0], dtype=dtype)) == math.inf
    assert unit_of(x) == 1.0
    assert unit_of(0 * x) == 1.0


@pytest.mark.parametrize("size", [1e-3, 1.0, 1e3, 1e100])
def test_ordinary_lengths_keep_their_bits(size):
    x = size * draws(1001)
    assert norm(x) == float(x.norm())
    assert deviation(x) == float(x.std())
