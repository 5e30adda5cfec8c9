"""Statements about matrix calculus and moments."""

from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.theory import matrix_formulas as mc
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.autodiff import jacobian
from hessfig.theory.matrix_formulas import commutation, identity, khatri_rao, kron, vec
from hessfig.theory.statement import Check, Dims, Values, attention_point, normal


@dataclass(frozen=True)
class _Matrices:
    """A: n x m, B: m x p, square: m x m, blocks: n matrices of m x p, v: a vector."""

    A: Tensor
    B: Tensor
    square: Tensor
    blocks: Tensor
    v: Tensor


def _draw(dims: Dims, generator: torch.Generator) -> _Matrices:
    n = dims.L
    m = dims.d_V
    p = dims.d_K
    return _Matrices(
        A=normal(n, m, generator=generator),
        B=normal(m, p, generator=generator),
        square=normal(m, m, generator=generator),
        blocks=normal(n, m, p, generator=generator),
        v=normal(n, generator=generator),
    )


def _eq13_printed(d: _Matrices) -> Values:
    I_n = identity(len(d.square))
    return {"square": kron(d.square, I_n) @ vec(d.square)}


def _eq13_corrected(d: _Matrices) -> Values:
    return {
        "square": mc.vec_by_identity(d.square),
        "rectangular": mc.vec_by_identity(d.A),
    }


def _lemma_b2_left(d: _Matrices) -> Values:
    M, N = d.A.shape
    I_M = identity(M)
    exchanged = kron(I_M, _own_commutation(M, N))
    return {"identity": exchanged @ kron(vec(I_M)[:, None], identity(N))}


def _lemma_b2_right(d: _Matrices) -> Values:
    M, N = d.A.shape
    I_M = identity(M)
    exchanged = kron(_own_commutation(N, M), I_M)
    return {"identity": exchanged @ kron(identity(N), vec(I_M)[:, None])}


def _lemma_b2_usual(d: _Matrices) -> Values:
    M, N = d.A.shape
    I_M = identity(M)
    exchanged = kron(commutation(M, N), I_M)
    return {"identity": exchanged @ kron(identity(N), vec(I_M)[:, None])}


def _own_commutation(M: int, N: int) -> Tensor:
    """Lemma B.2's K(M, N): sends entry (m, n) of a vector to place (n, m); it is K_{N,M}."""
    swap = torch.zeros(M * N, M * N, dtype=mc.DTYPE)
    for m in range(M):
        for n in range(N):
            swap[n * M + m, m * N + n] = 1
    return swap


def _lemma_b3_left(d: _Matrices) -> Values:
    m, n = d.A.shape
    exchanged = kron(identity(m), commutation(m, n))
    return {"identity": exchanged @ kron(vec(d.A)[:, None], d.A)}


def _lemma_b3_right(d: _Matrices) -> Values:
    n = d.A.shape[1]
    left = kron(d.A, d.A, identity(n))
    return {"identity": left @ mc.shuffle(n)}


CALCULUS = {
    "eq12": Check(
        _draw,
        lambda d: {"product": d.A @ kron(d.v[None], d.B)},
        lambda d: {"product": mc.row_times_kron(d.A, d.v, d.B)},
    ),
    "eq13": Check(
        _draw,
        lambda d: {"square": vec(d.square), "rectangular": vec(d.A)},
        _eq13_printed,
        _eq13_corrected,
    ),
    "eq14": Check(
        _draw,
        lambda d: {"product": mc.block_diagonal(d.blocks) @ kron(d.A, d.B.T)},
        lambda d: {"product": mc.block_diagonal_times_kron(d.blocks, d.A, d.B.T)},
    ),
    "eq15": Check(
        _draw,
        lambda d: {"jacobian": jacobian(lambda X: d.A @ X @ d.B, d.square)},
        lambda d: {"jacobian": mc.product_jacobian(d.A, d.B)},
    ),
    "eq16": Check(
        _draw,
        lambda d: {"jacobian": jacobian(lambda X: torch.kron(X, d.B), d.A)},
        lambda d: {"jacobian": mc.kron_jacobian_left(d.A, d.B)},
    ),
    "eq17": Check(
        _draw,
        lambda d: {"jacobian": jacobian(lambda Y: torch.kron(d.A, Y), d.B)},
        lambda d: {"jacobian": mc.kron_jacobian_right(d.A, d.B)},
    ),
    "eq18": Check(
        _draw,
        lambda d: {"jacobian": jacobian(lambda X: X.T.contiguous(), d.A)},
        lambda d: {"jacobian": mc.transpose_jacobian(*d.A.shape)},
    ),
    "lemB2": Check(_draw, _lemma_b2_left, _lemma_b2_right, _lemma_b2_usual),
    "lemB3": Check(_draw, _lemma_b3_left, _lemma_b3_right),
}


def _z2_printed(point: AttentionPoint) -> Values:
    """X by rows times X^T by columns: the block layouts L x 1 and 1 x L differ, khatri_rao raises
    ValueError.
    """
    by_rows = point.X[:, None, None, :]
    by_columns = point.X[None, :, :, None]
    return {"bracket": khatri_rao(by_rows, by_columns)}


def _one_hot_draw(dims: Dims, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    L = dims.L
    targets = torch.randint(L, (L,), generator=generator)
    tokens = normal(L, dims.d_V, generator=generator)
    return identity(L)[targets], tokens


def _one_hot_oracle(problem: tuple[Tensor, Tensor]) -> Values:
    X = problem[1]
    L, d = X.shape
    return {"M_2": X.new_zeros(L, d, d), "M_3": X.new_zeros(L, d * d, d)}


MOMENTS = {
    "rem31-Z1": Check(
        attention_point,
        lambda p: {"Z_1": mc.z1_by_definition(p.A, p.X)},
        lambda p: {"Z_1": mc.z1_by_moments(p.A, p.X)},
    ),
    "rem31-Z2": Check(
        attention_point,
        lambda p: {"Z_2": mc.z2_by_definition(p.A, p.X)},
        _z2_printed,
        lambda p: {"Z_2": mc.z2_by_moments(p.A, p.X)},
    ),
    "onehot": Check(
        _one_hot_draw,
        _one_hot_oracle,
        lambda d: {"M_2": mc.second_moment(*d), "M_3": mc.third_moment(*d)},
    ),
}
STATEMENTS = {**CALCULUS, **MOMENTS}
