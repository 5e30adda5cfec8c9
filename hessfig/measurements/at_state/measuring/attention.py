"""What attention layers see and do on a problem's batch."""

from __future__ import annotations

import torch
from torch import Tensor

from hessfig.curvature.problem import Problem
from hessfig.models.networks import SelfAttention


def spreads(problem: Problem) -> list[tuple[float, float]]:
    """Return the standard deviations of scores (of allowed pairs) and of mixing weights of every attention layer."""
    return [_of_layer(attention, hidden) for attention, hidden in _inputs(problem)]


@torch.no_grad()
def _of_layer(attention: SelfAttention, hidden: Tensor) -> tuple[float, float]:
    scores = attention.scores(hidden, slice(None))
    allowed = ~attention.causal_mask[: scores.shape[-2], : scores.shape[-1]]
    pattern = attention.pattern(scores, slice(None))
    return float(scores[..., allowed].double().std()), float(pattern.double().std())


def _inputs(problem: Problem) -> list[tuple[SelfAttention, Tensor]]:
    """Return every attention layer with what it is given at all positions."""
    found: list[tuple[SelfAttention, Tensor]] = []
    modules = [module for module in problem.network.modules() if isinstance(module, SelfAttention)]
    hooks = [
        module.register_forward_pre_hook(lambda module, given: found.append((module, given[0].detach())))
        for module in modules
    ]
    try:
        with torch.no_grad():
            problem.network(problem.batch.inputs)
    finally:
        for hook in hooks:
            hook.remove()
    return found
