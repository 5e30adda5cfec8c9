"""Steepest descent in norms other than the Euclidean one, as an optimiser of torch: no momentum, no normalisation."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from hessfig.curvature.unit_balls import steepest
from hessfig.terms import StepNorm


class NormDescent(torch.optim.Optimizer):
    """w' = w - lr ||g||_* d, where d maximises g.d over ||d|| <= 1 and ||g||_* is that maximum (arXiv 2603.05002).

    `weight_decay` times w is added to the gradient.
    """

    def __init__(self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, norm: str) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "norm": norm})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step along the gradients that are there; a parameter without one stays."""
        del closure
        for group in self.param_groups:
            held = [one for one in group["params"] if one.grad is not None]
            slopes = [one.grad + group["weight_decay"] * one for one in held]
            directions, dual = steepest(slopes, StepNorm(group["norm"]))
            for one, direction in zip(held, directions, strict=True):
                one -= group["lr"] * dual * direction
