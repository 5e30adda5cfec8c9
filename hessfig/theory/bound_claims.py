"""Statements about ranks of blocks and bounds on their norms."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import product

import torch
from torch import Tensor

from hessfig.terms import PARTS, Matrix, Part
from hessfig.theory import attention_formulas as qk
from hessfig.theory import further_formulas as bounds
from hessfig.theory.attention_claims import score_split
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.further_formulas import Spread
from hessfig.theory.statement import Check, Dims, Values, attention_point, normal

Q = Matrix.W_Q


def _pairs_oracle(point: AttentionPoint) -> Values:
    eigenvalues = torch.linalg.eigvalsh(score_split(point, Part.H_f))
    d_K = point.weights[Q].shape[1]
    return {
        "eigenvalues": eigenvalues,
        "minus the reversed eigenvalues": eigenvalues,
        "multiplicities modulo d_K": torch.tensor([size % d_K for size in qk.multiplicities(eigenvalues)]),
        "smallest multiplicity": torch.tensor(min(qk.multiplicities(eigenvalues))),
    }


def _pairs_printed(point: AttentionPoint) -> Values:
    eigenvalues = qk.score_functional_eigenvalues(point)
    groups = len(qk.multiplicities(eigenvalues))
    return {
        "eigenvalues": eigenvalues,
        "minus the reversed eigenvalues": -torch.linalg.eigvalsh(score_split(point, Part.H_f)).flip(0),
        "multiplicities modulo d_K": torch.zeros(groups, dtype=torch.int64),
        "smallest multiplicity": torch.tensor(point.weights[Q].shape[1]),
    }


def _lemma_d1_draw(dims: Dims, generator: torch.Generator) -> list[tuple[Tensor, Tensor]]:
    """Pairs of every rank up to full."""
    full = [(normal(dims.L, dims.d_V, generator=generator), normal(dims.d_K, dims.d_ff, generator=generator))]
    ranks = [(a, b) for a in range(1, min(full[0][0].shape) + 1) for b in range(1, min(full[0][1].shape) + 1)]
    return [(_truncate(full[0][0], a), _truncate(full[0][1], b)) for a, b in ranks]


def _truncate(matrix: Tensor, rank: int) -> Tensor:
    U, values, Vh = torch.linalg.svd(matrix, full_matrices=False)
    return U[:, :rank] @ torch.diag(values[:rank]) @ Vh[:rank]


def _lemma_d2_draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """A short sequence, where tokens limit the rank, and a long one, where the weights do."""
    lengths = (dims.L, dims.d_V + 3)
    return [attention_point(Dims(L, dims.d_V, dims.d_K, dims.d_ff), generator) for L in lengths]


def _exceeding(points: list[AttentionPoint], *bounds: Callable[[int, int, int], int]) -> Tensor:
    excess = []
    for point in points:
        (L, d_V), d_K = point.X.shape, point.weights[Q].shape[1]
        rank = qk.numerical_rank(score_split(point, Part.H_o))
        excess.append(max(0, rank - min(bound(L, d_V, d_K) for bound in bounds)))
    return torch.tensor(excess)


def _lemma_bound(L: int, d_V: int, d_K: int) -> int:
    return qk.rank_bound(d_V, d_K)


def _token_bound(L: int, d_V: int, d_K: int) -> int:
    return qk.token_rank_bound(L, d_V)


RANKS = {
    "D-pairs": Check(attention_point, _pairs_oracle, _pairs_printed),
    "lemD1": Check(
        _lemma_d1_draw,
        lambda d: {"rank": torch.tensor([qk.numerical_rank(qk.stacked_kronecker(*pair)) for pair in d])},
        lambda d: {"rank": torch.tensor([qk.stacked_kronecker_rank(*pair) for pair in d])},
    ),
    "lemD2": Check(
        _lemma_d2_draw,
        lambda d: {"excess": torch.zeros(len(d), dtype=torch.int64)},
        lambda d: {"excess": _exceeding(d, _lemma_bound)},
        lambda d: {"excess": _exceeding(d, _lemma_bound, _token_bound)},
    ),
}


SCALES = (0.1, 1.0, 10.0)
SLACK = 1 + 1e-12
RESCALING = 1e4


def _draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """Every combination of small, plain and large tokens, query-key weights and targets."""
    points = [(attention_point(dims, generator), scales) for scales in product(SCALES, repeat=3)]
    return [scaled(point, *scales) for point, scales in points]


def scaled(point: AttentionPoint, tokens: float, query_key: float, targets: float) -> AttentionPoint:
    """The same point with X, (W_Q, W_K) and Y multiplied by these factors."""
    weights = {m: w if m == Matrix.W_V else query_key * w for m, w in point.weights.items()}
    return AttentionPoint(tokens * point.X, targets * point.Y, weights)


def _none(points: list[AttentionPoint]) -> Values:
    return {"violations": torch.tensor(0)}


def _violations(spread: Callable[[AttentionPoint], Spread], points: list[AttentionPoint]) -> Values:
    return {"violations": torch.tensor(sum(_violated(point, spread(point)) for point in points))}


def _violated(point: AttentionPoint, spread: Spread) -> int:
    """How many of the nine blocks of each part, and of the wholes, exceed their bound."""
    count = 0
    for part in PARTS:
        claimed, (blocks, whole) = bounds.block_bounds(point, spread, part), bounds.true_norms(point, part)
        count += sum(blocks[pair] > claimed[pair] * SLACK for pair in blocks)
        count += whole > bounds.whole_bound(claimed) * SLACK
    return count


def _published(points: list[AttentionPoint]) -> Values:
    exceeded = [bounds.true_norms(point)[1] > bounds.published_bound(point) * SLACK for point in points]
    return {"violations": torch.tensor(sum(exceeded))}


def _published_step(points: list[AttentionPoint]) -> Values:
    return {"violations": torch.tensor(sum(bounds.softmax_jacobian_excess(point) > SLACK for point in points))}


def _rescaled_draw(dims: Dims, generator: torch.Generator) -> list[AttentionPoint]:
    """The same network written with a large W_Q and a small W_K."""
    point = attention_point(dims, generator)
    factors = {Matrix.W_Q: RESCALING, Matrix.W_K: 1 / RESCALING, Matrix.W_V: 1.0}
    return [AttentionPoint(point.X, point.Y, {m: factors[m] * w for m, w in point.weights.items()})]


BOUNDS = {
    "bound": Check(
        _draw, _none, None, partial(_violations, bounds.spread_from_norm), numbers={"scales": len(SCALES) ** 3}
    ),
    "bound-diameter": Check(_draw, _none, None, partial(_violations, bounds.spread_from_diameter)),
    "bound-2510": Check(_draw, _none, _published),
    "bound-2510-keys": Check(
        _rescaled_draw, _none, _published, partial(_violations, bounds.spread_from_norm), numbers={"t": RESCALING}
    ),
    "bound-2510-step": Check(_draw, _none, _published_step, numbers={"scales": len(SCALES) ** 3}),
}
