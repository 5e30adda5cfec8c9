"""Attention sinks in the scalar-token model: three ways to make the first token one, and what they do to the
spectrum.

(i) input: beta is added to the first token everywhere. (ii) score: beta is added to its score as a key.
(iii) value: beta is added to its score and to its value, while all other scores come from the unbiased token.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.theory.autodiff.scalar_problems import Mixing, ScalarProblem
from hessfig.theory.formulas.scalar_tokens.spectrum import Response, attention_response


class Sink(StrEnum):
    """Where the bias of the first token enters."""

    input = "input"
    score = "score"
    value = "value"


@dataclass(frozen=True)
class SinkEffect:
    """Size of the bulk |b|, and of the three outliers, largest first."""

    bulk: float
    outliers: Float[Tensor, 3]


def sink_inputs(sink: Sink, x: Float[Tensor, " L"], beta: float) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, values and score biases with a sink of size beta at the first token."""
    bias = torch.zeros_like(x)
    bias[0] = beta
    tokens = x + bias if sink == Sink.input else x
    values = x if sink == Sink.score else x + bias
    return tokens, values, torch.zeros_like(x) if sink == Sink.input else bias


def sink_response(sink: Sink, x: Float[Tensor, " L"], s: Tensor | float, beta: float) -> Response:
    """m, m', m'' of softmax attention with the sink, in closed form."""
    tokens, values, score_bias = sink_inputs(sink, x, beta)
    return attention_response(tokens, s, values=values, score_bias=score_bias)


def sink_mixing(sink: Sink, x: Float[Tensor, " L"], beta: float) -> Mixing:
    """The same map s -> m written plainly, for automatic differentiation."""
    tokens, values, bias = sink_inputs(sink, x, beta)
    return lambda s: torch.softmax(s * torch.outer(tokens, tokens) + bias, 1) @ values


def sink_effect(problem: ScalarProblem, sink: Sink, beta: float) -> SinkEffect:
    """The spectrum's bulk and outliers under a sink."""
    hessian = problem.hessian(sink_response(sink, problem.x, problem.s, beta))
    return SinkEffect(abs(hessian.b), hessian.outliers.abs().sort(descending=True).values)


def median_effect(problems: list[ScalarProblem], sink: Sink, beta: float) -> SinkEffect:
    """Medians over problems."""
    effects = [sink_effect(problem, sink, beta) for problem in problems]
    bulk = torch.tensor([effect.bulk for effect in effects], dtype=torch.float64).median()
    return SinkEffect(float(bulk), torch.stack([effect.outliers for effect in effects]).median(0).values)
