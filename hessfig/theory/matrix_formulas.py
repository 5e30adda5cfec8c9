"""Matrix calculus and moments: commutation, vectorisation, and the moments of the attention matrix.

Conventions: vec_r stacks rows, derivatives are in numerator layout (d vec_r F / d vec_r X,
eq. 4), and K_{m,n} is the Magnus-Neudecker commutation matrix, K_{m,n} vec_r(B) =
vec_r(B^T) for B in R^{n x m}. With vec_r, A X B is (A (x) B^T) vec_r X.
"""

from functools import reduce

import torch
from jaxtyping import Float
from torch import Tensor

DTYPE = torch.float64
Pattern = Float[Tensor, "L L"]
Tokens = Float[Tensor, "L d"]


def vec(matrix: Float[Tensor, "n m"]) -> Float[Tensor, " nm"]:
    """vec_r: the rows of `matrix` one after another."""
    return matrix.reshape(-1)


def identity(size: int) -> Float[Tensor, "size size"]:
    """I_size in float64."""
    return torch.eye(size, dtype=DTYPE)


def kron(*factors: Float[Tensor, "_ _"]) -> Float[Tensor, "_ _"]:
    """The Kronecker product of all factors, left to right (Definition A.1)."""
    return reduce(_kron, factors)


def block_diagonal(blocks: Float[Tensor, "m q r"]) -> Float[Tensor, "mq mr"]:
    """blockdiag(A_1, ..., A_m)."""
    return torch.block_diag(*blocks)


def khatri_rao(
    left: Float[Tensor, "n m p q"], right: Float[Tensor, "k l r s"]
) -> Float[Tensor, "npr mqs"]:
    """The block-wise Kronecker product (A_ij (x) B_ij)_ij (Definition A.2); the first two axes number the
    blocks.

    Parameters
    ----------
    left : (n, m, p, q)
    right : (n, m, r, s)

    Returns
    -------
    Tensor
        The matrix of the blocks, (n p r, m q s).

    Raises
    ------
    ValueError
        When the two block layouts differ: then the product is not defined.
    """
    if left.shape[:2] != right.shape[:2]:
        layouts = f"{tuple(left.shape[:2])} and {tuple(right.shape[:2])}"
        raise ValueError(f"Khatri-Rao product of block layouts {layouts}")
    n, m, p, q = left.shape
    r, s = right.shape[2:]
    blocks = torch.einsum("nmpq,nmrs->nprmqs", left, right)
    return blocks.reshape(n * p * r, m * q * s)


def commutation(m: int, n: int) -> Float[Tensor, "mn mn"]:
    """K_{m,n}: K_{m,n} vec_r(B) = vec_r(B^T) for every B in R^{n x m}.

    A permutation, so that K_{m,n}^T = K_{n,m} is its inverse.

    Examples
    --------
    >>> B = torch.arange(6, dtype=DTYPE).reshape(2, 3)
    >>> bool((commutation(3, 2) @ vec(B) == vec(B.T)).all())
    True
    """
    places = torch.arange(n * m).reshape(n, m)
    return identity(n * m)[places.T.flatten()]


def shuffle(size: int) -> Float[Tensor, "size_cubed size"]:
    """S = (I (x) K_{d,d}) (vec_r I (x) I), the shuffling matrix of Theorem 3.2, with d = `size`.

    It maps e_a to sum_i e_i (x) e_a (x) e_i, a vector of d^3 entries.

    Examples
    --------
    >>> shuffle(2).shape, shuffle(2)[:, 0].nonzero().flatten().tolist()
    (torch.Size([8, 2]), [0, 5])
    """
    eye = identity(size)
    exchanged = kron(eye, commutation(size, size))
    return exchanged @ kron(vec(eye)[:, None], eye)


def row_times_kron(
    A: Float[Tensor, "p q"], v: Float[Tensor, " n"], B: Float[Tensor, "q r"]
) -> Float[Tensor, "p nr"]:
    """Eq. 12: A (v^T (x) B) = v^T (x) A B."""
    return kron(v[None, :], A @ B)


