"""Statements about eigenvalues and ranks of the query-key part (Appendix D)."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff.draws import attention_point, normal
from hessfig.theory.claims.attention.query_key import score_split
from hessfig.theory.formulas.attention import query_key as qk
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.verify.statement import Dims, Measure, Statement, Values, Verdict

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


STATEMENTS = [
    Statement(
        "D-pairs",
        "Appendix D, p. 27",
        "Eigenvalues of H_f^T come in pairs ±λ, each with multiplicity d_K.",
        Verdict.yes,
        attention_point,
        oracle=_pairs_oracle,
        printed=_pairs_printed,
        note="They are ±c/sqrt(d_K) times the singular values of B. Multiplicities are exact; zero occurs 2 "
        "d_K times for every "
        "rank B lacks, and rk B <= min(L - 1, d_V).",
    ),
    Statement(
        "lemD1",
        "Lemma D.1, p. 27",
        "rk [I_q ⊗ A; B ⊗ I_n] = q rk A + n rk B - rk A rk B.",
        Verdict.yes,
        _lemma_d1_draw,
        oracle=lambda d: {
            "rank": torch.tensor([qk.numerical_rank(qk.stacked_kronecker(*pair)) for pair in d])
        },
        printed=lambda d: {"rank": torch.tensor([qk.stacked_kronecker_rank(*pair) for pair in d])},
        measure=Measure.integer,
        note="For A and B of every rank.",
    ),
    Statement(
        "lemD2",
        "Lemma D.2, p. 27",
        "rk H_o^T <= 2 d_K d_V - d_K² if d_K < d_V, and d_V² otherwise.",
        Verdict.yes,
        _lemma_d2_draw,
        oracle=lambda d: {"excess": torch.zeros(len(d), dtype=torch.int64)},
        printed=lambda d: {"excess": _exceeding(d, _lemma_bound)},
        corrected=lambda d: {"excess": _exceeding(d, _lemma_bound, _token_bound)},
        measure=Measure.integer,
        error_is="by how much the rank exceeds the bound",
        correction="Sharper for short sequences: also rk H_o^T <= min(L, d_V) min(L - 1, d_V).",
    ),
]
