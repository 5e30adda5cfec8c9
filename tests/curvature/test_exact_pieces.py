"""The pieces of the exact engine: LayerNorm's derivatives, the tail, Gram matrices of items, what is supported."""

import itertools
import subprocess
import sys

import pytest
import torch
from torch import nn
from torch.func import hessian, jacrev, vmap

from hessfig.config.enums import MLP, Norm
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.blocks import matrices_of
from hessfig.models.exact import kronecker
from hessfig.models.exact.costs import exact_cost
from hessfig.models.exact.kronecker import (
    ItemMatrices,
    has_repeats,
    labels_of,
    one_of_each,
)
from hessfig.models.exact.scored_attention import LastLayer
from hessfig.models.exact.scored_layer import LayerNormAt, ScoredPlace
from hessfig.models.exact.support import Level, Route, check_exact, exactness
from hessfig.terms import Block, Matrix, Part
from tests.daily import thinned
from tests.draws import draws
from tests.toys import ARCHITECTURES, PAPER, toy_problem


def draw(*shape, seed=0):
    return draws(*shape, seed=seed)


def close(found, oracle):
    return torch.allclose(found, oracle, rtol=1e-10, atol=1e-12)


@pytest.fixture
def norm():
    norm = nn.LayerNorm(5, eps=1e-2, dtype=torch.float64).requires_grad_(False)
    norm.weight.copy_(draw(5, seed=1))
    norm.bias.copy_(draw(5, seed=2))
    return norm


def test_layernorm_and_its_derivatives_match_autograd(norm):
    rows = draw(3, 5)
    columns = draw(3, 5, 2, seed=3)
    gradient = draw(3, 5, seed=4)
    at = LayerNormAt(norm, rows)
    jacobian = vmap(jacrev(norm))(rows)
    second = vmap(lambda row, g: hessian(lambda x: (g * norm(x)).sum())(row))(
        rows, gradient
    )
    assert close(at.output, norm(rows))
    assert close(at.push(columns), jacobian @ columns)
    assert close(at.pull(columns.mT), columns.mT @ jacobian)
    assert close(at.bend(gradient, columns), second @ columns)


@pytest.mark.parametrize(
    ("norm_", "mlp"), thinned(list(itertools.product(PAPER.norms, PAPER.mlps)), 2)
)
def test_tail_matches_autograd(norm_, mlp):
    model = ModelConfig(d_model=4, d_mlp=5, norm=norm_, mlp=mlp)
    problem = toy_problem(model)
    layer = LastLayer(problem, model)
    block = problem.network.layers[-1]
    network = problem.network
    attended = block.attn.o(layer.mixed)

    def logits(a, stream):
        residual = (stream + a)[None, None]
        residual = block.ln1(residual) if norm_ == Norm.post else residual
        residual = block.feed_forward(residual) if block.has_mlp else residual
        return network.head(network.ln_out(residual))[0, 0]

    jacobian = vmap(jacrev(logits))(attended, layer.mixing.stream)
    assert close(layer.ahead.logits_by_attended.expand_as(jacobian), jacobian)
    curvature = vmap(lambda a, x, g: hessian(lambda b: (g * logits(b, x)).sum())(a))
    oracle = curvature(
        attended, layer.mixing.stream, layer.gradients[ScoredPlace.logits]
    )
    found = layer.ahead.curvature(layer.gradients)
    assert close(torch.zeros_like(oracle) if found is None else found, oracle)
    assert (found is None) == (norm_ == Norm.none and mlp != MLP.gelu)


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


def test_crossed_products_match_the_tensors_they_stand_for():
    items = 4
    v = 3
    m = 5
    f = 2
    M = ItemMatrices(((None, draw(items, m, f)),))
    N = ItemMatrices(((None, draw(items, v, f, seed=1)),))
    c = draw(items, v, seed=2)
    e = draw(items, m, seed=3)
    weights = draw(items, items, seed=4)
    plain = torch.einsum("nv,nmf->nvmf", c, M.block(slice(None), slice(None))).flatten(
        1
    )
    crossed = torch.einsum(
        "nm,nvf->nvmf", e, N.block(slice(None), slice(None))
    ).flatten(1)
    oracle = (weights * (plain @ crossed.T)).sum()
    assert close(kronecker.cross_product(weights, (M, c), (N, e)), oracle)


def test_merging_sums_items_of_equal_inputs():
    inputs = draw(3, 4)[[0, 1, 0, 2, 1]]
    labels = labels_of(inputs)
    matrices = ItemMatrices(((draw(5, 2, 3), draw(5, 2, 3, seed=1)),))
    formed = matrices.block(slice(None), slice(None))
    merged = matrices.merged(labels).block(slice(None), slice(None))
    assert has_repeats(labels)
    assert not has_repeats(labels_of(draw(5, 4)))
    assert close(one_of_each(inputs, labels)[labels], inputs)
    assert close(merged[labels[0]], formed[0] + formed[2])
    assert close(merged.sum(dim=0), formed.sum(dim=0))


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
