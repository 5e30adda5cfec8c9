"""Statements about degrees and growth rates."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessfig.predictions.architecture import Architecture, Attention, Kind
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import PARTS, Block, Matrix, Part
from hessfig.theory import autodiff
from hessfig.theory.attention_formulas import MATRICES
from hessfig.theory.autodiff import ScaledNetwork
from hessfig.theory.statement import Check, Dims, Values, attention_point, attention_weights, normal

SIGMA = 4e-3


def _table_draw(dims: Dims, generator: torch.Generator) -> dict[str, ScaledNetwork]:
    point = attention_point(dims, generator)
    layers = {1: normal(dims.d_K, dims.d_V, generator=generator), 2: normal(dims.d_V, dims.d_K, generator=generator)}
    return {
        "attention": ScaledNetwork(point.X, point.Y, point.weights, autodiff.linear_attention, True),
        "MLP": ScaledNetwork(point.X, point.Y, layers, autodiff.linear_mlp, True),
    }


def _table_oracle(nets: dict[str, ScaledNetwork]) -> Values:
    values: dict[str, Tensor] = {}
    for name, net in nets.items():
        for part in (Part.H_o, Part.H_f):
            degrees = list(net.exponents(part, 1.0).values())
            values |= {f"{part} of the {name}, lowest": min(degrees), f"{part} of the {name}, highest": max(degrees)}
    return values


def _table_printed(nets: dict[str, ScaledNetwork]) -> Values:
    """Degree in X at a fixed residual: Sigma counts 2, Omega counts 1."""
    degrees = {"H_o of the attention": 6, "H_f of the attention": 3, "H_o of the MLP": 2, "H_f of the MLP": 1}
    return {f"{name}, {end}": _number(degree) for name, degree in degrees.items() for end in ("lowest", "highest")}


def _depth_draw(dims: Dims, generator: torch.Generator) -> dict[int, ScaledNetwork[tuple[int, Matrix]]]:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    weights = {(n, m): w for n in (1, 2, 3) for m, w in attention_weights(dims, generator).items()}
    return {
        depth: ScaledNetwork(X, Y, {key: w for key, w in weights.items() if key[0] <= depth}, _stacked_linear)
        for depth in (1, 2, 3)
    }


def _stacked_linear(X: Tensor, weights: Mapping[tuple[int, Matrix], Tensor]) -> Tensor:
    return autodiff.stacked(autodiff.linear_attention, X, weights)


def _depth_oracle(nets: dict[int, ScaledNetwork[tuple[int, Matrix]]]) -> Values:
    values: dict[str, Tensor] = {}
    for depth, net in nets.items():
        for part in (Part.H_o, Part.H):
            exponents = net.exponents(part, SIGMA)
            values |= {f"{part}, {m} of layer {n} of {depth}": exponents[(n, m), (n, m)] for n, m in net.weights}
    return values


def _depth_printed(nets: dict[int, ScaledNetwork[tuple[int, Matrix]]]) -> dict[str, Tensor]:
    """2 3^D: every layer of H_o, and the last layer of H."""
    every = {f"{Part.H_o}, {m} of layer {n} of {depth}": depth for depth, net in nets.items() for n, m in net.weights}
    last = {f"{Part.H}, {m} of layer {depth} of {depth}": depth for depth in nets for m in MATRICES}
    return {name: _number(2 * 3**depth) for name, depth in {**every, **last}.items()}


def _depth_corrected(nets: dict[int, ScaledNetwork[tuple[int, Matrix]]]) -> Values:
    """And H below the last layer: 3^D as sigma -> 0, because H_f is not zero there."""
    earlier = {
        f"{Part.H}, {m} of layer {n} of {depth}": _number(3**depth)
        for depth, net in nets.items()
        for n, m in net.weights
        if n < depth
    }
    return {**_depth_printed(nets), **earlier}


def _number(value: float | int) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


DEGREES = {
    "tab1": Check(_table_draw, _table_oracle, _table_printed),
    "depth": Check(_depth_draw, _depth_oracle, _depth_printed, _depth_corrected),
}


Q, K, V = MATRICES
PAIRS = list(combinations_with_replacement(MATRICES, 2))
TINY, LARGE = 1e-5, 3.0

EQUATION_5: dict[Part, dict[tuple[Matrix, Matrix], int]] = {
    Part.H_o: {(Q, Q): 6, (Q, K): 6, (K, K): 6, (Q, V): 4, (K, V): 4, (V, V): 2},
    Part.H_f: {(Q, Q): 5, (Q, K): 3, (K, K): 5, (Q, V): 3, (K, V): 3},
}
"""Eq. 5 as printed; of the two powers of H_f(Q, K) the lower one rules as sigma -> 0. H_f(V, V) is zero."""

Nets = dict[str, ScaledNetwork[Matrix]]


def attention_nets(dims: Dims, generator: torch.Generator) -> Nets:
    """Softmax and linear attention, with targets of order one and with Y = 0."""
    point = attention_point(dims, generator)
    layers = {"softmax": autodiff.attention, "linear": autodiff.linear_attention}
    return {
        f"{name}{suffix}": ScaledNetwork(point.X, Y, point.weights, layer)
        for name, layer in layers.items()
        for suffix, Y in (("", point.Y), (", Y = 0", 0 * point.Y))
    }


def predicted(nets: Nets) -> Values:
    """Every non-zero block of every net: the exponent of `growth_rates.growth_rate`."""
    values: dict[str, Tensor] = {}
    for name in nets:
        for part in PARTS:
            for row, col in PAIRS:
                rate = growth_rate(Block(1, row, col), part, _architecture(name))
                if rate.exponent is not None:
                    values[f"{name}: {part}({row}, {col})"] = _number(rate.exponent)
    return values


def measured(nets: Nets, sigma: float = TINY) -> dict[str, Tensor]:
    """The exponents found by automatic differentiation between sigma and 2 sigma."""
    values: dict[str, Tensor] = {}
    for name, net in nets.items():
        for part in PARTS:
            exponents = net.exponents(part, sigma)
            values |= {
                f"{name}: {part}({row}, {col})": exponents[row, col] for row, col in PAIRS if (row, col) in exponents
            }
    return values


def _architecture(name: str) -> Architecture:
    attention, _, targets = name.partition(", ")
    return Architecture(
        kind=Kind.self_attention, attention=Attention(attention), square_loss=True, zero_targets=bool(targets)
    )


def _equation_5(nets: Nets) -> Values:
    return {
        f"softmax: {part}({row}, {col})": _number(float(exponent))
        for part, table in EQUATION_5.items()
        for (row, col), exponent in table.items()
    }


GROWTH = {
    "eq5": Check(attention_nets, measured, _equation_5, predicted, numbers={"sigma": TINY, "twice": 2 * TINY}),
    "eq5-large": Check(
        attention_nets,
        lambda nets: measured({"softmax": nets["softmax"]}, LARGE),
        _equation_5,
        numbers={"sigma": LARGE, "twice": 2 * LARGE},
    ),
}
