"""Smoothing, bands, quantiles and distances of spectra, against numbers known in closed form."""

import math

import numpy as np
import pandas as pd
import pytest
from scipy import stats

from hessfig.analysis.intervals import (
    band,
    fisher_interval,
    geometric_interval,
    probe_interval,
    student_band,
    student_interval,
)
from hessfig.analysis.stored_spectra import (
    Density,
    Spectrum,
    SpectrumKey,
    StoredQuadrature,
    read_densities,
    read_spectra,
)
from hessfig.studies.spectra.spectral_distances import (
    FIXED,
    PUBLISHED,
    Kernel,
    as_weighted,
    average_distance,
    cumulative,
    distances,
    grid_over,
    jensen_shannon,
    kth_in_size,
    of_eigenvalues,
    on_common_grid,
    quantile,
    smoothed,
    span,
)
from tests.analysis.spectral import store_density, store_spectrum, write_manifest

GENERATOR = np.random.default_rng(7)
VALUES = np.concatenate([GENERATOR.normal(size=180), [6.0, 9.0, -4.0]])


def spectrum(values):
    place = SpectrumKey(
        "", 1, 0.2, math.nan, 1234, 1, 1, "W_Q", "W_Q", "H", len(values)
    )
    return Spectrum(place, np.sort(np.asarray(values, dtype=float)))


@pytest.fixture
def both(tmp_path):
    """Return a spectrum and its density by 12 probes of 30 steps."""
    blocks = {("W_Q", "H"): VALUES}
    entries = [
        store_spectrum(tmp_path, blocks),
        store_density(tmp_path, blocks, num_probes=12, steps=30),
    ]
    write_manifest(tmp_path, entries)
    return read_spectra(tmp_path)[0], read_densities(tmp_path)[0]


def test_outliers_alone_move_distances_under_the_published_kernel_and_not_under_the_fixed_one():
    bulks = [
        np.linspace(-1, 1, 400),
        np.concatenate([np.linspace(-0.2, 0.2, 380), np.linspace(-1, 1, 20)]),
    ]
    found = {}
    for top in (10.0, 1e4):
        blocks = [spectrum(np.concatenate([bulk, np.full(3, top)])) for bulk in bulks]
        found[top] = [distances(blocks, kernel)[0, 1] for kernel in (PUBLISHED, FIXED)]
    assert found[1e4][0] < 0.5 * found[10.0][0]
    assert found[1e4][1] == pytest.approx(found[10.0][1], rel=0.02)


def test_an_interval_is_students():
    sample = np.array([1.0, 2.0, 4.0, 3.5, math.nan])
    found = student_interval(sample)
    low, high = stats.t.interval(
        0.95, 3, loc=sample[:4].mean(), scale=stats.sem(sample[:4])
    )
    assert (found.low, found.high, found.count) == (
        pytest.approx(low),
        pytest.approx(high),
        4,
    )
    assert math.isnan(student_interval([1.0]).low)
    assert math.isnan(student_interval([]).mean)
    mean, margin = student_band(sample[:4, None])
    assert mean[0] + margin[0] == pytest.approx(high)


def test_pairs_logs_correlations_and_probes_have_intervals_of_their_own():
    ours = pd.Series({1: 3.0, 2: 5.0, 3: 8.5, 4: 1.0})
    theirs = pd.Series({1: 2.0, 2: 4.5, 3: 7.0, 9: 100.0})
    low, high = stats.ttest_rel(ours[:3], theirs[:3]).confidence_interval(0.95)
    found = student_interval((ours - theirs).dropna())
    assert (found.low, found.high, found.count) == (
        pytest.approx(low),
        pytest.approx(high),
        3,
    )
    factors = geometric_interval([1e-6, 1e-2, 1.0, 0.0])
    assert factors.mean == pytest.approx(10 ** (-8 / 3))
    assert factors.count == 3
    assert factors.high / factors.mean == pytest.approx(factors.mean / factors.low)
    assert factors.low > 0
    z = fisher_interval([0.9, 0.5, 1.0])
    assert math.atanh(z.mean) == pytest.approx(np.mean(np.arctanh([0.9, 0.5, 0.999])))
    assert -1 < z.low < z.mean < z.high < 1
    probed = probe_interval(2.0, 0.1, 4)
    reach = (1 + 1 / 6) * stats.t.ppf(0.975, 3) * 0.1 / 2.0
    assert (
        math.log(probed.high / 2) == pytest.approx(reach) == -math.log(probed.low / 2)
    )
    assert math.isnan(probe_interval(2.0, 0.1, 1).low)
    assert math.isnan(probe_interval(0.0, 0.1, 4).low)


