"""Differences along orders of samples, and what chance makes of them: exactly, over all orders."""

from itertools import permutations

import numpy as np
import pytest

from hessfig.studies.landscape.losses_of_samples import (
    differences,
    expected_gradient,
    mean_size,
    null_difference,
    null_gradient,
    places,
    rank_correlation,
    regression,
    root_mean_square,
)

LOSSES = np.array([0.3, 2.5, 0.1, 7.0, 1.1, 0.9])
ALL = np.array([LOSSES[list(order)] for order in permutations(range(len(LOSSES)))])


def test_differences_are_those_of_means():
    at = np.array([1, 2, 5])
    expected = [LOSSES[: k + 1].mean() - LOSSES[:k].mean() for k in at]
    np.testing.assert_allclose(differences(LOSSES, at), expected, rtol=1e-13)
    np.testing.assert_allclose(differences(ALL, at)[0], expected, rtol=1e-13)


def test_the_null_is_exact_over_all_orders():
    at = np.arange(1, len(LOSSES))
    rms = np.sqrt((differences(ALL, at) ** 2).mean(axis=0))
    np.testing.assert_allclose(null_difference(LOSSES, at), rms, rtol=1e-12)


def test_the_null_is_that_of_independent_draws_too():
    """The chance to fail by accident is that of five standard errors."""
    at = np.array([1, 3, 10, 30])
    rng = np.random.default_rng(0)
    found = root_mean_square(differences(rng.exponential(2.0, (4000, 31)), at))
    expected = 2.0 * np.sqrt(1 + 1 / at) / (at + 1)
    assert (np.abs(found.value - expected) < 5 * found.error).all()


def test_the_expected_gradient_is_exact_over_all_orders():
    gradients = np.random.default_rng(1).normal(size=(5, 3))
    every = np.array([gradients[list(order)] for order in permutations(range(5))])
    mean = gradients.mean(axis=0)
    spread = float(np.sqrt(((gradients - mean) ** 2).sum() / 4))
    at = np.arange(1, 6)
    means = np.cumsum(every, axis=1) / at[:, None]
    rms = np.sqrt((means**2).sum(axis=2).mean(axis=0))
    np.testing.assert_allclose(
        expected_gradient(float(np.linalg.norm(mean)), spread, 5, at), rms, rtol=1e-12
    )
    np.testing.assert_allclose(null_gradient(spread, at), spread / np.sqrt(at))


def test_means_over_orders_have_standard_errors():
    values = np.array([[1.0], [-3.0], [2.0]])
    size = mean_size(values)
    rms = root_mean_square(values)
    assert size.value == pytest.approx(2.0)
    assert size.error == pytest.approx(1 / 3**0.5)
    assert rms.value == pytest.approx((14 / 3) ** 0.5)
    assert rms.error == pytest.approx(
        np.std([1, 9, 4], ddof=1) / 3**0.5 / (2 * (14 / 3) ** 0.5)
    )
    assert root_mean_square(np.zeros((3, 1))).error == 0


def test_places_hold_both_ends_and_rise():
    assert places(8, 8192, 11).tolist() == [2**power for power in range(3, 14)]
    found = places(1, 100, 25)
    assert (found[0], found[-1]) == (1, 100)
    assert (np.diff(found) > 0).all()
    assert places(1, 1, 5).tolist() == [1]


def test_agreement_of_a_prediction():
    predicted = np.array([0.0, 1.0, 3.0, 4.0])
    assert regression(predicted, 2 * predicted + 1) == pytest.approx((2.0, 0.0))
    assert rank_correlation(predicted, predicted**3) == pytest.approx((1.0, 0.0))
    assert rank_correlation(predicted, -predicted)[0] == pytest.approx(-1.0)
    assert np.isnan(rank_correlation(predicted, np.ones(4))[0])
    assert np.isnan(regression(np.ones(4), predicted)[0])
