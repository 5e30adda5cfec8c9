"""Hessian blocks of linear attention and of several heads, and bounds on their norms.

Linear attention, F = T X W_V with T = X W_Q W_K^T X^T / sqrt(d_K), has F = (L / sqrt(d_K)) X
W_Q W_K^T Sigma W_V with Sigma = X^T X / L, a product in which every weight occurs once: its
blocks are Kronecker products in Sigma alone (H_o), and in Sigma and Omega = X^T D / L
(H_f), and the diagonal blocks of H_f vanish (Remark 4.1).
"""

import math
from dataclasses import dataclass
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.attention_formulas import (
    MATRICES,
    AttentionPoint,
    Blocks,
    Pair,
    jacobians,
)
from hessfig.theory.autodiff import (
    IndexedWeights,
    Weights,
    at_index,
    linear_attention,
    with_sum,
)
from hessfig.theory.matrix_formulas import (
    commutation,
    identity,
    kron,
    shuffle,
    softmax_jacobian,
    vec,
)

Tokens = Float[Tensor, "L d_V"]
Q = Matrix.W_Q
K = Matrix.W_K
V = Matrix.W_V


@dataclass(frozen=True)
class LinearPoint:
    """Data, weights and the two covariances."""

    X: Tokens
    Y: Tokens
    weights: Weights

    @property
    def Sigma(self) -> Float[Tensor, "d_V d_V"]:
        return self.X.T @ self.X / len(self.X)

    @property
    def residual(self) -> Tokens:
        return linear_attention(self.X, self.weights) - self.Y

    @property
    def Omega(self) -> Float[Tensor, "d_V d_V"]:
        return self.X.T @ self.residual / len(self.X)

    @property
    def outer_scale(self) -> float:
        """2 L^2 / (d_V d_K): the loss's 2 / (L d_V), L of X^T X = L Sigma, and (L / sqrt(d_K))^2 of F."""
        d_V, d_K = self.weights[Q].shape
        return 2 * len(self.X) ** 2 / (d_V * d_K)

    @property
    def functional_scale(self) -> float:
        """2 / (d_V sqrt(d_K)): the loss's 2 / (L d_V) times the L / sqrt(d_K) of F."""
        d_V, d_K = self.weights[Q].shape
        return 2 / (d_V * math.sqrt(d_K))


def outer_product_blocks(point: LinearPoint) -> Blocks:
    """H_o of (V,V), (Q,Q), (V,Q), (Q,K) as printed in Remark 4.1.

    For dF = A dW B the Jacobian is A (x) B^T (eq. 15), and H_o has the products A^T A' (x) B
    B'^T of two such.
    """
    W_Q = point.weights[Q]
    W_K = point.weights[K]
    W_V = point.weights[V]
    d_V, d_K = W_Q.shape
    c = point.outer_scale
    S = point.Sigma
    chain = S @ W_K @ W_Q.T @ S
    mixed = chain @ W_Q @ W_K.T @ S
    values = S @ W_V @ W_V.T @ S
    by_keys = W_K.T @ values
    permute = commutation(d_K, d_V)
    return {
        (V, V): c * kron(mixed, identity(d_V)),
        (Q, Q): c * kron(S, by_keys @ W_K),
        (V, Q): c * kron(chain, W_V.T @ S @ W_K),
        (Q, K): c * kron(S @ W_Q, by_keys) @ permute,
    }


def outer_product_key_blocks(point: LinearPoint) -> Blocks:
    """H_o of (K,K) and (V,K), left out of Remark 4.1, with K = K_{d_K,d_V}."""
    W_Q = point.weights[Q]
    W_K = point.weights[K]
    W_V = point.weights[V]
    d_V, d_K = W_Q.shape
    c = point.outer_scale
    S = point.Sigma
    queries = W_Q.T @ S @ W_Q
    values = S @ W_V @ W_V.T @ S
    chain = S @ W_K @ queries
    permute = commutation(d_K, d_V)
    return {
        (K, K): c * permute.T @ kron(queries, values) @ permute,
        (V, K): c * kron(chain, W_V.T @ S) @ permute,
    }


