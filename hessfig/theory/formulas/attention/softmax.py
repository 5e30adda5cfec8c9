"""The Hessian of a single self-attention layer in contracted form: no object larger than d_V^2 x d_V^2.

The blocks of Theorems 3.1 and 3.2, and those with respect to W_K that the paper leaves out, with
z_ij = x_j - m_i, residual rows d_i, c = 2/(L d_V) and the score scale s = 1/(t sqrt(d_K)):

    U_o = sum_i x_i x_i^T (x) M2_i W_V W_V^T M2_i,   U_f = sum_i x_i x_i^T (x) sum_j A_ij (z_ij . W_V d_i)
    z_ij z_ij^T
    B   = sum_i x_i (M2_i W_V d_i)^T,                R_Q = I (x) W_K,   R_K = (W_Q (x) I) K_{d_K,d_V}

    H(a, b) = c s^2 R_a^T U R_b  + (a != b) c s B (x) I      for a, b in {Q, K}
    H(V, a) = c s G R_a,   G_o = sum_i m_i x_i^T (x) W_V^T M2_i,   G_f = sum_i (I (x) d_i) (x_i^T (x) M2_i)

The literal forms of the paper are in `literal.py`.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.errors import UserError
from hessfig.terms import Block, Matrix, Part
from hessfig.theory.autodiff.networks import Weights, scores
from hessfig.theory.formulas import moments
from hessfig.theory.formulas.matrix_calculus import commutation, identity, kron

QUERY_KEY = (Matrix.W_Q, Matrix.W_K)
MATRICES = (Matrix.W_Q, Matrix.W_K, Matrix.W_V)


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

    `weights` maps W_Q, W_K in R^{d_V x d_K} and W_V in R^{d_V x d_V}; the layer of `block` is not looked at.
    Raises UserError when the block names another weight or the numbers are not float64.
    """
    _check(X, block)
    return AttentionPoint(X, Y, weights, temperature).hessian(part, Matrix(block.row), Matrix(block.col))


@dataclass(frozen=True)
class AttentionPoint:
    """Data, weights, and what every formula needs from one forward pass."""

    X: Float[Tensor, "L d_V"]
    Y: Float[Tensor, "L d_V"]
    weights: Weights
    temperature: float = 1.0

    @property
    def c(self) -> float:
        """2/(L d_V), the second derivative of the loss."""
        return 2 / self.X.numel()

    @property
    def score_scale(self) -> float:
        """1/(t sqrt(d_K))."""
        return 1 / (self.temperature * math.sqrt(self.weights[Matrix.W_Q].shape[1]))

    @cached_property
    def A(self) -> Float[Tensor, "L L"]:
        return torch.softmax(scores(self.X, self.weights, self.temperature), dim=-1)

    @cached_property
    def M1(self) -> Float[Tensor, "L d_V"]:
        return moments.first_moment(self.A, self.X)

    @cached_property
    def M2(self) -> Float[Tensor, "L d_V d_V"]:
        return moments.second_moment(self.A, self.X)

    @cached_property
    def residual(self) -> Float[Tensor, "L d_V"]:
        """D = F - Y."""
        return self.M1 @ self.weights[Matrix.W_V] - self.Y

    @cached_property
    def selectors(self) -> dict[Matrix, Float[Tensor, "dd p"]]:
        """R_Q = I (x) W_K and R_K = (W_Q (x) I) K_{d_K,d_V}: how W_Q and W_K move W_Q W_K^T."""
        W_Q, W_K = self.weights[Matrix.W_Q], self.weights[Matrix.W_K]
        d_V, d_K = W_Q.shape
        by_key = kron(W_Q, identity(d_V)) @ commutation(d_K, d_V)
        return {Matrix.W_Q: kron(identity(d_V), W_K), Matrix.W_K: by_key}

    def hessian(self, part: Part, row: Matrix, col: Matrix) -> Float[Tensor, "rows cols"]:
        """The block (row, col) of `part`."""
        if part == Part.H:
            return self.hessian(Part.H_o, row, col) + self.hessian(Part.H_f, row, col)
        if Matrix.W_V not in (row, col):
            return self._query_key(part, row, col)
        if row == col:
            return self._value_value(part)
        if row == Matrix.W_V:
            return self.c * self.score_scale * self._value_scores(part) @ self.selectors[col]
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
        per_row = {Part.H_o: self._outer(), Part.H_f: self._third()}
        return {
            part: torch.einsum("iab,icd->acbd", pairs, rows).reshape(size, size)
            for part, rows in per_row.items()
        }

    def gradient_of_scores(self) -> Float[Tensor, "d_V d_V"]:
        """B = sum_i x_i (M2_i W_V d_i)^T; c B = X^T (dl/dT) X (Remark D.1)."""
        return torch.einsum("ia,ibc,ic->ab", self.X, self.M2, self.residual @ self.weights[Matrix.W_V].T)

    def _query_key(self, part: Part, row: Matrix, col: Matrix) -> Float[Tensor, "rows cols"]:
        middle = self.c * self.score_scale**2 * self.curvature_of_scores(part)
        block = self.selectors[row].T @ middle @ self.selectors[col]
        if row == col or part == Part.H_o:
            return block
        B = self.gradient_of_scores() if row == Matrix.W_Q else self.gradient_of_scores().T
        return block + self.c * self.score_scale * kron(B, identity(self.weights[row].shape[1]))

    def _value_value(self, part: Part) -> Float[Tensor, "dd dd"]:
        block = self.c * kron(self.M1.T @ self.M1, identity(self.X.shape[1]))
        return block if part == Part.H_o else torch.zeros_like(block)

    def _value_scores(self, part: Part) -> Float[Tensor, "dd dd"]:
        size = self.X.shape[1] ** 2
        if part == Part.H_o:
            W_V = self.weights[Matrix.W_V]
            return torch.einsum("ia,ib,xc,ixd->acbd", self.M1, self.X, W_V, self.M2).reshape(size, size)
        return torch.einsum("ic,ib,iad->acbd", self.residual, self.X, self.M2).reshape(size, size)

    def _outer(self) -> Float[Tensor, "L d_V d_V"]:
        W_V = self.weights[Matrix.W_V]
        return self.M2 @ W_V @ W_V.T @ self.M2

    def _third(self) -> Float[Tensor, "L d_V d_V"]:
        z = self.X[None] - self.M1[:, None]
        pull = torch.einsum("ijx,ix->ij", z, self.residual @ self.weights[Matrix.W_V].T)
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
            "attention_hessian: float64 is needed", got=X.dtype, allowed="float64", remedy="X.double()"
        )
