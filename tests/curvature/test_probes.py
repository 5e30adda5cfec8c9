"""Rademacher probes."""

import math

import pytest
import torch

from hessfig.curvature.problem import rademacher
from hessfig.rng import stream


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_entries_are_signs_of_the_asked_type(dtype):
    probes = rademacher(50, 7, generator=stream(0), dtype=dtype)
    assert probes.shape == (50, 7)
    assert probes.dtype == dtype
    assert set(probes.unique().tolist()) == {-1.0, 1.0}


def test_both_types_see_the_same_probes():
    double, single = (
        rademacher(9, 4, generator=stream(3), dtype=d)
        for d in (torch.float64, torch.float32)
    )
    assert torch.equal(double, single.double())


def test_the_first_probes_do_not_depend_on_how_many_follow():
    few, many = (
        rademacher(9, k, generator=stream(3), dtype=torch.float64) for k in (4, 11)
    )
    assert torch.equal(few, many[:, :4])


def test_entries_are_fair_and_uncorrelated():
    probes = rademacher(6, 20_000, generator=stream(4), dtype=torch.float64)
    error = 1 / math.sqrt(20_000)
    assert (probes.mean(dim=1).abs() < 4 * error).all()
    assert ((probes @ probes.T / 20_000 - torch.eye(6)).abs() < 4.5 * error).all()
