"""The next update of a training and its preconditioner, from the moments that are kept with a state."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from hessfig.config import Optimiser
from hessfig.measurements.protocol import At
from hessfig.states.stored_states import moments

Named = dict[str, Tensor]


def next_update(at: At, gradient: Mapping[str, Tensor]) -> Named:
    """Return u of the next step w - eta u, had its batch this `gradient`; without the weight decay.

    adam, adamw: m' / (1 - beta1^t) over sqrt(nu' / (1 - beta2^t)) + eps, with t, m', nu' after this update
    (arXiv 1412.6980, algorithm 1). sgd: momentum times the buffer, plus the gradient. gd: the gradient.
    """
    training, kept = at.config.training, _kept(at, gradient)
    if training.optimiser == Optimiser.gd:
        return dict(gradient)
    if training.optimiser == Optimiser.sgd:
        return {name: training.momentum * kept[0][name] + slope for name, slope in gradient.items()}
    (first, second), t = training.betas, (at.step or 0) + 1
    found = {}
    for name, slope in gradient.items():
        mean = (first * kept[0][name] + (1 - first) * slope) / (1 - first**t)
        square = (second * kept[1][name] + (1 - second) * slope.square()) / (1 - second**t)
        found[name] = mean / (square.sqrt() + training.eps)
    return found


def preconditioner(at: At, like: Mapping[str, Tensor]) -> Named:
    """Return the diagonal of P = (1 - beta1^t) (sqrt(nu_t / (1 - beta2^t)) + eps) after t = at.step > 0 updates.

    So adam's update is P^-1 m_t, with m_t the moment as it is kept, not corrected for its bias (arXiv 2207.14484).
    """
    training, t = at.config.training, at.step or 0
    (first, second), (_, squares) = training.betas, _kept(at, like)
    return {
        name: (1 - first**t) * ((square / (1 - second**t)).sqrt() + training.eps) for name, square in squares.items()
    }


def _kept(at: At, like: Mapping[str, Tensor]) -> tuple[Named, Named]:
    """Return the first and second moments (a momentum buffer counts as the first), zeros where there is none yet."""
    found = moments(at.config, sigma=at.sigma, seed=at.seed, step=at.step)
    names = (("exp_avg", "momentum_buffer"), ("exp_avg_sq",))
    first, second = ({name: _one(found, kinds, name, tensor) for name, tensor in like.items()} for kinds in names)
    return first, second


def _one(found: Mapping[str, Tensor], kinds: tuple[str, ...], name: str, like: Tensor) -> Tensor:
    kept = next((found[f"{kind}/{name}"] for kind in kinds if f"{kind}/{name}" in found), None)
    return torch.zeros_like(like) if kept is None else kept.to(like)
