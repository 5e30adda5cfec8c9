"""Other processors imitated on one machine: last digits of weights and data are changed, and decisions written down."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map_only

import hessfig
from hessfig.config.enums import Products
from hessfig.config.science import ModelConfig
from hessfig.curvature import why_no_split
from hessfig.curvature.large.memory import micro_batched
from hessfig.curvature.large.own_column import LargeNetwork, OwnColumn
from hessfig.curvature.losses import LOSSES
from hessfig.curvature.problem import Objective
from hessfig.curvature.samples import by_sample, check_alike, sample_weights
from hessfig.models.routes import Engines
from hessfig.terms import PARTS, Block

Make = Callable[[], hessfig.Problem]
FARTHEST = 3  # units in the last place
MOST_MEASURED = 5000  # parameters
SHIFTS = (0.0, 1e-17, 1e-8)  # what is left of a loss, relative to its terms


def shaken(problem: hessfig.Problem, seed: int) -> hessfig.Problem:
    """Return a problem whose weights, inputs and targets are multiplied by 1 + k eps, with k drawn from -3 to 3.

    The weights are changed in place. Seed 0 changes nothing.
    """
    draw = torch.Generator().manual_seed(seed)

    def moved(tensor: Tensor) -> Tensor:
        if not seed or not tensor.is_floating_point():
            return tensor
        digits = torch.randint(-FARTHEST, FARTHEST + 1, tensor.shape, generator=draw)
        return tensor * (1 + digits.to(tensor) * torch.finfo(tensor.dtype).eps)

    with torch.no_grad():
        for parameter in problem.network.parameters():
            if parameter.is_floating_point():
                parameter.copy_(moved(parameter))
    inputs, targets = tree_map_only(Tensor, moved, (problem.inputs, problem.targets))
    return replace(problem, inputs=inputs, targets=targets)


def decisions(
    problem: hessfig.Problem, dtype: str = "float64", *, is_measured: bool = True
) -> dict[str, str]:
    """Return what was decided on the way to a product and, if it is measured, to numbers.

    Decisions are words: numbers in texts are left out.
    """
    found = _noted(_decided(problem, dtype), "warnings")
    if is_measured and "refused" not in found:
        found |= _noted(_of_numbers(problem, dtype), "warnings, measuring")
    return found


def _noted(ways: Iterator[tuple[str, str]], name: str) -> dict[str, str]:
    """Return decisions by what they decide, and under a name the warnings on the way."""
    with warnings.catch_warnings(record=True) as noted:
        warnings.simplefilter("always")
        # Torch says it once a process.
        warnings.filterwarnings("ignore", "Converting a tensor with requires_grad")
        found = dict(ways)
    return found | {
        name: " | ".join(sorted({masked(str(one.message)) for one in noted}))
    }


def masked(text: str) -> str:
    """Return a text with every number replaced by #."""
    return re.sub(r"[-+]?\d+(\.\d*)?(e[-+]?\d+)?", "#", text)


def _decided(problem: hessfig.Problem, dtype: str) -> Iterator[tuple[str, str]]:
    try:
        objective = problem.objective(dtype)
    except (ValueError, ArithmeticError, RuntimeError) as error:
        yield "refused", masked(f"{type(error).__name__}: {error}")
        return
    # What follows compares nothing once more.
    object.__setattr__(problem, "objective", lambda dtype: objective)
    yield from _of_the_problem(objective)
    acts: dict[str, Callable[[Objective], object]] = {
        "samples": _samples,
        "weights of samples": _weights,
        "alike": check_alike,
        "split": why_no_split,
        "pieces": _pieces,
        "engine": _engine,
    }
    for what, act in acts.items():
        yield what, _in_words(act, objective)


def _of_numbers(problem: hessfig.Problem, dtype: str) -> Iterator[tuple[str, str]]:
    yield "numbers", _in_words(partial(_converged, problem), dtype)
    yield "approximations", _in_words(_approximated, problem)


def _in_words(act: Callable[[Any], object], given: Any) -> str:
    try:
        return masked(str(act(given)))
    except (ValueError, ArithmeticError, RuntimeError) as error:
        return masked(f"{type(error).__name__}: {error}")


def _of_the_problem(objective: Objective) -> Iterator[tuple[str, str]]:
    witness = objective.witness
    assert witness is not None
    yield "measured", witness.measured
    yield "compared", " ".join(witness.off) + masked(witness.not_taken)
    yield "no split", masked(witness.no_split)
    yield "refusal", f"{masked(str(witness.refusal))} {witness.has_gradient}"
    yield "network", type(objective.network).__name__
    yield "loss", f"{type(objective.loss).__name__} {objective.loss.reduction}"
    yield "shares", str([f"{share:.6g}" for share in objective.shares])


