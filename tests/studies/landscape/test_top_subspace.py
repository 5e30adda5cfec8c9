"""Delta_2 in eigenspaces against dense per-sample Hessians, quadrature and the same points drawn by hand."""

import itertools
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.func import functional_call

import hessfig
from hessfig.config.of_quantities import LandscapeConfig
from hessfig.config.schema import Config
from hessfig.config.science import SpectrumConfig
from hessfig.errors import UserError
from hessfig.measurements.catalogue import quantity
from hessfig.measurements.quantity import At, asked_of
from hessfig.rng import probe_stream
from tests.double_backward import hessian
from tests.tensors import flat

COUNT = 9
SPREAD = 0.2
DRAWS = 12
DIMENSIONS = [1, 2, 10]
ROW = quantity("landscape_subspace")
Rows = dict[tuple[str, int | None], dict[str, Any]]


def problem():
    torch.manual_seed(3)
    network = nn.Sequential(
        nn.Linear(2, 2), nn.Tanh(), nn.Linear(2, 2)
    ).double()  # 12 weights
    return hessfig.Problem(
        network, torch.randn(COUNT, 2).double(), torch.randint(0, 2, (COUNT,))
    )


def settings(**landscape):
    chosen = {"spread": SPREAD, "draws": DRAWS, "dimensions": DIMENSIONS, **landscape}
    return replace(
        Config(),
        landscape=LandscapeConfig(**chosen),
        spectrum=SpectrumConfig(tolerance=1e-12),
    )


def measured(**landscape):
    request = asked_of(ROW, [], At(settings(**landscape, samples=COUNT)))
    rows = ROW.measured(problem().objective("float64"), request).rows
    assert {row["quantity"] for row in rows} == set(ROW.rows)
    assert all(row["status"] == "ok" for row in rows)
    return {(row["quantity"], row["index"]): row for row in rows}


def losses_at(of, flat):
    held = dict(of.network.named_parameters())
    pieces = flat.split([one.numel() for one in held.values()])
    at = {
        name: piece.view(one.shape)
        for (name, one), piece in zip(held.items(), pieces, strict=True)
    }
    return nn.functional.cross_entropy(
        functional_call(of.network, at, of.inputs), of.targets, reduction="none"
    )


def dense(of):
    """Return the weights, and losses, gradients and Hessians of single samples, by torch alone."""
    start = flat(of.network.parameters()).detach()
    slopes = []
    bends = []
    for sample in range(COUNT):
        at = start.clone().requires_grad_()
        slopes.append(torch.autograd.grad(losses_at(of, at)[sample], at)[0])
        bends.append(
            hessian(lambda sample=sample, at=at: losses_at(of, at)[sample], [at])
        )
    return start, losses_at(of, start).detach(), torch.stack(slopes), torch.stack(bends)


def by_quadrature(losses, slopes, bends, basis):
    """Return the mean over z of the variance of the expansions: three nodes an axis, exact up to degree five."""
    nodes, weights = np.polynomial.hermite_e.hermegauss(3)
    total = 0.0
    for places in itertools.product(range(3), repeat=basis.shape[1]):
        z = SPREAD * basis @ torch.tensor(nodes[list(places)])
        values = losses + slopes @ z + torch.einsum("i,nij,j->n", z, bends, z) / 2
        total += float(values.var()) * float(
            np.prod(weights[list(places)] / weights.sum())
        )
    return total


@pytest.fixture(scope="module")
def found():
    return measured()


def test_closed_forms_against_quadrature(found):
    _, losses, slopes, bends = dense(problem())
    top = torch.linalg.eigh(bends.mean(dim=0)).eigenvectors.flip(1)
    start = float(losses.var())
    assert found["landscape_start", None]["value"] == pytest.approx(start, rel=1e-12)
    for count in (1, 2):
        truth = by_quadrature(losses, slopes, bends, top[:, :count])
        assert found["landscape_top_quadratic", count]["value"] == pytest.approx(
            truth, rel=1e-8
        )
        assert found["landscape_top_quadratic", count]["error"] == 0
        share = (truth - start) / (
            found["landscape_full_quadratic", None]["value"] - start
        )
        assert found["landscape_top_share", count]["value"] == pytest.approx(
            share, rel=1e-7
        )


def test_points_in_all_weights_and_in_the_eigenspace(found):
    of = problem()
    start, losses, slopes, bends = dense(of)
    top = torch.linalg.eigh(bends.mean(dim=0)).eigenvectors.flip(1)
    stream = probe_stream(0, ROW.name, None, 0, "points")
    points = torch.randn(12, DRAWS, dtype=torch.float64, generator=stream)
    inside = torch.randn(max(DIMENSIONS), DRAWS, dtype=torch.float64, generator=stream)
    random = torch.linalg.qr(
        torch.randn(12, max(DIMENSIONS), dtype=torch.float64, generator=stream)
    ).Q

    def mean(shifts):
        ends = [
            losses_at(of, start + sign * SPREAD * one).var()
            for one in shifts.T
            for sign in (1, -1)
        ]
        return float(torch.stack(ends).mean())

    assert found["landscape_full", None]["value"] == pytest.approx(
        mean(points), rel=1e-10
    )
    assert found["landscape_top", 1]["value"] == pytest.approx(
        mean(top[:, :1] @ inside[:1]), rel=1e-8
    )
    # Eigenvectors have no sign of their own.
    off = []
    for sign in (1.0, -1.0):
        signs = torch.tensor([1.0, sign], dtype=torch.float64)
        either = mean(top[:, :2] @ (inside[:2] * signs[:, None]))
        off.append(abs(found["landscape_top", 2]["value"] / either - 1))
    assert min(off) < 1e-8
    bent = []
    for one in points.T:
        for z in (SPREAD * one, -SPREAD * one):
            curved = torch.einsum("i,nij,j->n", z, bends, z) / 2
            bent.append((losses + slopes @ z + curved).var())
    quadratic = found["landscape_full_quadratic", None]
    assert quadratic["value"] == pytest.approx(
        float(torch.stack(bent).mean()), rel=1e-10
    )
    pairs = torch.stack(bent).view(-1, 2).mean(dim=1)
    assert quadratic["error"] == pytest.approx(
        float(pairs.std()) / DRAWS**0.5, rel=1e-8
    )
    truth = by_quadrature(losses, slopes, bends, random[:, :2])
    assert found["landscape_random_quadratic", 2]["value"] == pytest.approx(
        truth, rel=1e-8
    )


@pytest.mark.long
def test_all_directions_are_all_weights():
    """In closed form over all twelve directions: what points in all weights estimate."""
    every = measured(dimensions=[12], draws=400)
    share = every["landscape_top_share", 12]
    assert share["value"] == pytest.approx(
        every["landscape_random_share", 12]["value"], rel=1e-8
    )
    assert abs(share["value"] - 1) < 4 * share["error"] < 0.5


def test_more_directions_than_weights():
    with pytest.raises(UserError, match=r"landscape.dimensions[\s\S]*from 1 to 12"):
        ROW.check_settings(
            settings(dimensions=[13]), problem().objective("float64").layout
        )
