"""Mixing weights that are not polynomials of the scores: exponents, and violations of the theorem's conditions."""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import AT_OUTPUTS, Matrix, Part
from hessfig.theory.autodiff import VANISHES, exponent
from hessfig.theory.mixing_claims import (
    SMALL,
    DrawnMixing,
    Exponents,
    HomogeneousTerm,
    K,
    MixingCase,
    Q,
    Surroundings,
    V,
    draw_mixing,
    joined,
    mixing_exponents,
)
from hessfig.theory.statement import Check, Dims, Values

Scores = Float[Tensor, "L L"]
_ATTEMPTS = 8  # number of draws, of which the one with most positive scores in a row is used
_TINY = 1e-300  # in place of the sum of a row without a positive score
_ROUNDING = 1e-8  # share of the predicted norm below which a block vanishes


def _over_sum(weights: Scores) -> Scores:
    return weights / weights.sum(-1, keepdim=True).clamp(min=_TINY)


def _over_length(weights: Scores, scores: Scores) -> Scores:
    return weights / scores.norm(dim=-1, keepdim=True)


TERMS = {
    "s^2 / sum of s^2": HomogeneousTerm(0.0, lambda s: _over_sum(s.square())),
    "ReLU / its sum": HomogeneousTerm(0.0, lambda s: _over_sum(torch.relu(s))),
    "s / |row|": HomogeneousTerm(0.0, lambda s: _over_length(s, s)),
    "s^2 / |row|": HomogeneousTerm(1.0, lambda s: _over_length(s.square(), s)),
    "|s|^1.5": HomogeneousTerm(1.5, lambda s: s.abs() ** 1.5),
    "|s|^0.5": HomogeneousTerm(0.5, lambda s: s.abs() ** 0.5),
}
_COMPANY = ("s / |row|", "s^2 / |row|", "|s|^1.5")
CASES = [
    *(MixingCase(name, (), further=term) for name, term in TERMS.items()),
    *(MixingCase(f"constant and {name}", (0,), further=TERMS[name]) for name in _COMPANY),
    *(MixingCase(f"linear and {name}", (1,), further=TERMS[name]) for name in _COMPANY),
    *(MixingCase(f"{name}, one W_QK", (), single=True, further=TERMS[name]) for name in _COMPANY),
    *(MixingCase(f"{name}, a bend after", (), Surroundings(second=0.0), further=TERMS[name]) for name in _COMPANY),
    *(
        MixingCase(f"{name}, a norm after", (0,), Surroundings(first=-1.0, second=-2.0), further=TERMS[name])
        for name in _COMPANY
    ),
    *(
        MixingCase(
            f"{name}, zero targets",
            (),
            Surroundings(gradient=1 + 2 * TERMS[name].degree),
            zero_targets=True,
            further=TERMS[name],
        )
        for name in _COMPANY
    ),
]


def _draw(case: MixingCase, dims: Dims, generator: torch.Generator) -> DrawnMixing:
    """Draw a case with at least two positive scores in a row, without which ReLU over its sum is constant."""
    drawn = [draw_mixing(case, dims, generator) for _ in range(_ATTEMPTS)]
    return max(drawn, key=lambda one: int((case.scores(one.net.X, one.net.weights) > 0).sum(-1).max()))


def minors(scores: Scores) -> Scores:
    """Return the 2 x 2 minors of neighbours: of degree 2, and zero where scores are of rank 1."""
    below = scores.roll(-1, 0)
    return scores * below.roll(-1, 1) - scores.roll(-1, 1) * below


def _apart(scores: Scores) -> Scores:
    """Return equal weights in the first row, and the scores in all others."""
    first = torch.arange(len(scores)) == 0
    return torch.where(first[:, None], 1 / len(scores), scores)


@dataclass(frozen=True)
class Breach:
    """Mixing weights that violate a condition of the theorem: its predictions, and the differences from them."""

    name: str
    weights: Callable[[Scores], Scores]
    stated: Exponents
    differs: Exponents
    key_width: int | None = None

    def expected(self) -> Exponents:
        """Return the true exponents of H_o and H_f."""
        return {key: self.differs.get(key, power) for key, power in self.stated.items() if key[0] != Part.H}


_SQUARES = mixing_exponents([2])
_FLAT, _BENT = (mixing_exponents([], non_polynomial=[degree]) for degree in (0, 1))
_OF_QUERIES = [(part, row, col) for part in AT_OUTPUTS for row, col in ((V, Q), (Q, Q), (Q, K))]
BREACHES = [
    Breach("minors", minors, _SQUARES, {}),
    Breach("minors, one key", minors, _SQUARES, dict.fromkeys(_SQUARES, VANISHES), key_width=1),
    Breach("s / |row|, one key", TERMS["s / |row|"].weights, _FLAT, dict.fromkeys(_OF_QUERIES, VANISHES), key_width=1),
    Breach("s^2 / |row|, one key", TERMS["s^2 / |row|"].weights, _BENT, {(Part.H_f, Q, Q): VANISHES}, key_width=1),
    Breach("s^2 / (1 + sum of s^2)", lambda s: s.square() / (1 + s.square().sum(-1, keepdim=True)), _FLAT, _SQUARES),
    Breach(
        "a constant and scores in different rows",
        _apart,
        mixing_exponents([0, 1]),
        {(Part.H_o, V, Q): 6.0, (Part.H_o, V, K): 6.0},
    ),
]


def _draw_breaches(dims: Dims, generator: torch.Generator) -> list[tuple[Breach, DrawnMixing]]:
    cases = [MixingCase(one.name, (), further=HomogeneousTerm(0.0, one.weights)) for one in BREACHES]
    sizes = [replace(dims, d_K=one.key_width or dims.d_K) for one in BREACHES]
    drawn = [draw_mixing(case, size, generator) for case, size in zip(cases, sizes, strict=True)]
    return list(zip(BREACHES, drawn, strict=True))


def _exponents(drawn: list[tuple[Breach, DrawnMixing]]) -> Values:
    """Return the exponents; a block within rounding of the theorem's prediction counts as vanishing."""
    exponents = {}
    for breach, mixing in drawn:
        low, high = ({part: mixing.net.norms(part, sigma) for part in AT_OUTPUTS} for sigma in (SMALL, 2 * SMALL))
        for (part, row, col), power in breach.expected().items():
            least = breach.stated[part, row, col] if power == VANISHES else power
            norms = low[part][row, col], high[part][row, col]
            exponents[_name(breach, part, row, col)] = exponent(*norms, _ROUNDING * SMALL**least)
    return exponents


def _expected(drawn: list[tuple[Breach, DrawnMixing]]) -> Values:
    return {
        _name(breach, *key): torch.tensor(power, dtype=torch.float64)
        for breach, _ in drawn
        for key, power in breach.expected().items()
    }


def _name(breach: Breach, part: Part, row: Matrix, col: Matrix) -> str:
    return f"{breach.name}: {part}({row}, {col})"


STATEMENTS = {
    "mixing-homogeneous": Check(
        lambda dims, generator: [_draw(case, dims, generator) for case in CASES],
        lambda drawn: joined([one.exponents() for one in drawn]),
        lambda drawn: joined([one.predicted() for one in drawn]),
        numbers={"sigma": SMALL, "twice": 2 * SMALL},
    ),
    "mixing-conditions": Check(_draw_breaches, _exponents, _expected),
}
