"""Mixing weights beyond polynomials: homogeneous terms, violated conditions, explicit examples, centred softmax."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cache

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import AT_OUTPUTS, Matrix, Part
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.autodiff import VANISHES, ScaledNetwork, exponent, scores
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
from hessfig.theory.statement import (
    Check,
    Dims,
    Instance,
    Values,
    attention_point,
    named,
    prefixed,
)

Scores = Float[Tensor, "L L"]
_ATTEMPTS = (
    8  # number of draws, of which the one with most positive scores in a row is used
)
_TINY = 1e-300  # in place of the sum of a row without a positive score
_ROUNDING = 1e-8  # share of the predicted norm below which a block vanishes


def _matrix(rows: str) -> Float[Tensor, "rows columns"]:
    """Return the matrix of rows of whole numbers, separated by commas."""
    numbers = [row.split() for row in rows.split(",")]
    return torch.from_numpy(np.array(numbers, dtype=float))


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
_AFTER = Surroundings(first=-1.0, second=-2.0)
_COMPANY = ("s / |row|", "s^2 / |row|", "|s|^1.5")


def _cases() -> Iterator[MixingCase]:
    for name, term in TERMS.items():
        yield MixingCase(name, (), further=term)
    for name in _COMPANY:
        yield MixingCase(f"constant and {name}", (0,), further=TERMS[name])
    for name in _COMPANY:
        yield MixingCase(f"linear and {name}", (1,), further=TERMS[name])
    for name in _COMPANY:
        yield MixingCase(f"{name}, one W_QK", (), single=True, further=TERMS[name])
    bend = Surroundings(second=0.0)
    for name in _COMPANY:
        yield MixingCase(f"{name}, a bend after", (), bend, further=TERMS[name])
    for name in _COMPANY:
        yield MixingCase(f"{name}, a norm after", (0,), _AFTER, further=TERMS[name])
    for name in _COMPANY:
        yield MixingCase(
            f"{name}, zero targets",
            (),
            Surroundings(gradient=1 + 2 * TERMS[name].degree),
            zero_targets=True,
            further=TERMS[name],
        )


CASES = list(_cases())


def _draw(case: MixingCase, dims: Dims, generator: torch.Generator) -> DrawnMixing:
    """Draw a case with at least two positive scores in a row, without which ReLU over its sum is constant."""

    def positive(one: DrawnMixing) -> int:
        scores = case.scores(one.net.X, one.net.weights)
        return int((scores > 0).sum(-1).max())

    drawn = [draw_mixing(case, dims, generator) for _ in range(_ATTEMPTS)]
    return max(drawn, key=positive)


def minors(scores: Scores) -> Scores:
    """Return the 2 x 2 minors of neighbours: of degree 2, and zero where scores are of rank 1."""
    below = scores.roll(-1, 0)
    right = scores.roll(-1, 1)
    return scores * below.roll(-1, 1) - right * below


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
        return {
            key: self.differs.get(key, power)
            for key, power in self.stated.items()
            if key[0] != Part.H
        }


def _as_polynomial(name: str, degree: int) -> Breach:
    """Return a term that is not a polynomial, counted as one of its degree: constant for 0, linear for 1."""
    true = mixing_exponents([], non_polynomial=[TERMS[name].degree])
    stated = dict.fromkeys(true, VANISHES) | mixing_exponents([degree])
    differs = {key: power for key, power in true.items() if power != stated[key]}
    return Breach(f"{name} as a polynomial", TERMS[name].weights, stated, differs)


_FLAT = mixing_exponents([], non_polynomial=[0])
_BENT = mixing_exponents([], non_polynomial=[1])
_SQUARES = mixing_exponents([2])
_OF_QUERIES = [
    (part, *pair) for part in AT_OUTPUTS for pair in ((V, Q), (Q, Q), (Q, K))
]
BREACHES = [
    _as_polynomial("s^2 / sum of s^2", 0),
    _as_polynomial("ReLU / its sum", 0),
    _as_polynomial("s^2 / |row|", 1),
    Breach("minors", minors, _SQUARES, {}),
    Breach(
        "minors, one key",
        minors,
        _SQUARES,
        dict.fromkeys(_SQUARES, VANISHES),
        key_width=1,
    ),
    Breach(
        "s / |row|, one key",
        TERMS["s / |row|"].weights,
        _FLAT,
        dict.fromkeys(_OF_QUERIES, VANISHES),
        key_width=1,
    ),
    Breach(
        "s^2 / |row|, one key",
        TERMS["s^2 / |row|"].weights,
        _BENT,
        {(Part.H_f, Q, Q): VANISHES},
        key_width=1,
    ),
    Breach(
        "s^2 / (1 + sum of s^2)",
        lambda s: s.square() / (1 + s.square().sum(-1, keepdim=True)),
        _FLAT,
        _SQUARES,
    ),
    Breach(
        "a constant and scores in different rows",
        _apart,
        mixing_exponents([0, 1]),
        {(Part.H_o, V, Q): 6.0, (Part.H_o, V, K): 6.0},
    ),
]


def _draw_breaches(
    dims: Dims, generator: torch.Generator
) -> list[tuple[Breach, DrawnMixing]]:
    drawn = []
    for breach in BREACHES:
        term = HomogeneousTerm(0.0, breach.weights)
        case = MixingCase(breach.name, (), further=term)
        size = replace(dims, d_K=breach.key_width or dims.d_K)
        drawn.append((breach, draw_mixing(case, size, generator)))
    return drawn


def _exponents(drawn: list[tuple[Breach, DrawnMixing]]) -> Values:
    """Return the exponents; a block within rounding of the theorem's prediction counts as vanishing."""
    exponents = {}
    for breach, mixing in drawn:
        net = mixing.net
        low = {part: net.norms(part, SMALL) for part in AT_OUTPUTS}
        high = {part: net.norms(part, 2 * SMALL) for part in AT_OUTPUTS}
        for (part, row, col), power in breach.expected().items():
            least = breach.stated[part, row, col] if power == VANISHES else power
            exponents[_name(breach, part, row, col)] = exponent(
                low[part][row, col], high[part][row, col], _ROUNDING * SMALL**least
            )
    return exponents


