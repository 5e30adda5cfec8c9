"""The rule of a training: its optimiser, with moments that can be taken out and put back, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from hessfig.config import Optimiser, Schedule, TrainingConfig

MOMENTS = {
    Optimiser.adamw: ("exp_avg", "exp_avg_sq"),
    Optimiser.adam: ("exp_avg", "exp_avg_sq"),
    Optimiser.sgd: ("momentum_buffer",),
    Optimiser.gd: (),
}
_ADAPTIVE = {Optimiser.adamw: torch.optim.AdamW, Optimiser.adam: torch.optim.Adam}


def learning_rate(training: TrainingConfig, step: int) -> float:
    """Return the learning rate of update `step` (1 to training.steps).

    Linear over the warm-up, reaching training.learning_rate at its last update; then constant, or half a cosine that
    would be zero at the update after the last.
    """
    done, warmup = step - 1, training.warmup
    if done < warmup:
        return training.learning_rate * step / warmup
    if training.schedule == Schedule.constant:
        return training.learning_rate
    share = (done - warmup) / (training.steps - warmup)
    return training.learning_rate * 0.5 * (1 + math.cos(math.pi * share))


class Rule:
    """torch.optim's optimiser of the configured name over the parameters of `network`; its kernels are fused."""

    def __init__(self, network: nn.Module, training: TrainingConfig) -> None:
        self._training, self._named = training, dict(network.named_parameters())
        parameters, kind = list(self._named.values()), training.optimiser
        self._optimiser: torch.optim.Optimizer
        rate, decay = training.learning_rate, training.weight_decay
        if kind in _ADAPTIVE:
            first, second = training.betas
            self._optimiser = _ADAPTIVE[kind](
                parameters, rate, betas=(first, second), eps=training.eps, weight_decay=decay, fused=True
            )
        else:
            momentum = training.momentum if kind == Optimiser.sgd else 0.0
            self._optimiser = torch.optim.SGD(
                parameters, rate, momentum=momentum, weight_decay=decay, fused=True
            )

    def update(self, step: int) -> float:
        """Take update `step` along the gradients that are there; return its learning rate."""
        rate = learning_rate(self._training, step)
        self._optimiser.param_groups[0]["lr"] = rate
        self._optimiser.step()
        return rate

    def moments(self) -> dict[str, Tensor]:
        """Return {moment/parameter: tensor}; none before the first update, or where the rule keeps none."""
        return {
            f"{moment}/{name}": self._optimiser.state[parameter][moment]
            for name, parameter in self._named.items()
            for moment in MOMENTS[self._training.optimiser]
            if self._optimiser.state[parameter].get(moment) is not None
        }

    def restore(self, moments: Mapping[str, Tensor], step: int) -> None:
        """Put back what `moments` returned after `step` updates."""
        for key, tensor in moments.items():
            moment, _, name = key.partition("/")
            state = self._optimiser.state[self._named[name]]
            state[moment] = tensor.clone()
            if self._training.optimiser in _ADAPTIVE:
                state["step"] = torch.tensor(float(step))
