"""Statements about attention over scalar tokens and about sinks."""

from collections.abc import Callable, Mapping

import torch
from torch import Tensor

from hessfig.terms import Part
from hessfig.theory import scalar_formulas as scalar
from hessfig.theory.statement import Check, Dims, Values, normal

BETA = 2.0
TOKENS = 8
PROBLEMS = 40
CONDITION_PROBLEMS = 11
NORM_FACTOR = 300.0
OUTSIDE = "eigenvalues outside symmetric pairs"


def _draw(dims: Dims, generator: torch.Generator) -> scalar.ScalarProblem:
    return scalar.draw_scalar_problem(dims.L, dims.d_K, generator)


def _mixings(problem: scalar.ScalarProblem) -> dict[str, scalar.Mixing]:
    mixings = {name: mixing(problem.x) for name, mixing in scalar.MIXINGS.items()}
    for sink in scalar.AttentionSink:
        mixings[f"sink: {sink}"] = scalar.sink_mixing(sink, problem.x, BETA)
    return mixings


def _responses(problem: scalar.ScalarProblem) -> dict[str, scalar.Response]:
    responses = {name: problem.response(name) for name in scalar.MIXINGS}
    for sink in scalar.AttentionSink:
        response = scalar.sink_response(sink, problem.x, problem.s, BETA)
        responses[f"sink: {sink}"] = response
    return responses


def _spectra(problem: scalar.ScalarProblem, part: Part) -> dict[str, Tensor]:
    spectra = {}
    for name, mixing in _mixings(problem).items():
        spectra[name] = scalar.spectrum(problem, mixing, part)
    return spectra


def _spectrum_oracle(problem: scalar.ScalarProblem) -> Values:
    values = {}
    for name, spectrum in _spectra(problem, Part.H).items():
        values[name] = spectrum
        values[f"{name}, {OUTSIDE}"] = _unpaired(spectrum)
    return values


def _spectrum_printed(problem: scalar.ScalarProblem) -> Values:
    return {f"{name}, {OUTSIDE}": torch.tensor(3) for name in _mixings(problem)}


def _spectrum_corrected(problem: scalar.ScalarProblem) -> Values:
    spectra = {}
    for name, response in _responses(problem).items():
        spectra[name] = problem.hessian(response).eigenvalues
    return spectra


def _unpaired(eigenvalues: Tensor) -> Tensor:
    """How many have no partner of opposite sign and equal size."""
    sums = eigenvalues[:, None] + eigenvalues
    gaps = sums.abs().amin(1)
    largest = eigenvalues.abs().max()
    return (gaps > 1e-10 * largest).sum()


def _condition_draw(
    dims: Dims, generator: torch.Generator
) -> list[scalar.ScalarProblem]:
    return [_draw(dims, generator) for _ in range(CONDITION_PROBLEMS)]


def _condition_oracle(problems: list[scalar.ScalarProblem]) -> Values:
    """N grows by the square of the factor, the condition number by its fourth power."""

    def condition(factor: float) -> Tensor:
        moved = [problem.unbalanced(factor) for problem in problems]
        return torch.stack([scalar.condition_number(problem) for problem in moved])

    low = condition(NORM_FACTOR)
    high = condition(2 * NORM_FACTOR)
    exponents = torch.log2(high / low) / 2
    return {"median exponent": exponents.median()}


Comparison = list[tuple[scalar.ScalarProblem, Tensor]]
"""Problems at random weights, each with noise to make a critical point of it."""


def _comparison_draw(dims: Dims, generator: torch.Generator) -> Comparison:
    problems = [
        scalar.draw_scalar_problem(TOKENS, dims.d_K, generator) for _ in range(PROBLEMS)
    ]
    return [(problem, normal(TOKENS, generator=generator)) for problem in problems]


def _gap(problem: scalar.ScalarProblem, model: str, noise: Tensor | None) -> float:
    response = problem.response(model)
    if noise is not None:
        problem = problem.at_critical_point(response, noise)
    return scalar.outer_product_gap(problem, response)


