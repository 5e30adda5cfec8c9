"""Runs over products in float32 first: certified in float64 alone, and gone on with there where they are not enough."""

import pytest
import torch

from hessfig.curvature.spectral.extremes import End, extremes
from hessfig.rng import stream
from tests.curvature.spectral.matrices import Explicit, InFloat32, with_eigenvalues
from tests.curvature.spectral.test_extremes import SPECTRA, check
from tests.daily import thinned

BULK = [*torch.linspace(-0.5, 1, 300, dtype=torch.float64).tolist(), 1.2, 1.3, 1.5]


def found(exact, low_precision, end=End.largest, k=1, tolerance=1e-6):
    return extremes(
        exact,
        end,
        k=k,
        tolerance=tolerance,
        generator=stream(0, "rough"),
        low_precision=low_precision,
    )


@pytest.mark.parametrize("end", End)
@pytest.mark.parametrize("name", thinned(SPECTRA, 3))
def test_values_are_within_their_float64_residual_of_the_truth(name, end):
    """Zero, rank one, multiplicities, and numbers below the range of float32 ("tiny")."""
    values = SPECTRA[name]
    for k in {1, min(3, len(values))}:
        exact = with_eigenvalues(values)
        result = found(exact, InFloat32(exact), end, k)
        check(result, values, end, k)
        own = (exact.matrix @ result.vectors - result.vectors * result.values).norm(
            dim=0
        )
        torch.testing.assert_close(result.residuals, own, rtol=1e-6, atol=1e-13)


@pytest.mark.parametrize("end", End)
def test_float64_only_certifies_where_float32_reaches_the_tolerance(end):
    exact = with_eigenvalues(BULK)
    low_precision = InFloat32(exact)
    result = found(exact, low_precision, end)
    alone = found(with_eigenvalues(BULK), None, end)
    check(result, BULK, end, 1)
    assert result.products == exact.products <= 3
    assert result.rough_products == low_precision.products > 10
    assert alone.products >= result.rough_products
    assert alone.rough_products == 0
    assert abs(float(result.values[0] - alone.values[0])) <= 1e-6 * result.scale
    assert result.scale == pytest.approx(1.5, rel=1e-6)


def test_a_tolerance_beyond_float32_is_reached_in_float64_from_there():
    exact = with_eigenvalues(BULK)
    result = found(exact, InFloat32(exact), tolerance=1e-11)
    alone = found(exact, None, tolerance=1e-11)
    check(result, BULK, End.largest, 1, 1e-11)
    assert 3 < result.products < alone.products


@pytest.mark.parametrize(
    "options", [{"overflow": True}, {"skew": 1.0}], ids=["overflow", "not symmetric"]
)
def test_what_float32_cannot_hold_is_measured_in_float64_to_the_bit(options):
    exact = with_eigenvalues(BULK)
    result = found(exact, InFloat32(exact, **options))
    alone = found(exact, None)
    assert torch.equal(result.values, alone.values)
    assert torch.equal(result.vectors, alone.vectors)
    assert result.products == alone.products
    assert result.rough_products > 0


def test_a_rough_operator_that_is_another_one_cannot_mislead():
    """Its vectors are no eigenvectors of the operator, its values are not used, and neither is its scale."""
    exact = with_eigenvalues(BULK)
    other = with_eigenvalues([100 * value for value in BULK], seed=1)
    result = found(exact, InFloat32(other))
    check(result, BULK, End.largest, 1)
    assert result.scale <= 1.5 * (1 + 1e-12)


def test_rounding_of_an_operator_that_is_zero_is_no_scale():
    zero = Explicit(torch.zeros(30, 30, dtype=torch.float64))
    noise = with_eigenvalues([1e-7 * (-1) ** i for i in range(30)])
    result = found(zero, InFloat32(noise))
    assert result.converged
    assert result.scale == 0.0
    assert float(result.values[0]) == 0.0
