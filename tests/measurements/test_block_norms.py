"""From squared norms to a norm and its standard error."""

import math
from functools import cache

import pytest
import torch

from hessfig.curvature.problem import rademacher
from hessfig.measurements.block_norms import root_of_mean
from hessfig.measurements.quantity import Estimate
from hessfig.rng import stream

REPEATS = 800


def test_the_formula_by_hand():
    norm = root_of_mean(torch.tensor([1.0, 2.0, 6.0], dtype=torch.float64))
    assert norm.value == pytest.approx(math.sqrt(3))
    assert norm.error == pytest.approx(math.sqrt(7 / 3) / (2 * math.sqrt(3)))
    assert norm.num_probes == 3


def test_equal_samples_have_no_error():
    assert root_of_mean(torch.full((5,), 4.0)) == Estimate(2.0, 0.0, 5)


def test_zero_is_exact():
    assert root_of_mean(torch.zeros(5)) == Estimate(0.0, 0.0, 5)


def test_one_probe_has_no_error_to_report():
    norm = root_of_mean(torch.tensor([4.0]))
    assert norm.value == 2.0
    assert math.isnan(norm.error)


def test_overflow_is_reported_not_hidden():
    assert root_of_mean(torch.tensor([1.0, math.inf])).value == math.inf


@cache
def estimates(num_probes):
    """Return frob and frob_sem of many independent estimates of one symmetric matrix, and its norm."""
    generator = stream(11, "frobenius")
    root = torch.randn(12, 12, dtype=torch.float64, generator=generator)
    matrix = root + root.T
    probes = rademacher(
        12, REPEATS * num_probes, generator=generator, dtype=torch.float64
    )
    samples = (matrix @ probes).square().sum(dim=0).unflatten(0, (REPEATS, num_probes))
    norms = [root_of_mean(sample) for sample in samples]
    frob, sem = (
        torch.tensor([getattr(n, name) for n in norms]) for name in ("value", "error")
    )
    return frob, sem, matrix.norm().item()


@pytest.mark.long
def test_the_standard_error_is_the_spread_of_repeated_estimates():
    """The spread of 800 estimates is itself known to 1 / sqrt(2 * 800) = 2.5 %; the delta method adds 1 / K."""
    frob, sem, _ = estimates(num_probes=50)
    ratio = (sem.square().mean().sqrt() / frob.std()).item()
    assert abs(ratio - 1) < 4 / math.sqrt(2 * REPEATS)


def test_two_standard_errors_cover_as_often_as_they_should():
    frob, sem, true = estimates(num_probes=50)
    covered = ((frob - true).abs() < 1.96 * sem).double().mean().item()
    assert abs(covered - 0.95) < 4 * math.sqrt(0.95 * 0.05 / REPEATS)
