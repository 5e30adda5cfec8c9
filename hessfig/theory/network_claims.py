"""Statements about sublayers and whole transformer blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory import autodiff, sublayer_formulas
from hessfig.theory.attention_claims import named
from hessfig.theory.autodiff import hessian_blocks, jacobian, second_derivative, square_loss, weight_jacobian
from hessfig.theory.statement import Dims, Measure, Statement, Values, Verdict, block_weights, normal
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
        network, name = p.network(*case), _case_name(*case)
        for part in Part:
            blocks = hessian_blocks(network, square_loss(p.target), p.weights, part)
            values |= {f"{name} {key}": block for key, block in named(part, blocks).items()}
        values |= {f"{name} dZ/d{m}": weight_jacobian(network, p.weights, m) for m in p.weights}
    return values


def _block_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        point, name = p.point(*case), _case_name(*case)
        for part in Part:
            blocks = named(part, point.feed_forward_hessian(part))
            values |= {f"{name} {key}": block for key, block in blocks.items()}
        values |= {f"{name} dZ/d{m}": point.jacobian(m) for m in p.weights}
    return values


def _case_name(placement: Placement, activation: Activation) -> str:
    return f"{placement}-LN {activation.name}"


def _relu_oracle(placement: Placement) -> Callable[[BlockProblem], Values]:
    """H_f(W_in, W_in) over the size of H_o(W_in, W_in), so that the error reads as a share."""

    def measure(p: BlockProblem) -> Values:
        network, loss = p.network(placement, RELU), square_loss(p.target)
        outer, functional = (hessian_blocks(network, loss, p.weights, part) for part in (Part.H_o, Part.H_f))
        size = torch.linalg.matrix_norm(outer[IN, IN])
        return {"H_f over |H_o|": torch.linalg.matrix_norm(functional[IN, IN]) / size}

    return measure


def _relu_formula(placement: Placement) -> Callable[[BlockProblem], Values]:
    def evaluate(p: BlockProblem) -> Values:
        point = p.point(placement, RELU)
        sizes = [torch.linalg.matrix_norm(point.feed_forward_hessian(part)[IN, IN]) for part in (Part.H_f, Part.H_o)]
        return {"H_f over |H_o|": sizes[0] / sizes[1]}

    return evaluate


def _zero(p: BlockProblem) -> Values:
    return {"H_f over |H_o|": torch.zeros((), dtype=torch.float64)}


BLOCK = [
    Statement(
        "ffn-relu-pre",
        "blog post on arXiv 2510.16927, Section 3.2",
        "With ReLU, H_f(W_in, W_in) vanishes: in a pre-LN block.",
        Verdict.yes,
        draw_block,
        oracle=_relu_oracle(Placement.pre),
        printed=_zero,
        note="Exactly zero, almost everywhere. H_f(W_in, W_out) is not zero.",
    ),
    Statement(
        "ffn-relu-post",
        "blog post on arXiv 2510.16927, Section 3.2",
        "With ReLU, H_f(W_in, W_in) vanishes: in a post-LN block.",
        Verdict.no,
        draw_block,
        oracle=_relu_oracle(Placement.post),
        printed=_zero,
        corrected=_relu_formula(Placement.post),
        measure=Measure.absolute,
        error_is="the largest ratio of Frobenius norms of H_f and H_o of the block",
        correction="H_f(W_in, W_in) = c J_in^T Λ J_in, Λ the second derivative of the last LayerNorm paired "
        "with the residual.",
        note="The last LayerNorm bends what ReLU leaves straight.",
    ),
    Statement(
        "block",
        "arXiv 2510.16927, Theorem 4 (formulas lost)",
        "Derivatives of a whole block in its five weights, and its feed-forward Hessian.",
        Verdict.left_out,
        draw_block,
        oracle=_block_oracle,
        printed=None,
        corrected=_block_formulas,
        correction="H_o(a,b) = c J_a^T J^T J J_b, H_f(a,b) = c (J_a^T Λ J_b + Σ_i g_i·d²S_i), J and Λ the "
        "derivatives of the last norm "
        "(I and 0 pre-LN), g = J^T r; dZ/dW_Q, dZ/dW_K, dZ/dW_V are in theory/sublayer_formulas.py.",
        note="Post-LN and pre-LN, ReLU and GELU.",
    ),
]


def _second_by_rows(X: Tensor) -> Values:
    return {"d2LN": torch.stack([second_derivative(_row_norm, x).reshape(3 * (len(x),)) for x in X])}


def _row_norm(x: Tensor) -> Tensor:
    return autodiff.layer_norm(x[None])[0]


def _norm_oracle(p: BlockProblem) -> Values:
    contracted = second_derivative(lambda X: (p.target * autodiff.layer_norm(X)).sum(), p.X)
    return {**_second_by_rows(p.X), "Lambda": contracted}


def _norm_corrected(p: BlockProblem) -> Values:
    return {
        "d2LN": sublayer_formulas.second_derivative(p.X),
        "Lambda": sublayer_formulas.contracted_second_derivative(p.X, p.target),
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
    return lambda weights: autodiff.feed_forward(X, weights, activation.function)


def _by_input(p: BlockProblem, activation: Activation) -> dict[str, Tensor]:
    value = jacobian(lambda X: autodiff.feed_forward(X, p.weights, activation.function), p.X)
    return {f"{activation.name} dG/dY": value}


def _by_weights(p: BlockProblem, activation: Activation, sublayer: dict[Matrix, Tensor]) -> dict[str, Tensor]:
    network = _sublayer(p.X, activation)
    return {f"{activation.name} dG/d{m}": weight_jacobian(network, sublayer, m) for m in sublayer}


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
        values |= {f"{activation.name} {name}": value for name, value in (blocks | jacobians).items()}
    return values


SUBLAYERS = [
    Statement(
        "ln1",
        "blog post on arXiv 2510.16927, Section 2.4",
        "The Jacobian of LayerNorm is (P ⊗ I) G, P = diag(1/s_i), G the centring.",
        Verdict.no,
        draw_block,
        oracle=lambda p: {"dLN": jacobian(autodiff.layer_norm, p.X)},
        printed=lambda p: {"dLN": sublayer_formulas.jacobian_with_frozen_scale(p.X)},
        corrected=lambda p: {"dLN": sublayer_formulas.jacobian(p.X)},
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
        printed=lambda p: {"d2LN": sublayer_formulas.second_derivative_of_scale_only(p.X)},
        corrected=_norm_corrected,
        correction="-(n_a C_bg + n_b C_ag + n_g C_ab)/(d s²) + 3 n_a n_b n_g/(d² s²) within a row, zero across rows.",
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
