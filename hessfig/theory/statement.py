"""Statements: the text of a theorem, its source, and its check on random instances.

A statement holds if its formula agrees with automatic differentiation on random instances
of several seeds and two sets of sizes that are pairwise different. A wrong factor, sign or
transposition shows at once; agreement is not a proof.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Template
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.rng import stream
from hessfig.terms import PARTS, Matrix, Part
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.autodiff import Network, hessian_blocks, square_loss
from hessfig.theory.matrix_formulas import DTYPE

Values = Mapping[str, Tensor]
FIRST_SEED = 1234
NEGLIGIBLE = 1e-6


class StatementVerdict(StrEnum):
    """Whether the statement holds as printed."""

    yes = "yes"
    no = "no"
    ill_typed = "ill-typed"
    left_out = "left out"


class ErrorMeasure(StrEnum):
    """Measure of the distance from the oracle, with the largest distance allowed, `tolerance`."""

    relative = "largest deviation of an entry over the largest entry"
    absolute = "largest deviation"
    integer = "difference of whole numbers"
    exponent = "largest difference of exponents"

    @property
    def tolerance(self) -> float:
        return {ErrorMeasure.integer: 0.0, ErrorMeasure.exponent: 0.05}.get(self, 1e-10)


@dataclass(frozen=True)
class Dims:
    """Sequence length and the widths of embedding, query-key and feed-forward. They differ pairwise, so that every
    transposed matrix is detected.
    """

    L: int = 4
    d_V: int = 5
    d_K: int = 3
    d_ff: int = 7

    def other_side(self) -> Dims:
        """The same sizes with d_K on the other side of d_V, still pairwise different."""
        if self.d_K < self.d_V:
            candidates = range(self.d_V + 1, 2 * self.d_V + 4)
        else:
            candidates = range(self.d_V - 1, 1, -1)
        d_K = next((d for d in candidates if d not in (self.L, self.d_ff)), 1)
        return Dims(self.L, self.d_V, d_K, self.d_ff)


@dataclass(frozen=True)
class Statement:
    """A claim. `printed` is None if the source leaves the formula out; formulas with inconsistent shapes raise
    ValueError.

    `claim`, `correction` and `note` are sentences for readers. `error_is` describes the
    errors if they are not the plain distance of `measure`.
    """

    id: str
    reference: str
    claim: str
    recorded: StatementVerdict
    draw: Callable[[Dims, torch.Generator], Any]
    oracle: Callable[[Any], Values]
    printed: Callable[[Any], Values] | None
    corrected: Callable[[Any], Values] | None = None
    correction: str = ""
    note: str = ""
    error_is: str = ""
    measure: ErrorMeasure = ErrorMeasure.relative


@dataclass(frozen=True)
class Check:
    """Check of a statement: random instances, automatic differentiation, and the formulas to compare with it.

    `printed` is None if the source leaves the formula out; `numbers` are the numbers in
    its text.
    """

    draw: Callable[[Dims, torch.Generator], Any]
    oracle: Callable[[Any], Values]
    printed: Callable[[Any], Values] | None = None
    corrected: Callable[[Any], Values] | None = None
    numbers: Mapping[str, float | int] = field(default_factory=dict)


def stated(
    name: str, check: Check, *, recorded: str, measure: str = "relative", **texts: str
) -> Statement:
    """Return the statement of a check with its text from statement_texts.toml."""
    numbers = {key: f"{value:g}" for key, value in check.numbers.items()}
    words = {key: Template(text).substitute(numbers) for key, text in texts.items()}
    return Statement(
        name,
        recorded=StatementVerdict(recorded),
        draw=check.draw,
        oracle=check.oracle,
        printed=check.printed,
        corrected=check.corrected,
        measure=ErrorMeasure[measure],
        **words,
    )


@dataclass(frozen=True)
class StatementOutcome:
    """Largest errors over all dims and seeds; None without such a formula, inf if its shapes are
    inconsistent.
    """

    statement: Statement
    error_as_printed: float | None
    error_corrected: float | None
    seconds: float = field(compare=False)

    @property
    def verdict(self) -> StatementVerdict:
        if self.error_as_printed is None:
            return StatementVerdict.left_out
        if math.isinf(self.error_as_printed):
            return StatementVerdict.ill_typed
        holds = self.error_as_printed <= self.statement.measure.tolerance
        return StatementVerdict.yes if holds else StatementVerdict.no

    @property
    def correction_holds(self) -> bool:
        return (
            self.error_corrected is None
            or self.error_corrected <= self.statement.measure.tolerance
        )

    @property
    def as_recorded(self) -> bool:
        """Whether verdict and correction agree with the catalogue."""
        return self.verdict == self.statement.recorded and self.correction_holds


def check(statement: Statement, dims: list[Dims], seeds: int) -> StatementOutcome:
    """Compare printed and corrected formula with the oracle for all dims and seeds; return the largest errors."""
    start = time.perf_counter()
    printed = []
    corrected = []
    measure = statement.measure
    for size in dims:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            problem = statement.draw(
                size, stream(seed, "verify", statement.id, size.L, size.d_V, size.d_K)
            )
            truth = statement.oracle(problem)
            printed.append(_error(statement.printed, problem, truth, measure))
            corrected.append(_error(statement.corrected, problem, truth, measure))
    return StatementOutcome(
        statement, _largest(printed), _largest(corrected), time.perf_counter() - start
    )


def _error(
    formula: Callable[[Any], Values] | None,
    problem: Any,
    truth: Values,
    measure: ErrorMeasure,
) -> float | None:
    if formula is None:
        return None
    try:
        values = formula(problem)
    except ValueError:
        return math.inf
    floor = NEGLIGIBLE * max(float(t.abs().max()) for t in truth.values())
    errors = []
    for name, value in values.items():
        errors.append(_distance(value, truth[name], measure, floor))
    return _worst(errors)


def _distance(
    value: Tensor, truth: Tensor, measure: ErrorMeasure, floor: float
) -> float:
    """The distance relative to the largest true entry, or to `floor` if it is larger: tiny blocks are pure rounding.

    Infinite for another shape; absolute for whole numbers, exponents, and where all true
    entries are zero.
    """
    if value.shape != truth.shape:
        return math.inf
    difference = float((value - truth).abs().max())
    scale = float(truth.abs().max())
    if measure != ErrorMeasure.relative or not truth.is_floating_point() or scale == 0:
        return difference
    return difference / max(scale, floor)


def _largest(errors: list[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    if not known:
        return None
    return _worst(known)


def _worst(errors: list[float]) -> float:
    """The largest error; nan if any error is nan, which Python's max would ignore."""
    return float(np.max(errors))