def vec_by_identity(A: Float[Tensor, "n m"]) -> Float[Tensor, " nm"]:
    """Eq. 13 corrected: vec_r A = (A (x) I_m) vec_r I_m.

    It is vec_r(A X B) = (A (x) B^T) vec_r X with X = B = I_m; the paper prints I_n, which has
    another size unless A is square.
    """
    eye = identity(A.shape[1])
    return kron(A, eye) @ vec(eye)


def block_diagonal_times_kron(
    blocks: Float[Tensor, "m q r"], B: Float[Tensor, "m n"], C: Float[Tensor, "r t"]
) -> Float[Tensor, "mq nt"]:
    """Eq. 14: blockdiag(A_i) (B (x) C) has the block rows b_i^T (x) A_i C."""
    block_rows = []
    for row, block in zip(B, blocks, strict=True):
        block_rows.append(kron(row[None, :], block @ C))
    return torch.cat(block_rows)


def product_jacobian(
    A: Float[Tensor, "p n"], B: Float[Tensor, "q r"]
) -> Float[Tensor, "pr nq"]:
    """Eq. 15: the derivative of A X B with respect to X is A (x) B^T."""
    return kron(A, B.T)


def kron_jacobian_left(
    X: Float[Tensor, "n q"], Y: Float[Tensor, "p r"]
) -> Float[Tensor, "npqr nq"]:
    """Eq. 16: d(X (x) Y)/dX = (I_n (x) K_{p,q} (x) I_r) (I_nq (x) vec_r Y).

    Entry (i, j, k, l) of vec_r X (x) vec_r Y is X_ij Y_kl, and X (x) Y has the row (i, k) and
    the column (j, l): vec_r(X (x) Y) has j and k exchanged, which is what K_{p,q} does. The
    product is linear in X, whose place I_nq takes.
    """
    n, q = X.shape
    p, r = Y.shape
    exchanged = kron(identity(n), commutation(p, q), identity(r))
    return exchanged @ kron(identity(n * q), vec(Y)[:, None])


def kron_jacobian_right(
    X: Float[Tensor, "n q"], Y: Float[Tensor, "p r"]
) -> Float[Tensor, "npqr pr"]:
    """Eq. 17: d(X (x) Y)/dY = (I_n (x) K_{p,q} (x) I_r) (vec_r X (x) I_pr), as eq. 16 with Y varied."""
    n, q = X.shape
    p, r = Y.shape
    exchanged = kron(identity(n), commutation(p, q), identity(r))
    return exchanged @ kron(vec(X)[:, None], identity(p * r))


def transpose_jacobian(n: int, q: int) -> Float[Tensor, "nq nq"]:
    """Eq. 18: the derivative of X^T with respect to X in R^{n x q} is K_{q,n}."""
    return commutation(q, n)


def _kron(A: Float[Tensor, "m n"], B: Float[Tensor, "p q"]) -> Float[Tensor, "mp nq"]:
    """torch.kron, which (2.13) fails on transposed matrices with an axis of length one."""
    m, n = A.shape
    p, q = B.shape
    products = A[:, None, :, None] * B[None, :, None, :]
    return products.reshape(m * p, n * q)


def first_moment(A: Pattern, X: Tokens) -> Tokens:
    """M_1 = A X (Definition 3.1)."""
    return A @ X


def second_moment(A: Pattern, X: Tokens) -> Float[Tensor, "L d d"]:
    """M_2: one covariance sum_j A_ij z_ij z_ij^T per row of A (Definition 3.1).

    With z_ij = x_j - m_i. As the rows of A sum to one it is X^T (diag(a_i) - a_i a_i^T) X,
    which is how the Jacobian of softmax enters.
    """
    z = _centred(A, X)
    return torch.einsum("ij,ija,ijb->iab", A, z, z)


def third_moment(A: Pattern, X: Tokens) -> Float[Tensor, "L dd d"]:
    """M_3: one matrix sum_j A_ij z_ij (x) z_ij z_ij^T per row of A (Definition 3.1)."""
    z = _centred(A, X)
    moments = torch.einsum("ij,ija,ijb,ijc->iabc", A, z, z, z)
    return moments.flatten(1, 2)


