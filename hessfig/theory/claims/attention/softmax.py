"""Statements about first and second derivatives of one softmax attention layer: eq. 2, Lemmas B.1 and C.1."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor
from torch.func import grad

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_point, normal
from hessfig.theory.autodiff.oracle import (
    dense_hessian,
    hessian_blocks,
    jacobian,
    second_derivative,
    square_loss,
    weight_jacobian,
)
from hessfig.theory.formulas.attention import literal
from hessfig.theory.formulas.attention.softmax import MATRICES, AttentionPoint
from hessfig.theory.formulas.matrix_calculus import identity, kron
from hessfig.theory.formulas.moments import softmax_jacobian, softmax_second_derivative
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict

Q, K, V = MATRICES
Pair = tuple[Matrix, Matrix]


def oracle_blocks(point: AttentionPoint, part: Part) -> dict[str, Tensor]:
    """All blocks of one part by automatic differentiation, named."""
    return named(part, hessian_blocks(_network(point), square_loss(point.Y), point.weights, part))


def named(part: Part, blocks: Mapping[Pair, Tensor]) -> dict[str, Tensor]:
    """Blocks keyed by words instead of pairs."""
    return {f"{part}({row}, {col})": block for (row, col), block in blocks.items()}


def _network(point: AttentionPoint) -> Callable[[Mapping[Matrix, Tensor]], Tensor]:
    return lambda weights: networks.attention(point.X, weights, point.temperature)


def _eq2_oracle(point: AttentionPoint) -> Values:
    return {"H": dense_hessian(_network(point), square_loss(point.Y), point.weights)}


def _eq2_printed(point: AttentionPoint) -> Values:
    """J^T (d2l/dF2) J + (dl/dF (x) I) d2F/dW2 with the layout of eq. 4."""
    flat, output = _flattened(point)
    loss, F = square_loss(point.Y), output(flat)
    J = jacobian(output, flat)
    outer = J.T @ (2 / F.numel() * identity(F.numel())) @ J
    gradient = grad(loss)(F).reshape(1, -1)
    return {"H": outer + kron(gradient, identity(len(flat))) @ second_derivative(output, flat)}


def _flattened(point: AttentionPoint) -> tuple[Tensor, Callable[[Tensor], Tensor]]:
    shapes = {m: w.shape for m, w in point.weights.items()}
    sizes = [shape.numel() for shape in shapes.values()]

    def output(flat: Tensor) -> Tensor:
        pieces = zip(shapes.items(), flat.split(sizes), strict=True)
        return _network(point)({m: piece.reshape(shape) for (m, shape), piece in pieces})

    return torch.cat([w.reshape(-1) for w in point.weights.values()]), output


def _lemma_b1_oracle(point: AttentionPoint) -> Values:
    T = networks.scores(point.X, point.weights)
    values = {f"dF/d{m}": weight_jacobian(_network(point), point.weights, m) for m in MATRICES}
    return {**values, "dA/dT": jacobian(lambda scores: torch.softmax(scores, -1), T)}


def _lemma_b1_all(point: AttentionPoint) -> dict[str, Tensor]:
    jacobians = {f"dF/d{m}": block for m, block in literal.jacobians(point).items()}
    return {**jacobians, "dA/dT": softmax_jacobian(point.A)}


def _lemma_b1_printed(point: AttentionPoint) -> Values:
    values = _lemma_b1_all(point)
    del values[f"dF/d{K}"]
    return values


def _lemma_c1_draw(dims: Dims, generator: torch.Generator) -> list[Tensor]:
    return [normal(size, size, generator=generator) for size in (2, dims.L)]


def _lemma_c1_oracle(scores: list[Tensor]) -> Values:
    second = [second_derivative(lambda T: torch.softmax(T, -1), T) for T in scores]
    return {"Remark C.1": second[0], "Lemma C.1": second[1]}


def _lemma_c1_printed(scores: list[Tensor]) -> Values:
    small, large = (torch.softmax(T, -1) for T in scores)
    return {"Remark C.1": _remark_c1(small), "Lemma C.1": softmax_second_derivative(large)}


def _remark_c1(A: Tensor) -> Tensor:
    """The 16 x 4 matrix of Remark C.1, b_ij = 1 - 2 a_ij."""
    matrix = torch.zeros(16, 4, dtype=A.dtype)
    for i, (p, q) in enumerate(A):
        b1, b2 = 1 - 2 * p, 1 - 2 * q
        first = [[(p - p**2) * b1, -p * q * b1], [-p * q * b1, -p * q * b2]]
        second = [[-p * q * b1, -p * q * b2], [-p * q * b2, (q - q**2) * b2]]
        for j, block in enumerate((first, second)):
            row, col = 8 * i + 4 * j + 2 * i, 2 * i
            matrix[row : row + 2, col : col + 2] = torch.tensor(block, dtype=A.dtype)
    return matrix


STATEMENTS = [
    Statement(
        "eq2",
        "eq. 2, p. 3",
        "H = J^T (d²l/dF²) J + (dl/dF ⊗ I) d²F/dW², the Gauss-Newton split.",
        Verdict.yes,
        attention_point,
        oracle=_eq2_oracle,
        printed=_eq2_printed,
    ),
    Statement(
        "lemB1",
        "Lemma B.1 and eq. 19, p. 16",
        "Jacobians of F in W_V and W_Q, and of the row-wise softmax.",
        Verdict.yes,
        attention_point,
        oracle=_lemma_b1_oracle,
        printed=_lemma_b1_printed,
        corrected=_lemma_b1_all,
        correction="Added: dF/dW_K = (I ⊗ W_V^T) Z_1 R_K / sqrt(d_K).",
        note="The Jacobian in W_K is left out.",
    ),
    Statement(
        "lemC1",
        "Lemma C.1, eq. 23 and Remark C.1, p. 21-22",
        "The second derivative of the row-wise softmax.",
        Verdict.yes,
        _lemma_c1_draw,
        oracle=_lemma_c1_oracle,
        printed=_lemma_c1_printed,
        note="Labelled d²F/dT² in the paper: it is d²A/dT².",
    ),
]
