"""Hessian blocks of one self-attention layer, as the paper's theorems state them, and typed out literally.

`AttentionPoint` has the contracted forms, in which no matrix is larger than d_V^2 x d_V^2;
`theorem_31`, `theorem_32` and their like multiply the printed Kronecker products, whose
factors have up to L d_V^3 rows. `hessfig verify` compares both with automatic
differentiation.
"""

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.errors import UserError
from hessfig.terms import Block, Matrix, Part
from hessfig.theory import matrix_formulas
from hessfig.theory.autodiff import Weights, scores
from hessfig.theory.matrix_formulas import commutation, identity, kron, shuffle, vec

QUERY_KEY = (Matrix.W_Q, Matrix.W_K)
MATRICES = (Matrix.W_Q, Matrix.W_K, Matrix.W_V)
Pair = tuple[Matrix, Matrix]
Blocks = dict[Pair, Float[Tensor, "rows cols"]]


def attention_hessian(
    X: Float[Tensor, "L d_V"],
    Y: Float[Tensor, "L d_V"],
    weights: Weights,
    *,
    part: Part = Part.H,
    block: Block,
    temperature: float = 1.0,
) -> Float[Tensor, "rows cols"]:
    """Return one block of the Hessian of ||F - Y||_F^2 / (L d_V), F = softmax(T) X W_V (Theorems 3.1, 3.2).

    Parameters
    ----------
    X, Y : (L, d_V)
        Tokens and targets, in float64.
    weights : dict
        Maps W_Q, W_K in R^{d_V x d_K} and W_V in R^{d_V x d_V}.
    part : Part
        H_o, H_f or their sum H.
    block : Block
        Two of the three weights; its layer is not looked at.
    temperature : float
        t in T = X W_Q W_K^T X^T / (t sqrt(d_K)).

    Returns
    -------
    Tensor
        With the entries of each weight row by row.

    Raises
    ------
    UserError
        When the block names another weight or the numbers are not float64.

    Examples
    --------
    H_f of W_V vanishes, and H_o is (2 / (L d_V)) M_1^T M_1 (x) I:

    >>> X = torch.randn(4, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    >>> weights = {name: torch.eye(2, dtype=torch.float64) for name in (Q, K, V)}
    >>> values = Block(1, "W_V", "W_V")
    >>> attention_hessian(X, 0 * X, weights, part=Part.H_f, block=values).abs().max().item()
    0.0
    >>> H_o = attention_hessian(X, 0 * X, weights, part=Part.H_o, block=values)
    >>> M_1 = torch.softmax(X @ X.T / 2**0.5, dim=1) @ X
    >>> torch.allclose(H_o, kron(M_1.T @ M_1, identity(2)) / 4)
    True
    """
    _check(X, block)
    return AttentionPoint(X, Y, weights, temperature).hessian(
        part, Matrix(block.row), Matrix(block.col)
    )


