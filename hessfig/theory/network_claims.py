"""Statements about linear attention, several heads, sublayers and whole transformer blocks."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import pairwise, product

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
    tokens_and_targets,
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
Blocks = Mapping[tuple[Matrix, Matrix], Tensor]


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
    functional = la.functional_blocks(point)
    for m in MATRICES:
        size = point.weights[m].numel()
        functional[m, m] = point.X.new_zeros(size, size)
    outer = la.outer_product_blocks(point)
    return named({Part.H_o: outer, Part.H_f: functional})


def _remark_keys(point: LinearPoint) -> Values:
    functional = {
        **la.functional_key_block(point),
        **la.contracted_functional_blocks(point),
    }
    outer = la.outer_product_key_blocks(point)
    return named({Part.H_o: outer, Part.H_f: functional})


def _mlp_draw(dims: Dims, generator: torch.Generator) -> Instance:
    widths = (dims.d_V, dims.d_K, dims.d_ff, dims.d_V + dims.L)
    layers = {}
    for layer, (fan_in, fan_out) in enumerate(pairwise(widths), start=1):
        layers[layer] = normal(fan_out, fan_in, generator=generator)
    X = normal(dims.L, widths[0], generator=generator)
    Y = normal(dims.L, widths[-1], generator=generator)
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
    values = {}
    for layer in p.weights:
        outer = sublayer_formulas.outer_product_block(p.X, p.weights, layer)
        values[f"{name} H_o{(layer, layer)}"] = scale * outer
        values[f"{name} H_f{(layer, layer)}"] = torch.zeros_like(outer)
    return values


def _mlp_corrected(p: Instance) -> Values:
    scale = 2 / p.Y.shape[1]
    D = autodiff.linear_mlp(p.X, p.weights) - p.Y
    values = _mlp_blocks(p, "mean", scale)
    for i, j in product(p.weights, p.weights):
        if i > j:
            block = sublayer_formulas.functional_block(p.X, D, p.weights, (i, j))
            values[f"mean H_f{(i, j)}"] = scale * block
    return values


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
    X, Y = tokens_and_targets(dims, generator)
    labels = torch.randint(dims.d_V, (dims.L,), generator=generator)
    return _Problem(
        X, Y, statement.indexed_weights(dims, generator, len(HEADS)), labels
    )


def _heads_oracle(p: _Problem) -> Values:
    def network(weights: autodiff.IndexedWeights) -> Tensor:
        return autodiff.multi_head_attention(p.X, weights)

    values = {}
    for key in p.weights:
        values[f"dF/d{key}"] = autodiff.weight_jacobian(network, p.weights, key)
    for name, loss in p.losses.items():
        blocks = autodiff.hessian_blocks(network, loss, p.weights, Part.H_f)
        values |= {f"{name} {a}{b}": block for (a, b), block in blocks.items()}
    return values


def _heads_printed(p: _Problem) -> Values:
    values = {}
    for h in HEADS:
        for m, block in head_jacobians(p.X, p.weights, h).items():
            values[f"dF/d{(h, m)}"] = block
    for name in p.losses:
        for a, b in product(p.weights, p.weights):
            if a[0] != b[0]:
                rows = p.weights[a].numel()
                cols = p.weights[b].numel()
                values[f"{name} {a}{b}"] = p.X.new_zeros(rows, cols)
    return values


def _low_rank_draw(dims: Dims, generator: torch.Generator) -> Instance:
    X, Y = tokens_and_targets(dims, generator)
    W_O = normal(dims.d_V, dims.d_K, generator=generator)
    W_U = normal(dims.d_K, dims.d_V, generator=generator)
    weights = statement.attention_weights(dims, generator)
    del weights[V]
    return Instance(X, Y, {**weights, Matrix.W_O: W_O, Matrix.W_U: W_U})


def _low_rank_oracle(p: Instance) -> Values:
    return autodiff_blocks(
        lambda w: autodiff.low_rank_attention(p.X, w), p.Y, p.weights
    )


def _low_rank_printed(p: Instance) -> Values:
    """Query-key blocks are those of the product W_O W_U; H_f is zero on the diagonal of (O, U)."""
    point = low_rank_point(p.X, p.Y, p.weights)
    values = {}
    for part in PARTS:
        for a, b in product((Q, K), (Q, K)):
            values[f"{part}({a}, {b})"] = point.hessian(part, a, b)
    hollow = low_rank_blocks(p.X, p.Y, p.weights)[Part.H_f]
    for m in (Matrix.W_O, Matrix.W_U):
        values[f"{Part.H_f}({m}, {m})"] = hollow[m, m]
    return values


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
CASES = list(product(Placement, (RELU, GELU)))


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
    X, target = tokens_and_targets(dims, generator)
    return BlockProblem(X, target, statement.block_weights(dims, generator))


def _block_oracle(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        network = p.network(*case)
        derivatives = autodiff_blocks(network, p.target, p.weights)
        for m in p.weights:
            derivatives[f"dZ/d{m}"] = weight_jacobian(network, p.weights, m)
        values |= prefixed(_case_name(*case), derivatives)
    return values


def _block_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    for case in CASES:
        point = p.point(*case)
        blocks = named({part: point.feed_forward_hessian(part) for part in PARTS})
        jacobians = {f"dZ/d{m}": point.jacobian(m) for m in p.weights}
        values |= prefixed(_case_name(*case), blocks | jacobians)
    return values


def _case_name(placement: Placement, activation: Activation) -> str:
    return f"{placement}-LN {activation.name}"


def _relu_oracle(placement: Placement, p: BlockProblem) -> Values:
    """H_f(W_in, W_in) over the size of H_o(W_in, W_in), so that the error reads as a share."""
    network = p.network(placement, RELU)
    loss = square_loss(p.target)
    outer = hessian_blocks(network, loss, p.weights, Part.H_o)
    functional = hessian_blocks(network, loss, p.weights, Part.H_f)
    return _share(outer, functional)


def _share(outer: Blocks, functional: Blocks) -> Values:
    numerator = torch.linalg.matrix_norm(functional[IN, IN])
    return {"H_f over |H_o|": numerator / torch.linalg.matrix_norm(outer[IN, IN])}


def _relu_formula(placement: Placement, p: BlockProblem) -> Values:
    point = p.point(placement, RELU)
    outer = point.feed_forward_hessian(Part.H_o)
    return _share(outer, point.feed_forward_hessian(Part.H_f))


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
    def norm(x: Tensor) -> Tensor:
        return autodiff.layer_norm(x[None])[0]

    def contracted(X: Tensor) -> Tensor:
        return (p.target * autodiff.layer_norm(X)).sum()

    d = p.X.shape[1]
    rows = [second_derivative(norm, x).reshape(d, d, d) for x in p.X]
    return {"d2LN": torch.stack(rows), "Lambda": second_derivative(contracted, p.X)}


def _norm_corrected(p: BlockProblem) -> Values:
    return {
        "d2LN": sublayer_formulas.second_derivative(p.X),
        "Lambda": sublayer_formulas.contracted_second_derivative(p.X, p.target),
    }


def _sublayer_oracle(p: BlockProblem) -> Values:
    """G = phi(X W_in) W_out alone: Jacobians, and the functional Hessian under the square loss."""
    return _of_sublayer(p, RELU) | _of_sublayer(p, GELU)


def _of_sublayer(p: BlockProblem, activation: Activation) -> dict[str, Tensor]:
    def network(weights: Mapping[Matrix, Tensor], X: Tensor = p.X) -> Tensor:
        return autodiff.feed_forward(X, weights, activation.function)

    sublayer = {m: p.weights[m] for m in (IN, OUT)}
    values = autodiff_blocks(network, p.target, sublayer, AT_OUTPUTS)
    for m in sublayer:
        values[f"dG/d{m}"] = weight_jacobian(network, sublayer, m)
    values["dG/dY"] = jacobian(lambda X: network(sublayer, X), p.X)
    return prefixed(activation.name, values)


def _sublayer_formulas(p: BlockProblem) -> Values:
    values: dict[str, Tensor] = {}
    c = 2 / p.X.numel()
    for activation in (RELU, GELU):
        J = sublayer_formulas.weight_jacobians(p.X, p.weights, activation)
        outputs = autodiff.feed_forward(p.X, p.weights, activation.function)
        residual = outputs - p.target
        functional = sublayer_formulas.paired_second_derivatives(
            p.X, p.weights, activation, c * residual
        )
        outer = {(a, b): c * J[a].T @ J[b] for a, b in functional}
        derivatives = named({Part.H_f: functional, Part.H_o: outer})
        for m, block in J.items():
            derivatives[f"dG/d{m}"] = block
        derivatives["dG/dY"] = sublayer_formulas.input_jacobian(
            p.X, p.weights, activation
        )
        values |= prefixed(activation.name, derivatives)
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
