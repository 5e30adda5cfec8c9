"""Statements of the follow-up (arXiv 2510.16927) and of a post on it about LayerNorm, feed-forward and whole blocks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import block_weights, normal
from hessfig.theory.autodiff.oracle import hessian_blocks, square_loss, weight_jacobian
from hessfig.theory.claims.attention.softmax import named
from hessfig.theory.formulas.sublayers.feedforward import GELU, IN, RELU, Activation
from hessfig.theory.formulas.sublayers.transformer_block import BlockPoint, Placement
from hessfig.theory.verify.statement import Dims, Measure, Statement, Values, Verdict

NETWORKS = {Placement.post: networks.post_norm_block, Placement.pre: networks.pre_norm_block}
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
        sizes = [
            torch.linalg.matrix_norm(point.feed_forward_hessian(part)[IN, IN])
            for part in (Part.H_f, Part.H_o)
        ]
        return {"H_f over |H_o|": sizes[0] / sizes[1]}

    return evaluate


def _zero(p: BlockProblem) -> Values:
    return {"H_f over |H_o|": torch.zeros((), dtype=torch.float64)}


STATEMENTS = [
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
        "(I and 0 pre-LN), g = J^T r; dZ/dW_Q, dZ/dW_K, dZ/dW_V are in formulas/sublayers/transformer_block.py.",
        note="Post-LN and pre-LN, ReLU and GELU.",
    ),
]
