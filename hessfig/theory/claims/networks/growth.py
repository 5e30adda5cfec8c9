"""Eq. 5: how every block of one attention layer grows with its input. `growth_rates.py` predicts it."""

from __future__ import annotations

from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessfig.predictions.architecture import Architecture, Attention, Kind
from hessfig.predictions.growth_rates import growth_rate
from hessfig.terms import Block, Matrix, Part
from hessfig.theory.autodiff import networks
from hessfig.theory.autodiff.draws import attention_point
from hessfig.theory.autodiff.scaling import ScaledNetwork
from hessfig.theory.formulas.attention.softmax import MATRICES
from hessfig.theory.verify.statement import Dims, Measure, Statement, Values, Verdict

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
    layers = {"softmax": networks.attention, "linear": networks.linear_attention}
    return {
        f"{name}{suffix}": ScaledNetwork(point.X, Y, point.weights, layer)
        for name, layer in layers.items()
        for suffix, Y in (("", point.Y), (", Y = 0", 0 * point.Y))
    }


def predicted(nets: Nets) -> Values:
    """Every non-zero block of every net: the exponent of `growth_rates.growth_rate`."""
    values: dict[str, Tensor] = {}
    for name in nets:
        for part in Part:
            for row, col in PAIRS:
                rate = growth_rate(Block(1, row, col), part, _architecture(name))
                if rate.exponent is not None:
                    values[f"{name}: {part}({row}, {col})"] = _number(rate.exponent)
    return values


def measured(nets: Nets, sigma: float = TINY) -> dict[str, Tensor]:
    """The exponents found by automatic differentiation between sigma and 2 sigma."""
    values: dict[str, Tensor] = {}
    for name, net in nets.items():
        for part in Part:
            exponents = net.exponents(part, sigma)
            values |= {
                f"{name}: {part}({row}, {col})": exponents[row, col]
                for row, col in PAIRS
                if (row, col) in exponents
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


def _number(value: float) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


STATEMENTS = [
    Statement(
        "eq5",
        "eq. 5, p. 5",
        "Powers of X in every block of H_o and H_f of softmax attention.",
        Verdict.yes,
        attention_nets,
        oracle=measured,
        printed=_equation_5,
        corrected=predicted,
        measure=Measure.exponent,
        correction="Predicted for H, H_o and H_f of all block pairs, with Y = 0 and for linear attention as "
        "well, by "
        "predictions/growth_rates.py.",
        note=f"In the limit σ → 0 (σ = {TINY:g} to {2 * TINY:g}) with targets of order one. H_f(V,V) is "
        "exactly zero.",
    ),
    Statement(
        "eq5-large",
        "eq. 5, p. 5",
        "Blocks keep growing with the powers of eq. 5 when X is large.",
        Verdict.no,
        attention_nets,
        oracle=lambda nets: measured({"softmax": nets["softmax"]}, LARGE),
        printed=_equation_5,
        measure=Measure.exponent,
        note=f"Between σ = {LARGE:g} and {2 * LARGE:g} the softmax saturates, M_2 and M_3 die out, and "
        "query and key blocks shrink.",
    ),
]