def _share_worse(comparison: Comparison, *, critical: bool) -> Tensor:
    """The share of problems where the GGN is worse for attention than for the linear MLP."""
    worse = []
    for problem, noise in comparison:
        moved_by = noise if critical else None
        attention = _gap(problem, "attention", moved_by)
        worse.append(attention > _gap(problem, "linear MLP", moved_by))
    return torch.tensor(worse).double().mean()


def _ggn_oracle(comparison: Comparison) -> Values:
    values = {
        "share at random weights": _share_worse(comparison, critical=False),
        "share at critical points": _share_worse(comparison, critical=True),
    }
    problem, _ = comparison[0]
    for name, spectrum in _spectra(problem, Part.H_o).items():
        values[f"top of {name}"] = spectrum[-1]
    return values


def _ggn_printed(comparison: Comparison) -> Values:
    unit = torch.ones((), dtype=torch.float64)
    return {"share at random weights": unit, "share at critical points": unit}


def _ggn_corrected(comparison: Comparison) -> Values:
    values = {"share at critical points": torch.ones((), dtype=torch.float64)}
    problem, _ = comparison[0]
    for name, response in _responses(problem).items():
        top = scalar.top_of_outer_product(problem, response)
        values[f"top of {name}"] = torch.tensor(top, dtype=torch.float64)
    return values


SCALAR = {
    "scalar": Check(_draw, _spectrum_oracle, _spectrum_printed, _spectrum_corrected),
    "scalar-cond": Check(
        _condition_draw,
        _condition_oracle,
        lambda problems: {"median exponent": torch.tensor(2.0, dtype=torch.float64)},
    ),
    "scalar-ggn": Check(_comparison_draw, _ggn_oracle, _ggn_printed, _ggn_corrected),
}


STRONG_BETA = 12.0
MANY_TOKENS = 16
MANY_PROBLEMS = 60
CLAIM = "bulk shrinks, largest outlier grows"


def _draw_many(dims: Dims, generator: torch.Generator) -> list[scalar.ScalarProblem]:
    return [
        scalar.draw_scalar_problem(MANY_TOKENS, dims.d_K, generator, w_V=1.0)
        for _ in range(MANY_PROBLEMS)
    ]


def _measured(
    *sinks: scalar.AttentionSink,
) -> Callable[[list[scalar.ScalarProblem]], Values]:
    return lambda problems: {
        f"{sink}: {CLAIM}": _changes(problems, sink) for sink in sinks
    }


def _changes(
    problems: list[scalar.ScalarProblem], sink: scalar.AttentionSink
) -> Tensor:
    before = scalar.median_effect(problems, sink, 0.0)
    after = scalar.median_effect(problems, sink, STRONG_BETA)
    grows = bool(after.outliers[0] > before.outliers[0])
    return torch.tensor([after.bulk < before.bulk, grows]).int()


def _table(
    changes: Mapping[scalar.AttentionSink, tuple[int, int]],
) -> Callable[[list[scalar.ScalarProblem]], Values]:
    """What is claimed: per sink, whether the bulk shrinks and whether the largest outlier grows."""
    return lambda problems: {
        f"{sink}: {CLAIM}": torch.tensor(row).int() for sink, row in changes.items()
    }


SINKS = {
    "sink": Check(
        _draw_many,
        _measured(*scalar.AttentionSink),
        _table(dict.fromkeys(scalar.AttentionSink, (1, 1))),
        _table(
            {
                scalar.AttentionSink.input: (0, 1),
                scalar.AttentionSink.score: (1, 0),
                scalar.AttentionSink.value: (1, 1),
            }
        ),
        numbers={"problems": MANY_PROBLEMS, "beta": STRONG_BETA},
    ),
    **{
        f"sink-{sink}": Check(_draw_many, _measured(sink), _table({sink: (1, 1)}))
        for sink in scalar.AttentionSink
    },
}
STATEMENTS = {**SCALAR, **SINKS}
