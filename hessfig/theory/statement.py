"""Statements: what a theorem says, where it stands, and how it is checked on random instances."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from string import Template
from typing import Any

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
    """Whether the statement holds as it is printed."""

    yes = "yes"
    no = "no"
    ill_typed = "ill-typed"
    left_out = "left out"


class ErrorMeasure(StrEnum):
    """How the distance from the oracle is measured, and (by `tolerance`) how much of it is allowed."""

    relative = "largest deviation of an entry over the largest entry"
    absolute = "largest deviation"
    integer = "difference of whole numbers"
    exponent = "largest difference of exponents"

    @property
    def tolerance(self) -> float:
        return {ErrorMeasure.integer: 0.0, ErrorMeasure.exponent: 0.05}.get(self, 1e-10)


@dataclass(frozen=True)
class Dims:
    """Sequence length, embedding, query-key and feed-forward widths; pairwise different, so that no
    transposition hides.
    """

    L: int = 4
    d_V: int = 5
    d_K: int = 3
    d_ff: int = 7

    def other_side(self) -> Dims:
        """The same with d_K on the other side of d_V, still different from all."""
        candidates = range(self.d_V + 1, 2 * self.d_V + 4) if self.d_K < self.d_V else range(self.d_V - 1, 1, -1)
        d_K = next((d for d in candidates if d not in (self.L, self.d_ff)), 1)
        return Dims(self.L, self.d_V, d_K, self.d_ff)


@dataclass(frozen=True)
class Statement:
    """One claim. `printed` is None when the source left the formula out; formulas raise ValueError when
    ill-typed.

    `claim`, `correction` and `note` are sentences for a reader; `error_is` says what the errors count where
    that is not the plain distance of `measure`.
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
    """How a statement is checked: random instances, automatic differentiation, and the formulas it is compared with.

    `printed` is None when the source left the formula out; `numbers` are those that its text names.
    """

    draw: Callable[[Dims, torch.Generator], Any]
    oracle: Callable[[Any], Values]
    printed: Callable[[Any], Values] | None = None
    corrected: Callable[[Any], Values] | None = None
    numbers: Mapping[str, float | int] = field(default_factory=dict)


def stated(name: str, check: Check, *, recorded: str, measure: str = "relative", **texts: str) -> Statement:
    """Return a check with its text, as statement_texts.toml has it."""
    numbers = {key: f"{value:g}" for key, value in check.numbers.items()}
    words: dict[str, Any] = {key: Template(text).substitute(numbers) for key, text in texts.items()}
    formulas = {key: getattr(check, key) for key in ("draw", "oracle", "printed", "corrected")}
    return Statement(name, recorded=StatementVerdict(recorded), measure=ErrorMeasure[measure], **words, **formulas)