@dataclass(frozen=True)
class AttentionPoint:
    r"""Data, weights, and what every formula needs from one forward pass.

    With W_T = W_Q W_K^T and s = 1/(t sqrt(d_K)), t_ij = s x_i W_T x_j^T. Moments of softmax are
    cumulants, so that in a direction dW_T

    .. math:: dm_i = s \, x_i \, dW_T \, M_{2,i}, \qquad
              d^2 m_i = s^2 \sum_j A_{ij} (x_i \, dW_T \, z_{ij}^T)^2 \, z_{ij}.

    With d_i the rows of D = F - Y, F = M_1 W_V and vec_r dW_T = R_Q vec_r dW_Q + R_K vec_r dW_K
    this gives

    .. math:: H(Q, Q) = c s^2 R_Q^T (U_o + U_f) R_Q, \qquad
              H(Q, K) = c s^2 R_Q^T (U_o + U_f) R_K + c s \, B \otimes I,

    .. math:: U_o = \sum_i x_i^T x_i \otimes M_{2,i} W_V W_V^T M_{2,i}, \qquad
              U_f = \sum_i x_i^T x_i \otimes \sum_j A_{ij} (z_{ij} W_V d_i^T) \, z_{ij}^T z_{ij},

    .. math:: B = \sum_i x_i^T (d_i W_V^T M_{2,i}).

    The last term of H(Q, K) is the second derivative of W_T itself. U_o is of H_o, U_f and B
    are of H_f.

    Parameters
    ----------
    X, Y : (L, d_V)
    weights : dict
    temperature : float
    """

    X: Float[Tensor, "L d_V"]
    Y: Float[Tensor, "L d_V"]
    weights: Weights
    temperature: float = 1.0

    @property
    def c(self) -> float:
        """c = 2/(L d_V), the second derivative of the loss."""
        return 2 / self.X.numel()

    @property
    def score_scale(self) -> float:
        """s = 1/(t sqrt(d_K))."""
        d_K = self.weights[Matrix.W_Q].shape[1]
        return 1 / (self.temperature * math.sqrt(d_K))

    @cached_property
    def A(self) -> Float[Tensor, "L L"]:
        T = scores(self.X, self.weights, self.temperature)
        return torch.softmax(T, dim=-1)

    @cached_property
    def M1(self) -> Float[Tensor, "L d_V"]:
        return matrix_formulas.first_moment(self.A, self.X)

    @cached_property
    def M2(self) -> Float[Tensor, "L d_V d_V"]:
        return matrix_formulas.second_moment(self.A, self.X)

    @cached_property
    def residual(self) -> Float[Tensor, "L d_V"]:
        """D = F - Y."""
        return self.M1 @ self.weights[Matrix.W_V] - self.Y

    @cached_property
    def selectors(self) -> dict[Matrix, Float[Tensor, "dd p"]]:
        """R_Q = I (x) W_K and R_K = (W_Q (x) I) K_{d_K,d_V}: how W_Q and W_K move W_Q W_K^T.

        vec_r(dW_Q W_K^T) = (I (x) W_K) vec_r dW_Q, and vec_r(W_Q dW_K^T) = (W_Q (x) I) vec_r(dW_K^T).
        """
        W_Q = self.weights[Matrix.W_Q]
        W_K = self.weights[Matrix.W_K]
        d_V, d_K = W_Q.shape
        by_query = kron(identity(d_V), W_K)
        by_key = kron(W_Q, identity(d_V)) @ commutation(d_K, d_V)
        return {Matrix.W_Q: by_query, Matrix.W_K: by_key}

    def hessian(
        self, part: Part, row: Matrix, col: Matrix
    ) -> Float[Tensor, "rows cols"]:
        """The block (row, col) of `part`."""
        if part == Part.H:
            outer = self.hessian(Part.H_o, row, col)
            return outer + self.hessian(Part.H_f, row, col)
        if Matrix.W_V not in (row, col):
            return self._query_key(part, row, col)
        if row == col:
            return self._value_value(part)
        if row == Matrix.W_V:
            left = self.c * self.score_scale * self._value_scores(part)
            return left @ self.selectors[col]
        return self.hessian(part, col, row).T

    def curvature_of_scores(self, part: Part) -> Float[Tensor, "dd dd"]:
        """U_o, U_f or their sum U: the d_V^2 x d_V^2 middle of every query-key block."""
        if part == Part.H:
            return self._score_curvatures[Part.H_o] + self._score_curvatures[Part.H_f]
        return self._score_curvatures[part]

    @cached_property
    def _score_curvatures(self) -> dict[Part, Float[Tensor, "dd dd"]]:
        size = self.X.shape[1] ** 2
        pairs = torch.einsum("ia,ib->iab", self.X, self.X)
        outer = torch.einsum("iab,icd->acbd", pairs, self._outer())
        functional = torch.einsum("iab,icd->acbd", pairs, self._third())
        return {
            Part.H_o: outer.reshape(size, size),
            Part.H_f: functional.reshape(size, size),
        }

    def gradient_of_scores(self) -> Float[Tensor, "d_V d_V"]:
        """B = sum_i x_i (M2_i W_V d_i)^T; c B = X^T (dl/dT) X (Remark D.1).

        dl/dt_ij = c A_ij z_ij . W_V d_i, and sum_j A_ij z_ij x_j^T = M2_i.
        """
        pull = self.residual @ self.weights[Matrix.W_V].T
        return torch.einsum("ia,ibc,ic->ab", self.X, self.M2, pull)

    def _query_key(
        self, part: Part, row: Matrix, col: Matrix
    ) -> Float[Tensor, "rows cols"]:
        middle = self.c * self.score_scale**2 * self.curvature_of_scores(part)
        block = self.selectors[row].T @ middle @ self.selectors[col]
        if row == col or part == Part.H_o:
            return block
        B = self.gradient_of_scores()
        if row == Matrix.W_K:
            B = B.T
        d_K = self.weights[row].shape[1]
        return block + self.c * self.score_scale * kron(B, identity(d_K))

    def _value_value(self, part: Part) -> Float[Tensor, "dd dd"]:
        d_V = self.X.shape[1]
        block = self.c * kron(self.M1.T @ self.M1, identity(d_V))
        return block if part == Part.H_o else torch.zeros_like(block)

    def _value_scores(self, part: Part) -> Float[Tensor, "dd dd"]:
        """Return (V, .) of c s (..) R: M_1^T x W_V^T M_2 for H_o, and the residual with M_2 for H_f.

        F = M_1 W_V depends on W_V and, through M_1, on the scores: dF = M_1 dW_V, and d2F = dM_1
        dW_V with dm_i = s x_i dW_T M_2,i.
        """
        if part == Part.H_o:
            W_V = self.weights[Matrix.W_V]
            block = torch.einsum("ia,ib,xc,ixd->acbd", self.M1, self.X, W_V, self.M2)
        else:
            block = torch.einsum("ic,ib,iad->acbd", self.residual, self.X, self.M2)
        size = self.X.shape[1] ** 2
        return block.reshape(size, size)

    def _outer(self) -> Float[Tensor, "L d_V d_V"]:
        W_V = self.weights[Matrix.W_V]
        return self.M2 @ W_V @ W_V.T @ self.M2

    def _third(self) -> Float[Tensor, "L d_V d_V"]:
        """Return the inner sum of U_f, a d_V x d_V matrix per row: third central moments contracted with W_V d_i."""
        z = self.X[None] - self.M1[:, None]
        pull = self.residual @ self.weights[Matrix.W_V].T
        pull = torch.einsum("ijx,ix->ij", z, pull)
        return torch.einsum("ij,ij,ija,ijb->iab", self.A, pull, z, z)