def softmax_jacobian(A: Pattern) -> Float[Tensor, "LL LL"]:
    """dA/dT = blockdiag(diag(a_i) - a_i a_i^T) for row-wise softmax (eq. 19)."""
    squares = torch.einsum("ij,ik->ijk", A, A)
    return block_diagonal(torch.diag_embed(A) - squares)


def softmax_entry_hessian(row: Float[Tensor, " L"], j: int) -> Pattern:
    r"""Second derivative of entry j of one softmax row with respect to the scores of that row (Lemma C.1).

    .. math:: \frac{\partial^2 a_j}{\partial t^2} =
              a_j \big[ (e_j - a)(e_j - a)^T - \operatorname{diag}(a) + a a^T \big],

    from da_j/dt = a_j (e_j - a) and da/dt = diag(a) - a a^T. The code has the products
    multiplied out.

    Examples
    --------
    At two equal scores every entry has a point of inflection:

    >>> softmax_entry_hessian(torch.tensor([0.5, 0.5], dtype=DTYPE), 0).abs().max().item()
    0.0
    """
    e = identity(len(row))[j]
    square = 2 * torch.outer(row, row) + torch.outer(e, e)
    mixed = torch.outer(e, row) + torch.outer(row, e)
    return row[j] * (square - torch.diag(row) - mixed)


def softmax_second_derivative(A: Pattern) -> Float[Tensor, "LLLL LL"]:
    """d2A/dT2 = blockdiag(D_i) with D_i = (1_L (x) e_i) * d2a_i/dt_i2 (eq. 23).

    One row of A depends on one row of T, so that all other blocks are zero. L^4 x L^2 numbers.
    """
    length = len(A)
    blocks = []
    for unit, row in zip(identity(length), A, strict=True):
        units = unit[:, None].expand(length, 1, length, 1)
        entries = range(length)
        hessians = torch.stack([softmax_entry_hessian(row, j) for j in entries])
        blocks.append(khatri_rao(units, hessians[:, None]))
    return block_diagonal(torch.stack(blocks))


def z1_by_definition(A: Pattern, X: Tokens) -> Float[Tensor, "Ld dd"]:
    """Z_1 = (I_L (x) X^T) (dA/dT) (X (x) X) (Theorem 3.1)."""
    outer = kron(identity(len(X)), X.T)
    return outer @ softmax_jacobian(A) @ kron(X, X)


def z2_by_definition(A: Pattern, X: Tokens) -> Float[Tensor, "Lddd dd"]:
    """Z_2 = (I_L (x) X^T (x) X^T (x) X^T) (d2A/dT2) (X (x) X) (Theorem 3.2)."""
    outer = kron(identity(len(X)), X.T, X.T, X.T)
    return outer @ softmax_second_derivative(A) @ kron(X, X)


def z1_by_moments(A: Pattern, X: Tokens) -> Float[Tensor, "Ld dd"]:
    """Z_1 = X * M_2, both split by rows of A (Remark 3.1).

    Block i is X^T (diag(a_i) - a_i a_i^T) (x_i^T (x) X) = x_i^T (x) M_2,i.
    """
    M2 = second_moment(A, X)
    return khatri_rao(X[:, None, None, :], M2[:, None])


def z2_by_moments(A: Pattern, X: Tokens) -> Float[Tensor, "Lddd dd"]:
    """Z_2 = (I_L (x) K_{d,d} (x) I_d) [x_i x_i^T (x) M_3,i]_i (Remark 3.1).

    NOTE(paper): the bracket is printed as X * X^T * M_3, whose block layouts do not
    match; the proof's last display but one has the blocks that are meant.
    """
    length, size = X.shape
    M3 = third_moment(A, X)
    squares = torch.einsum("ia,ib->iab", X, X)
    bracket = khatri_rao(squares[:, None], M3[:, None])
    exchange = commutation(size, size)
    return kron(identity(length), exchange, identity(size)) @ bracket


def _centred(A: Pattern, X: Tokens) -> Float[Tensor, "L L d"]:
    means = A @ X
    return X[None] - means[:, None]
