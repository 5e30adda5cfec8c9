"""Statements about the Hessian of one self-attention layer with softmax."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from itertools import product

import torch
from torch import Tensor
from torch.func import grad

from hessfig.terms import AT_OUTPUTS, PARTS, Matrix, Part
from hessfig.theory import attention_formulas as formulas
from hessfig.theory import autodiff, statement
from hessfig.theory.attention_formulas import MATRICES, AttentionPoint, literal_U
from hessfig.theory.matrix_formulas import (
    identity,
    kron,
    softmax_jacobian,
    softmax_second_derivative,
)
from hessfig.theory.statement import (
    Check,
    Dims,
    Instance,
    Values,
    attention_point,
    indexed_weights,
    named,
    normal,
    tokens_and_targets,
)

Q, K, V = MATRICES
Pair = tuple[Matrix, Matrix]


def _network(point: AttentionPoint) -> Callable[[Mapping[Matrix, Tensor]], Tensor]:
    return lambda weights: autodiff.attention(point.X, weights, point.temperature)


def _eq2_oracle(point: AttentionPoint) -> Values:
    return {
        "H": autodiff.dense_hessian(
            _network(point), autodiff.square_loss(point.Y), point.weights
        )
    }


def _eq2_printed(point: AttentionPoint) -> Values:
    """J^T (d2l/dF2) J + (dl/dF (x) I) d2F/dW2 with the layout of eq. 4."""
    flat, output = autodiff.flattened(_network(point), point.weights)
    loss = autodiff.square_loss(point.Y)
    F = output(flat)
    count = F.numel()
    J = autodiff.jacobian(output, flat)
    curvature = 2 / count * identity(count)
    gradient = grad(loss)(F).reshape(1, -1)
    second = autodiff.second_derivative(output, flat)
    functional = kron(gradient, identity(len(flat))) @ second
    return {"H": J.T @ curvature @ J + functional}


def _lemma_b1_oracle(point: AttentionPoint) -> Values:
    T = autodiff.scores(point.X, point.weights)
    network = _network(point)
    values = {}
    for m in MATRICES:
        values[f"dF/d{m}"] = autodiff.weight_jacobian(network, point.weights, m)
    values["dA/dT"] = autodiff.jacobian(lambda scores: torch.softmax(scores, -1), T)
    return values


def _lemma_b1_all(point: AttentionPoint) -> dict[str, Tensor]:
    values = {f"dF/d{m}": block for m, block in formulas.jacobians(point).items()}
    values["dA/dT"] = softmax_jacobian(point.A)
    return values


def _lemma_b1_printed(point: AttentionPoint) -> Values:
    values = _lemma_b1_all(point)
    del values[f"dF/d{K}"]
    return values


def _lemma_c1_draw(dims: Dims, generator: torch.Generator) -> list[Tensor]:
    small = normal(2, 2, generator=generator)
    return [small, normal(dims.L, dims.L, generator=generator)]


def _lemma_c1_oracle(scores: list[Tensor]) -> Values:
    def softmax(T: Tensor) -> Tensor:
        return torch.softmax(T, -1)

    small, large = scores
    return {
        "Remark C.1": autodiff.second_derivative(softmax, small),
        "Lemma C.1": autodiff.second_derivative(softmax, large),
    }


def _lemma_c1_printed(scores: list[Tensor]) -> Values:
    small, large = scores
    return {
        "Remark C.1": _remark_c1(torch.softmax(small, -1)),
        "Lemma C.1": softmax_second_derivative(torch.softmax(large, -1)),
    }


def _remark_c1(A: Tensor) -> Tensor:
    """The 16 x 4 matrix of Remark C.1, b_ij = 1 - 2 a_ij."""
    matrix = torch.zeros(16, 4, dtype=A.dtype)
    for i, (p, q) in enumerate(A):
        b1 = 1 - 2 * p
        b2 = 1 - 2 * q
        first = [[(p - p**2) * b1, -p * q * b1], [-p * q * b1, -p * q * b2]]
        second = [[-p * q * b1, -p * q * b2], [-p * q * b2, (q - q**2) * b2]]
        for j, block in enumerate((first, second)):
            row = 8 * i + 4 * j + 2 * i
            col = 2 * i
            numbers = torch.tensor(block, dtype=A.dtype)
            matrix[row : row + 2, col : col + 2] = numbers
    return matrix


SOFTMAX = {
    "eq2": Check(attention_point, _eq2_oracle, _eq2_printed),
    "lemB1": Check(attention_point, _lemma_b1_oracle, _lemma_b1_printed, _lemma_b1_all),
    "lemC1": Check(_lemma_c1_draw, _lemma_c1_oracle, _lemma_c1_printed),
}


_PRINTED_PAIRS: list[Pair] = [(V, V), (Q, Q), (V, Q), (Q, K)]
BlockFormulas = Callable[[AttentionPoint], Mapping[Pair, Tensor]]


def _printed(part: Part, formula: BlockFormulas) -> Check:
    """Check the blocks of a part that a theorem prints; corrected are their contracted forms."""

    def contracted(point: AttentionPoint) -> dict[Pair, Tensor]:
        return {pair: point.hessian(part, *pair) for pair in _PRINTED_PAIRS}

    return replace(
        _left_out(part, contracted), printed=lambda point: named({part: formula(point)})
    )


def _left_out(part: Part, formula: BlockFormulas) -> Check:
    """Check the blocks of a part that a theorem leaves out."""

    def oracle(point: AttentionPoint) -> Values:
        return statement.autodiff_blocks(
            _network(point), point.Y, point.weights, [part]
        )

    return Check(
        attention_point, oracle, corrected=lambda point: named({part: formula(point)})
    )


def _deep_draw(dims: Dims, generator: torch.Generator) -> Instance:
    X, Y = tokens_and_targets(dims, generator)
    return Instance(X, Y, indexed_weights(dims, generator, 2))


def _footnote_oracle(p: Instance) -> Values:
    def network(weights: autodiff.IndexedWeights) -> Tensor:
        return autodiff.stacked(autodiff.attention, p.X, weights)

    loss = autodiff.square_loss(p.Y)
    values = {}
    for part in PARTS:
        blocks = autodiff.hessian_blocks(network, loss, p.weights, part)
        for a, b in product(MATRICES, MATRICES):
            values[f"{part}({a}, {b})"] = blocks[(2, a), (2, b)]
    return values


def _footnote_printed(p: Instance) -> Values:
    entering = autodiff.attention(p.X, autodiff.at_index(p.weights, 1))
    point = AttentionPoint(entering, p.Y, autodiff.at_index(p.weights, 2))
    outer = formulas.theorem_31(point) | formulas.theorem_31_keys(point)
    functional = formulas.theorem_32(point) | formulas.theorem_32_keys(point)
    return named({Part.H_o: outer, Part.H_f: functional})


THEOREMS = {
    "thm31": _printed(Part.H_o, formulas.theorem_31),
    "thm31-K": _left_out(Part.H_o, formulas.theorem_31_keys),
    "thm32": _printed(Part.H_f, formulas.theorem_32),
    "thm32-K": _left_out(Part.H_f, formulas.theorem_32_keys),
    "foot3": Check(_deep_draw, _footnote_oracle, _footnote_printed),
}


TEMPERATURE = 2.0
HOT = 1e7


def score_split(
    point: AttentionPoint, part: Part, order: tuple[Matrix, Matrix] = (Q, K)
) -> Tensor:
    """The split at the scores by autodiff: the network is T(W_Q, W_K), the loss all that comes after."""
    values = point.X @ point.weights[V]
    after = autodiff.square_loss(point.Y)
    return autodiff.dense_hessian(
        lambda weights: autodiff.scores(point.X, weights, point.temperature),
        lambda T: after(torch.softmax(T, -1) @ values),
        {matrix: point.weights[matrix] for matrix in order},
        part,
    )


def _single_draw(dims: Dims, generator: torch.Generator) -> Instance:
    X, Y = tokens_and_targets(dims, generator)
    W_QK = normal(dims.d_V, dims.d_V, generator=generator) / dims.d_V
    W_V = normal(dims.d_V, dims.d_V, generator=generator)
    return Instance(X, Y, {Matrix.W_QK: W_QK, V: W_V})


def _single_oracle(p: Instance) -> Values:
    def network(weights: Mapping[Matrix, Tensor]) -> Tensor:
        return autodiff.single_matrix_attention(p.X, {**p.weights, **weights})

    return {
        "H": autodiff.dense_hessian(
            network, autodiff.square_loss(p.Y), {Matrix.W_QK: p.weights[Matrix.W_QK]}
        )
    }


def _single_point(p: Instance) -> AttentionPoint:
    return formulas.single_matrix_point(p.X, p.Y, p.weights[Matrix.W_QK], p.weights[V])


def _single_corrected(p: Instance) -> Values:
    """H(W_QK, W_QK) = c U, with the factor c = 2/(L d_V)."""
    point = _single_point(p)
    return {"H": point.c * point.curvature_of_scores(Part.H)}


def _remark_oracle(point: AttentionPoint) -> Values:
    """Both orders of the two weights; Remark D.1 says [W_Q; W_K]."""
    values = {}
    for order in ((Q, K), (K, Q)):
        for part in AT_OUTPUTS:
            values[f"{part}, {order[0]} first"] = score_split(point, part, order)
    return values


def _remark_printed(point: AttentionPoint) -> Values:
    blocks = formulas.printed_score_split(point)
    return {f"{part}, W_Q first": block for part, block in blocks.items()}


def _remark_corrected(point: AttentionPoint) -> Values:
    values = {}
    for part, block in formulas.printed_score_split(point).items():
        values[f"{part}, W_K first"] = point.c * block
    values["H_o, W_Q first"] = formulas.score_outer_product(point)
    values["H_f, W_Q first"] = formulas.score_functional(point)
    return values


def _hotter(point: AttentionPoint, temperature: float) -> AttentionPoint:
    return AttentionPoint(point.X, point.Y, point.weights, temperature)


def _temperature_oracle(point: AttentionPoint) -> Values:
    warm = _hotter(point, TEMPERATURE)
    hot = _hotter(point, HOT)
    hotter = _hotter(point, 2 * HOT)
    values = {str(part): score_split(warm, part) for part in AT_OUTPUTS}
    for part in AT_OUTPUTS:
        low = torch.linalg.matrix_norm(score_split(hot, part))
        high = torch.linalg.matrix_norm(score_split(hotter, part))
        slope = torch.log2(high / low).round(decimals=3)
        values[f"slope of {part} at large t"] = slope
    return values


def _temperature_printed(point: AttentionPoint) -> Values:
    return {
        "H_o": score_split(point, Part.H_o) / TEMPERATURE**2,
        "H_f": score_split(point, Part.H_f) / TEMPERATURE,
    }


def _temperature_corrected(point: AttentionPoint) -> Values:
    warm = _hotter(point, TEMPERATURE)
    return {
        "H_o": formulas.score_outer_product(warm),
        "H_f": formulas.score_functional(warm),
        "slope of H_o at large t": torch.tensor(-2).double(),
        "slope of H_f at large t": torch.tensor(-1).double(),
    }


QUERY_KEY = {
    "lem41": Check(
        _single_draw,
        _single_oracle,
        lambda p: {"H": literal_U(_single_point(p))},
        _single_corrected,
    ),
    "remD1": Check(attention_point, _remark_oracle, _remark_printed, _remark_corrected),
    "temp": Check(
        attention_point,
        _temperature_oracle,
        _temperature_printed,
        _temperature_corrected,
        numbers={"warm": TEMPERATURE, "hot": HOT},
    ),
}
STATEMENTS = {**SOFTMAX, **THEOREMS, **QUERY_KEY}