def _check(X: Tensor, block: Block) -> None:
    if {block.row, block.col} - set(MATRICES):
        raise UserError(
            "attention_hessian: the layer has no such block",
            got=block,
            allowed="pairs of " + ", ".join(MATRICES),
            remedy="for example Block(1, 'W_Q', 'W_V')",
        )
    if X.dtype != torch.float64:
        raise UserError(
            "attention_hessian: float64 is needed",
            got=X.dtype,
            allowed="float64",
            remedy="X.double()",
        )


Q = Matrix.W_Q
K = Matrix.W_K
V = Matrix.W_V


def jacobians(point: AttentionPoint) -> dict[Matrix, Float[Tensor, "Ld p"]]:
    """dF/dW_V and dF/dW_Q of Lemma B.1, and dF/dW_K = (I (x) W_V^T) Z_1 R_K / sqrt(d_K)."""
    X, W_K, W_V, d_K, L = _sizes(point)
    s = 1 / math.sqrt(d_K)
    by_scores = matrix_formulas.softmax_jacobian(point.A)
    scores_to_output = kron(identity(L), W_V.T @ X.T) @ by_scores
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    scores_by_keys = kron(identity(L), W_V.T) @ Z_1
    d_V = X.shape[1]
    return {
        V: kron(point.A @ X, identity(d_V)),
        Q: s * scores_to_output @ kron(X, X @ W_K),
        K: s * scores_by_keys @ point.selectors[K],
    }


