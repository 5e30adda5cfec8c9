"""Losses along the next update of a training, and where they come back to the loss of the start."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

import torch
from torch import Tensor

from hessfig.curvature.gradients import Slope, loss_of
from hessfig.curvature.problem import Problem
from hessfig.measurements.at_state.measuring.update import next_update
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.protocol import At

_DOUBLINGS, _HALVINGS = 40, 6


def critical_step(problem: Problem, at: At) -> Estimate:
    """Return the step at which the loss along the next update crosses that of the start, with half its bracket."""
    slope = Slope(problem)
    update = next_update(at, slope.gradient)
    with _moving(problem, update) as loss_at:
        start = loss_at(0.0)
        if not math.isfinite(start):
            return Estimate(math.nan, math.nan, 0)
        # A loss that is no number is beyond every loss.
        return crossing(lambda step: not loss_at(step) <= start, first=at.config.training.learning_rate)


def crossing(is_higher: Callable[[float], bool], *, first: float) -> Estimate:
    """Return the middle of a bracket [low, high] with the loss higher at `high` and not at `low`, and half of it.

    From `first` on by doubling or halving, then by bisection: the bracket ends at 1 / 64 of `low`. The error is 0
    where there is no such place within forty doublings: a line that falls for ever, or rises from the start.
    """
    up = not is_higher(first)
    low = high = first
    for _ in range(_DOUBLINGS):
        low, high = (high, 2 * high) if up else (low / 2, low)
        if is_higher(high) if up else not is_higher(low):
            break
    else:
        return Estimate(high if up else low, 0.0, 0)
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_higher(middle) else (middle, high)
    return Estimate((low + high) / 2, (high - low) / 2, 0)


@contextmanager
def _moving(problem: Problem, update: Mapping[str, Tensor]) -> Iterator[Callable[[float], float]]:
    """Give the loss at w - step * update; the weights are put back in the end."""
    held = dict(problem.network.named_parameters())
    before = {name: parameter.detach().clone() for name, parameter in held.items()}

    def loss_at(step: float) -> float:
        for name, parameter in held.items():
            parameter.copy_(before[name] - step * update[name])
        return float(loss_of(problem))

    with torch.no_grad():
        try:
            yield loss_at
        finally:
            for name, parameter in held.items():
                parameter.copy_(before[name])
