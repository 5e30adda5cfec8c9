"""Stochastic Lanczos quadrature: nodes and weights of a density of eigenvalues, probe by probe.

For a unit vector v, sum_i w_i f(theta_i) over the Ritz values theta and the squared first entries w of T's eigenvectors
equals v.f(A) v for every polynomial f of degree below 2 m (Golub and Meurant, Matrices, Moments and Quadrature,
chapter 6); its expectation over v is tr f(A) / n. So the mean and the second moment carry the error of the probes
alone, and what 2 m steps change against m is the error of the steps.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.spectral.lanczos import Run, advance
from hessfig.curvature.spectral.operator import Operator

BASIS_BYTES = 2**30  # of the vectors that the runs at once keep


@dataclass(frozen=True)
class Quadrature:
    """Nodes and weights of every probe, and those of the first half of the same runs.

    Weights of a probe sum to 1. A run that broke down early is exact and has fewer: the rest have weight and node 0.
    """

    nodes: Float[Tensor, "num_probes steps"]
    weights: Float[Tensor, "num_probes steps"]
    half_nodes: Float[Tensor, "num_probes half"]
    half_weights: Float[Tensor, "num_probes half"]


def quadrature(operator: Operator, starts: Float[Tensor, "n num_probes"], steps: int) -> Quadrature:
    """Return the quadrature of `steps` Lanczos steps from every column of `starts`.

    Runs advance together, as many as keep their vectors within BASIS_BYTES. Raises NotFinite, and ArithmeticError for
    an operator that is not symmetric.
    """
    at_once = max(1, BASIS_BYTES // (8 * min(steps, operator.dim) * operator.dim))
    full, half = [], []
    for group in starts.split(at_once, dim=1):
        runs = [Run(start, steps) for start in group.T]
        while advance(runs, operator):
            pass
        full += [_rule(run, steps, steps) for run in runs]
        half += [_rule(run, steps // 2, steps // 2) for run in runs]
    return Quadrature(*_stacked(full), *_stacked(half))


def _rule(run: Run, steps: int, size: int) -> Float[Tensor, "2 size"]:
    """Return nodes and weights of the first `steps` steps of a run, filled up with zeros."""
    length = min(run.length, steps)
    values, coefficients = torch.linalg.eigh(run.projection[:length, :length])
    rule = torch.zeros(2, size, dtype=torch.float64)
    rule[0, :length], rule[1, :length] = values, coefficients[0].square()
    return rule


def _stacked(rules: list[Tensor]) -> tuple[Tensor, Tensor]:
    nodes, weights = torch.stack(rules, dim=1)
    return nodes, weights