def theorem_31(point: AttentionPoint) -> Blocks:
    """H_o of (V,V), (Q,Q), (V,Q) and (Q,K), Theorem 3.1."""
    X, _, W_V, d_K, L = _sizes(point)
    c = point.c
    M1 = point.M1
    R_Q = point.selectors[Q]
    R_K = point.selectors[K]
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    values = kron(identity(L), W_V @ W_V.T)
    left = c / d_K * R_Q.T @ Z_1.T @ values @ Z_1
    mixed = c / math.sqrt(d_K) * kron(M1.T, W_V.T)
    d_V = X.shape[1]
    return {
        (V, V): c * kron(M1.T @ M1, identity(d_V)),
        (Q, Q): left @ R_Q,
        (V, Q): mixed @ Z_1 @ R_Q,
        (Q, K): left @ R_K,
    }


def theorem_31_keys(point: AttentionPoint) -> Blocks:
    """H_o of (K,K) and (V,K), which the paper leaves out: R_Q becomes R_K."""
    X, _, W_V, d_K, L = _sizes(point)
    c = point.c
    R_K = point.selectors[K]
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    values = kron(identity(L), W_V @ W_V.T)
    left = c / d_K * R_K.T @ Z_1.T @ values
    mixed = c / math.sqrt(d_K) * kron(point.M1.T, W_V.T)
    return {(K, K): left @ Z_1 @ R_K, (V, K): mixed @ Z_1 @ R_K}


def theorem_32(point: AttentionPoint) -> Blocks:
    """H_f of (V,V), (Q,Q), (V,Q) and (Q,K), Theorem 3.2; the last is read as [R (..) (..) S] (x) I."""
    X, W_K, W_V, d_K, L = _sizes(point)
    c = point.c
    d_V = X.shape[1]
    R_Q = point.selectors[Q]
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    Z_2 = matrix_formulas.z2_by_definition(point.A, X)
    s = 1 / math.sqrt(d_K)
    through = kron(identity(L), W_V.T, identity(d_V), W_K.T)
    left = c / d_K * duplicated_residual(point, d_V * d_K) @ through @ Z_2
    shuffled = kron(identity(L), shuffle(d_V))
    values = c * s * duplicated_residual(point, d_V**2) @ shuffled @ Z_1
    hollow = c * s * kron(literal_B(point), identity(d_K))
    nothing = 0 * identity(d_V**2)
    return {
        (V, V): nothing,
        (Q, Q): left @ R_Q,
        (V, Q): values @ R_Q,
        (Q, K): left @ point.selectors[K] + hollow,
    }


def theorem_32_keys(point: AttentionPoint) -> Blocks:
    """H_f of (K,K) and (V,K), left out in the paper: (c/d_K) R (I (x) W_V^T (x) R_K^T) Z_2 R_K and R (I (x)
    S) Z_1 R_K.
    """
    X, _, W_V, d_K, L = _sizes(point)
    d_V = X.shape[1]
    R_K = point.selectors[K]
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    Z_2 = matrix_formulas.z2_by_definition(point.A, X)
    through = kron(identity(L), W_V.T, R_K.T)
    left = point.c / d_K * duplicated_residual(point, d_V * d_K) @ through @ Z_2
    shuffled = kron(identity(L), shuffle(d_V))
    scale = point.c / math.sqrt(d_K)
    values = scale * duplicated_residual(point, d_V**2) @ shuffled @ Z_1
    return {(K, K): left @ R_K, (V, K): values @ R_K}


def duplicated_residual(point: AttentionPoint, m: int) -> Float[Tensor, "m mLd"]:
    """R_m = vec_r(F - Y)^T (x) I_m (Theorem 3.2)."""
    return kron(vec(point.residual)[None, :], identity(m))


