"""Statements about attention moments: Remark 3.1 and the remark on one-hot rows (Section 3.2)."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.theory.autodiff.draws import attention_point, normal
from hessfig.theory.formulas import moments
from hessfig.theory.formulas.attention.softmax import AttentionPoint
from hessfig.theory.formulas.matrix_calculus import identity, khatri_rao
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict


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


STATEMENTS = [
    Statement(
        "rem31-Z1",
        "Remark 3.1, p. 7",
        "Z_1 = X * M_2, the Khatri-Rao product by rows of attention.",
        Verdict.yes,
        attention_point,
        oracle=lambda p: {"Z_1": moments.z1_by_definition(p.A, p.X)},
        printed=lambda p: {"Z_1": moments.z1_by_moments(p.A, p.X)},
    ),
    Statement(
        "rem31-Z2",
        "Remark 3.1, p. 7",
        "Z_2 = (I_L ⊗ K ⊗ I)(X * X^T * M_3), * the Khatri-Rao product.",
        Verdict.ill_typed,
        attention_point,
        oracle=lambda p: {"Z_2": moments.z2_by_definition(p.A, p.X)},
        printed=_z2_printed,
        corrected=lambda p: {"Z_2": moments.z2_by_moments(p.A, p.X)},
        correction="Z_2 = (I_L ⊗ K ⊗ I) [x_i x_i^T ⊗ M_3,i]_i: block i of the bracket is x_i x_i^T ⊗ M_3,i.",
        note="X has L x 1 blocks, X^T has 1 x L. The last line of the proof has M_3 where it means Z_2 (L "
        "d_V³ rows).",
    ),
    Statement(
        "onehot",
        "Section 3.2, p. 7",
        "One-hot attention rows have M_2 = M_3 = 0.",
        Verdict.yes,
        _one_hot_draw,
        oracle=_one_hot_oracle,
        printed=lambda d: {"M_2": moments.second_moment(*d), "M_3": moments.third_moment(*d)},
        note="Exactly zero.",
    ),
]
