"""Numbers of a list of eigenvalues and of quadratures, on cases that can be counted by hand."""

import numpy as np
import pytest

from hessfig.measurements import eigenvalues as read

VALUES = np.array([-2.0, -1e-14, 0.0, 1e-13, 1.0, 4.0])


def test_shares_ranks_and_conditions():
    assert read.share_negative(VALUES, 1e-10) == pytest.approx(1 / 6)
    assert read.share_negative(VALUES, 1e-15) == pytest.approx(2 / 6)
    assert read.effective_rank(VALUES) == pytest.approx(49 / 21)
    assert read.effective_rank(np.ones(7)) == pytest.approx(7.0)
    assert (read.rank(VALUES, 1e-10), read.rank(VALUES, 1e-14)) == (3, 4)


def test_the_condition_number_is_over_the_smallest_twentieth():
    sizes = np.arange(1.0, 41.0) * np.where(np.arange(40) % 2, 1, -1)
    assert read.condition_number(sizes, 1e-10) == 40 / 2
    sizes[0] = 1e-300  # one eigenvalue of forty says nothing
    assert read.condition_number(sizes, 1e-10) == 40 / 2
    sizes[1] = 1e-14
    assert read.condition_number(sizes, 1e-10) == np.inf


def test_a_matrix_of_zeros_and_one_of_tiny_numbers():
    zeros = np.zeros(3)
    assert (read.share_negative(zeros, 0.1), read.effective_rank(zeros)) == (0.0, 0.0)
    assert np.isnan(read.condition_number(zeros, 0.1))
    assert read.rank(zeros, 0.1) == 0
    assert read.effective_rank(np.full(4, 1e-200)) == pytest.approx(4.0)


def test_quantiles_are_eigenvalues():
    values = np.arange(1.0, 21.0)
    assert [
        read.quantile_of_eigenvalues(values, percent) for percent in read.PERCENT
    ] == [1.0, 5.0, 10.0, 15.0, 19.0]
    assert read.quantile_of_eigenvalues(np.array([3.0]), 5) == 3.0


def test_sampled_numbers_come_with_their_spread_over_probes():
    nodes = np.array([[0.0, 1.0], [0.0, 2.0], [0.0, 3.0], [0.0, 2.0]])
    weights = np.array([[0.5, 0.5], [0.25, 0.75], [0.5, 0.5], [0.75, 0.25]])
    mean = read.moment(nodes, weights, 1)
    assert mean.value == pytest.approx(np.mean([0.5, 1.5, 1.5, 0.5]))
    assert mean.error == pytest.approx(np.std([0.5, 1.5, 1.5, 0.5], ddof=1) / 2)
    median = read.sampled_quantile(nodes, weights, 50)
    top = read.sampled_quantile(nodes, weights, 95)
    assert (median.value, top.value) == (0.0, 3.0)
    assert median.error > 0
    assert top.error >= 0


def test_unused_entries_do_not_count():
    nodes = np.array([[2.0, 0.0, 0.0]] * 3)
    weights = np.array([[1.0, 0.0, 0.0]] * 3)
    for percent in read.PERCENT:
        found = read.sampled_quantile(nodes, weights, percent)
        assert (found.value, found.error) == (2.0, 0.0)
    assert np.isnan(read.sampled_quantile(nodes[:1], weights[:1], 50).error)
