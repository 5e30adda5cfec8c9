"""The pieces of the exact engine: LayerNorm's derivatives, the tail, Gram matrices of items, what is supported."""

import itertools
import subprocess
import sys

import pytest
import torch

from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.blocks import matrices_of
from hessfig.models.exact import kronecker
from hessfig.models.exact.costs import exact_cost
from hessfig.models.exact.kronecker import ItemMatrices
from hessfig.models.exact.support import Level, Route, check_exact, exactness
from hessfig.terms import Block, Matrix, Part
from tests.draws import draws
from tests.toys import ARCHITECTURES


def draw(*shape, seed=0):
    return draws(*shape, seed=seed)


def close(found, oracle):
    return torch.allclose(found, oracle, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("symmetric", [True, False])
def test_gram_by_factors_and_by_entries_agree(symmetric):
    left = draw(140, 2, 60)
    matrices = ItemMatrices(((left, left if symmetric else draw(140, 2, 50, seed=1)),))
    weights = draw(140, 140, seed=2) + draw(140, 140, seed=2).T
    formed = matrices.block(slice(None), slice(None)).flatten(1)
    oracle = (weights * (formed @ formed.T)).sum()
    assert close(kronecker._by_factors(weights, matrices), oracle)
    assert close(kronecker._by_entries(weights, matrices, symmetric), oracle)
    assert close(
        kronecker.kronecker_squared_norm(weights, matrices, symmetric=symmetric), oracle
    )


def test_support_needs_no_torch():
    code = "import sys, hessfig.models.exact.support; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_what_is_supported():
    model = ModelConfig(n_layers=3)
    diagonal = {matrix: Block(1, matrix, matrix) for matrix in matrices_of(model)}
    assert (
        exactness(model, Block(3, Matrix.W_V, Matrix.W_Q), Part.H_f).level
        == Level.cheap
    )
    assert exactness(model, diagonal[Matrix.W_Q], Part.H_f).route == Route.scores
    assert exactness(model, diagonal[Matrix.W_V], Part.H_o).route == Route.outputs
    assert exactness(model, diagonal[Matrix.W_V], Part.H).level == Level.unsupported
    assert (
        exactness(model, Block(0, Matrix.W_E, Matrix.W_E), Part.H).route
        == Route.columns
    )
    with pytest.raises(UserError, match=r"no exact H of block \(W_V, W_V\) of layer 1"):
        check_exact(model, diagonal.values(), [Part.H])


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_costs_are_finite_exactly_where_there_is_a_route(name):
    model = ARCHITECTURES[name]
    task = TaskConfig()
    weights = matrices_of(model)
    for layer in range(1, model.n_layers + 1):
        for row, col, part in itertools.product(weights, weights, Part):
            block = Block(layer if row.has_layer or col.has_layer else 0, row, col)
            supported = exactness(model, block, part).level != Level.unsupported
            flops = exact_cost(model, task, block, [part]).flops
            assert flops > 0
            assert (flops < float("inf")) == supported