def _expected(drawn: list[tuple[Breach, DrawnMixing]]) -> Values:
    powers = {}
    for breach, _ in drawn:
        for key, power in breach.expected().items():
            powers[_name(breach, *key)] = torch.tensor(power, dtype=torch.float64)
    return powers


# The explicit example of docs/studies/constant-term.md: no leading term vanishes there,
# in any row of its two tables.
WITNESS = Instance(
    X=_matrix("1 0 2, 0 1 1, 2 1 0"),
    Y=_matrix("1 -1 0, 2 0 1, 0 1 3"),
    weights={
        Q: _matrix("1 1, 0 1, 1 0"),
        K: _matrix("1 0, 1 2, 0 1"),
        V: _matrix("1 1 0, -1 2 1, 0 1 1"),
    },
)
_PLAIN_ROWS = ((0, 1, 2, 3), (0, 1, 3), (0, 1), (1,), (1, 2, 3), (2,), (0, 3))
_UNIT = Surroundings(scores=0.0, bend=True)
_BEFORE = Surroundings(values=0.0, scores=0.0)


def _witnessed() -> Iterator[MixingCase]:
    for powers in _PLAIN_ROWS:
        yield MixingCase(f"powers {powers}", powers)
    yield MixingCase("softmax", None)
    yield MixingCase("softmax, unit queries and keys", None, _UNIT)
    yield MixingCase("softmax, a norm before", None, _BEFORE)
    yield MixingCase("softmax, a norm after", None, _AFTER)
    yield MixingCase("powers (1,), a norm after", (1,), _AFTER)
    for name, term in TERMS.items():
        yield MixingCase(name, (), further=term)
    for name in ("|s|^1.5", "|s|^0.5", "s / |row|"):
        yield MixingCase(f"constant and {name}", (0,), further=TERMS[name])
    bent = TERMS["s^2 / |row|"]
    yield MixingCase("linear and s^2 / |row|", (1,), further=bent)


WITNESSED = list(_witnessed())


@cache
def _witness_exponents() -> Values:
    """Return the exponents of every mixing of the tables at the explicit example, all coefficients being 1."""
    return joined([_at_witness(case).exponents() for case in WITNESSED])


def _at_witness(case: MixingCase) -> DrawnMixing:
    coefficients = dict.fromkeys(case.powers or (), 1.0)

    def network(X: Tensor, weights: Mapping[Matrix, Tensor]) -> Tensor:
        return case.network(X, weights, coefficients, X)

    return DrawnMixing(
        case, ScaledNetwork(WITNESS.X, WITNESS.Y, WITNESS.weights, network)
    )


LAMBDAS = (0.5, 0.9, 0.99, 1.0)


def _centred_blocks(point: AttentionPoint) -> Values:
    """Return the blocks of centred softmax at a fixed residual, at scale 1, by automatic differentiation."""
    return joined([_blocks(point, centring) for centring in LAMBDAS])


def _blocks(point: AttentionPoint, centring: float) -> Values:
    def network(X: Tensor, weights: Mapping[Matrix, Tensor]) -> Tensor:
        pattern = torch.softmax(scores(X, weights), -1)
        centred = pattern - centring / len(X)
        return centred @ X @ weights[V]

    net = ScaledNetwork(
        point.X, point.Y, point.weights, network, at_fixed_residual=True
    )
    blocks = named({part: net.blocks(part, 1.0) for part in AT_OUTPUTS})
    return prefixed(f"lambda = {centring:g}:", blocks)


def _from_softmax(point: AttentionPoint) -> Values:
    """Return the blocks that centring leaves unchanged, from softmax, and H_o(V, V), in closed form."""
    X = point.X
    weights = point.weights
    values = {}
    plain = _blocks(point, 0.0)
    pattern = torch.softmax(scores(X, weights), -1)
    width = weights[V].shape[1]
    identity = torch.eye(width, dtype=X.dtype)
    for centring in LAMBDAS:
        mixed = (pattern - centring / len(X)) @ X
        outer = 2 / X.numel() * torch.kron(mixed.T @ mixed, identity)
        for name, block in plain.items():
            if f"{V}" not in name or "H_f" in name:
                values[name.replace("lambda = 0", f"lambda = {centring:g}")] = block
        values[f"lambda = {centring:g}: H_o({V}, {V})"] = outer
    return values


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
    "mixing-witness": Check(
        lambda dims, generator: [_at_witness(case) for case in WITNESSED],
        lambda drawn: _witness_exponents(),
        lambda drawn: joined([one.predicted() for one in drawn]),
        numbers={"sigma": SMALL, "twice": 2 * SMALL},
    ),
    "mixing-centred": Check(attention_point, _centred_blocks, _from_softmax),
}
