"""The Hessian of the whole model, in the published order and orientation."""

import pytest
import torch

from hessfig.measurements.traces import published_hessian
from hessfig.models.blocks import matrices_of
from hessfig.terms import Matrix, Part
from tests.curvature.oracle import dense_oracle
from tests.toys import ARCHITECTURES, toy_problem

TABLES = (Matrix.W_E, Matrix.W_pos)
ORDER = [
    "W_E",
    "W_pos",
    "W_Q",
    "W_K",
    "W_V",
    "W_O",
    "W_in",
    "b_in",
    "W_out",
    "b_out",
    "W_U",
    "b_U",
]


def test_the_order_is_the_published_one():
    assert published_hessian(toy_problem(ARCHITECTURES["softmax"]))["names"] == ORDER


@pytest.mark.parametrize("name", ["softmax", "linear"])
def test_it_holds_the_oracles_blocks(name):
    problem = toy_problem(ARCHITECTURES[name])
    weights = matrices_of(ARCHITECTURES[name])
    whole = published_hessian(problem)
    oracle = dense_oracle(problem, 1, weights)[Part.H]
    places = dict(zip(whole["names"], _slices(whole["sizes"]), strict=True))
    for row in weights:
        for col in weights:
            found = whole["hessian"][places[row.value], places[col.value]]
            rows_done = _inputs_first(problem.weight(1, row), row, oracle[row, col])
            published = _inputs_first(problem.weight(1, col), col, rows_done.T).T
            torch.testing.assert_close(found, published, rtol=0, atol=1e-13)


def _slices(sizes):
    return [slice(sum(sizes[:i]), sum(sizes[: i + 1])) for i in range(len(sizes))]


def _inputs_first(weight, matrix, block):
    """Reorder the rows of `block` from (outputs, inputs), torch's layout, to (inputs, outputs), the paper's."""
    if matrix in TABLES:
        return block
    return block.unflatten(0, weight.shape).transpose(0, 1).flatten(0, 1)
