"""Statements about networks without softmax as functions of the size of their input: Table 1 and depth."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_point, attention_weights, normal
from hessfig.theory.autodiff.scaling import ScaledNetwork
from hessfig.theory.formulas.attention.softmax import MATRICES
from hessfig.theory.verify.statement import Dims, Statement, Values, Verdict

SIGMA = 4e-3


def _table_draw(dims: Dims, generator: torch.Generator) -> dict[str, ScaledNetwork]:
    point = attention_point(dims, generator)
    layers = {
        1: normal(dims.d_K, dims.d_V, generator=generator),
        2: normal(dims.d_V, dims.d_K, generator=generator),
    }
    return {
        "attention": ScaledNetwork(point.X, point.Y, point.weights, networks.linear_attention, True),
        "MLP": ScaledNetwork(point.X, point.Y, layers, networks.linear_mlp, True),
    }


def _table_oracle(nets: dict[str, ScaledNetwork]) -> Values:
    values: dict[str, Tensor] = {}
    for name, net in nets.items():
        for part in (Part.H_o, Part.H_f):
            degrees = list(net.exponents(part, 1.0).values())
            values |= {
                f"{part} of the {name}, lowest": min(degrees),
                f"{part} of the {name}, highest": max(degrees),
            }
    return values


def _table_printed(nets: dict[str, ScaledNetwork]) -> Values:
    """Degree in X at a fixed residual: Sigma counts 2, Omega counts 1."""
    degrees = {"H_o of the attention": 6, "H_f of the attention": 3, "H_o of the MLP": 2, "H_f of the MLP": 1}
    return {
        f"{name}, {end}": _number(degree) for name, degree in degrees.items() for end in ("lowest", "highest")
    }


def _depth_draw(dims: Dims, generator: torch.Generator) -> dict[int, ScaledNetwork[tuple[int, Matrix]]]:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    weights = {(n, m): w for n in (1, 2, 3) for m, w in attention_weights(dims, generator).items()}
    return {
        depth: ScaledNetwork(X, Y, {key: w for key, w in weights.items() if key[0] <= depth}, _stacked_linear)
        for depth in (1, 2, 3)
    }


def _stacked_linear(X: Tensor, weights: Mapping[tuple[int, Matrix], Tensor]) -> Tensor:
    return networks.stacked(networks.linear_attention, X, weights)


def _depth_oracle(nets: dict[int, ScaledNetwork[tuple[int, Matrix]]]) -> Values:
    values: dict[str, Tensor] = {}
    for depth, net in nets.items():
        for part in (Part.H_o, Part.H):
            exponents = net.exponents(part, SIGMA)
            values |= {
                f"{part}, {m} of layer {n} of {depth}": exponents[(n, m), (n, m)] for n, m in net.weights
            }
    return values


def _depth_printed(nets: dict[int, ScaledNetwork[tuple[int, Matrix]]]) -> dict[str, Tensor]:
    """2 3^D: every layer of H_o, and the last layer of H."""
    every = {
        f"{Part.H_o}, {m} of layer {n} of {depth}": depth
        for depth, net in nets.items()
        for n, m in net.weights
    }
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


def _number(value: int) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


STATEMENTS = [
    Statement(
        "tab1",
        "Table 1, p. 9",
        "H_o = O(Σ³), H_f = O(Ω Σ) for linear attention; O(Σ), O(Ω) for the linear MLP.",
        Verdict.yes,
        _table_draw,
        oracle=_table_oracle,
        printed=_table_printed,
        note="Measured as degrees in X at a fixed residual: 6 and 3 against 2 and 1, for every non-zero "
        "block.",
    ),
    Statement(
        "depth",
        "Section 4.1, p. 9",
        "Diagonal blocks of D stacked linear attention layers hold 3^D factors Σ: degree 2·3^D in X.",
        Verdict.yes,
        _depth_draw,
        oracle=_depth_oracle,
        printed=_depth_printed,
        corrected=_depth_corrected,
        correction="H of earlier layers has exponent 3^D as σ → 0: it comes from H_f, which is zero in the "
        "last layer only.",
        note="True of H_o in every layer, and of H in the last; D = 1, 2, 3.",
    ),
]
