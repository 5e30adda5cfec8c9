"""The time of an update and of a look at the curvature, and how many of each a training has had."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from hessfig.config import Curvature, DType
from hessfig.curvature.problem import Problem
from hessfig.measurements.protocol import At
from hessfig.models.layered import scored_outputs
from hessfig.states.training.loop import Rule, products_of_a_look
from hessfig.tasks.examples import training_batch

_REPEATS = 3


@dataclass(frozen=True)
class Cost:
    """Seconds of one update and one look, how many of each there were, and the Hessian products of all looks."""

    update: float
    look: float
    updates: int
    looks: int
    products: int

    @property
    def seconds(self) -> float:
        """What they take together."""
        return self.updates * self.update + self.looks * self.look


def cost_of(problem: Problem, at: At) -> Cost:
    """Return the cost of the training up to its step, timed at its batches' size and in its type."""
    training, updates = at.config.training, at.step or 0
    looks = -(-updates // training.refresh) if training.curvature != Curvature.none else 0
    update, look = _seconds(problem, at)
    parameters = len(list(problem.network.parameters()))
    return Cost(update, look, updates, looks, looks * products_of_a_look(training.curvature, parameters))


def _seconds(problem: Problem, at: At) -> tuple[float, float]:
    training = at.config.training
    network = copy.deepcopy(problem.network).to(getattr(torch, DType(training.dtype))).requires_grad_(True)
    rule, batch = Rule(network, training), training_batch(at.config, seed=at.seed, step=1)
    every = Rule(network, replace(training, refresh=1))

    def loss() -> Tensor:
        return problem.loss(scored_outputs(network, batch.inputs, batch.scored), batch.targets)

    def update() -> None:
        network.zero_grad(set_to_none=True)
        loss().backward()
        rule.update(1)

    with torch.enable_grad():
        taken = [(_time(update), _time(lambda: every.look(1, loss, seed=at.seed))) for _ in range(_REPEATS)]
    updates, looks = zip(*taken, strict=True)
    return statistics.median(updates), statistics.median(looks)


def _time(work: Callable[[], None]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
