"""Statements of the talk about attention sinks, for three kinds of sink in the scalar-token model."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hessfig.theory.autodiff.scalar_problems import ScalarProblem, draw_scalar_problem
from hessfig.theory.formulas.scalar_tokens.sinks import Sink, median_effect
from hessfig.theory.verify.statement import Dims, Measure, Statement, Values, Verdict

BETA = 12.0
TOKENS, PROBLEMS = 16, 60
CLAIM = "bulk shrinks, largest outlier grows"
REFERENCE = "talk, slide 'Outliers in activations'"


def _draw(dims: Dims, generator: torch.Generator) -> list[ScalarProblem]:
    return [draw_scalar_problem(TOKENS, dims.d_K, generator, w_V=1.0) for _ in range(PROBLEMS)]


def _measured(*sinks: Sink) -> Callable[[list[ScalarProblem]], Values]:
    return lambda problems: {f"{sink}: {CLAIM}": _changes(problems, sink) for sink in sinks}


def _changes(problems: list[ScalarProblem], sink: Sink) -> Tensor:
    before, after = (median_effect(problems, sink, beta) for beta in (0.0, BETA))
    return torch.tensor([after.bulk < before.bulk, bool(after.outliers[0] > before.outliers[0])]).int()


def _table(changes: Mapping[Sink, tuple[int, int]]) -> Callable[[list[ScalarProblem]], Values]:
    """What is claimed: per sink, whether the bulk shrinks and whether the largest outlier grows."""
    return lambda problems: {f"{sink}: {CLAIM}": torch.tensor(row).int() for sink, row in changes.items()}


def _statement(sink: Sink, recorded: Verdict, claim: str, note: str) -> Statement:
    return Statement(
        f"sink-{sink}",
        REFERENCE,
        claim,
        recorded,
        _draw,
        oracle=_measured(sink),
        printed=_table({sink: (1, 1)}),
        measure=Measure.integer,
        error_is="1 where the claim fails",
        note=note,
    )


STATEMENTS = [
    Statement(
        "sink",
        REFERENCE,
        "A larger attention sink shrinks the bulk and grows the outliers.",
        Verdict.no,
        _draw,
        oracle=_measured(*Sink),
        printed=_table(dict.fromkeys(Sink, (1, 1))),
        corrected=_table({Sink.input: (0, 1), Sink.score: (1, 0), Sink.value: (1, 1)}),
        measure=Measure.integer,
        error_is="1 where the claim fails",
        correction="It depends on the sink. β on the token everywhere: bulk and largest outlier grow. β on "
        "its score: both "
        "shrink. β on its score and its value: bulk shrinks and the largest outlier grows, for large β only.",
        note=f"Medians over {PROBLEMS} problems of the scalar-token model, β = {BETA:g} against none.",
    ),
    _statement(
        Sink.input,
        Verdict.no,
        "With β added to the first token everywhere, the bulk shrinks and the outliers grow.",
        "The bulk grows as well.",
    ),
    _statement(
        Sink.score,
        Verdict.no,
        "With β added to the first token's score, the bulk shrinks and the outliers grow.",
        "The bulk shrinks like exp(-β), and the outliers shrink too.",
    ),
    _statement(
        Sink.value,
        Verdict.yes,
        "With β added to the first token's score and value, the bulk shrinks and the outliers grow.",
        "For large β and not monotonically: at moderate β the bulk grows. Only the largest outlier grows.",
    ),
]