def literal_B(point: AttentionPoint) -> Float[Tensor, "d_V d_V"]:
    """B = R_{d_V} (I_L (x) W_V^T (x) I) (Z_1 (x) I) S (Remark D.1)."""
    X, _, W_V, _, L = _sizes(point)
    d_V = X.shape[1]
    eye = identity(d_V)
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    through = kron(identity(L), W_V.T, eye)
    left = duplicated_residual(point, d_V) @ through
    return left @ kron(Z_1, eye) @ shuffle(d_V)


def literal_U(point: AttentionPoint) -> Float[Tensor, "dd dd"]:
    """U = Z_1^T (I (x) W_V W_V^T) Z_1 + (delta^T (I (x) W_V^T) (x) I) Z_2 (Remark D.1)."""
    X, _, W_V, _, L = _sizes(point)
    Z_1 = matrix_formulas.z1_by_definition(point.A, X)
    Z_2 = matrix_formulas.z2_by_definition(point.A, X)
    delta = vec(point.residual)[None, :]
    pulled = delta @ kron(identity(L), W_V.T)
    values = kron(identity(L), W_V @ W_V.T)
    d_V = X.shape[1]
    functional = kron(pulled, identity(d_V**2)) @ Z_2
    return Z_1.T @ values @ Z_1 + functional


def literal_bytes(L: int, d_V: int, d_K: int) -> int:
    """Bytes of the largest matrix these forms build: I_L (x) W_V^T (x) I (x) W_K^T, or Z_2, or d2A/dT2."""
    rows = L * d_V**3
    through = rows * L * d_V**2 * max(d_V, d_K)
    second_derivative = L**6
    return 8 * max(through, rows * L**4, second_derivative)


def _sizes(point: AttentionPoint) -> tuple[Tensor, Tensor, Tensor, int, int]:
    """Return X, W_K, W_V, d_K and L."""
    W_K = point.weights[K]
    W_V = point.weights[V]
    d_K = W_K.shape[1]
    L = len(point.X)
    return point.X, W_K, W_V, d_K, L


def single_matrix_point(
    X: Float[Tensor, "L d_V"],
    Y: Float[Tensor, "L d_V"],
    W_QK: Float[Tensor, "d_V d_V"],
    W_V: Float[Tensor, "d_V d_V"],
) -> AttentionPoint:
    """The map softmax(X W_QK X^T) X W_V written with two matrices: W_Q = sqrt(d_V) W_QK, W_K = I.

    Then d_K = d_V and T = X sqrt(d_V) W_QK X^T / sqrt(d_V); a derivative by W_QK is sqrt(d_V)
    times that by W_Q.
    """
    size = X.shape[1]
    weights = {
        Matrix.W_Q: math.sqrt(size) * W_QK,
        Matrix.W_K: identity(size),
        Matrix.W_V: W_V,
    }
    return AttentionPoint(X, Y, weights)


def score_outer_product(point: AttentionPoint) -> Float[Tensor, "both both"]:
    """H_o^T of Remark D.1 in the order [W_Q; W_K]: c s^2 V^T U V with V = [R_Q R_K]."""
    R_Q = point.selectors[Q]
    R_K = point.selectors[K]
    selector = torch.cat([R_Q, R_K], dim=1)
    left = point.c * point.score_scale**2 * selector.T
    return left @ point.curvature_of_scores(Part.H) @ selector


def score_functional(point: AttentionPoint) -> Float[Tensor, "both both"]:
    """H_f^T of Remark D.1 in the order [W_Q; W_K]: c s [[0, B], [B^T, 0]] (x) I_{d_K}."""
    d_K = point.weights[Q].shape[1]
    hollow = _hollow(point.gradient_of_scores())
    return point.c * point.score_scale * kron(hollow, identity(d_K))


