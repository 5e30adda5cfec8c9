"""Statements about linear attention, several heads, sublayers and whole transformer blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from hessfig.terms import AT_OUTPUTS, PARTS, Matrix, Part
from hessfig.theory import autodiff, statement, sublayer_formulas
from hessfig.theory import further_formulas as la
from hessfig.theory.attention_formulas import MATRICES
from hessfig.theory.autodiff import (
    hessian_blocks,
    jacobian,
    second_derivative,
    square_loss,
    weight_jacobian,
)
from hessfig.theory.further_formulas import (
    LinearPoint,
    head_jacobians,
    low_rank_blocks,
    low_rank_point,
)
from hessfig.theory.statement import (
    Check,
    Dims,
    Instance,
    Values,
    autodiff_blocks,
    named,
    normal,
    prefixed,
)
from hessfig.theory.sublayer_formulas import (
    GELU,
    IN,
    OUT,
    RELU,
    Activation,
    BlockPoint,
    Placement,
)

Q, K, V = MATRICES


def _linear_draw(dims: Dims, generator: torch.Generator) -> LinearPoint:
    point = statement.attention_point(dims, generator)
    return LinearPoint(point.X, point.Y, point.weights)


def _remark_oracle(point: LinearPoint) -> Values:
    return autodiff_blocks(
        lambda w: autodiff.linear_attention(point.X, w),
        point.Y,
        point.weights,
        AT_OUTPUTS,
    )


def _remark_printed(point: LinearPoint) -> Values:
    hollow = {
        (m, m): torch.zeros(2 * (point.weights[m].numel(),), dtype=point.X.dtype)
        for m in MATRICES
    }
    return named(
        {
            Part.H_o: la.outer_product_blocks(point),
            Part.H_f: {**la.functional_blocks(point), **hollow},
        }
    )


def _remark_keys(point: LinearPoint) -> Values:
    functional = {
        **la.functional_key_block(point),
        **la.contracted_functional_blocks(point),
    }
    return named({Part.H_o: la.outer_product_key_blocks(point), Part.H_f: functional})


def _mlp_draw(dims: Dims, generator: torch.Generator) -> Instance:
    widths = (dims.d_V, dims.d_K, dims.d_ff, dims.d_V + dims.L)
    layers = {
        i + 1: normal(widths[i + 1], widths[i], generator=generator) for i in range(3)
    }
    X, Y = (
        normal(dims.L, width, generator=generator) for width in (widths[0], widths[-1])
    )
    return Instance(X, Y, layers)


def _mlp_oracle(p: Instance) -> Values:
    losses = {
        "half": lambda F: (F - p.Y).square().sum() / (2 * len(p.X)),
        "mean": autodiff.square_loss(p.Y),
    }
    values: dict[str, Tensor] = {}
    for name, loss in losses.items():
        for part in AT_OUTPUTS:
            blocks = autodiff.hessian_blocks(
                lambda w: autodiff.linear_mlp(p.X, w), loss, p.weights, part
            )
            values |= {f"{name} {part}{pair}": block for pair, block in blocks.items()}
    return values


def _mlp_blocks(p: Instance, name: str, scale: float) -> dict[str, Tensor]:
    X, weights = p.X, p.weights
    outer = {
        f"{name} H_o{(i, i)}": scale
        * sublayer_formulas.outer_product_block(X, weights, i)
        for i in weights
    }
    zeros = {
        f"{name} H_f{(i, i)}": torch.zeros(2 * (w.numel(),), dtype=X.dtype)
        for i, w in weights.items()
    }
    return {**outer, **zeros}


def _mlp_corrected(p: Instance) -> Values:
    X, Y, weights = p.X, p.Y, p.weights
    scale, D = 2 / Y.shape[1], autodiff.linear_mlp(X, weights) - Y
    pairs = [(i, j) for i in weights for j in weights if i > j]
    mixed = {
        f"mean H_f{pair}": scale
        * sublayer_formulas.functional_block(X, D, weights, pair)
        for pair in pairs
    }
    return {**_mlp_blocks(p, "mean", scale), **mixed}


LINEAR = {
    "rem41": Check(_linear_draw, _remark_oracle, _remark_printed, _remark_keys),
    "mlp": Check(
        _mlp_draw, _mlp_oracle, lambda p: _mlp_blocks(p, "half", 1.0), _mlp_corrected
    ),
}


HEADS = (1, 2, 3)


@dataclass(frozen=True)
class _Problem(Instance):
    labels: Tensor

    @property
    def losses(self) -> dict[str, autodiff.Loss]:
        """Square loss, and cross-entropy with the outputs as logits."""
        return {
            "MSE": autodiff.square_loss(self.Y),
            "CE": lambda F: torch.nn.functional.cross_entropy(F, self.labels),
        }


def _draw(dims: Dims, generator: torch.Generator) -> _Problem:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    labels = torch.randint(dims.d_V, (dims.L,), generator=generator)
    return _Problem(
        X, Y, statement.indexed_weights(dims, generator, len(HEADS)), labels
    )


def _heads_oracle(p: _Problem) -> Values:
    def network(weights: autodiff.IndexedWeights) -> Tensor:
        return autodiff.multi_head_attention(p.X, weights)

    values = {
        f"dF/d{key}": autodiff.weight_jacobian(network, p.weights, key)
        for key in p.weights
    }
    for name, loss in p.losses.items():
        blocks = autodiff.hessian_blocks(network, loss, p.weights, Part.H_f)
        values |= {f"{name} {a}{b}": block for (a, b), block in blocks.items()}
    return values


def _heads_printed(p: _Problem) -> Values:
    jacobians = {
        f"dF/d{(h, m)}": block
        for h in HEADS
        for m, block in head_jacobians(p.X, p.weights, h).items()
    }
    zeros = {
        f"{name} {a}{b}": torch.zeros(wa.numel(), wb.numel(), dtype=wa.dtype)
        for name in p.losses
        for a, wa in p.weights.items()
        for b, wb in p.weights.items()
        if a[0] != b[0]
    }
    return {**jacobians, **zeros}


def _low_rank_draw(dims: Dims, generator: torch.Generator) -> Instance:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    W_O, W_U = (
        normal(*shape, generator=generator)
        for shape in ((dims.d_V, dims.d_K), (dims.d_K, dims.d_V))
    )
    query_key = {
        m: w
        for m, w in statement.attention_weights(dims, generator).items()
        if m in (Q, K)
    }
    return Instance(X, Y, {**query_key, Matrix.W_O: W_O, Matrix.W_U: W_U})


def _low_rank_oracle(p: Instance) -> Values:
    return autodiff_blocks(
        lambda w: autodiff.low_rank_attention(p.X, w), p.Y, p.weights
    )


def _low_rank_printed(p: Instance) -> Values:
    """Query-key blocks are those of the product W_O W_U; H_f is zero on the diagonal of (O, U)."""
    point, O, U = low_rank_point(p.X, p.Y, p.weights), Matrix.W_O, Matrix.W_U  # noqa: E741
    values = named(
        {
            part: {(a, b): point.hessian(part, a, b) for a in (Q, K) for b in (Q, K)}
            for part in PARTS
        }
    )
    hollow = low_rank_blocks(p.X, p.Y, p.weights)[Part.H_f]
    return {
        **values,
        **named({Part.H_f: {pair: hollow[pair] for pair in ((O, O), (U, U))}}),
    }


def _low_rank_corrected(p: Instance) -> Values:
    return named(low_rank_blocks(p.X, p.Y, p.weights))


HEAD_STATEMENTS = {
    "remE1": Check(_draw, _heads_oracle, _heads_printed, numbers={"heads": len(HEADS)}),
    "E1-low": Check(
        _low_rank_draw, _low_rank_oracle, _low_rank_printed, _low_rank_corrected
    ),
}


NETWORKS = {
    Placement.post: autodiff.post_norm_block,
    Placement.pre: autodiff.pre_norm_block,
}
CASES = [
    (placement, activation) for placement in Placement for activation in (RELU, GELU)
]


@dataclass(frozen=True)
class BlockProblem:
    """One block's input, target and five weights."""

    X: Tensor
    target: Tensor
    weights: dict[Matrix, Tensor]

    def point(self, placement: Placement, activation: Activation) -> BlockPoint:
        return BlockPoint(self.X, self.target, self.weights, activation, placement)

    def network(
        self, placement: Placement, activation: Activation
    ) -> Callable[..., Tensor]:
        return lambda weights: NETWORKS[placement](self.X, weights, activation.function)


