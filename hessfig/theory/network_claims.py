"""Statements about sublayers and whole transformer blocks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessfig.terms import PARTS, Matrix, Part
from hessfig.theory import autodiff, sublayer_formulas
from hessfig.theory.autodiff import hessian_blocks, jacobian, second_derivative, square_loss, weight_jacobian
from hessfig.theory.statement import Check, Dims, Values, autodiff_blocks, block_weights, named, normal, prefixed
from hessfig.theory.sublayer_formulas import GELU, IN, OUT, RELU, Activation, BlockPoint, Placement

NETWORKS = {Placement.post: autodiff.post_norm_block, Placement.pre: autodiff.pre_norm_block}
CASES = [(placement, activation) for placement in Placement for activation in (RELU, GELU)]


@dataclass(frozen=True)
class BlockProblem:
    """One block's input, target and five weights."""

    X: Tensor
    target: Tensor
    weights: dict[Matrix, Tensor]

    def point(self, placement: Placement, activation: Activation) -> BlockPoint:
        return BlockPoint(self.X, self.target, self.weights, activation, placement)

    def network(self, placement: Placement, activation: Activation) -> Callable[..., Tensor]:
        return lambda weights: NETWORKS[placement](self.X, weights, activation.function)


def draw_block(dims: Dims, generator: torch.Generator) -> BlockProblem:
    """Gaussian input, target and weights."""
    X, target = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    return BlockProblem(X, target, block_weights(dims, generator))


def _block_oracle(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        network = p.network(*case)
        jacobians = {f"dZ/d{m}": weight_jacobian(network, p.weights, m) for m in p.weights}
        values |= prefixed(_case_name(*case), autodiff_blocks(network, p.target, p.weights) | jacobians)
    return values


def _block_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        point, name = p.point(*case), _case_name(*case)
        for part in PARTS:
            values |= prefixed(name, named(part, point.feed_forward_hessian(part)))
        values |= prefixed(name, {f"dZ/d{m}": point.jacobian(m) for m in p.weights})
    return values


def _case_name(placement: Placement, activation: Activation) -> str:
    return f"{placement}-LN {activation.name}"


def _relu_oracle(placement: Placement, p: BlockProblem) -> Values:
    """H_f(W_in, W_in) over the size of H_o(W_in, W_in), so that the error reads as a share."""
    network, loss = p.network(placement, RELU), square_loss(p.target)
    outer, functional = (hessian_blocks(network, loss, p.weights, part) for part in (Part.H_o, Part.H_f))
    size = torch.linalg.matrix_norm(outer[IN, IN])
    return {"H_f over |H_o|": torch.linalg.matrix_norm(functional[IN, IN]) / size}


def _relu_formula(placement: Placement, p: BlockProblem) -> Values:
    point = p.point(placement, RELU)
    sizes = [torch.linalg.matrix_norm(point.feed_forward_hessian(part)[IN, IN]) for part in (Part.H_f, Part.H_o)]
    return {"H_f over |H_o|": sizes[0] / sizes[1]}


def _zero(p: BlockProblem) -> Values:
    return {"H_f over |H_o|": torch.zeros((), dtype=torch.float64)}


BLOCK = {
    "ffn-relu-pre": Check(draw_block, partial(_relu_oracle, Placement.pre), _zero),
    "ffn-relu-post": Check(
        draw_block, partial(_relu_oracle, Placement.post), _zero, partial(_relu_formula, Placement.post)
    ),
    "block": Check(draw_block, _block_oracle, None, _block_formulas),
}


def _norm_oracle(p: BlockProblem) -> Values:
    rows = [second_derivative(lambda x: autodiff.layer_norm(x[None])[0], x).reshape(3 * (len(x),)) for x in p.X]
    contracted = second_derivative(lambda X: (p.target * autodiff.layer_norm(X)).sum(), p.X)
    return {"d2LN": torch.stack(rows), "Lambda": contracted}


def _norm_corrected(p: BlockProblem) -> Values:
    return {
        "d2LN": sublayer_formulas.second_derivative(p.X),
        "Lambda": sublayer_formulas.contracted_second_derivative(p.X, p.target),
    }


def _sublayer_oracle(p: BlockProblem) -> Values:
    """G = phi(X W_in) W_out alone: Jacobians, and the functional Hessian under the square loss."""
    return {name: value for activation in (RELU, GELU) for name, value in _of_sublayer(p, activation).items()}


def _of_sublayer(p: BlockProblem, activation: Activation) -> dict[str, Tensor]:
    def network(weights: Mapping[Matrix, Tensor], X: Tensor = p.X) -> Tensor:
        return autodiff.feed_forward(X, weights, activation.function)

    sublayer = {m: p.weights[m] for m in (IN, OUT)}
    jacobians = {f"dG/d{m}": weight_jacobian(network, sublayer, m) for m in sublayer}
    jacobians["dG/dY"] = jacobian(lambda X: network(sublayer, X), p.X)
    blocks = autodiff_blocks(network, p.target, sublayer, (Part.H_o, Part.H_f))
    return prefixed(activation.name, blocks | jacobians)


def _sublayer_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    c = 2 / p.X.numel()
    for activation in (RELU, GELU):
        J = sublayer_formulas.weight_jacobians(p.X, p.weights, activation)
        residual = autodiff.feed_forward(p.X, p.weights, activation.function) - p.target
        functional = sublayer_formulas.paired_second_derivatives(p.X, p.weights, activation, c * residual)
        blocks = named(Part.H_f, functional) | named(Part.H_o, {(a, b): c * J[a].T @ J[b] for a, b in functional})
        jacobians = {f"dG/d{m}": J[m] for m in J} | {
            "dG/dY": sublayer_formulas.input_jacobian(p.X, p.weights, activation)
        }
        values |= prefixed(activation.name, blocks | jacobians)
    return values


SUBLAYERS = {
    "ln1": Check(
        draw_block,
        lambda p: {"dLN": jacobian(autodiff.layer_norm, p.X)},
        lambda p: {"dLN": sublayer_formulas.jacobian_with_frozen_scale(p.X)},
        lambda p: {"dLN": sublayer_formulas.jacobian(p.X)},
    ),
    "ln2": Check(
        draw_block,
        _norm_oracle,
        lambda p: {"d2LN": sublayer_formulas.second_derivative_of_scale_only(p.X)},
        _norm_corrected,
    ),
    "ffn": Check(draw_block, _sublayer_oracle, None, _sublayer_formulas),
}
