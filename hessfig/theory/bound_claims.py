"""Statements about ranks of blocks, about blocks that are Kronecker products, and about bounds on norms."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from itertools import product

import torch
from torch import Tensor

from hessfig.terms import PARTS, Matrix, Part
from hessfig.theory import attention_formulas as qk
from hessfig.theory import autodiff
from hessfig.theory import further_formulas as bounds
from hessfig.theory.attention_claims import score_split
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.further_formulas import SpreadMoments
from hessfig.theory.matrix_formulas import identity, kron
from hessfig.theory.statement import (
    Check,
    Dims,
    Instance,
    Values,
    attention_point,
    attention_weights,
    normal,
)

Q = Matrix.W_Q
V = Matrix.W_V


def _pairs_oracle(point: AttentionPoint) -> Values:
    eigenvalues = torch.linalg.eigvalsh(score_split(point, Part.H_f))
    multiplicities = torch.tensor(qk.multiplicities(eigenvalues))
    return {
        "eigenvalues": eigenvalues,
        "minus the reversed eigenvalues": eigenvalues,
        "multiplicities modulo d_K": multiplicities % point.weights[Q].shape[1],
        "smallest multiplicity": multiplicities.min(),
    }


def _pairs_printed(point: AttentionPoint) -> Values:
    eigenvalues = qk.score_functional_eigenvalues(point)
    measured = torch.linalg.eigvalsh(score_split(point, Part.H_f))
    groups = len(qk.multiplicities(eigenvalues))
    return {
        "eigenvalues": eigenvalues,
        "minus the reversed eigenvalues": -measured.flip(0),
        "multiplicities modulo d_K": torch.zeros(groups, dtype=torch.int64),
        "smallest multiplicity": torch.tensor(point.weights[Q].shape[1]),
    }


def _lemma_d1_draw(
    dims: Dims, generator: torch.Generator
) -> list[tuple[Tensor, Tensor]]:
    """Pairs of every rank up to full."""
    left = _of_every_rank(normal(dims.L, dims.d_V, generator=generator))
    right = _of_every_rank(normal(dims.d_K, dims.d_ff, generator=generator))
    return list(product(left, right))


def _of_every_rank(matrix: Tensor) -> list[Tensor]:
    U, values, Vh = torch.linalg.svd(matrix, full_matrices=False)
    matrices = []
    for rank in range(1, len(values) + 1):
        scaled_columns = U[:, :rank] * values[:rank]
        matrices.append(scaled_columns @ Vh[:rank])
    return matrices


def _ranks(pairs: list[tuple[Tensor, Tensor]]) -> Values:
    """The rank of every stacked Kronecker product, measured."""
    products = [qk.stacked_kronecker(*pair) for pair in pairs]
    return {"rank": torch.tensor([qk.numerical_rank(one) for one in products])}


def _lemma_d2_draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """A short sequence, where tokens limit the rank, and a long one, where the weights do."""
    longer = replace(dims, L=dims.d_V + 3)
    return [attention_point(dims, generator), attention_point(longer, generator)]


def _excess(points: list[AttentionPoint], *, by_tokens: bool = False) -> Values:
    """By how much ranks exceed the bound of the lemma, or (`by_tokens`) the lower one of that and the tokens'."""
    excess = []
    for point in points:
        L, d_V = point.X.shape
        bound = qk.rank_bound(d_V, point.weights[Q].shape[1])
        if by_tokens:
            bound = min(bound, qk.token_rank_bound(L, d_V))
        rank = qk.numerical_rank(score_split(point, Part.H_o))
        excess.append(max(0, rank - bound))
    return {"excess": torch.tensor(excess)}


RANKS = {
    "D-pairs": Check(attention_point, _pairs_oracle, _pairs_printed),
    "lemD1": Check(
        _lemma_d1_draw,
        _ranks,
        lambda d: {
            "rank": torch.tensor([qk.stacked_kronecker_rank(*pair) for pair in d])
        },
    ),
    "lemD2": Check(
        _lemma_d2_draw,
        lambda d: {"excess": torch.zeros(len(d), dtype=torch.int64)},
        _excess,
        partial(_excess, by_tokens=True),
    ),
}


SCALES = (0.1, 1.0, 10.0)
SLACK = 1 + 1e-12
RESCALING = 1e4


def _draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """Every combination of small, plain and large tokens, query-key weights and targets."""
    points = []
    for scales in product(SCALES, repeat=3):
        points.append(scaled(attention_point(dims, generator), *scales))
    return points


def scaled(
    point: AttentionPoint, tokens: float, query_key: float, targets: float
) -> AttentionPoint:
    """The same point with X, (W_Q, W_K) and Y multiplied by these factors."""
    weights = {m: query_key * w for m, w in point.weights.items()}
    weights[V] = point.weights[V]
    return AttentionPoint(tokens * point.X, targets * point.Y, weights)


def _none(points: list[AttentionPoint]) -> Values:
    return {"violations": torch.tensor(0)}


def _violations(
    spread: Callable[[AttentionPoint], SpreadMoments], points: list[AttentionPoint]
) -> Values:
    violated = [_violated(point, spread(point)) for point in points]
    return {"violations": torch.tensor(sum(violated))}


def _violated(point: AttentionPoint, spread: SpreadMoments) -> int:
    """How many of the nine blocks of each part, and of the wholes, exceed their bound."""
    count = 0
    for part in PARTS:
        claimed = bounds.block_bounds(point, spread, part)
        blocks, whole = bounds.true_norms(point, part)
        count += sum(blocks[pair] > claimed[pair] * SLACK for pair in blocks)
        count += whole > bounds.whole_bound(claimed) * SLACK
    return count