def named(parts: Mapping[Part, Mapping[tuple[Any, Any], Tensor]]) -> dict[str, Tensor]:
    """Return the blocks of some parts under names instead of part and pair."""
    values = {}
    for part, blocks in parts.items():
        for (row, col), block in blocks.items():
            values[f"{part}({row}, {col})"] = block
    return values


def prefixed(name: str, values: Values) -> dict[str, Tensor]:
    """Return the values with `name` in front of their names."""
    return {f"{name} {key}": value for key, value in values.items()}


def autodiff_blocks(
    network: Network[Any],
    Y: Tensor,
    weights: Mapping[Any, Tensor],
    parts: Iterable[Part] = PARTS,
) -> dict[str, Tensor]:
    """Return all named Hessian blocks under the square loss, by automatic differentiation."""
    loss = square_loss(Y)
    return named({part: hessian_blocks(network, loss, weights, part) for part in parts})


def normal(
    *shape: int, generator: torch.Generator, scale: float = 1.0
) -> Float[Tensor, "..."]:
    """Return independent N(0, scale^2) entries."""
    return scale * torch.randn(*shape, dtype=DTYPE, generator=generator)


@dataclass(frozen=True)
class Instance:
    """Tokens, targets and the weights of a network by name."""

    X: Tensor
    Y: Tensor
    weights: dict[Any, Tensor]


def attention_weights(dims: Dims, generator: torch.Generator) -> dict[Matrix, Tensor]:
    """Return W_Q, W_K and W_V, scaled for scores of order one, so that attention is neither uniform nor one-hot."""
    return {
        Matrix.W_Q: normal(dims.d_V, dims.d_K, generator=generator, scale=0.5),
        Matrix.W_K: normal(dims.d_V, dims.d_K, generator=generator, scale=0.5),
        Matrix.W_V: normal(dims.d_V, dims.d_V, generator=generator),
    }


def tokens_and_targets(
    dims: Dims, generator: torch.Generator
) -> tuple[Float[Tensor, "L d_V"], Float[Tensor, "L d_V"]]:
    """Return X and Y, both with independent standard normal entries."""
    X = normal(dims.L, dims.d_V, generator=generator)
    return X, normal(dims.L, dims.d_V, generator=generator)


def attention_point(dims: Dims, generator: torch.Generator) -> AttentionPoint:
    """Tokens, targets and weights of one attention layer."""
    X, Y = tokens_and_targets(dims, generator)
    return AttentionPoint(X, Y, attention_weights(dims, generator))


def indexed_weights(
    dims: Dims, generator: torch.Generator, count: int
) -> dict[tuple[int, Matrix], Tensor]:
    """Attention weights of `count` layers or heads, numbered from 1."""
    weights = {}
    for number in range(1, count + 1):
        for matrix, weight in attention_weights(dims, generator).items():
            weights[number, matrix] = weight
    return weights


def block_weights(dims: Dims, generator: torch.Generator) -> dict[Matrix, Tensor]:
    """Attention weights and the two of the feed-forward sublayer."""
    W_in = normal(dims.d_V, dims.d_ff, generator=generator)
    W_out = normal(dims.d_ff, dims.d_V, generator=generator)
    return {
        **attention_weights(dims, generator),
        Matrix.W_in: W_in,
        Matrix.W_out: W_out,
    }
