"""Statements about attention over scalar tokens and about sinks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from hessfig.terms import Part
from hessfig.theory.scalar_formulas import (
    MIXINGS,
    Mixing,
    Response,
    ScalarProblem,
    Sink,
    condition_number,
    draw_scalar_problem,
    median_effect,
    outer_product_gap,
    sink_mixing,
    sink_response,
    spectrum,
    top_of_outer_product,
)
from hessfig.theory.statement import Dims, Measure, Statement, Values, Verdict, normal

BETA = 2.0
TOKENS, PROBLEMS, CONDITION_PROBLEMS = 8, 40, 11
NORM_FACTOR = 300.0
OUTSIDE = "eigenvalues outside symmetric pairs"


def _draw(dims: Dims, generator: torch.Generator) -> ScalarProblem:
    return draw_scalar_problem(dims.L, dims.d_K, generator)


def _mixings(problem: ScalarProblem) -> dict[str, Mixing]:
    plain = {name: mixing(problem.x) for name, mixing in MIXINGS.items()}
    return plain | {f"sink: {sink}": sink_mixing(sink, problem.x, BETA) for sink in Sink}


def _responses(problem: ScalarProblem) -> dict[str, Response]:
    plain = {name: problem.response(name) for name in MIXINGS}
    return plain | {f"sink: {sink}": sink_response(sink, problem.x, problem.s, BETA) for sink in Sink}


def _spectra(problem: ScalarProblem, part: Part) -> dict[str, Tensor]:
    return {name: spectrum(problem, mixing, part) for name, mixing in _mixings(problem).items()}


def _spectrum_oracle(problem: ScalarProblem) -> Values:
    spectra = _spectra(problem, Part.H)
    return spectra | {f"{name}, {OUTSIDE}": _unpaired(values) for name, values in spectra.items()}


def _spectrum_printed(problem: ScalarProblem) -> Values:
    return {f"{name}, {OUTSIDE}": torch.tensor(3) for name in _mixings(problem)}


def _spectrum_corrected(problem: ScalarProblem) -> Values:
    return {name: problem.hessian(response).eigenvalues for name, response in _responses(problem).items()}


def _unpaired(eigenvalues: Tensor) -> Tensor:
    """How many have no partner of opposite sign and equal size."""
    gaps = (eigenvalues[:, None] + eigenvalues[None, :]).abs().amin(1)
    return (gaps > 1e-10 * eigenvalues.abs().max()).sum()


def _condition_draw(dims: Dims, generator: torch.Generator) -> list[ScalarProblem]:
    return [draw_scalar_problem(dims.L, dims.d_K, generator) for _ in range(CONDITION_PROBLEMS)]


def _condition_oracle(problems: list[ScalarProblem]) -> Values:
    """N grows by the square of the factor, the condition number by its fourth power."""
    low, high = (
        torch.stack([condition_number(problem.unbalanced(factor)) for problem in problems])
        for factor in (NORM_FACTOR, 2 * NORM_FACTOR)
    )
    return {"median exponent": (torch.log2(high / low) / 2).median()}


@dataclass(frozen=True)
class _Comparison:
    """Problems at random weights, and noise to make critical points of them."""

    problems: list[ScalarProblem]
    noise: list[Tensor]


def _comparison_draw(dims: Dims, generator: torch.Generator) -> _Comparison:
    problems = [draw_scalar_problem(TOKENS, dims.d_K, generator) for _ in range(PROBLEMS)]
    return _Comparison(problems, [normal(TOKENS, generator=generator) for _ in problems])


def _gap(problem: ScalarProblem, model: str, noise: Tensor | None) -> float:
    response = problem.response(model)
    moved = problem if noise is None else problem.at_critical_point(response, noise)
    return outer_product_gap(moved, response)


def _share_worse(comparison: _Comparison, *, critical: bool) -> Tensor:
    """The share of problems where the GGN is worse for attention than for the linear MLP."""
    worse = []
    for problem, noise in zip(comparison.problems, comparison.noise, strict=True):
        gaps = [_gap(problem, model, noise if critical else None) for model in ("attention", "linear MLP")]
        worse.append(gaps[0] > gaps[1])
    return torch.tensor(worse).double().mean()


def _ggn_oracle(comparison: _Comparison) -> Values:
    tops = {f"top of {name}": values[-1] for name, values in _spectra(comparison.problems[0], Part.H_o).items()}
    return {
        "share at random weights": _share_worse(comparison, critical=False),
        "share at critical points": _share_worse(comparison, critical=True),
        **tops,
    }


def _ggn_printed(comparison: _Comparison) -> Values:
    one = torch.ones((), dtype=torch.float64)
    return {"share at random weights": one, "share at critical points": one}


def _ggn_corrected(comparison: _Comparison) -> Values:
    problem = comparison.problems[0]
    tops = {f"top of {name}": top_of_outer_product(problem, r) for name, r in _responses(problem).items()}
    closed = {name: torch.tensor(top, dtype=torch.float64) for name, top in tops.items()}
    return {**closed, "share at critical points": torch.ones((), dtype=torch.float64)}


SCALAR = [
    Statement(
        "scalar",
        "talk, slide 'What about Hessian eigenvalues?'",
        "d_K - 1 pairs of bulk eigenvalues symmetric around zero, and 3 outliers.",
        Verdict.yes,
        _draw,
        oracle=_spectrum_oracle,
        printed=_spectrum_printed,
        corrected=_spectrum_corrected,
        correction="In closed form: the bulk is ±b with b = (2 w_V/(L sqrt(d_K))) Σ d m', the outliers are "
        "the eigenvalues of a "
        "3 x 3 matrix (theory/scalar_formulas.py).",
        note="The error as printed counts eigenvalues. The closed form holds for attention with and without "
        "sinks, for linear "
        "attention and for the linear MLP.",
    ),
    Statement(
        "scalar-cond",
        "talk, slide 'We learn that'",
        "The condition number depends on the norms of w_Q and w_K.",
        Verdict.yes,
        _condition_draw,
        oracle=_condition_oracle,
        printed=lambda problems: {"median exponent": torch.tensor(2.0, dtype=torch.float64)},
        measure=Measure.exponent,
        note="Checked as: at fixed w_Q·w_K it grows like N², N = |w_Q|² + |w_K|²; the error is the distance "
        "of the median "
        "exponent from 2.",
    ),
    Statement(
        "scalar-ggn",
        "talk, slide 'We learn that'",
        "The top eigenvalue of the GGN (H_o) is a worse proxy for that of H in transformers than in MLPs.",
        Verdict.no,
        _comparison_draw,
        oracle=_ggn_oracle,
        printed=_ggn_printed,
        corrected=_ggn_corrected,
        measure=Measure.absolute,
        error_is="one minus the share of random problems in which attention fares worse",
        correction="True at critical points, where the linear MLP has H = H_o and attention has not; not at "
        "random weights. With "
        "the residual d = 0 in a, k, e the top eigenvalue of H_o is (a + k N + sqrt((a + k N)² - 4 (a k - "
        "e²) N))/2.",
        note="How often attention fares worse at random weights depends on the scales of weights and targets.",
    ),
]


STRONG_BETA = 12.0
MANY_TOKENS, MANY_PROBLEMS = 16, 60
CLAIM = "bulk shrinks, largest outlier grows"
REFERENCE = "talk, slide 'Outliers in activations'"


def _draw_many(dims: Dims, generator: torch.Generator) -> list[ScalarProblem]:
    return [draw_scalar_problem(MANY_TOKENS, dims.d_K, generator, w_V=1.0) for _ in range(MANY_PROBLEMS)]


def _measured(*sinks: Sink) -> Callable[[list[ScalarProblem]], Values]:
    return lambda problems: {f"{sink}: {CLAIM}": _changes(problems, sink) for sink in sinks}


def _changes(problems: list[ScalarProblem], sink: Sink) -> Tensor:
    before, after = (median_effect(problems, sink, beta) for beta in (0.0, STRONG_BETA))
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
        _draw_many,
        oracle=_measured(sink),
        printed=_table({sink: (1, 1)}),
        measure=Measure.integer,
        error_is="1 where the claim fails",
        note=note,
    )


SINKS = [
    Statement(
        "sink",
        REFERENCE,
        "A larger attention sink shrinks the bulk and grows the outliers.",
        Verdict.no,
        _draw_many,
        oracle=_measured(*Sink),
        printed=_table(dict.fromkeys(Sink, (1, 1))),
        corrected=_table({Sink.input: (0, 1), Sink.score: (1, 0), Sink.value: (1, 1)}),
        measure=Measure.integer,
        error_is="1 where the claim fails",
        correction="It depends on the sink. β on the token everywhere: bulk and largest outlier grow. β on "
        "its score: both "
        "shrink. β on its score and its value: bulk shrinks and the largest outlier grows, for large β only.",
        note=f"Medians over {MANY_PROBLEMS} problems of the scalar-token model, β = {STRONG_BETA:g} against none.",
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