def functional_blocks(point: LinearPoint) -> Blocks:
    """H_f of (V,Q) and (Q,K) as printed in Remark 4.1; the second is read as [(..) S] (x) I."""
    X = point.X
    W_K = point.weights[K]
    W_V = point.weights[V]
    d_V, d_K = W_K.shape
    delta = vec(point.residual)[None, :]
    c = point.functional_scale
    S = point.Sigma
    shuffled = kron(identity(len(X)), shuffle(d_V))
    values = kron(delta, identity(d_V**2)) @ shuffled
    pulled = delta @ kron(X, W_V.T @ S)
    keys = kron(pulled, identity(d_V)) @ shuffle(d_V)
    return {
        (V, Q): c * values @ kron(X, S @ W_K),
        (Q, K): c * kron(keys, identity(d_K)),
    }


def functional_key_block(point: LinearPoint) -> Blocks:
    """H_f of (V,K), left out of Remark 4.1: (delta^T (x) I) (I (x) S) (X W_Q (x) Sigma) K_{d_K,d_V}."""
    X = point.X
    W_Q = point.weights[Q]
    d_V, d_K = W_Q.shape
    c = point.functional_scale
    delta = vec(point.residual)[None, :]
    shuffled = kron(identity(len(X)), shuffle(d_V))
    values = kron(delta, identity(d_V**2)) @ shuffled
    queries = kron(X @ W_Q, point.Sigma)
    return {(V, K): c * values @ queries @ commutation(d_K, d_V)}


def contracted_functional_blocks(point: LinearPoint) -> Blocks:
    """H_f in Omega and Sigma alone: (Q,K) is (2 L/(d_V sqrt(d_K))) (Omega W_V^T Sigma) (x) I_{d_K} (Table 1).

    (V,Q) and (V,K) are the second derivatives of <Omega, W_Q W_K^T Sigma W_V>, an L^2-free
    bilinear form. That is <D, F> up to a factor, since tr(D^T X M) = L tr(Omega^T M).
    """
    W_Q = point.weights[Q]
    W_K = point.weights[K]
    W_V = point.weights[V]
    d_V, d_K = W_Q.shape
    c = len(point.X) * point.functional_scale
    S = point.Sigma
    Omega = point.Omega
    B = Omega @ W_V.T @ S
    left = c * commutation(d_V, d_V)
    keys = kron(Omega.T @ W_Q, S) @ commutation(d_K, d_V)
    return {
        (Q, K): c * kron(B, identity(d_K)),
        (V, Q): left @ kron(Omega.T, S @ W_K),
        (V, K): left @ keys,
    }


O, U = Matrix.W_O, Matrix.W_U  # noqa: E741


def head_jacobians(
    X: Tokens, weights: IndexedWeights, head: int
) -> dict[Matrix, Tensor]:
    """dF/dW^h: the single-head Jacobians of Lemma B.1 with the weights of that head alone (Remark E.1)."""
    return jacobians(AttentionPoint(X, 0 * X, at_index(weights, head)))


def low_rank_blocks(X: Tokens, Y: Tokens, weights: Weights) -> dict[Part, Blocks]:
    """Blocks, by part, of W_O in R^{d_V x r} and W_U in R^{r x d_V}, G = M_1^T M_1, residual D (Appendix E.1):

    H_o(O,O) = c G (x) W_U W_U^T, H_o(U,U) = c W_O^T G W_O (x) I, H_o(O,U) = c G W_O (x)
    W_U, H_f(O,O) = H_f(U,U) = 0, H_f(O,U) = c (M_1^T D (x) I_r) K_{d_V,r}.
    """
    point = low_rank_point(X, Y, weights)
    W_O = weights[O]
    W_U = weights[U]
    r, d_V = W_U.shape
    c = point.c
    G = point.M1.T @ point.M1
    outer = {
        (O, O): c * kron(G, W_U @ W_U.T),
        (U, U): c * kron(W_O.T @ G @ W_O, identity(d_V)),
        (O, U): c * kron(G @ W_O, W_U),
    }
    pulled = c * kron(point.M1.T @ point.residual, identity(r))
    functional = {
        (O, O): 0 * outer[O, O],
        (U, U): 0 * outer[U, U],
        (O, U): pulled @ commutation(d_V, r),
    }
    return with_sum({Part.H_o: outer, Part.H_f: functional})


