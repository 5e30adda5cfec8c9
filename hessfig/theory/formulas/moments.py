"""Softmax derivatives and the attention moments of Section 3.2 and Appendix C.

Row i of the attention matrix A is a distribution over tokens with mean m_i = (AX)_i; z_ij = x_j - m_i.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.theory.formulas.matrix_calculus import block_diagonal, commutation, identity, khatri_rao, kron


def first_moment(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "L d"]:
    """M_1 = A X (Definition 3.1)."""
    return A @ X


def second_moment(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "L d d"]:
    """M_2: one covariance sum_j A_ij z_ij z_ij^T per row of A (Definition 3.1)."""
    z = _centred(A, X)
    return torch.einsum("ij,ija,ijb->iab", A, z, z)


def third_moment(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "L dd d"]:
    """M_3: one matrix sum_j A_ij z_ij (x) z_ij z_ij^T per row of A (Definition 3.1)."""
    z = _centred(A, X)
    return torch.einsum("ij,ija,ijb,ijc->iabc", A, z, z, z).flatten(1, 2)


def softmax_jacobian(A: Float[Tensor, "L L"]) -> Float[Tensor, "LL LL"]:
    """dA/dT = blockdiag(diag(a_i) - a_i a_i^T) for row-wise softmax (eq. 19)."""
    return block_diagonal(torch.stack([torch.diag(row) - torch.outer(row, row) for row in A]))


def softmax_entry_hessian(row: Float[Tensor, " L"], j: int) -> Float[Tensor, "L L"]:
    """Second derivative of entry j of one softmax row with respect to the scores of that row (Lemma C.1)."""
    e = identity(len(row))[j]
    square = 2 * torch.outer(row, row) + torch.outer(e, e) - torch.diag(row)
    return row[j] * (square - torch.outer(e, row) - torch.outer(row, e))


def softmax_second_derivative(A: Float[Tensor, "L L"]) -> Float[Tensor, "LLLL LL"]:
    """d2A/dT2 = blockdiag(D_i) with D_i = (1_L (x) e_i) * d2a_i/dt_i2 (eq. 23)."""
    length = len(A)
    blocks = []
    for i, row in enumerate(A):
        unit = identity(length)[i].reshape(1, 1, length, 1).expand(length, 1, length, 1)
        hessians = torch.stack([softmax_entry_hessian(row, j) for j in range(length)])
        blocks.append(khatri_rao(unit, hessians[:, None]))
    return block_diagonal(torch.stack(blocks))


def z1_by_definition(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "Ld dd"]:
    """Z_1 = (I_L (x) X^T) (dA/dT) (X (x) X) (Theorem 3.1)."""
    return kron(identity(len(X)), X.T) @ softmax_jacobian(A) @ kron(X, X)


def z2_by_definition(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "Lddd dd"]:
    """Z_2 = (I_L (x) X^T (x) X^T (x) X^T) (d2A/dT2) (X (x) X) (Theorem 3.2)."""
    outer = kron(identity(len(X)), X.T, X.T, X.T)
    return outer @ softmax_second_derivative(A) @ kron(X, X)


def z1_by_moments(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "Ld dd"]:
    """Z_1 = X * M_2, both split by rows of A (Remark 3.1)."""
    return khatri_rao(X[:, None, None, :], second_moment(A, X)[:, None])


def z2_by_moments(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "Lddd dd"]:
    """Z_2 = (I_L (x) K_{d,d} (x) I_d) [x_i x_i^T (x) M_3,i]_i (Remark 3.1).

    NOTE(paper): the bracket is printed as X * X^T * M_3, whose block layouts do not match; the
    proof's last display but one has the blocks that are meant.
    """
    length, size = X.shape
    outer_products = torch.einsum("ia,ib->iab", X, X)[:, None]
    bracket = khatri_rao(outer_products, third_moment(A, X)[:, None])
    return kron(identity(length), commutation(size, size), identity(size)) @ bracket


def _centred(A: Float[Tensor, "L L"], X: Float[Tensor, "L d"]) -> Float[Tensor, "L L d"]:
    return X[None, :, :] - (A @ X)[:, None, :]
