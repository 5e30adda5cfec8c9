"""The scalar-token model of the talk as a network: its measured spectrum is the closed form."""

import math

import numpy as np
import pytest
import torch
from torch import nn

import hessfig
from hessfig.rng import stream
from hessfig.theory.scalar_formulas import (
    MIXINGS,
    draw_scalar_problem,
    scalar_outer_product,
)


class ScalarTokens(nn.Module):
    """f(x) = w_V m(s), s = w_Q . w_K / sqrt(d_K): tokens are numbers, and all of a sequence is one sample."""

    def __init__(self, problem, model):
        super().__init__()
        self.w_V = nn.Parameter(torch.tensor([problem.w_V], dtype=torch.float64))
        self.w_Q = nn.Parameter(problem.w_Q.clone())
        self.w_K = nn.Parameter(problem.w_K.clone())
        self.mixing = MIXINGS[model]

    def forward(self, x):
        s = self.w_Q @ self.w_K / math.sqrt(len(self.w_Q))
        return torch.stack([self.w_V * self.mixing(one)(s) for one in x])


@pytest.mark.parametrize("model", MIXINGS)
@pytest.mark.parametrize("seed", [0, 1])
def test_the_measured_spectrum_is_the_closed_form(model, seed):
    scalar = draw_scalar_problem(8, 6, stream(seed, "scalar tokens"))
    problem = hessfig.Problem(
        ScalarTokens(scalar, model), scalar.x[None], scalar.y[None], loss="mse"
    )
    table = hessfig.measure(
        problem,
        blocks=["all"],
        parts=["H", "H_o"],
        quantities=["spectrum"],
        spectrum={"k": 2},
    )
    found = table.attrs["arrays"]["spectrum"]
    response = scalar.response(model)
    truth = [
        scalar.hessian(response),
        scalar_outer_product(response, scalar.w_V, scalar.w_Q, scalar.w_K),
    ]
    for k, closed in enumerate(truth):
        values = closed.eigenvalues.numpy()
        np.testing.assert_allclose(
            found[f"eigenvalues_{k}"], values, rtol=0, atol=1e-10 * np.abs(values).max()
        )


def test_lanczos_finds_the_ends_of_the_closed_form_and_their_copies():
    """The bulk has d_K - 1 copies of b and of -b: three from either end, of which some are copies."""
    scalar = draw_scalar_problem(8, 6, stream(3, "scalar tokens"))
    problem = hessfig.Problem(
        ScalarTokens(scalar, "attention"), scalar.x[None], scalar.y[None], loss="mse"
    )
    names = ["largest_eigenvalue", "smallest_eigenvalue"]
    table = hessfig.measure(
        problem, blocks=["all"], parts=["H"], quantities=names, spectrum={"k": 5}
    )
    truth = scalar.hessian(scalar.response("attention")).eigenvalues.numpy()
    for name, expected in zip(names, (truth[::-1][:5], truth[:5]), strict=True):
        rows = table[table["quantity"] == name]
        assert set(rows["status"]) == {"ok"}
        assert list(rows["index"]) == [1, 2, 3, 4, 5]
        np.testing.assert_allclose(
            rows["value"], expected, rtol=0, atol=1e-6 * np.abs(truth).max()
        )
