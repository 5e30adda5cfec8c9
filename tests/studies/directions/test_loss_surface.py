"""The loss beside its second-order expansion: closed forms of small losses, and dense Hessians at toy size."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

import hessfig
from hessfig.config.checks import check_config
from hessfig.config.enums import MLP, DType, Kind, Norm, Products, SliceDirection
from hessfig.config.enums import SliceDirection as Along
from hessfig.config.of_quantities import DirectionsConfig
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, SpectrumConfig, TaskConfig
from hessfig.curvature.gradients import loss_of
from hessfig.errors import UserError
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.measurements.requirements import MOST_DENSE
from hessfig.models.blocks import blocks_of
from hessfig.states.point import drawn
from hessfig.studies.directions.loss_surface import ExpansionRule, Surface
from tests.double_backward import hessian as by_autodiff
from tests.tensors import flat as flattened
from tests.toys import toy_config

ROOT = math.sqrt(0.3**2 + 4 * 0.9 * 0.3)  # of 0.9 t^2 -+ 0.3 t - 0.3


class Scalars(nn.Module):
    """A network whose outputs are a function of a vector of weights, whatever its inputs."""

    def __init__(self, value, *at):
        super().__init__()
        self.w = nn.Parameter(torch.tensor(at, dtype=torch.float64))
        self.value = value

    def forward(self, x):
        return self.value(self.w) + 0 * x.sum(dim=1, keepdim=True)


class Mean(nn.Module):
    """The mean of the outputs as a loss."""

    reduction = "mean"

    def forward(self, outputs, targets):
        return (outputs + 0 * targets).mean()


def scalars(value, *at):
    return hessfig.Problem(
        Scalars(value, *at), torch.zeros(2, 1), torch.zeros(2, 1), loss=Mean()
    )


def quadratic():
    torch.manual_seed(0)
    return hessfig.Problem(
        nn.Linear(3, 2), torch.randn(6, 3), torch.randn(6, 2), loss="mse"
    )


def found(problem, name, *, cut=1e-8, **directions):
    settings = DirectionsConfig(**directions)
    config = Config(
        TaskConfig(data="python"), ModelConfig(kind=Kind.python), directions=settings
    )
    config = replace(config, spectrum=SpectrumConfig(cut=cut), blocks=["all"])
    with torch.enable_grad():
        measurable = problem.objective(DType.float64)
        blocks = blocks_of(config.blocks, measurable.layout, config.model)
        return quantity(name).measured(
            measurable, asked_of(quantity(name), blocks, At(config))
        )


def numbers(measured):
    return {
        f"{row['quantity']}{row['index'] or ''}": row["value"] for row in measured.rows
    }


def statuses(measured):
    return {row["status"] for row in measured.rows}


@pytest.mark.long
def test_a_quadratic_loss_is_its_expansion_everywhere():
    measured = found(quadratic(), "slices")
    for where in ("", "plane_"):
        losses, expansions = (
            measured.arrays[f"{where}{name}"] for name in ("losses", "expansions")
        )
        np.testing.assert_allclose(losses, expansions, rtol=1e-10, atol=1e-10)
    departures = [row for row in measured.rows if row["quantity"].endswith("departure")]
    assert len(departures) == 2 * len(SliceDirection)
    for row in departures:
        assert (row["value"], row["status"]) == (math.inf, "nonfinite")
    values = numbers(measured)
    assert (
        values["convex_directions"],
        values["flat_directions"],
        values["concave_directions"],
    ) == (8, 0, 0)
    assert all(values[f"{ray}_ray_slope"] <= 0 for ray in SliceDirection)


def test_descent_on_a_quadratic_loss_is_that_of_its_model():
    measured = found(quadratic(), "descent", rate=0.7, steps=30)
    values = numbers(measured)
    assert values["descent_horizon"] == math.inf
    assert values["descent_line_curvature"] == pytest.approx(1, abs=1e-6)
    np.testing.assert_allclose(
        measured.arrays["losses"], measured.arrays["model_losses"], atol=1e-12
    )
    assert measured.arrays["gaps"].max() < 1e-12
    surface = Surface(
        (quadratic().objective(DType.float64)),
        ModelConfig(kind=Kind.python),
        Products.curvlinops,
    )
    hessian = surface.hessian(surface.start)
    gradient = surface.at(surface.start).gradient
    eta = 0.7 * 2 / float(torch.linalg.eigvalsh(hessian)[-1])
    assert values["descent_rate"] == pytest.approx(eta, rel=1e-9)
    power = torch.eye(len(hessian), dtype=torch.float64)
    away = torch.zeros_like(gradient)
    for t in range(30):  # away = - sum over k < t of (I - eta H)^k eta g
        assert measured.arrays["model_distances"][t] == pytest.approx(
            float(away.norm()), abs=1e-8
        )
        away -= eta * power @ gradient
        power = power @ (torch.eye(len(hessian)) - eta * hessian)


def test_second_differences_of_a_run_have_a_closed_form():
    measured = found(scalars(lambda w: 3 * w**2 / 2, 2.0), "descent", rate=0.1, steps=5)
    shrinks = 1 - 0.1 * 2  # (1 - eta lambda), eta lambda = 0.2
    expected = 3 * (1 + shrinks) ** 2 / (4 * shrinks)
    np.testing.assert_allclose(
        measured.arrays["run_curvatures"][1:], expected, rtol=1e-9
    )
    np.testing.assert_allclose(measured.arrays["curvatures"], 3, rtol=1e-12)
    assert numbers(measured)["descent_run_curvature"] == pytest.approx(expected / 3)


def test_departure_and_horizon_of_a_cubic_loss():
    cubic = scalars(lambda w: w**3, 1.0)  # 1 + 3 t + 3 t^2 + t^3: the gap is |t|^3
    values = numbers(
        found(
            cubic,
            "slices",
            along=[Along.gradient],
            plane=[Along.gradient, Along.random],
        )
    )
    assert values["gradient_ray_slope"] == pytest.approx(-3)
    assert values["gradient_ray_curvature"] == pytest.approx(6)
    assert values["gradient_ray_departure1"] == pytest.approx(
        (-0.3 + ROOT) / 1.8, rel=5e-3
    )
    assert values["gradient_ray_departure2"] == pytest.approx(
        (0.3 + ROOT) / 1.8, rel=5e-3
    )


def test_the_rule_compares_with_the_largest_change_so_far():
    rule = ExpansionRule(0.1, 1e-12)
    # The change at place 2 is zero.
    assert rule.horizon([1.0, 3.0, 1.0, 1.0], [1.0, 3.1, 1.15, 1.3]) == 3
    assert rule.horizon([1.0, 0.0], [1.0, 0.0]) == math.inf
    assert rule.horizon([1.0, math.nan], [1.0, 0.5]) == 1
    assert rule.horizon([1.0, 1.0], [1.0, 1.0 + 1e-14]) == math.inf  # rounding


@pytest.mark.parametrize(
    ("start", "expected"),
    [
        ((0.1, 0.05), {"index": 1, "flat": 0, "loss": 0.5}),
        ((1.5, 0.8), {"index": 0, "flat": 1, "loss": 0.0}),
    ],
)
def test_critical_points_of_a_product(start, expected):
    measured = found(
        scalars(lambda w: (w[0] * w[1] - 1) ** 2 / 2, *start),
        "critical_points",
        cut=1e-6,
    )
    values = numbers(measured)
    assert statuses(measured) == {"ok"}
    assert values["critical_gradient"] <= 1e-8
    for name, value in expected.items():
        assert values[f"critical_{name}"] == pytest.approx(value, abs=1e-10), name
    first = (start[0] * start[1] - 1) ** 2 / 2
    assert values["critical_start"] == pytest.approx(first)


@pytest.mark.parametrize(
    "value", [lambda w: w.sum(), lambda w: w.exp().sum()], ids=["linear", "exponential"]
)
def test_a_search_that_finds_nothing_is_recorded_as_not_converged(value):
    measured = found(scalars(value, 1.0, 2.0), "critical_points", evaluations=5)
    assert statuses(measured) == {"not_converged"}
    assert numbers(measured)["critical_gradient"] > 1e-8


@pytest.mark.parametrize(("decay", "norm"), [(0.0, Norm.pre), (0.01, Norm.none)])
def test_loss_gradient_and_hessian_anywhere_are_those_of_autodiff(decay, norm):
    model = ModelConfig(d_model=3, d_mlp=3, mlp=MLP.gelu, norm=norm)
    config = toy_config(
        model=model,
        task=TaskConfig(digits=1, batch_size=3, weight_decay=decay),
        blocks=["all"],
    )
    problem = drawn(config, sigma=0.5, seed=1)
    before = loss_of(problem)
    surface = Surface(problem, model, Products.linearised)
    w = surface.start + 0.1 * torch.randn(
        surface.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0)
    )
    here = surface.at(w)
    hessian = surface.hessian(w)
    moved = surface.moved(w).network
    leaves = [one.requires_grad_() for one in moved.parameters()]

    def loss_there():
        return loss_of(replace(problem, network=moved)) + decay / 2 * sum(
            one.square().sum() for one in leaves
        )

    with torch.enable_grad():
        loss = loss_there()
        slopes = torch.autograd.grad(loss, leaves)
        flat = flattened(slopes).detach()
        truth = by_autodiff(loss_there, leaves)
    assert here.loss == pytest.approx(loss.item(), rel=1e-12)
    assert surface.loss(w) == pytest.approx(loss.item())
    assert float(here.gradient.norm()) == pytest.approx(flat.norm().item(), rel=1e-10)
    spectra = [torch.linalg.eigvalsh(one) for one in (hessian, truth)]
    torch.testing.assert_close(*spectra, rtol=1e-10, atol=1e-10)
    bent = here.product(here.gradient)
    expected = hessian @ here.gradient
    torch.testing.assert_close(bent, expected, rtol=1e-10, atol=1e-10)
    assert float(here.gradient @ bent) == pytest.approx(
        (flat @ truth @ flat).item(), rel=1e-9
    )
    # The problem's own network is left as it is.
    assert torch.equal(loss_of(problem), before)


@pytest.mark.long
def test_ends_of_a_network_too_large_for_its_spectrum_come_from_lanczos(monkeypatch):
    along = [Along.largest, Along.smallest]
    dense = numbers(found(quadratic(), "slices", along=along, points=3))
    monkeypatch.setattr(
        "hessfig.studies.directions.slices.has_all_eigenvectors", lambda size: False
    )
    sparse = numbers(found(quadratic(), "slices", along=along, points=3))
    assert "flat_directions" in dense
    assert "flat_directions" not in sparse
    for ray in along:
        assert sparse[f"{ray}_ray_curvature"] == pytest.approx(
            dense[f"{ray}_ray_curvature"], rel=1e-6
        )


@pytest.mark.parametrize(
    ("name", "message"),
    [("slices", "all eigenvectors"), ("critical_points", "whole Hessian")],
)
def test_networks_that_are_too_large_are_refused(name, message):
    config = toy_config(
        model=ModelConfig(d_model=64), blocks=["all"], quantities=[name]
    )
    layout = drawn(config, sigma=0.5, seed=1).layout
    with pytest.raises(UserError, match=rf"{message}[\s\S]*{MOST_DENSE} weights"):
        quantity(name).check_settings(config, layout)


@pytest.mark.parametrize(
    "wrong",
    [
        {"plane": [Along.largest]},
        {"along": []},
        {"departure": 1.5},
        {"plane": [Along.random, Along.random]},
    ],
)
def test_settings_of_directions_are_checked(wrong):
    with pytest.raises(UserError, match=f"directions.{next(iter(wrong))}"):
        check_config(toy_config(directions=DirectionsConfig(**wrong)))
