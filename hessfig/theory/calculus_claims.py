"""Statements about matrix calculus and moments."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.theory import matrix_formulas
from hessfig.theory import matrix_formulas as mc
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.autodiff import jacobian
from hessfig.theory.matrix_formulas import commutation, identity, khatri_rao, kron, vec
from hessfig.theory.statement import Dims, Statement, Values, Verdict, attention_point, normal


@dataclass(frozen=True)
class _Matrices:
    """A: n x m, B: m x p, square: m x m, blocks: n matrices of m x p, v: a vector."""

    A: Tensor
    B: Tensor
    square: Tensor
    blocks: Tensor
    v: Tensor


def _draw(dims: Dims, generator: torch.Generator) -> _Matrices:
    n, m, p = dims.L, dims.d_V, dims.d_K
    shapes = ((n, m), (m, p), (m, m), (n, m, p), (n,))
    return _Matrices(*(normal(*shape, generator=generator) for shape in shapes))


def _eq13_printed(d: _Matrices) -> Values:
    return {"square": kron(d.square, identity(len(d.square))) @ vec(d.square)}


def _eq13_corrected(d: _Matrices) -> Values:
    return {"square": mc.vec_by_identity(d.square), "rectangular": mc.vec_by_identity(d.A)}


def _eq14_direct(d: _Matrices) -> Values:
    return {"product": mc.block_diagonal(d.blocks) @ kron(d.A, d.B.T)}


def _eq15_oracle(d: _Matrices) -> Values:
    return {"jacobian": jacobian(lambda X: d.A @ X @ d.B, d.square)}


def _eq16_oracle(d: _Matrices) -> Values:
    return {"jacobian": jacobian(lambda X: torch.kron(X, d.B), d.A)}


def _eq17_oracle(d: _Matrices) -> Values:
    return {"jacobian": jacobian(lambda Y: torch.kron(d.A, Y), d.B)}


def _eq18_oracle(d: _Matrices) -> Values:
    return {"jacobian": jacobian(lambda X: X.T.contiguous(), d.A)}


def _lemma_b2_left(d: _Matrices) -> Values:
    M, N = d.A.shape
    swap = _own_commutation(M, N)
    return {"identity": kron(identity(M), swap) @ kron(vec(identity(M))[:, None], identity(N))}


def _lemma_b2_right(d: _Matrices) -> Values:
    M, N = d.A.shape
    swap = _own_commutation(N, M)
    return {"identity": kron(swap, identity(M)) @ kron(identity(N), vec(identity(M))[:, None])}


def _lemma_b2_usual(d: _Matrices) -> Values:
    M, N = d.A.shape
    return {"identity": kron(commutation(M, N), identity(M)) @ kron(identity(N), vec(identity(M))[:, None])}


def _own_commutation(M: int, N: int) -> Tensor:
    """Lemma B.2's K(M, N): sends entry (m, n) of a vector to place (n, m); it is K_{N,M}."""
    swap = torch.zeros(M * N, M * N, dtype=mc.DTYPE)
    for m in range(M):
        for n in range(N):
            swap[n * M + m, m * N + n] = 1
    return swap


def _lemma_b3_left(d: _Matrices) -> Values:
    m, n = d.A.shape
    return {"identity": kron(identity(m), commutation(m, n)) @ kron(vec(d.A)[:, None], d.A)}


def _lemma_b3_right(d: _Matrices) -> Values:
    n = d.A.shape[1]
    return {"identity": kron(d.A, d.A, identity(n)) @ mc.shuffle(n)}


