"""Statements about several heads and a low-rank value weight (Appendix E)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_weights, normal
from hessfig.theory.autodiff.networks import IndexedWeights, multi_head_attention
from hessfig.theory.autodiff.oracle import Loss, hessian_blocks, square_loss, weight_jacobian
from hessfig.theory.claims.attention.softmax import named
from hessfig.theory.formulas.attention.multi_head import head_jacobians, low_rank_blocks, low_rank_point
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict

HEADS = (1, 2, 3)
Q, K = Matrix.W_Q, Matrix.W_K


@dataclass(frozen=True)
class _Problem:
    X: Tensor
    Y: Tensor
    labels: Tensor
    weights: dict[tuple[int, Matrix], Tensor]

    @property
    def losses(self) -> dict[str, Loss]:
        """Square loss, and cross-entropy with the outputs as logits."""
        return {"MSE": square_loss(self.Y), "CE": lambda F: torch.nn.functional.cross_entropy(F, self.labels)}


def _draw(dims: Dims, generator: torch.Generator) -> _Problem:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    labels = torch.randint(dims.d_V, (dims.L,), generator=generator)
    heads = {h: attention_weights(dims, generator) for h in HEADS}
    return _Problem(X, Y, labels, {(h, m): w for h, head in heads.items() for m, w in head.items()})


def _heads_oracle(p: _Problem) -> Values:
    def network(weights: IndexedWeights) -> Tensor:
        return multi_head_attention(p.X, weights)

    values = {f"dF/d{key}": weight_jacobian(network, p.weights, key) for key in p.weights}
    for name, loss in p.losses.items():
        blocks = hessian_blocks(network, loss, p.weights, Part.H_f)
        values |= {f"{name} {a}{b}": block for (a, b), block in blocks.items()}
    return values


def _heads_printed(p: _Problem) -> Values:
    jacobians = {
        f"dF/d{(h, m)}": block for h in HEADS for m, block in head_jacobians(p.X, p.weights, h).items()
    }
    zeros = {
        f"{name} {a}{b}": torch.zeros(wa.numel(), wb.numel(), dtype=wa.dtype)
        for name in p.losses
        for a, wa in p.weights.items()
        for b, wb in p.weights.items()
        if a[0] != b[0]
    }
    return {**jacobians, **zeros}


@dataclass(frozen=True)
class _LowRank:
    X: Tensor
    Y: Tensor
    weights: dict[Matrix, Tensor]


def _low_rank_draw(dims: Dims, generator: torch.Generator) -> _LowRank:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    W_O, W_U = (normal(*shape, generator=generator) for shape in ((dims.d_V, dims.d_K), (dims.d_K, dims.d_V)))
    query_key = {m: w for m, w in attention_weights(dims, generator).items() if m in (Q, K)}
    return _LowRank(X, Y, {**query_key, Matrix.W_O: W_O, Matrix.W_U: W_U})


def _low_rank_oracle(p: _LowRank) -> Values:
    values: dict[str, Tensor] = {}
    for part in Part:
        values |= named(
            part,
            hessian_blocks(lambda w: networks.low_rank_attention(p.X, w), square_loss(p.Y), p.weights, part),
        )
    return values


def _low_rank_printed(p: _LowRank) -> Values:
    """Query-key blocks are those of the product W_O W_U; H_f is zero on the diagonal of (O, U)."""
    point, O, U = low_rank_point(p.X, p.Y, p.weights), Matrix.W_O, Matrix.W_U  # noqa: E741
    values: dict[str, Tensor] = {}
    for part in Part:
        values |= named(part, {(a, b): point.hessian(part, a, b) for a in (Q, K) for b in (Q, K)})
    hollow = low_rank_blocks(p.X, p.Y, p.weights, Part.H_f)
    return {**values, **named(Part.H_f, {pair: hollow[pair] for pair in ((O, O), (U, U))})}


def _low_rank_corrected(p: _LowRank) -> Values:
    values: dict[str, Tensor] = {}
    for part in Part:
        values |= named(part, low_rank_blocks(p.X, p.Y, p.weights, part))
    return values


STATEMENTS = [
    Statement(
        "remE1",
        "Remark E.1, p. 29",
        "A head's Jacobian depends on that head alone; H_f between heads is zero.",
        Verdict.yes,
        _draw,
        oracle=_heads_oracle,
        printed=_heads_printed,
        note=f"{len(HEADS)} heads; square loss and cross-entropy. The zeros are exact.",
    ),
    Statement(
        "E1-low",
        "Appendix E.1, p. 29",
        "W_V = W_O W_U leaves query-key blocks as they are; H_f(O,O) = H_f(U,U) = 0.",
        Verdict.yes,
        _low_rank_draw,
        oracle=_low_rank_oracle,
        printed=_low_rank_printed,
        corrected=_low_rank_corrected,
        correction="Added: H_f(O,U) = c (M_1^T D ⊗ I) K_{d_V,d_K}, H_o(O,O) = c G ⊗ W_U W_U^T, H_o(U,U) = c "
        "W_O^T G W_O ⊗ I, H_o(O,U) = "
        "c G W_O ⊗ W_U, G = M_1^T M_1.",
        note="'Quadratic in M_1' is an upper degree: H_f(O,U) is homogeneous in M_1 for Y = 0 only.",
    ),
]