def _published(points: list[AttentionPoint]) -> Values:
    exceeded = 0
    for point in points:
        _, whole = bounds.true_norms(point)
        exceeded += whole > bounds.published_bound(point) * SLACK
    return {"violations": torch.tensor(exceeded)}


def _published_step(points: list[AttentionPoint]) -> Values:
    exceeded = sum(bounds.softmax_jacobian_excess(point) > SLACK for point in points)
    return {"violations": torch.tensor(exceeded)}


def _rescaled_draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """The same network written with a large W_Q and a small W_K."""
    point = attention_point(dims, generator)
    weights = dict(point.weights)
    weights[Q] = RESCALING * weights[Q]
    weights[Matrix.W_K] = weights[Matrix.W_K] / RESCALING
    return [AttentionPoint(point.X, point.Y, weights)]


BOUNDS = {
    "bound": Check(
        _draw,
        _none,
        None,
        partial(_violations, bounds.spread_from_norm),
        numbers={"scales": len(SCALES) ** 3},
    ),
    "bound-diameter": Check(
        _draw, _none, None, partial(_violations, bounds.spread_from_diameter)
    ),
    "bound-2510": Check(_draw, _none, _published),
    "bound-2510-keys": Check(
        _rescaled_draw,
        _none,
        _published,
        partial(_violations, bounds.spread_from_norm),
        numbers={"t": RESCALING},
    ),
    "bound-2510-step": Check(
        _draw, _none, _published_step, numbers={"scales": len(SCALES) ** 3}
    ),
}


SEQUENCES = 3
_VALUE = "H_o(W_V, W_V)"
_QUERY = "H_o(W_Q, W_Q)"


def _sequences(dims: Dims, generator: torch.Generator) -> Instance:
    """A batch of sequences, their targets, and the weights of one layer."""
    shape = (SEQUENCES, dims.L, dims.d_V)
    X = normal(*shape, generator=generator)
    Y = normal(*shape, generator=generator)
    return Instance(X, Y, attention_weights(dims, generator))


def _oracle(matrix: Matrix, p: Instance) -> Values:
    def network(weight: Mapping[Matrix, Tensor]) -> Tensor:
        weights = {**p.weights, **weight}
        return torch.stack([autodiff.attention(X, weights) for X in p.X])

    loss = autodiff.square_loss(p.Y)
    single = {matrix: p.weights[matrix]}
    block = autodiff.dense_hessian(network, loss, single, Part.H_o)
    return {f"H_o({matrix}, {matrix})": block}


def _points(p: Instance) -> list[AttentionPoint]:
    return [AttentionPoint(X, Y, p.weights) for X, Y in zip(p.X, p.Y, strict=True)]


def _value_product(p: Instance) -> Values:
    """(c Sum_b M_1b^T M_1b) (x) I, c = 2 / (number of outputs)."""
    width = p.X.shape[-1]
    c = 2 / p.Y.numel()
    inputs = torch.zeros(width, width).double()
    for point in _points(p):
        inputs = inputs + point.M1.T @ point.M1
    return {_VALUE: c * kron(inputs, identity(width))}


def _value_kfac(p: Instance) -> Values:
    """The mean of x x^T over all tokens, (x) the sum of g g^T = c A_ti^2 e_k e_k^T over tokens i and outputs (t, k)."""
    tokens = p.X.flatten(0, 1)
    squares = sum(float(point.A.square().sum()) for point in _points(p))
    outputs = 2 / p.Y.numel() * squares
    inputs = tokens.T @ tokens / len(tokens)
    width = p.X.shape[-1]
    return {_VALUE: outputs * kron(inputs, identity(width))}


def _query_terms(p: Instance) -> list[tuple[Tensor, Tensor]]:
    """x_i x_i^T and (c / d_K) W_K^T M_2,i W_V W_V^T M_2,i W_K of every position of every sequence."""
    W_K = p.weights[Matrix.W_K]
    W_V = p.weights[Matrix.W_V]
    scale = 2 / p.Y.numel() / W_K.shape[1]
    terms = []
    for point in _points(p):
        for x, second in zip(point.X, point.M2, strict=True):
            reach = W_K.T @ second @ W_V
            token = torch.outer(x, x)
            terms.append((token, scale * reach @ reach.T))
    return terms


def _query_product(p: Instance) -> Values:
    """The nearest Kronecker product, from the leading pair of singular vectors of sum vec(P_i) vec(G_i)^T."""
    left, right = map(torch.stack, zip(*_query_terms(p), strict=True))
    rearranged = left.flatten(1).T @ right.flatten(1)
    U, S, Vh = torch.linalg.svd(rearranged, full_matrices=False)
    first = U[:, 0].reshape(left.shape[1:])
    second = Vh[0].reshape(right.shape[1:])
    return {_QUERY: float(S[0]) * kron(first, second)}


def _query_sum(p: Instance) -> Values:
    products = [kron(*term) for term in _query_terms(p)]
    return {_QUERY: torch.stack(products).sum(dim=0)}


KRONECKER = {
    "kron-value": Check(_sequences, partial(_oracle, V), _value_product),
    "kron-value-kfac": Check(
        _sequences, partial(_oracle, V), _value_kfac, _value_product
    ),
    "kron-query": Check(_sequences, partial(_oracle, Q), _query_product, _query_sum),
}
STATEMENTS = {**RANKS, **BOUNDS, **KRONECKER}