def low_rank_point(X: Tokens, Y: Tokens, weights: Weights) -> AttentionPoint:
    """The same layer with the product W_V = W_O W_U: its query-key blocks are those of any W_V."""
    full = {
        Matrix.W_Q: weights[Matrix.W_Q],
        Matrix.W_K: weights[Matrix.W_K],
        Matrix.W_V: weights[O] @ weights[U],
    }
    return AttentionPoint(X, Y, full)


@dataclass(frozen=True)
class SpreadMoments:
    """What a bound assumes about attention-weighted tokens.

    Parameters
    ----------
    mixed : float
        mu, at least ||M_1||_2.
    second : float
        m_2, at least ||M_2,i||_2 of every row.
    third : float
        m_3, at least |sum_j A_ij (u . z_ij) (v . z_ij)^2| for unit vectors u, v.
    """

    mixed: float
    second: float
    third: float


def spread_from_norm(point: AttentionPoint) -> SpreadMoments:
    """From x = ||X||_2 alone: sqrt(L) x, x^2/2, sqrt(6) x^3/9.

    Two tokens are at most sqrt(2) x apart, as |X^T (e_j - e_k)| <= sqrt(2) x, and ||A||_2 <=
    sqrt(L).
    """
    x = spectral_norm(point.X)
    L = len(point.X)
    return _spread(math.sqrt(L) * x, math.sqrt(2) * x)


def spread_from_diameter(point: AttentionPoint) -> SpreadMoments:
    """From the token diameter R and the mixed tokens themselves: ||A X||_2, R^2/4, R^3/(6 sqrt(3)).

    A number in an interval of length R has at most the variance R^2 / 4 (Popoviciu), and at
    most the third central moment R^3 max_p p (1 - p) (1 - 2 p) = R^3 / (6 sqrt(3)): both at
    two points.
    """
    diameter = torch.cdist(point.X, point.X).max()
    return _spread(spectral_norm(point.M1), float(diameter))


def block_bounds(
    point: AttentionPoint, spread: SpreadMoments, part: Part = Part.H
) -> dict[Pair, float]:
    r"""A bound on the spectral norm of every block; the functional part of (V, V) is zero.

    With x, q, k, v the spectral norms of X, W_Q, W_K, W_V, s the score scale, the moments mu,
    m_2, m_3 and rho = max |d_i|:

    .. math:: (V, V): c \mu^2, \qquad (V, Q): c s x k \, m_2 (\mu v + \|D\|_2), \qquad
              (Q, Q): c s^2 x^2 k^2 (m_2^2 v^2 + m_3 v \rho),

    .. math:: (Q, K): c s^2 x^2 q k (m_2^2 v^2 + m_3 v \rho) + c s x \, m_2 v \|D\|_F,

    and k -> q for keys; of each sum the first term is H_o's. They bound the contracted forms of
    `AttentionPoint` factor by factor: ||R_Q||_2 = k, ||sum_i x_i^T x_i (x) N_i|| <= x^2 max
    ||N_i||, and ||B||_2 <= x (sum_i |M_2,i W_V d_i|^2)^(1/2).
    """
    if part == Part.H:
        outer = block_bounds(point, spread, Part.H_o)
        functional = block_bounds(point, spread, Part.H_f)
        return {pair: outer[pair] + functional[pair] for pair in outer}
    x = spectral_norm(point.X)
    c = point.c
    s = point.score_scale
    q = spectral_norm(point.weights[Q])
    k = spectral_norm(point.weights[K])
    pull = {Q: s * x * k, K: s * x * q}
    core, values, hollow = _factors(point, spread, part)
    claimed = {(V, V): 0.0}
    if part == Part.H_o:
        claimed[V, V] = c * spread.mixed**2
    for a in pull:
        for b in pull:
            claimed[a, b] = c * pull[a] * pull[b] * core
            if a != b:
                claimed[a, b] += c * s * x * hollow
        mixed = c * pull[a] * spread.second * values
        claimed[V, a] = mixed
        claimed[a, V] = mixed
    return claimed


