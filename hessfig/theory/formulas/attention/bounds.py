"""Spectral-norm bounds on the attention Hessian: per block, whole, by token diameter; a published one.

x, q, k, v are the spectral norms of X, W_Q, W_K, W_V; D = F - Y has rows d_i, rho = max |d_i|, c = 2/(L d_V),
s = 1/sqrt(d_K). With mu >= ||A X||_2, m_2 >= ||M2_i||_2 and m_3 >= sup_u |E (u.z)^3| of every row:

    VV: c mu^2                QQ: c s^2 k^2 x^2 (m_2^2 v^2 + m_3 v rho)             KK: k -> q
    VQ: c s k x m_2 (mu v + ||D||_2)                                                VK: k -> q
    QK: c s^2 q k x^2 (m_2^2 v^2 + m_3 v rho) + c s x m_2 v ||D||_F

A variable in an interval of length R has variance <= R^2/4 and third central moment <= R^3/(6 sqrt(3)).
Projected tokens lie in an interval of length sqrt(2) x; the token diameter max |x_j - x_k| is no larger.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.formulas.attention.softmax import MATRICES, AttentionPoint
from hessfig.theory.formulas.moments import softmax_jacobian

Pair = tuple[Matrix, Matrix]
Q, K, V = MATRICES


@dataclass(frozen=True)
class Spread:
    """What a bound assumes about attention-weighted tokens: mu, m_2 and m_3 of the module docstring."""

    mixed: float
    second: float
    third: float


def spread_from_norm(point: AttentionPoint) -> Spread:
    """From ||X||_2 alone: sqrt(L) x, x^2/2, sqrt(6) x^3/9."""
    x = spectral_norm(point.X)
    return _spread(math.sqrt(len(point.X)) * x, math.sqrt(2) * x)


def spread_from_diameter(point: AttentionPoint) -> Spread:
    """From the token diameter R and the mixed tokens themselves: ||A X||_2, R^2/4, R^3/(6 sqrt(3))."""
    return _spread(spectral_norm(point.M1), float(torch.cdist(point.X, point.X).max()))


def block_bounds(point: AttentionPoint, spread: Spread, part: Part = Part.H) -> dict[Pair, float]:
    """A bound on the spectral norm of every block; the functional part of (V, V) is zero."""
    if part == Part.H:
        outer, functional = (block_bounds(point, spread, p) for p in (Part.H_o, Part.H_f))
        return {pair: outer[pair] + functional[pair] for pair in outer}
    x, c, s = spectral_norm(point.X), point.c, point.score_scale
    pull = {Q: spectral_norm(point.weights[K]), K: spectral_norm(point.weights[Q])}
    core, values, hollow = _factors(point, spread, part)
    scores = {(a, b): c * s**2 * x**2 * pull[a] * pull[b] * core for a in pull for b in pull}
    for pair in ((Q, K), (K, Q)):
        scores[pair] += c * s * x * hollow
    mixed = {pair: c * s * x * spread.second * pull[a] * values for a in pull for pair in ((V, a), (a, V))}
    return {**scores, **mixed, (V, V): c * spread.mixed**2 if part == Part.H_o else 0.0}


def whole_bound(blocks: dict[Pair, float]) -> float:
    """The spectral norm of the 3 x 3 matrix of block bounds bounds that of the whole."""
    rows = [[blocks[a, b] for b in MATRICES] for a in MATRICES]
    return spectral_norm(torch.tensor(rows, dtype=torch.float64))


def true_norms(point: AttentionPoint, part: Part = Part.H) -> tuple[dict[Pair, float], float]:
    """The spectral norms the bounds are about: of every block, and of the whole."""
    blocks = {(a, b): point.hessian(part, a, b) for a, b in combinations_with_replacement(MATRICES, 2)}
    blocks |= {(b, a): block.T for (a, b), block in blocks.items()}
    whole = torch.cat([torch.cat([blocks[a, b] for b in MATRICES], dim=1) for a in MATRICES])
    return {pair: spectral_norm(block) for pair, block in blocks.items()}, spectral_norm(whole)


def published_terms(point: AttentionPoint) -> dict[Pair, float]:
    """The four block terms of arXiv 2510.16927, Theorem 1 (one head, r = min(L, d_V), rho' = L x v +
    ||Y||_2).

    NOTE(paper): there is no term for (K, K) or (V, K), so W_Q -> t W_Q, W_K -> W_K/t, which leaves the
    network as it is, breaks the bound for large t; and the step ||dA/dT||_2 <= 1/L of its proof is false.
    """
    L, d_V = point.X.shape
    d_K = point.weights[Q].shape[1]
    x, q, k, v = (spectral_norm(m) for m in (point.X, *(point.weights[m] for m in MATRICES)))
    root, far = math.sqrt(min(L, d_V)), L * x * v + spectral_norm(point.Y)
    mixed = v * (3 * L * k * q * x**5 + d_V / L * x**3)
    return {
        (V, V): 2 * L / d_V * x**2,
        (Q, Q): 8 / (L**3 * d_V * d_K) * k**2 * v**2 * x**6 + 12 / (d_V * d_K) * root * far * v * k**2 * x**5,
        (V, Q): 4 / (L * d_V * math.sqrt(d_K)) * v * k * x**4
        + 4 * root / (L**2 * math.sqrt(d_K)) * far * k * x**3,
        (Q, K): 8 / (L**3 * d_V * d_K) * k * q * v**2 * x**6
        + 4 * root * far / (L * d_V * math.sqrt(d_K)) * mixed,
    }


def published_bound(point: AttentionPoint) -> float:
    """Three times the largest of the four terms (arXiv 2510.16927, Theorem 1)."""
    return 3 * max(published_terms(point).values())


def softmax_jacobian_excess(point: AttentionPoint) -> float:
    """||dA/dT||_2 times L: the published proof takes it to be at most 1; any L allows up to L/2."""
    return spectral_norm(softmax_jacobian(point.A)) * len(point.X)


def spectral_norm(matrix: Float[Tensor, "n m"]) -> float:
    """The largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def _spread(mixed: float, interval: float) -> Spread:
    return Spread(mixed=mixed, second=interval**2 / 4, third=interval**3 / (6 * math.sqrt(3)))


def _factors(point: AttentionPoint, spread: Spread, part: Part) -> tuple[float, float, float]:
    """Per part: what multiplies s^2 x^2 |.| |.| in query-key blocks, s x m_2 in value blocks, s x in (Q,
    K).
    """
    v = spectral_norm(point.weights[V])
    if part == Part.H_o:
        return spread.second**2 * v**2, spread.mixed * v, 0.0
    D = point.residual
    farthest = float(torch.linalg.vector_norm(D, dim=1).max())
    hollow = spread.second * v * float(torch.linalg.matrix_norm(D))
    return spread.third * v * farthest, spectral_norm(D), hollow
