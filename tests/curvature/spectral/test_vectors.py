"""Long vectors in float32: their sums, runs that take turns within a few vectors, and the choice of their type."""

import pytest
import torch
from torch import nn
from torch.testing import assert_close

from hessfig.curvature.problem import LONG, rademacher, recurrence_like
from hessfig.curvature.spectral import extremes as module
from hessfig.curvature.spectral import vectors
from hessfig.curvature.spectral.extremes import End, Goal, extremes, long_sizes
from hessfig.curvature.spectral.vectors import dots, drawn, grams, length, rotate
from hessfig.rng import stream
from tests.curvature.spectral.matrices import Diagonal
from tests.daily import thinned
from tests.toys import ARCHITECTURES, toy_problem

DIM = 2**17 + 5


class Long(Diagonal):
    """A diagonal matrix on long vectors in float32; `at_once` is the largest number of columns of a product."""

    def __init__(self, values):
        super().__init__(values.tolist(), torch.float32)
        self.like = torch.empty(0)
        self.at_once = 0

    def matmat(self, vectors):
        assert vectors.dtype == torch.float32
        self.products = self.products + vectors.shape[1]
        self.at_once = max(self.at_once, vectors.shape[1])
        return self.matrix * vectors

    def check_symmetric(self, asymmetry, size):
        assert asymmetry <= 2e-6 * size  # rounding of float32


def bulk(*outer):
    return torch.cat(
        [
            torch.linspace(-0.5, 0.5, DIM - len(outer), dtype=torch.float64),
            torch.tensor(outer).double(),
        ]
    )


def solved(values, end, **options):
    operator = Long(values)
    return extremes(operator, end, generator=stream(0, "long"), **options), operator


@pytest.fixture
def few(monkeypatch):
    """As few vectors as of a network of many millions of parameters."""
    monkeypatch.setattr(module, "LONG_BYTES", 0)


@pytest.mark.usefixtures("few")
@pytest.mark.parametrize(
    ("k", "tolerance"), thinned([(1, 1e-3), (1, 1e-6), (3, 1e-5)], 2)
)
@pytest.mark.parametrize("end", list(End))
def test_runs_of_a_few_vectors_find_the_outermost(end, k, tolerance):
    sign = 1 if end == End.largest else -1
    result, operator = solved(sign * bulk(2.0, 1.5, 1.2), end, k=k, tolerance=tolerance)
    assert result.converged
    assert operator.at_once == 1
    assert result.products == operator.products < 400
    truth = sign * torch.tensor([2.0, 1.5, 1.2][:k]).double()
    assert float((result.values - truth).abs().max()) <= 2 * tolerance * result.scale
    assert result.vectors.dtype == torch.float32
    assert float(result.residuals.max()) <= tolerance * result.scale
    own = (
        operator.matrix.double() * result.vectors.double()
        - result.vectors.double() * result.values
    )
    assert_close(own.norm(dim=0), result.residuals, rtol=1e-2, atol=1e-7)


@pytest.mark.usefixtures("few")
def test_a_single_run_of_a_few_vectors_takes_half_the_products():
    one, two = (
        solved(bulk(2.0, 1.5, 1.2), End.largest, tolerance=1e-4, starts=starts)[0]
        for starts in (1, 2)
    )
    assert one.converged
    assert float(one.values[0]) == pytest.approx(2.0, rel=1e-4)
    assert one.products <= 0.6 * two.products


@pytest.mark.long
@pytest.mark.usefixtures("few")
def test_both_vectors_of_a_double_eigenvalue_are_found():
    result, _ = solved(bulk(2.0, 2.0, 1.2), End.largest, k=2, tolerance=1e-5)
    assert result.converged
    assert result.values.tolist() == pytest.approx([2.0, 2.0], rel=1e-5)
    gram = result.vectors.double().T @ result.vectors.double()
    assert_close(gram, torch.eye(2, dtype=torch.float64), rtol=0, atol=1e-5)


def test_many_vectors_agree_with_float64():
    values = bulk(2.0, -3.0)
    result, _ = solved(values, End.largest, tolerance=1e-5)
    exact = extremes(
        Diagonal(values.tolist()),
        End.largest,
        tolerance=1e-5,
        generator=stream(0, "long"),
    )
    assert result.converged
    assert float(result.values[0]) == pytest.approx(float(exact.values[0]), rel=1e-6)
    assert result.scale == pytest.approx(3.0, rel=1e-4)
    assert exact.vectors.dtype == torch.float64


@pytest.mark.parametrize(("dim", "k"), [(10**7, 1), (10**9, 1), (10**7, 9)])
def test_the_bases_of_both_runs_stay_within_the_stated_number(dim, k):
    (first, second), remaining = long_sizes(Goal(End.largest, k, 1e-3, 100), dim)
    most = max(12, 3 * k + 6)
    assert first + 2 <= most
    assert remaining + second + 2 <= most
    assert second >= 2 * k + 2
    assert remaining > k


def test_sums_in_bands_are_those_in_float64():
    """To a digit that float32 has not."""
    rows = torch.randn(3, DIM, generator=stream(1))
    vector = torch.randn(DIM, generator=stream(2))
    exact = rows.double()
    sizes = exact.norm(dim=1) * vector.double().norm()
    off = (dots(rows, vector) - exact @ vector.double()).abs()
    assert bool((off < 1e-8 * sizes).all())
    assert length(vector) == pytest.approx(float(vector.double().norm()), rel=1e-8)
    gram, product = grams(rows, [2 * row for row in rows])
    assert_close(gram, exact @ exact.T, rtol=1e-12, atol=1e-9)
    assert_close(product, 2 * gram)


def test_starts_and_probes_are_those_of_float64():
    single, double = (
        drawn(torch.empty(0, dtype=d), 2**17 + 32, stream(4))
        for d in (torch.float32, torch.float64)
    )
    assert torch.equal(single, double.float())
    signs = rademacher(7, 3, generator=stream(5), dtype=torch.int8)
    # As drawn by 0.3.0, all at once.
    bits = torch.randint(0, 2, (3, 7), generator=stream(5))
    assert torch.equal(signs, (2 * bits - 1).T.to(torch.int8))


def test_only_long_vectors_of_other_networks_are_float32():
    own = toy_problem(ARCHITECTURES["pre"]).network
    other = nn.Linear(2, 2)
    types = {}
    for name, one in (("own", own), ("other", other)):
        types[name] = recurrence_like(one, torch.float32, LONG).dtype
    assert types == {"own": torch.float64, "other": torch.float32}
    assert recurrence_like(other, torch.float32, LONG - 1).dtype == torch.float64
    assert recurrence_like(other, torch.float64, LONG).dtype == torch.float64


@pytest.mark.parametrize("rows", [3, 32])
def test_rotations_have_the_same_bits_in_bands_of_any_length(rows, monkeypatch):
    generator = torch.Generator().manual_seed(0)
    basis = torch.randn(rows, 70_001, generator=generator)
    turn = torch.randn(rows, rows, generator=generator, dtype=torch.float64)
    coefficients = torch.linalg.qr(turn)[0][:, : rows - 1]
    found = []
    for cached in (vectors._CACHED, 2**30, 1):
        monkeypatch.setattr(vectors, "_CACHED", cached)
        rotate(turned := basis.clone(), coefficients)
        found.append(turned)
    assert torch.equal(found[0], found[1])
    assert torch.equal(found[0], found[2])
    assert torch.equal(found[0][rows - 1], basis[rows - 1])
    whole = coefficients.T @ basis.double()
    assert torch.allclose(found[0][: rows - 1].double(), whole, rtol=1e-6, atol=1e-7)