def draw_block(dims: Dims, generator: torch.Generator) -> BlockProblem:
    """Gaussian input, target and weights."""
    X, target = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    return BlockProblem(X, target, statement.block_weights(dims, generator))


def _block_oracle(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        network = p.network(*case)
        jacobians = {
            f"dZ/d{m}": weight_jacobian(network, p.weights, m) for m in p.weights
        }
        values |= prefixed(
            _case_name(*case), autodiff_blocks(network, p.target, p.weights) | jacobians
        )
    return values


def _block_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        point = p.point(*case)
        blocks = named({part: point.feed_forward_hessian(part) for part in PARTS})
        values |= prefixed(
            _case_name(*case),
            blocks | {f"dZ/d{m}": point.jacobian(m) for m in p.weights},
        )
    return values


def _case_name(placement: Placement, activation: Activation) -> str:
    return f"{placement}-LN {activation.name}"


def _relu_oracle(placement: Placement, p: BlockProblem) -> Values:
    """H_f(W_in, W_in) over the size of H_o(W_in, W_in), so that the error reads as a share."""
    network, loss = p.network(placement, RELU), square_loss(p.target)
    return _share(
        *(hessian_blocks(network, loss, p.weights, part)[IN, IN] for part in AT_OUTPUTS)
    )


def _share(outer: Tensor, functional: Tensor) -> Values:
    return {
        "H_f over |H_o|": torch.linalg.matrix_norm(functional)
        / torch.linalg.matrix_norm(outer)
    }


def _relu_formula(placement: Placement, p: BlockProblem) -> Values:
    point = p.point(placement, RELU)
    return _share(*(point.feed_forward_hessian(part)[IN, IN] for part in AT_OUTPUTS))


def _zero(p: BlockProblem) -> Values:
    return {"H_f over |H_o|": torch.zeros((), dtype=torch.float64)}


BLOCK = {
    "ffn-relu-pre": Check(draw_block, partial(_relu_oracle, Placement.pre), _zero),
    "ffn-relu-post": Check(
        draw_block,
        partial(_relu_oracle, Placement.post),
        _zero,
        partial(_relu_formula, Placement.post),
    ),
    "block": Check(draw_block, _block_oracle, None, _block_formulas),
}


def _norm_oracle(p: BlockProblem) -> Values:
    rows = [
        second_derivative(lambda x: autodiff.layer_norm(x[None])[0], x).reshape(
            3 * (len(x),)
        )
        for x in p.X
    ]
    contracted = second_derivative(
        lambda X: (p.target * autodiff.layer_norm(X)).sum(), p.X
    )
    return {"d2LN": torch.stack(rows), "Lambda": contracted}


def _norm_corrected(p: BlockProblem) -> Values:
    return {
        "d2LN": sublayer_formulas.second_derivative(p.X),
        "Lambda": sublayer_formulas.contracted_second_derivative(p.X, p.target),
    }


def _sublayer_oracle(p: BlockProblem) -> Values:
    """G = phi(X W_in) W_out alone: Jacobians, and the functional Hessian under the square loss."""
    return {
        name: value
        for activation in (RELU, GELU)
        for name, value in _of_sublayer(p, activation).items()
    }


def _of_sublayer(p: BlockProblem, activation: Activation) -> dict[str, Tensor]:
    def network(weights: Mapping[Matrix, Tensor], X: Tensor = p.X) -> Tensor:
        return autodiff.feed_forward(X, weights, activation.function)

    sublayer = {m: p.weights[m] for m in (IN, OUT)}
    jacobians = {f"dG/d{m}": weight_jacobian(network, sublayer, m) for m in sublayer}
    jacobians["dG/dY"] = jacobian(lambda X: network(sublayer, X), p.X)
    blocks = autodiff_blocks(network, p.target, sublayer, AT_OUTPUTS)
    return prefixed(activation.name, blocks | jacobians)


def _sublayer_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    c = 2 / p.X.numel()
    for activation in (RELU, GELU):
        J = sublayer_formulas.weight_jacobians(p.X, p.weights, activation)
        residual = autodiff.feed_forward(p.X, p.weights, activation.function) - p.target
        functional = sublayer_formulas.paired_second_derivatives(
            p.X, p.weights, activation, c * residual
        )
        outer = {(a, b): c * J[a].T @ J[b] for a, b in functional}
        blocks = named({Part.H_f: functional, Part.H_o: outer})
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
STATEMENTS = {**LINEAR, **HEAD_STATEMENTS, **BLOCK, **SUBLAYERS}