def test_bands_are_intervals_of_the_mean_and_never_reach_zero_on_a_logarithmic_axis():
    mean = np.array([1.0, 1.0, 2.0])
    sem = np.array([0.1, 3.0, math.nan])
    count = np.array([5, 3, 1])
    low, high = band(mean, sem, count, logs=False)
    assert high[0] - 1 == pytest.approx(0.1 * stats.t.ppf(0.975, 4))
    assert low[1] < 0
    assert math.isnan(low[2])
    low, high = band(mean, sem, count, logs=True)
    assert (low[:2] > 0).all()
    assert low[:2] * high[:2] == pytest.approx(1.0)
    assert high[0] == pytest.approx(math.exp(0.1 * stats.t.ppf(0.975, 4)))


def test_smoothing_is_the_stated_sum_of_gaussians():
    place = spectrum(VALUES).place
    nodes = np.array([[0.0, 2.0, 0.0]])
    quadrature = StoredQuadrature(nodes, np.array([[0.25, 0.75, 0.0]]))
    density = Density(place, quadrature, quadrature)
    grid = np.linspace(-2, 4, 7)
    curve = smoothed(density, grid, 0.5)
    total = cumulative(density, grid, 0.5)
    truth = 0.25 * stats.norm.pdf(grid, 0, 0.5) + 0.75 * stats.norm.pdf(grid, 2, 0.5)
    np.testing.assert_allclose(curve.mean, truth, rtol=1e-12)
    np.testing.assert_allclose(
        total.mean,
        0.25 * stats.norm.cdf(grid, 0, 0.5) + 0.75 * stats.norm.cdf(grid, 2, 0.5),
        rtol=1e-12,
    )
    assert np.isnan(curve.margin).all()
    assert np.array_equal(curve.half, curve.mean)
    assert span(density) == (0.0, 2.0)


def test_kernels_follow_the_range():
    assert Kernel(width=0.02).deviation(-1, 4) == pytest.approx(0.1)
    assert Kernel(variance=1e-5).deviation(0, 0.1) == pytest.approx(math.sqrt(1e-5))
    assert Kernel(variance=1e-5).deviation(0, 100) == pytest.approx(math.sqrt(1e-3))
    assert Kernel(width=0.02).deviation(3, 3) > 0


def test_bands_hold_the_exact_curves_at_their_rate(both):
    exact, density = both
    deviation = Kernel(width=0.05).deviation(*span(density))
    grid = grid_over(*span(density), deviation, points=60)
    truth = of_eigenvalues(exact.eigenvalues, grid, deviation)
    for curve, values in zip((smoothed, cumulative), truth, strict=True):
        found = curve(density, grid, deviation)
        inside = np.abs(found.mean - values) <= found.margin + 1e-9
        # Of correlated places: the rate itself is counted where densities are made.
        assert inside.mean() > 0.8
        assert np.abs(found.half - found.mean).max() < found.margin.max()


def test_the_error_of_the_steps_is_told_apart(tmp_path):
    write_manifest(
        tmp_path,
        [store_density(tmp_path, {("W_Q", "H"): VALUES}, num_probes=300, steps=4)],
    )
    density = read_densities(tmp_path)[0]
    found = smoothed(density, grid_over(*span(density), 0.5), 0.5)
    assert np.abs(found.half - found.mean).max() > found.margin.max()


