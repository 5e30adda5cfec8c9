"""The outermost eigenvalues against known ones: multiplicities, breakdown, warm starts, and what is not found."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.curvature.spectral.extremes import End, extremes
from hessfig.rng import stream
from tests.curvature.spectral.matrices import Diagonal, with_eigenvalues
from tests.daily import thinned

SPECTRA = {
    "zero": [0.0] * 20,
    "a single one": [-2.0],
    "rank one": [5.0] + [0.0] * 19,
    "identity": [1.0] * 20,
    "three alike": [5.0, 5.0, 5.0, 4.0] + [1.0] * 20,
    "negative": [float(-i) for i in range(1, 31)],
    "half zero": [0.0] * 60 + torch.linspace(0, 1, 60).tolist(),
    "tiny": [1e-100 * i for i in range(1, 31)],
    "close": torch.linspace(-1, 1, 150).tolist(),
}


def found(operator, end, k, seed=0, **options):
    return extremes(operator, end, k=k, generator=stream(seed, "extremes"), **options)


def check(result, values, end, k, tolerance=1e-6):
    truth = torch.tensor(
        sorted(values, reverse=end == End.largest)[:k], dtype=torch.float64
    )
    scale = max(map(abs, values))
    assert result.converged
    assert result.products > 0
    assert bool((result.residuals <= tolerance * scale).all())
    off = (result.values - truth).abs()
    assert bool((off <= result.residuals + 1e-12 * scale).all()), (result.values, truth)


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("name", thinned(SPECTRA, 2))
def test_values_are_within_their_residual_of_the_truth(name, end):
    values = SPECTRA[name]
    for k in {1, min(3, len(values))}:
        check(found(with_eigenvalues(values), end, k, steps=30), values, end, k)


@pytest.mark.parametrize("name", thinned(SPECTRA, 3))
def test_one_start_takes_at_most_the_products_of_two(name):
    values = SPECTRA[name]
    one, two = (
        found(with_eigenvalues(values), End.largest, 1, steps=30, starts=starts)
        for starts in (1, 2)
    )
    check(one, values, End.largest, 1)
    assert one.products < two.products


@pytest.mark.parametrize("tolerance", [0.05, 0.01])
@pytest.mark.parametrize("seed", thinned(range(5), 3))
def test_what_lies_beyond_a_cluster_is_seen_however_loose_the_tolerance(
    seed, tolerance
):
    # A random start is nearly an eigenvector of the zeros: its residual, 0.3, is below
    # tolerance * 76.
    operator = Diagonal([-76.0, -20.0, 44.6, 9.0] + [0.0] * 40_000)
    result = found(operator, End.largest, 1, seed, tolerance=tolerance)
    assert result.converged
    assert float(result.values[0]) == pytest.approx(44.6, abs=76 * tolerance)
    assert result.products < 150


@pytest.mark.parametrize(
    "is_unreliable", [False, True], ids=["float64", "float32 first"]
)
def test_what_both_runs_miss_is_seen_in_the_space_of_both(is_unreliable):
    """Both starts of this seed have next to nothing of the outermost vector: each run stops at the second value."""
    seed = 585
    values = clustered(585)
    low_precision = Diagonal(values, torch.float32) if is_unreliable else None
    result = found(
        Diagonal(values),
        End.largest,
        1,
        seed,
        tolerance=0.05,
        low_precision=low_precision,
    )
    assert result.converged
    assert float(result.values[0]) == pytest.approx(values[2], abs=0.05 * -values[0])


def clustered(seed):
    """Return a cluster at zero, a far lower end, and two values above the cluster, in random places and numbers."""
    drawn = torch.rand(
        5, dtype=torch.float64, generator=stream(seed, "cluster")
    ).tolist()
    far = 20 + 180 * drawn[0]
    end = (0.3 + 0.7 * drawn[1]) * far
    outer = [-far, -far * (0.1 + 0.8 * drawn[2]), end, end * (0.05 + 0.85 * drawn[3])]
    return outer + [0.0] * int(500 + 19_500 * drawn[4])


@pytest.mark.slow
def test_of_a_thousand_matrices_none_has_an_end_that_is_missed():
    missed = []
    for seed in range(1000):
        values = clustered(seed)
        tolerance = (0.05, 0.01, 1e-3)[seed % 3]
        result = found(Diagonal(values), End.largest, 1, seed, tolerance=tolerance)
        if (
            not result.converged
            or abs(float(result.values[0]) - values[2]) > tolerance * -values[0]
        ):
            missed.append(seed)
    assert not missed


def test_a_cluster_that_is_the_end_takes_a_bounded_number_of_products():
    operator = Diagonal([76.0, 20.0] + [0.0] * 40_000)
    for tolerance in (0.05, 1e-3, 1e-6):
        operator.products = 0
        result = found(operator, End.smallest, 1, tolerance=tolerance)
        assert result.converged
        assert abs(float(result.values[0])) <= 76 * tolerance
        assert result.products <= 2 * 100 + 3


@settings(max_examples=25, deadline=None, derandomize=True)
@given(
    values=st.lists(
        st.floats(-10, 10, allow_nan=False, width=32), min_size=1, max_size=40
    ),
    k=st.integers(1, 4),
    end=st.sampled_from(End),
    seed=st.integers(0, 9),
)
def test_any_spectrum(values, k, end, seed):
    count = min(k, len(values))
    result = found(with_eigenvalues(values, seed=seed), end, count, seed, steps=12)
    scale = max(max(map(abs, values)), 1e-30)
    truth = torch.tensor(
        sorted(values, reverse=end == End.largest)[:count], dtype=torch.float64
    )
    if result.converged:  # values that close together cannot be told apart are within the tolerance of each other
        assert float((result.values - truth).abs().max()) <= 2e-6 * scale


def test_vectors_are_orthonormal_and_residuals_their_own():
    operator = with_eigenvalues(SPECTRA["close"])
    result = found(operator, End.largest, 3)
    torch.testing.assert_close(
        result.vectors.T @ result.vectors,
        torch.eye(3, dtype=torch.float64),
        rtol=0,
        atol=1e-12,
    )
    own = (operator.matrix @ result.vectors - result.vectors * result.values).norm(
        dim=0
    )
    torch.testing.assert_close(result.residuals, own, rtol=1e-6, atol=1e-13)


def test_a_tighter_tolerance_costs_more_and_is_kept():
    values = SPECTRA["close"]
    rough, fine = (
        found(with_eigenvalues(values), End.largest, 1, tolerance=t)
        for t in (1e-3, 1e-9)
    )
    check(rough, values, End.largest, 1, 1e-3)
    check(fine, values, End.largest, 1, 1e-9)
    assert rough.products < fine.products


def test_a_warm_start_shortens_the_runs_and_cannot_mislead_them():
    values = [*torch.linspace(0, 1, 300).tolist(), 1.02]
    operator = with_eigenvalues(values)
    basis = torch.linalg.eigh(operator.matrix).eigenvectors
    cold = found(operator, End.largest, 1)
    warm = found(operator, End.largest, 1, warm=basis[:, -1])
    astray = found(operator, End.largest, 1, warm=basis[:, 0])
    for result in (cold, warm, astray):
        check(result, values, End.largest, 1)
    assert warm.products < cold.products


def test_the_same_seed_gives_the_same_bits():
    first, again, other = (
        found(with_eigenvalues(SPECTRA["close"]), End.largest, 2, seed)
        for seed in (1, 1, 2)
    )
    assert torch.equal(first.values, again.values)
    assert torch.equal(first.vectors, again.vectors)
    assert not torch.equal(first.vectors, other.vectors)


def test_what_cannot_be_resolved_says_so():
    """Hundreds of eigenvalues below the tolerance at the lower end, and few vectors before a restart."""
    values = torch.logspace(-14, 0, 400).tolist()
    result = found(with_eigenvalues(values), End.smallest, 1, steps=8, tolerance=1e-9)
    assert not result.converged
    assert abs(float(result.values[0])) <= float(result.residuals[0]) + 1e-12


@pytest.mark.parametrize("seed", thinned(range(6), 3))
def test_zeros_below_a_cluster_are_found_in_a_space_that_the_runs_can_span(seed):
    """Logits do not see a common shift: W_U's block has zeros, and many values just above them."""
    values = [0.0] * 4 + torch.logspace(-4, 0.3, 44).tolist()
    result = found(with_eigenvalues(values), End.smallest, 2, seed, steps=30)
    check(result, values, End.smallest, 2)
    assert result.products <= 5 * len(values)  # with restarts 930, or no end
