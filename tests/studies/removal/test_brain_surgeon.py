"""Surgeon's formulas against brute force on quadratics; GPTQ against solving for the rest after every weight."""

import pytest
import torch

from hessfig.studies.removal.brain_surgeon import (
    RowGrids,
    compensated,
    damped_inverse,
    gptq,
    obd,
    obs,
    obs_of_group,
    surgery,
    zeroed,
)

SIZE = 7


def quadratic(seed=0):
    """Return weights and a positive definite matrix."""
    generator = torch.Generator().manual_seed(seed)
    factor = torch.randn(SIZE, SIZE + 2, dtype=torch.float64, generator=generator)
    return torch.randn(
        SIZE, dtype=torch.float64, generator=generator
    ), factor @ factor.T


def rise(matrix, step):
    return float(step @ matrix @ step) / 2


def minimised(weights, matrix, gone):
    """Return the weights of least rise with those in `gone` at zero, by Newton's method over all others."""
    left = torch.tensor(
        [place for place in range(len(weights)) if place not in gone], dtype=torch.long
    )
    free = weights[left].clone().requires_grad_()

    def loss(values):
        step = torch.zeros_like(weights).index_put((left,), values) - weights
        return step @ matrix @ step / 2

    for _ in range(3):
        (slope,) = torch.autograd.grad(loss(free), free)
        curvature = torch.autograd.functional.hessian(loss, free.detach())
        free = (free - torch.linalg.solve(curvature, slope)).detach().requires_grad_()
    return torch.zeros_like(weights).index_put((left,), free.detach())


def test_saliencies_are_the_rises_of_a_quadratic():
    weights, matrix = quadratic()
    inverse = torch.linalg.inv(matrix)
    singles = obd(weights, matrix.diagonal())
    joint = obs(weights, inverse)
    moved = compensated(weights, inverse)
    for place in range(SIZE):
        alone = weights.clone()
        alone[place] = 0
        best = minimised(weights, matrix, [place])
        assert rise(matrix, alone - weights) == pytest.approx(
            float(singles[place]), abs=1e-10
        )
        assert rise(matrix, best - weights) == pytest.approx(
            float(joint[place]), abs=1e-8
        )
        torch.testing.assert_close(moved[place], best, atol=1e-8, rtol=0)
    for gone in ([0, 3], [1, 2, 5, 6]):
        found = obs_of_group(weights, inverse, torch.tensor(gone))
        assert found == pytest.approx(
            rise(matrix, minimised(weights, matrix, gone) - weights), abs=1e-8
        )


def test_surgery_is_the_minimum_over_the_weights_that_are_left():
    weights, matrix = quadratic(1)
    counts = [0, 1, 3, 6]
    path = list(surgery(weights, torch.linalg.inv(matrix), counts))
    torch.testing.assert_close(path[0], weights)
    order = []
    for count, found in zip(counts, path, strict=True):
        gone = (found == 0).nonzero().flatten().tolist()
        assert len(gone) == count
        assert set(order) <= set(gone)
        torch.testing.assert_close(
            found, minimised(weights, matrix, gone), atol=1e-8, rtol=0
        )
        order = gone
    *_, nothing = surgery(weights, torch.linalg.inv(matrix), [3, SIZE])
    assert not nothing.any()
    (first,) = (path[1] == 0).nonzero().flatten().tolist()
    assert first == int(obs(weights, torch.linalg.inv(matrix)).argmin())


def test_an_order_removes_its_first_weights():
    weights = torch.tensor([1.0, 2.0, 3.0, 4.0])
    found = zeroed(weights, torch.tensor([2, 0, 3, 1]), [0, 1, 3])
    assert found.tolist() == [[1, 2, 3, 4], [1, 2, 0, 4], [0, 2, 0, 0]]


def test_an_indefinite_matrix_is_inverted_by_the_sizes_of_its_eigenvalues():
    vectors = torch.linalg.qr(quadratic(2)[1]).Q
    values = torch.tensor([-5.0, -1.0, 0.0, 1.0, 2.0, 3.0, 4.0], dtype=torch.float64)
    matrix = vectors @ values.diag() @ vectors.T
    shift = 0.1 * float(matrix.diagonal().abs().mean())
    expected = vectors @ (1 / (values.abs() + shift)).diag() @ vectors.T
    torch.testing.assert_close(damped_inverse(matrix, 0.1), expected)
    definite = quadratic(3)[1]
    shifted = definite + 0.1 * definite.diagonal().mean() * torch.eye(
        SIZE, dtype=torch.float64
    )
    torch.testing.assert_close(damped_inverse(definite, 0.1), torch.linalg.inv(shifted))
    assert damped_inverse(torch.zeros(2, 2), 0.1).tolist() == [[1, 0], [0, 1]]


def test_a_matrix_that_is_not_finite_makes_numbers_that_are_not():
    lost = damped_inverse(torch.full((SIZE, SIZE), torch.inf, dtype=torch.float64), 0.1)
    weights = quadratic()[0]
    assert lost.isnan().all()
    assert obs(weights, lost).isnan().all()
    assert compensated(weights, lost).isnan().any()
    assert torch.tensor(obs_of_group(weights, lost, torch.tensor([1, 2]))).isnan()
    assert list(surgery(weights, lost, [0, 2]))[1].isnan().any()
    assert gptq(weights, lost, RowGrids([weights[None]], 3)).isnan().any()


@pytest.mark.parametrize("bits", [1, 3, 8])
def test_levels_of_a_row_are_the_nearest_of_all(bits):
    rows = torch.randn(
        3, 5, generator=torch.Generator().manual_seed(bits), dtype=torch.float64
    )
    rows[1] = 0
    rows[2] = rows[2].abs()  # the grid reaches zero all the same
    found = RowGrids([rows], bits)(rows.flatten()).view_as(rows)
    for row, rounded in zip(rows, found, strict=True):
        low = min(float(row.min()), 0.0)
        high = max(float(row.max()), 0.0)
        scale = (high - low) / (2**bits - 1)
        levels = (
            scale * (torch.arange(2**bits) - round(-low / scale))
            if scale
            else torch.zeros(1)
        )
        nearest = (row[:, None] - levels).abs().min(dim=1).values
        torch.testing.assert_close((row - rounded).abs(), nearest)
    assert float(found[1].abs().max()) == 0


def test_gptq_moves_what_is_left_to_its_minimum_after_every_weight():
    """After each weight is fixed, GPTQ's later weights are those of least rise given all that are fixed so far."""
    weights, matrix = quadratic(4)
    grid = RowGrids([weights[None]], 3)
    current = weights.clone()
    fixed = []
    for place in range(SIZE):
        current[place] = grid(current[place], place)
        fixed.append(place)
        later = [one for one in range(SIZE) if one not in fixed]
        step = (current - weights)[fixed]
        if later:
            current[later] = weights[later] - torch.linalg.solve(
                matrix[later][:, later], matrix[later][:, fixed] @ step
            )
    torch.testing.assert_close(
        gptq(weights, torch.linalg.inv(matrix), grid), current, atol=1e-8, rtol=0
    )