def _samples(objective: Objective) -> str:
    apart = by_sample(objective)
    network: Any = apart.network
    return f"{getattr(network, '_along', None)!r} {getattr(network, 'is_sum', None)} {apart.loss.reduction}".translate(
        str.maketrans("0123456789", "abcdefghij")
    )


def _weights(objective: Objective) -> str:
    found = sample_weights(by_sample(objective), objective.batch)
    return f"{[f'{one:.3g}' for one in found.weights.tolist()]} {found.divisor:.3g}".translate(
        str.maketrans("0123456789", "abcdefghij")
    )


def _pieces(objective: Objective) -> str:
    pieces = micro_batched(objective, 2)
    return (
        "ab"[len(pieces.batches) > 1]
        + type(pieces.loss).__name__
        + str(pieces.loss.reduction)
    )


def _engine(objective: Objective) -> str:
    engines = Engines(objective, ModelConfig("python"), Products.linearised)
    column = engines.column(0, "all", [Block(0, "all", "all")])
    network: Any = getattr(column, "network", None) or getattr(column, "_network", None)
    holds = [network.holds(part) for part in PARTS]
    head = network.head and network.head.labels if isinstance(column, OwnColumn) else ""
    vector = torch.ones(column.dim, 1, dtype=column.dtype)
    column.split_matmat(vector, PARTS)
    kept = (
        sum(network.keeps(k) for k in range(len(network)))
        if isinstance(network, LargeNetwork)
        else 0
    )
    return f"{type(column).__name__} {holds} {head} {'abcdefghij'[min(kept, 9)]}"


def _converged(problem: hessfig.Problem, dtype: str) -> str:
    """Return methods and states of numbers of a small network."""
    if sum(one.numel() for one in problem.network.parameters()) > MOST_MEASURED:
        return ""
    table = hessfig.measure(
        problem, blocks=["all"], quantities=["largest_eigenvalue", "trace"], dtype=dtype
    )
    return "; ".join(
        f"{row.part} {row.quantity} {row.estimator} {row.status}"
        for row in table.itertuples()
    )


def _approximated(problem: hessfig.Problem) -> str:
    """Return which approximations of the first matrix there are, and why the others are not."""
    named = dict(problem.network.named_parameters())
    first = next((name for name, one in named.items() if one.ndim == 2), "")
    if not first or sum(map(Tensor.numel, named.values())) > MOST_MEASURED:
        return ""
    said = []
    for name in ("diagonal", "shampoo", "kfac", "empirical_fisher"):
        try:
            problem.approximation(name, first)
            said.append(name)
        except (ValueError, ArithmeticError, RuntimeError) as error:
            said.append(f"{name}: {type(error).__name__}: {error}")
    return "; ".join(said)


def moved_by_a_constant(problem: hessfig.Problem, left: float) -> hessfig.Problem:
    """Return a problem whose loss is moved by a constant, so that `left` of its value at the weights is left."""
    value, batches = _value(problem)
    is_sum = getattr(problem.loss, "reduction", "mean") == "sum"
    shift = value * (1 - left) / (batches if is_sum else 1)
    if (
        problem.loss is None
        and not isinstance(problem.inputs, Tensor)
        and problem.targets is None
    ):
        problem.network.register_forward_hook(partial(_with_moved_loss, shift))
        return problem
    loss = (
        LOSSES[problem.loss or "cross_entropy"]()
        if isinstance(problem.loss, str | None)
        else problem.loss
    )

    def moved(outputs: Any, targets: Any) -> Tensor:
        return loss(outputs, targets) - shift

    moved.reduction = getattr(loss, "reduction", "mean")  # type: ignore[attr-defined]
    return replace(problem, loss=moved)


def _with_moved_loss(shift: float, module: nn.Module, given: Any, result: Any) -> Any:
    result["loss"] = result["loss"] - shift
    return result


def _value(problem: hessfig.Problem) -> tuple[float, int]:
    """Return the loss at the weights, in the type of the network, and the number of its batches."""
    real = str(next(problem.network.parameters()).dtype).removeprefix("torch.")
    with warnings.catch_warnings(), torch.enable_grad():
        warnings.simplefilter("ignore")
        objective = problem.objective(real)
        values = [
            float(objective.loss(objective.network(one.inputs), one.targets))
            for one in objective.batches
        ]
    return sum(
        share * one for share, one in zip(objective.shares, values, strict=True)
    ), len(values)
