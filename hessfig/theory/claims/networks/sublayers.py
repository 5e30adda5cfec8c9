"""Statements of the follow-ups about LayerNorm and the feed-forward sublayer taken alone."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.oracle import (
    hessian_blocks,
    jacobian,
    second_derivative,
    square_loss,
    weight_jacobian,
)
from hessfig.theory.claims.attention.softmax import named
from hessfig.theory.claims.networks.block import BlockProblem, draw_block
from hessfig.theory.formulas.sublayers import feedforward, layernorm
from hessfig.theory.formulas.sublayers.feedforward import GELU, IN, OUT, RELU, Activation
from hessfig.theory.verify.statement import Statement, Values, Verdict


def _second_by_rows(X: Tensor) -> Values:
    return {"d2LN": torch.stack([second_derivative(_row_norm, x).reshape(3 * (len(x),)) for x in X])}


def _row_norm(x: Tensor) -> Tensor:
    return networks.layer_norm(x[None])[0]


def _norm_oracle(p: BlockProblem) -> Values:
    contracted = second_derivative(lambda X: (p.target * networks.layer_norm(X)).sum(), p.X)
    return {**_second_by_rows(p.X), "Lambda": contracted}


def _norm_corrected(p: BlockProblem) -> Values:
    return {
        "d2LN": layernorm.second_derivative(p.X),
        "Lambda": layernorm.contracted_second_derivative(p.X, p.target),
    }


def _sublayer_oracle(p: BlockProblem) -> Values:
    """G = phi(X W_in) W_out alone: Jacobians, and the functional Hessian under the square loss."""
    values: dict[str, Tensor] = {}
    sublayer = {m: p.weights[m] for m in (IN, OUT)}
    for activation in (RELU, GELU):
        values |= _by_input(p, activation) | _by_weights(p, activation, sublayer)
        for part in (Part.H_o, Part.H_f):
            blocks = hessian_blocks(_sublayer(p.X, activation), square_loss(p.target), sublayer, part)
            values |= {f"{activation.name} {name}": block for name, block in named(part, blocks).items()}
    return values


def _sublayer(X: Tensor, activation: Activation) -> Callable[..., Tensor]:
    return lambda weights: networks.feed_forward(X, weights, activation.function)


def _by_input(p: BlockProblem, activation: Activation) -> dict[str, Tensor]:
    value = jacobian(lambda X: networks.feed_forward(X, p.weights, activation.function), p.X)
    return {f"{activation.name} dG/dY": value}


def _by_weights(p: BlockProblem, activation: Activation, sublayer: dict[Matrix, Tensor]) -> dict[str, Tensor]:
    network = _sublayer(p.X, activation)
    return {f"{activation.name} dG/d{m}": weight_jacobian(network, sublayer, m) for m in sublayer}


def _sublayer_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    c = 2 / p.X.numel()
    for activation in (RELU, GELU):
        J = feedforward.weight_jacobians(p.X, p.weights, activation)
        residual = networks.feed_forward(p.X, p.weights, activation.function) - p.target
        functional = feedforward.paired_second_derivatives(p.X, p.weights, activation, c * residual)
        blocks = named(Part.H_f, functional) | named(
            Part.H_o, {(a, b): c * J[a].T @ J[b] for a, b in functional}
        )
        jacobians = {f"dG/d{m}": J[m] for m in J} | {
            "dG/dY": feedforward.input_jacobian(p.X, p.weights, activation)
        }
        values |= {f"{activation.name} {name}": value for name, value in (blocks | jacobians).items()}
    return values


STATEMENTS = [
    Statement(
        "ln1",
        "blog post on arXiv 2510.16927, Section 2.4",
        "The Jacobian of LayerNorm is (P ⊗ I) G, P = diag(1/s_i), G the centring.",
        Verdict.no,
        draw_block,
        oracle=lambda p: {"dLN": jacobian(networks.layer_norm, p.X)},
        printed=lambda p: {"dLN": layernorm.jacobian_with_frozen_scale(p.X)},
        corrected=lambda p: {"dLN": layernorm.jacobian(p.X)},
        correction="blockdiag_i (C - n_i n_i^T/d)/s_i, n_i the normalised rows, C = I - 11^T/d.",
        note="The post's code holds s fixed while it differentiates.",
    ),
    Statement(
        "ln2",
        "blog post on arXiv 2510.16927, Section 2.3",
        "The Hessian of LayerNorm depends on second derivatives of P = diag(1/s_i) alone.",
        Verdict.no,
        draw_block,
        oracle=_norm_oracle,
        printed=lambda p: {"d2LN": layernorm.second_derivative_of_scale_only(p.X)},
        corrected=_norm_corrected,
        correction="-(n_a C_bg + n_b C_ag + n_g C_ab)/(d s²) + 3 n_a n_b n_g/(d² s²) within a row, zero "
        "across rows.",
        note="The cross terms of dP with the derivative of the centred rows are lost.",
    ),
    Statement(
        "ffn",
        "blog post on arXiv 2510.16927, Section 3 (formulas lost)",
        "Jacobians and Hessian blocks of the feed-forward sublayer φ(Y W_in) W_out.",
        Verdict.left_out,
        draw_block,
        oracle=_sublayer_oracle,
        printed=None,
        corrected=_sublayer_formulas,
        correction="dG/dW_in = (I ⊗ W_out^T) diag(vec φ')(Y ⊗ I), dG/dW_out = φ ⊗ I; H_f(in,in) = Σ_i y_i "
        "y_i^T ⊗ diag(φ''(h_i) ∘ W_out g_i), "
        "H_f(in,out) = Σ_i y_i ⊗ diag(φ'(h_i)) ⊗ g_i^T, H_f(out,out) = 0, with h = Y W_in, g the loss "
        "gradient.",
        note="ReLU and GELU.",
    ),
]
