"""Checks of products notice an error in any single row, in every type."""

import pytest
import torch

from hessfig.curvature import batched
from hessfig.curvature.gradients import LossGradient, WholeHessian
from tests.toys import ARCHITECTURES, toy_problem


@pytest.mark.parametrize("row", range(3))
def test_a_wrong_row_under_vmap_is_pulled_back_alone(monkeypatch, row):
    weights = torch.tensor([1.0, 2.0, 3.0], dtype=torch.float64, requires_grad=True)
    right = batched._pulled

    def wrong(outputs, vectors, at):
        (rows,) = right(outputs, vectors, at)
        rows = rows.clone()
        rows[row] *= 1.1
        return [rows]

    monkeypatch.setattr(batched, "_pulled", wrong)
    vectors = torch.eye(3, dtype=torch.float64)
    found = batched.pulled_back(weights**2, [weights], vectors)
    assert found.equal(torch.diag(2 * weights.detach()))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_tenth_of_asymmetry_is_refused_in_every_type(dtype):
    problem = toy_problem(ARCHITECTURES["heads"]).cast(dtype)
    hessian = WholeHessian(LossGradient(problem))
    hessian.check_symmetric(0.0, 1.0)
    with pytest.raises(ArithmeticError, match="not symmetric"):
        hessian.check_symmetric(0.1, 1.0)