def printed_score_split(
    point: AttentionPoint,
) -> dict[Part, Float[Tensor, "both both"]]:
    """Remark D.1 as printed: no factor c, V = [R_K R_Q], [[0, B^T], [B, 0]]."""
    d_K = point.weights[Q].shape[1]
    R_Q = point.selectors[Q]
    R_K = point.selectors[K]
    selector = torch.cat([R_K, R_Q], dim=1)
    hollow = _hollow(literal_B(point).T)
    return {
        Part.H_o: selector.T @ literal_U(point) @ selector / d_K,
        Part.H_f: kron(hollow, identity(d_K)) / math.sqrt(d_K),
    }


def score_functional_eigenvalues(point: AttentionPoint) -> Float[Tensor, " both"]:
    """Ascending eigenvalues of H_f^T: +- c s times the singular values of B, each d_K times (Appendix D).

    With B = sum_k s_k u_k v_k^T, the vectors (u_k, +- v_k) are eigenvectors of [[0, B], [B^T,
    0]] with the eigenvalues +- s_k.
    """
    singular = torch.linalg.svdvals(point.gradient_of_scores())
    values = point.c * point.score_scale * singular
    d_K = point.weights[Q].shape[1]
    both = torch.cat([values, -values])
    return both.sort().values.repeat_interleave(d_K)


def stacked_kronecker(
    A: Float[Tensor, "m n"], B: Float[Tensor, "p q"]
) -> Float[Tensor, "rows qn"]:
    """[I_q (x) A; B (x) I_n], the matrix of Lemma D.1."""
    n = A.shape[1]
    q = B.shape[1]
    return torch.cat([kron(identity(q), A), kron(B, identity(n))])


def stacked_kronecker_rank(A: Float[Tensor, "m n"], B: Float[Tensor, "p q"]) -> int:
    """q rk(A) + n rk(B) - rk(A) rk(B) (Lemma D.1).

    The null space of the stacked matrix is that of A times that of B: q n - (n - rk A) (q -
    rk B).
    """
    n = A.shape[1]
    q = B.shape[1]
    rank_a = numerical_rank(A)
    rank_b = numerical_rank(B)
    return q * rank_a + n * rank_b - rank_a * rank_b


def rank_bound(d_V: int, d_K: int) -> int:
    """2 d_K d_V - d_K^2 for d_K < d_V and d_V^2 otherwise: bounds rk(H_o^T) (Lemma D.2).

    It is the rank of [R_Q R_K] for weights of full rank d_K, by Lemma D.1.
    """
    if d_K < d_V:
        return 2 * d_K * d_V - d_K**2
    return d_V**2


def token_rank_bound(L: int, d_V: int) -> int:
    """min(L, d_V) min(L - 1, d_V): rk(U), since U acts on tokens (x) centred tokens; sharper for short
    sequences.

    The z_ij of all i and j lie in the differences of tokens, of which L - 1 are independent.
    """
    return min(L, d_V) * min(L - 1, d_V)


def numerical_rank(matrix: Float[Tensor, "n m"], tolerance: float = 1e-10) -> int:
    """The number of singular values above `tolerance` times the largest."""
    values = torch.linalg.svdvals(matrix)
    return int((values > tolerance * values.max()).sum())


def multiplicities(
    eigenvalues: Float[Tensor, " n"], tolerance: float = 1e-10
) -> list[int]:
    """Sizes of the groups of equal numbers, in ascending order of the number."""
    ordered = eigenvalues.sort().values
    largest = ordered.abs().max()
    is_step = ordered.diff() > tolerance * largest
    breaks = is_step.nonzero().flatten() + 1
    return [len(group) for group in torch.tensor_split(ordered, breaks)]


def _hollow(B: Float[Tensor, "d_V d_V"]) -> Float[Tensor, "two_d two_d"]:
    zero = torch.zeros_like(B)
    upper = torch.cat([zero, B], 1)
    lower = torch.cat([B.T, zero], 1)
    return torch.cat([upper, lower])