CALCULUS = [
    Statement(
        "eq12",
        "eq. 12, p. 14",
        "A (v^T ⊗ B) = v^T ⊗ A B for a vector v.",
        Verdict.yes,
        _draw,
        oracle=lambda d: {"product": d.A @ kron(d.v[None], d.B)},
        printed=lambda d: {"product": mc.row_times_kron(d.A, d.v, d.B)},
    ),
    Statement(
        "eq13",
        "eq. 13, p. 14",
        "vec A = (A ⊗ I_n) vec A for A with n rows and m columns.",
        Verdict.no,
        _draw,
        oracle=lambda d: {"square": vec(d.square), "rectangular": vec(d.A)},
        printed=_eq13_printed,
        corrected=_eq13_corrected,
        correction="vec A = (A ⊗ I_m) vec I_m.",
        note="Tried on a square A: for n ≠ m the printed product does not exist. The proof ends with vec I, "
        "of size n where it "
        "must be m.",
    ),
    Statement(
        "eq14",
        "eq. 14, p. 14",
        "blockdiag(A_i) (B ⊗ C) stacks the block rows b_i^T ⊗ A_i C, b_i^T the rows of B.",
        Verdict.yes,
        _draw,
        oracle=_eq14_direct,
        printed=lambda d: {"product": mc.block_diagonal_times_kron(d.blocks, d.A, d.B.T)},
    ),
    Statement(
        "eq15",
        "eq. 15, p. 15",
        "The derivative of A X B with respect to X is A ⊗ B^T.",
        Verdict.yes,
        _draw,
        oracle=_eq15_oracle,
        printed=lambda d: {"jacobian": mc.product_jacobian(d.A, d.B)},
    ),
    Statement(
        "eq16",
        "eq. 16, p. 15",
        "d(X ⊗ Y)/dX = (I_n ⊗ K_{p,q} ⊗ I_r)(I_nq ⊗ vec Y) for X of size n x q, Y of size p x r.",
        Verdict.yes,
        _draw,
        oracle=_eq16_oracle,
        printed=lambda d: {"jacobian": mc.kron_jacobian_left(d.A, d.B)},
    ),
    Statement(
        "eq17",
        "eq. 17, p. 15",
        "d(X ⊗ Y)/dY = (I_n ⊗ K_{p,q} ⊗ I_r)(vec X ⊗ I_pr) for the same sizes.",
        Verdict.yes,
        _draw,
        oracle=_eq17_oracle,
        printed=lambda d: {"jacobian": mc.kron_jacobian_right(d.A, d.B)},
    ),
    Statement(
        "eq18",
        "eq. 18, p. 16",
        "The derivative of the transpose of an n x q matrix is K_{q,n}.",
        Verdict.yes,
        _draw,
        oracle=_eq18_oracle,
        printed=lambda d: {"jacobian": mc.transpose_jacobian(*d.A.shape)},
    ),
    Statement(
        "lemB2",
        "Lemma B.2, p. 17",
        "(I_M ⊗ K(M,N))(vec I_M ⊗ I_N) = (K(N,M) ⊗ I_M)(I_N ⊗ vec I_M).",
        Verdict.yes,
        _draw,
        oracle=_lemma_b2_left,
        printed=_lemma_b2_right,
        corrected=_lemma_b2_usual,
        correction="With the usual K: (I_M ⊗ K_{N,M})(vec I_M ⊗ I_N) = (K_{M,N} ⊗ I_M)(I_N ⊗ vec I_M).",
        note="Holds with the K(M,N) the lemma defines, which is K_{N,M} in Lemma B.3: the two use opposite "
        "conventions.",
    ),
    Statement(
        "lemB3",
        "Lemma B.3, p. 17",
        "(I_m ⊗ K_{m,n})(vec A ⊗ A) = (A ⊗ A ⊗ I_n)(I_n ⊗ K_{n,n})(vec I_n ⊗ I_n) for A of size m x n.",
        Verdict.yes,
        _draw,
        oracle=_lemma_b3_left,
        printed=_lemma_b3_right,
        note="With the Magnus-Neudecker K_{m,n}.",
    ),
]


def _z2_printed(point: AttentionPoint) -> Values:
    """X by rows times X^T by columns: the block layouts L x 1 and 1 x L differ, khatri_rao raises
    ValueError.
    """
    by_rows, by_columns = point.X[:, None, None, :], point.X[None, :, :, None]
    return {"bracket": khatri_rao(by_rows, by_columns)}


def _one_hot_draw(dims: Dims, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    targets = torch.randint(dims.L, (dims.L,), generator=generator)
    return identity(dims.L)[targets], normal(dims.L, dims.d_V, generator=generator)


def _one_hot_oracle(problem: tuple[Tensor, Tensor]) -> Values:
    X = problem[1]
    L, d = X.shape
    return {"M_2": torch.zeros(L, d, d, dtype=X.dtype), "M_3": torch.zeros(L, d * d, d, dtype=X.dtype)}


MOMENTS = [
    Statement(
        "rem31-Z1",
        "Remark 3.1, p. 7",
        "Z_1 = X * M_2, the Khatri-Rao product by rows of attention.",
        Verdict.yes,
        attention_point,
        oracle=lambda p: {"Z_1": matrix_formulas.z1_by_definition(p.A, p.X)},
        printed=lambda p: {"Z_1": matrix_formulas.z1_by_moments(p.A, p.X)},
    ),
    Statement(
        "rem31-Z2",
        "Remark 3.1, p. 7",
        "Z_2 = (I_L ⊗ K ⊗ I)(X * X^T * M_3), * the Khatri-Rao product.",
        Verdict.ill_typed,
        attention_point,
        oracle=lambda p: {"Z_2": matrix_formulas.z2_by_definition(p.A, p.X)},
        printed=_z2_printed,
        corrected=lambda p: {"Z_2": matrix_formulas.z2_by_moments(p.A, p.X)},
        correction="Z_2 = (I_L ⊗ K ⊗ I) [x_i x_i^T ⊗ M_3,i]_i: block i of the bracket is x_i x_i^T ⊗ M_3,i.",
        note="X has L x 1 blocks, X^T has 1 x L. The last line of the proof has M_3 where it means Z_2 (L d_V³ rows).",
    ),
    Statement(
        "onehot",
        "Section 3.2, p. 7",
        "One-hot attention rows have M_2 = M_3 = 0.",
        Verdict.yes,
        _one_hot_draw,
        oracle=_one_hot_oracle,
        printed=lambda d: {"M_2": matrix_formulas.second_moment(*d), "M_3": matrix_formulas.third_moment(*d)},
        note="Exactly zero.",
    ),
]