def test_quantiles(both):
    numbers, shares = as_weighted(spectrum(np.arange(1.0, 21.0)))
    assert [
        quantile(numbers, shares, level) for level in (0.05, 0.25, 0.5, 0.95, 1.0)
    ] == [1, 5, 10, 19, 20]
    exact, density = both
    for level in (0.05, 0.5, 0.95):
        truth, found = (quantile(*as_weighted(one), level) for one in (exact, density))
        assert found == pytest.approx(truth, abs=0.3)


def test_the_unit_is_the_tenth_in_size(both):
    exact, density = both
    assert kth_in_size(exact, 10) == np.sort(np.abs(VALUES))[-10]
    assert kth_in_size(density, 10) == pytest.approx(kth_in_size(exact, 10), rel=0.25)
    assert kth_in_size(spectrum(np.arange(9.0)), 10) == 0


def test_the_distance_has_its_limits():
    half = np.array([0.5, 0.5, 0.0])
    other = np.array([0.0, 0.0, 1.0])
    assert jensen_shannon(half, half) == 0
    assert jensen_shannon(half, other) == pytest.approx(math.log(2))
    p = np.array([0.5, 0.5])
    q = np.array([1.0, 0.0])
    by_hand = 0.5 * (
        0.5 * math.log(0.5 / 0.75) + 0.5 * math.log(0.5 / 0.25)
    ) + 0.5 * math.log(1 / 0.75)
    assert jensen_shannon(p, q) == pytest.approx(by_hand)


def test_sizes_do_not_count_but_shapes_do():
    flat = np.linspace(-1, 1, 101)
    peaked = np.concatenate([np.zeros(90), np.linspace(0.5, 1, 11)])
    found = distances([spectrum(flat), spectrum(7 * flat), spectrum(peaked)])
    np.testing.assert_allclose(np.diag(found), 0)
    np.testing.assert_array_equal(found, found.T)
    assert found[0, 1] < 1e-9
    assert 0.3 < found[0, 2] < math.log(2)
    assert average_distance(found) == pytest.approx(
        (found[0, 1] + 2 * found[0, 2]) / 3, rel=1e-6
    )


def test_a_block_without_a_tenth_eigenvalue_has_no_distance():
    rank_one = np.zeros(50)
    rank_one[3] = 2.0
    found = distances(
        [spectrum(VALUES), spectrum(rank_one), spectrum(VALUES[:5]), spectrum(VALUES)]
    )
    assert np.isnan(found[1]).all()
    assert np.isnan(found[2]).all()
    assert found[0, 3] == 0
    assert average_distance(found) == 0
    assert math.isnan(average_distance(distances([spectrum(rank_one)])))


def test_probabilities_sum_to_one_on_one_grid():
    spectra = [as_weighted(spectrum(values)) for values in (VALUES, VALUES[:20] * 3)]
    first, second = on_common_grid(spectra, PUBLISHED)
    assert first.shape == second.shape
    assert first.sum() == pytest.approx(1) == pytest.approx(second.sum())


def test_a_density_has_nearly_the_distances_of_the_eigenvalues(both):
    exact, density = both
    other = spectrum(VALUES**3)
    wide = Kernel(width=0.02)
    truth, found = (distances([one, other], wide)[0, 1] for one in (exact, density))
    assert found == pytest.approx(truth, abs=0.1)


def test_a_block_of_low_rank_has_no_unit_and_leaves_the_others_alone():
    """Its tenth eigenvalue is the rounding of a zero; a grid in units of that would hold nothing of the others."""
    low = spectrum(
        np.concatenate([GENERATOR.normal(size=5), 1e-15 * GENERATOR.normal(size=60)])
    )
    one = spectrum(VALUES)
    other = spectrum(np.exp(VALUES / 3))
    alone = distances([one, other])
    beside = distances([one, low, other])
    assert beside[0, 2] == alone[0, 1] > 0.01
    assert np.isnan(beside[1]).all()
