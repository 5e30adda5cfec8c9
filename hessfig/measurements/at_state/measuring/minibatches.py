"""Quotients g.H_B g / |g|^2 of mini-batches, and their mean."""

from __future__ import annotations

import math
import statistics
from dataclasses import replace

from hessfig.curvature.gradients import Slope
from hessfig.curvature.problem import Problem
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.protocol import Request
from hessfig.tasks.examples import is_full_batch, training_batch


def sharpness(problem: Problem, request: Request) -> Estimate:
    """Return the mean quotient and its standard error (0 for full-batch training, NaN for a single mini-batch)."""
    at = request.at
    config = replace(at.config, training=replace(at.config.training, dtype=at.config.dtype))
    full = is_full_batch(config)
    name = f"sharpness at {at.step or 0}"
    found = []
    for number in range(1 if full else request.estimator.num_probes):
        batch = training_batch(config, seed=at.seed, step=number, name=name)
        there = batch.to(next(problem.network.parameters()).device)
        found.append(along_gradient(replace(problem, batch=there, more=())))
    error = 0.0 if full else _error(found)
    return Estimate(statistics.fmean(found), error, 0 if full else len(found))


def along_gradient(problem: Problem) -> float:
    """Return g.H g / |g|^2 of the problem's own loss; NaN where the gradient vanishes."""
    slope = Slope(problem)
    squared = float(slope.flat.square().sum())
    return float(slope.flat @ slope.product(slope.flat)) / squared if squared else math.nan


def _error(found: list[float]) -> float:
    return statistics.stdev(found) / len(found) ** 0.5 if len(found) > 1 else math.nan
