"""Statements about networks without softmax: Remark 4.1 and the linear MLP (Sections 2 and 4.1)."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.terms import Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_point, normal
from hessfig.theory.autodiff.oracle import hessian_blocks, square_loss
from hessfig.theory.claims.attention.softmax import named
from hessfig.theory.formulas.attention import linear as la
from hessfig.theory.formulas.attention.linear import LinearPoint
from hessfig.theory.formulas.attention.softmax import MATRICES
from hessfig.theory.formulas.sublayers import linear_mlp
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict

Q, K, V = MATRICES


def _linear_draw(dims: Dims, generator: torch.Generator) -> LinearPoint:
    point = attention_point(dims, generator)
    return LinearPoint(point.X, point.Y, point.weights)


def _remark_oracle(point: LinearPoint) -> Values:
    values: dict[str, Tensor] = {}
    for part in (Part.H_o, Part.H_f):
        blocks = hessian_blocks(
            lambda w: networks.linear_attention(point.X, w), square_loss(point.Y), point.weights, part
        )
        values |= named(part, blocks)
    return values


def _remark_printed(point: LinearPoint) -> Values:
    hollow = {(m, m): torch.zeros(2 * (point.weights[m].numel(),), dtype=point.X.dtype) for m in MATRICES}
    return {
        **named(Part.H_o, la.outer_product_blocks(point)),
        **named(Part.H_f, {**la.functional_blocks(point), **hollow}),
    }


def _remark_keys(point: LinearPoint) -> Values:
    functional = {**la.functional_key_block(point), **la.contracted_functional_blocks(point)}
    return {
        **named(Part.H_o, la.outer_product_key_blocks(point)),
        **named(Part.H_f, functional),
    }


def _mlp_draw(dims: Dims, generator: torch.Generator) -> tuple[Tensor, Tensor, dict[int, Tensor]]:
    widths = (dims.d_V, dims.d_K, dims.d_ff, dims.d_V + dims.L)
    layers = {i + 1: normal(widths[i + 1], widths[i], generator=generator) for i in range(3)}
    X, Y = (normal(dims.L, width, generator=generator) for width in (widths[0], widths[-1]))
    return X, Y, layers


def _mlp_oracle(problem: tuple[Tensor, Tensor, dict[int, Tensor]]) -> Values:
    X, Y, weights = problem
    losses = {"half": lambda F: (F - Y).square().sum() / (2 * len(X)), "mean": square_loss(Y)}
    values: dict[str, Tensor] = {}
    for name, loss in losses.items():
        for part in (Part.H_o, Part.H_f):
            blocks = hessian_blocks(lambda w: networks.linear_mlp(X, w), loss, weights, part)
            values |= {f"{name} {part}{pair}": block for pair, block in blocks.items()}
    return values


def _mlp_blocks(
    problem: tuple[Tensor, Tensor, dict[int, Tensor]], name: str, scale: float
) -> dict[str, Tensor]:
    X, _, weights = problem
    outer = {f"{name} H_o{(i, i)}": scale * linear_mlp.outer_product_block(X, weights, i) for i in weights}
    zeros = {f"{name} H_f{(i, i)}": torch.zeros(2 * (w.numel(),), dtype=X.dtype) for i, w in weights.items()}
    return {**outer, **zeros}


def _mlp_corrected(problem: tuple[Tensor, Tensor, dict[int, Tensor]]) -> Values:
    X, Y, weights = problem
    scale, D = 2 / Y.shape[1], networks.linear_mlp(X, weights) - Y
    pairs = [(i, j) for i in weights for j in weights if i > j]
    mixed = {f"mean H_f{pair}": scale * linear_mlp.functional_block(X, D, weights, pair) for pair in pairs}
    return {**_mlp_blocks(problem, "mean", scale), **mixed}


STATEMENTS = [
    Statement(
        "rem41",
        "Remark 4.1, p. 8",
        "Blocks of linear attention: H_o cubic in Σ; H_f zero on the diagonal.",
        Verdict.yes,
        _linear_draw,
        oracle=_remark_oracle,
        printed=_remark_printed,
        corrected=_remark_keys,
        correction="Added: H_o(K,K) = c' K^T (W_Q^T Σ W_Q ⊗ Σ W_V W_V^T Σ) K, H_o(V,K) = c' (Σ W_K W_Q^T Σ "
        "W_Q ⊗ W_V^T Σ) K, and H_f(Q,K) = "
        "(2L/(d_V sqrt(d_K))) (Ω W_V^T Σ) ⊗ I, with c' = 2L²/(d_V d_K), K = K_{d_K,d_V}.",
        note="The sentence before the remark has dA/dT = I of size d_V²: the size is L².",
    ),
    Statement(
        "mlp",
        "Section 2, p. 4",
        "Linear MLP: H_o(W^i,W^i) = above^T above ⊗ below Σ below^T, H_f(W^i,W^i) = 0.",
        Verdict.yes,
        _mlp_draw,
        oracle=_mlp_oracle,
        printed=lambda p: _mlp_blocks(p, "half", 1.0),
        corrected=_mlp_corrected,
        correction="For the paper's own loss ||F - Y||²/(L d_out) the blocks are 2/d_out times larger.",
        note="Above and below are the products of the weights above and below layer i. As printed it is for "
        "half the squared "
        "norm, averaged over tokens.",
    ),
]