@dataclass(frozen=True)
class StatementOutcome:
    """Largest errors over all dims and seeds; None where there is no such formula, inf where it is
    ill-typed.
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
        return self.error_corrected is None or self.error_corrected <= self.statement.measure.tolerance

    @property
    def as_recorded(self) -> bool:
        """Whether verdict and correction are what the catalogue says."""
        return self.verdict == self.statement.recorded and self.correction_holds


def check(statement: Statement, dims: list[Dims], seeds: int) -> StatementOutcome:
    """Compare printed and corrected formula with the oracle on every dims and seed; keep the largest errors."""
    start, printed, corrected = time.perf_counter(), [], []
    for size in dims:
        for seed in range(FIRST_SEED, FIRST_SEED + seeds):
            problem = statement.draw(size, stream(seed, "verify", statement.id, size.L, size.d_V, size.d_K))
            truth = statement.oracle(problem)
            printed.append(_error(statement.printed, problem, truth, statement.measure))
            corrected.append(_error(statement.corrected, problem, truth, statement.measure))
    return StatementOutcome(statement, _largest(printed), _largest(corrected), time.perf_counter() - start)


def _error(formula: Callable[[Any], Values] | None, problem: Any, truth: Values, measure: ErrorMeasure) -> float | None:
    if formula is None:
        return None
    try:
        values = formula(problem)
    except ValueError:
        return math.inf
    floor = NEGLIGIBLE * max(float(t.abs().max()) for t in truth.values())
    return _worst([_distance(value, truth[name], measure, floor) for name, value in values.items()])


def _distance(value: Tensor, truth: Tensor, measure: ErrorMeasure, floor: float) -> float:
    """Relative to the largest true entry, or to `floor` where that is larger: rounding is all a tiny block holds."""
    if value.shape != truth.shape:
        return math.inf
    difference = float((value - truth).abs().max())
    scale = float(truth.abs().max())
    if measure != ErrorMeasure.relative or not truth.is_floating_point() or scale == 0:
        return difference
    return difference / max(scale, floor)


def _largest(errors: list[float | None]) -> float | None:
    known = [error for error in errors if error is not None]
    return _worst(known) if known else None


def _worst(errors: list[float]) -> float:
    """The largest; nan as soon as one is nan, which Python's max would pass over."""
    return math.nan if any(math.isnan(error) for error in errors) else max(errors)


def named(parts: Mapping[Part, Mapping[tuple[Any, Any], Tensor]]) -> dict[str, Tensor]:
    """Blocks of some parts, keyed by words instead of part and pair."""
    return {f"{part}({row}, {col})": block for part, blocks in parts.items() for (row, col), block in blocks.items()}


def prefixed(name: str, values: Values) -> dict[str, Tensor]:
    """The same values, their words preceded by `name`."""
    return {f"{name} {key}": value for key, value in values.items()}


def autodiff_blocks(
    network: Network[Any], Y: Tensor, weights: Mapping[Any, Tensor], parts: Iterable[Part] = PARTS
) -> dict[str, Tensor]:
    """All Hessian blocks under the square loss by automatic differentiation, named."""
    return named({part: hessian_blocks(network, square_loss(Y), weights, part) for part in parts})


def normal(*shape: int, generator: torch.Generator, scale: float = 1.0) -> Float[Tensor, "..."]:
    """Independent N(0, scale^2) entries."""
    return scale * torch.randn(*shape, dtype=DTYPE, generator=generator)


@dataclass(frozen=True)
class Instance:
    """Tokens, targets and the weights of a network by name."""

    X: Tensor
    Y: Tensor
    weights: dict[Any, Tensor]


def attention_weights(dims: Dims, generator: torch.Generator) -> dict[Matrix, Tensor]:
    """W_Q, W_K, W_V, scaled so that scores are of order one and attention is neither uniform nor one-hot."""
    query_key = {m: normal(dims.d_V, dims.d_K, generator=generator, scale=0.5) for m in (Matrix.W_Q, Matrix.W_K)}
    return {**query_key, Matrix.W_V: normal(dims.d_V, dims.d_V, generator=generator)}


def attention_point(dims: Dims, generator: torch.Generator) -> AttentionPoint:
    """Tokens, targets and weights of one attention layer."""
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    return AttentionPoint(X, Y, attention_weights(dims, generator))


def indexed_weights(dims: Dims, generator: torch.Generator, count: int) -> dict[tuple[int, Matrix], Tensor]:
    """Attention weights of `count` layers or heads, numbered from 1."""
    return {(n, m): w for n in range(1, count + 1) for m, w in attention_weights(dims, generator).items()}


def block_weights(dims: Dims, generator: torch.Generator) -> dict[Matrix, Tensor]:
    """Attention weights and the two of the feed-forward sublayer."""
    W_in = normal(dims.d_V, dims.d_ff, generator=generator)
    W_out = normal(dims.d_ff, dims.d_V, generator=generator)
    return {**attention_weights(dims, generator), Matrix.W_in: W_in, Matrix.W_out: W_out}
