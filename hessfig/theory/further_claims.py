"""Statements about linear attention and several heads."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.terms import PARTS, Matrix, Part
from hessfig.theory import autodiff, statement, sublayer_formulas
from hessfig.theory import further_formulas as la
from hessfig.theory.attention_formulas import MATRICES
from hessfig.theory.further_formulas import LinearPoint, head_jacobians, low_rank_blocks, low_rank_point

Q, K, V = MATRICES


def _linear_draw(dims: statement.Dims, generator: torch.Generator) -> LinearPoint:
    point = statement.attention_point(dims, generator)
    return LinearPoint(point.X, point.Y, point.weights)


def _remark_oracle(point: LinearPoint) -> statement.Values:
    return statement.autodiff_blocks(
        lambda w: autodiff.linear_attention(point.X, w), point.Y, point.weights, (Part.H_o, Part.H_f)
    )


def _remark_printed(point: LinearPoint) -> statement.Values:
    hollow = {(m, m): torch.zeros(2 * (point.weights[m].numel(),), dtype=point.X.dtype) for m in MATRICES}
    return {
        **statement.named(Part.H_o, la.outer_product_blocks(point)),
        **statement.named(Part.H_f, {**la.functional_blocks(point), **hollow}),
    }


def _remark_keys(point: LinearPoint) -> statement.Values:
    functional = {**la.functional_key_block(point), **la.contracted_functional_blocks(point)}
    return {**statement.named(Part.H_o, la.outer_product_key_blocks(point)), **statement.named(Part.H_f, functional)}


def _mlp_draw(dims: statement.Dims, generator: torch.Generator) -> statement.Instance:
    widths = (dims.d_V, dims.d_K, dims.d_ff, dims.d_V + dims.L)
    layers = {i + 1: statement.normal(widths[i + 1], widths[i], generator=generator) for i in range(3)}
    X, Y = (statement.normal(dims.L, width, generator=generator) for width in (widths[0], widths[-1]))
    return statement.Instance(X, Y, layers)


def _mlp_oracle(p: statement.Instance) -> statement.Values:
    losses = {"half": lambda F: (F - p.Y).square().sum() / (2 * len(p.X)), "mean": autodiff.square_loss(p.Y)}
    values: dict[str, Tensor] = {}
    for name, loss in losses.items():
        for part in (Part.H_o, Part.H_f):
            blocks = autodiff.hessian_blocks(lambda w: autodiff.linear_mlp(p.X, w), loss, p.weights, part)
            values |= {f"{name} {part}{pair}": block for pair, block in blocks.items()}
    return values


def _mlp_blocks(p: statement.Instance, name: str, scale: float) -> dict[str, Tensor]:
    X, weights = p.X, p.weights
    outer = {f"{name} H_o{(i, i)}": scale * sublayer_formulas.outer_product_block(X, weights, i) for i in weights}
    zeros = {f"{name} H_f{(i, i)}": torch.zeros(2 * (w.numel(),), dtype=X.dtype) for i, w in weights.items()}
    return {**outer, **zeros}


def _mlp_corrected(p: statement.Instance) -> statement.Values:
    X, Y, weights = p.X, p.Y, p.weights
    scale, D = 2 / Y.shape[1], autodiff.linear_mlp(X, weights) - Y
    pairs = [(i, j) for i in weights for j in weights if i > j]
    mixed = {f"mean H_f{pair}": scale * sublayer_formulas.functional_block(X, D, weights, pair) for pair in pairs}
    return {**_mlp_blocks(p, "mean", scale), **mixed}


LINEAR = {
    "rem41": statement.Check(_linear_draw, _remark_oracle, _remark_printed, _remark_keys),
    "mlp": statement.Check(_mlp_draw, _mlp_oracle, lambda p: _mlp_blocks(p, "half", 1.0), _mlp_corrected),
}


HEADS = (1, 2, 3)
Q, K = Matrix.W_Q, Matrix.W_K


@dataclass(frozen=True)
class _Problem:
    X: Tensor
    Y: Tensor
    labels: Tensor
    weights: dict[tuple[int, Matrix], Tensor]

    @property
    def losses(self) -> dict[str, autodiff.Loss]:
        """Square loss, and cross-entropy with the outputs as logits."""
        return {"MSE": autodiff.square_loss(self.Y), "CE": lambda F: torch.nn.functional.cross_entropy(F, self.labels)}


def _draw(dims: statement.Dims, generator: torch.Generator) -> _Problem:
    X, Y = (statement.normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    labels = torch.randint(dims.d_V, (dims.L,), generator=generator)
    heads = {h: statement.attention_weights(dims, generator) for h in HEADS}
    return _Problem(X, Y, labels, {(h, m): w for h, head in heads.items() for m, w in head.items()})


def _heads_oracle(p: _Problem) -> statement.Values:
    def network(weights: autodiff.IndexedWeights) -> Tensor:
        return autodiff.multi_head_attention(p.X, weights)

    values = {f"dF/d{key}": autodiff.weight_jacobian(network, p.weights, key) for key in p.weights}
    for name, loss in p.losses.items():
        blocks = autodiff.hessian_blocks(network, loss, p.weights, Part.H_f)
        values |= {f"{name} {a}{b}": block for (a, b), block in blocks.items()}
    return values


def _heads_printed(p: _Problem) -> statement.Values:
    jacobians = {f"dF/d{(h, m)}": block for h in HEADS for m, block in head_jacobians(p.X, p.weights, h).items()}
    zeros = {
        f"{name} {a}{b}": torch.zeros(wa.numel(), wb.numel(), dtype=wa.dtype)
        for name in p.losses
        for a, wa in p.weights.items()
        for b, wb in p.weights.items()
        if a[0] != b[0]
    }
    return {**jacobians, **zeros}


def _low_rank_draw(dims: statement.Dims, generator: torch.Generator) -> statement.Instance:
    X, Y = (statement.normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    W_O, W_U = (statement.normal(*shape, generator=generator) for shape in ((dims.d_V, dims.d_K), (dims.d_K, dims.d_V)))
    query_key = {m: w for m, w in statement.attention_weights(dims, generator).items() if m in (Q, K)}
    return statement.Instance(X, Y, {**query_key, Matrix.W_O: W_O, Matrix.W_U: W_U})


def _low_rank_oracle(p: statement.Instance) -> statement.Values:
    return statement.autodiff_blocks(lambda w: autodiff.low_rank_attention(p.X, w), p.Y, p.weights)


def _low_rank_printed(p: statement.Instance) -> statement.Values:
    """Query-key blocks are those of the product W_O W_U; H_f is zero on the diagonal of (O, U)."""
    point, O, U = low_rank_point(p.X, p.Y, p.weights), Matrix.W_O, Matrix.W_U  # noqa: E741
    values: dict[str, Tensor] = {}
    for part in PARTS:
        values |= statement.named(part, {(a, b): point.hessian(part, a, b) for a in (Q, K) for b in (Q, K)})
    hollow = low_rank_blocks(p.X, p.Y, p.weights, Part.H_f)
    return {**values, **statement.named(Part.H_f, {pair: hollow[pair] for pair in ((O, O), (U, U))})}


def _low_rank_corrected(p: statement.Instance) -> statement.Values:
    values: dict[str, Tensor] = {}
    for part in PARTS:
        values |= statement.named(part, low_rank_blocks(p.X, p.Y, p.weights, part))
    return values


HEAD_STATEMENTS = {
    "remE1": statement.Check(_draw, _heads_oracle, _heads_printed, numbers={"heads": len(HEADS)}),
    "E1-low": statement.Check(_low_rank_draw, _low_rank_oracle, _low_rank_printed, _low_rank_corrected),
}