def whole_bound(blocks: dict[Pair, float]) -> float:
    """The spectral norm of the 3 x 3 matrix of block bounds bounds that of the whole.

    |H v| is at most the length of the vector of sum_b ||H_ab|| |v_b|.
    """
    rows = [[blocks[a, b] for b in MATRICES] for a in MATRICES]
    return spectral_norm(torch.tensor(rows, dtype=torch.float64))


def true_norms(
    point: AttentionPoint, part: Part = Part.H
) -> tuple[dict[Pair, float], float]:
    """The spectral norms the bounds are about: of every block, and of the whole."""
    blocks = {}
    for a, b in combinations_with_replacement(MATRICES, 2):
        blocks[a, b] = point.hessian(part, a, b)
        blocks[b, a] = blocks[a, b].T
    rows = []
    for a in MATRICES:
        rows.append(torch.cat([blocks[a, b] for b in MATRICES], dim=1))
    norms = {pair: spectral_norm(block) for pair, block in blocks.items()}
    return norms, spectral_norm(torch.cat(rows))


def published_terms(point: AttentionPoint) -> dict[Pair, float]:
    """The four block terms of arXiv 2510.16927, Theorem 1 (one head, r = min(L, d_V), rho' = L x v +
    ||Y||_2).

    NOTE(paper): there is no term for (K, K) or (V, K), so W_Q -> t W_Q, W_K -> W_K/t,
    which leaves the network as it is, breaks the bound for large t; and the step
    ||dA/dT||_2 <= 1/L of its proof is false.
    """
    L, d_V = point.X.shape
    d_K = point.weights[Q].shape[1]
    x = spectral_norm(point.X)
    q = spectral_norm(point.weights[Q])
    k = spectral_norm(point.weights[K])
    v = spectral_norm(point.weights[V])
    s = 1 / math.sqrt(d_K)
    far = math.sqrt(min(L, d_V)) * (L * x * v + spectral_norm(point.Y))
    outer = 8 * s**2 / (L**3 * d_V) * v**2 * x**6
    query = 12 * s**2 / d_V * far * v * k**2 * x**5
    value = 4 * s / (L * d_V) * v * k * x**4
    mixed = v * (3 * L * k * q * x**5 + d_V / L * x**3)
    return {
        (V, V): 2 * L / d_V * x**2,
        (Q, Q): outer * k**2 + query,
        (V, Q): value + 4 * s / L**2 * far * k * x**3,
        (Q, K): outer * k * q + 4 * s / (L * d_V) * far * mixed,
    }


def published_bound(point: AttentionPoint) -> float:
    """Three times the largest of the four terms (arXiv 2510.16927, Theorem 1)."""
    return 3 * max(published_terms(point).values())


def softmax_jacobian_excess(point: AttentionPoint) -> float:
    """||dA/dT||_2 times L: the published proof takes it to be at most 1; any L allows up to L/2.

    A row with two weights of 1/2 has diag(a) - a a^T with the eigenvalue 1/2.
    """
    return spectral_norm(softmax_jacobian(point.A)) * len(point.X)


def spectral_norm(matrix: Float[Tensor, "n m"]) -> float:
    """The largest singular value."""
    return float(torch.linalg.matrix_norm(matrix, ord=2))


def _spread(mixed: float, interval: float) -> SpreadMoments:
    return SpreadMoments(
        mixed=mixed, second=interval**2 / 4, third=interval**3 / (6 * math.sqrt(3))
    )


def _factors(
    point: AttentionPoint, spread: SpreadMoments, part: Part
) -> tuple[float, float, float]:
    """Per part: what multiplies s^2 x^2 |.| |.| in query-key blocks, s x m_2 in value blocks, s x in (Q,
    K).
    """
    v = spectral_norm(point.weights[V])
    if part == Part.H_o:
        return spread.second**2 * v**2, spread.mixed * v, 0.0
    D = point.residual
    farthest = float(D.norm(dim=1).max())
    hollow = spread.second * v * float(torch.linalg.matrix_norm(D))
    return spread.third * v * farthest, spectral_norm(D), hollow
