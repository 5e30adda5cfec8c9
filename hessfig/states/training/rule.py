"""The rule of a training: its optimiser, with moments that can be taken out and put back, and its learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import Tensor, nn

from hessfig.config import Curvature, Optimiser, Schedule, TrainingConfig
from hessfig.states.training.steepest import factors

MOMENTS = {
    Optimiser.adamw: ("exp_avg", "exp_avg_sq"),
    Optimiser.adam: ("exp_avg", "exp_avg_sq"),
    Optimiser.sgd: ("momentum_buffer",),
    Optimiser.gd: (),
}
FACTORS = "rate_factors"
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


def is_look(training: TrainingConfig, step: int) -> bool:
    """Whether the curvature is looked at before update `step`."""
    return (step - 1) % training.refresh == 0


def _by_block(training: TrainingConfig) -> bool:
    return training.curvature == Curvature.blocks


class Rule:
    """torch.optim's optimiser of the configured name over the parameters of `network`; its kernels are fused."""

    def __init__(self, network: nn.Module, training: TrainingConfig) -> None:
        self._training, self._named = training, dict(network.named_parameters())
        parameters, kind = list(self._named.values()), training.optimiser
        groups = [{"params": [one]} for one in parameters] if _by_block(training) else parameters
        self._optimiser: torch.optim.Optimizer
        rate, decay = training.learning_rate, training.weight_decay
        if kind in _ADAPTIVE:
            first, second = training.betas
            self._optimiser = _ADAPTIVE[kind](
                groups, rate, betas=(first, second), eps=training.eps, weight_decay=decay, fused=True
            )
        else:
            momentum = training.momentum if kind == Optimiser.sgd else 0.0
            self._optimiser = torch.optim.SGD(groups, rate, momentum=momentum, weight_decay=decay, fused=True)
        self._factors = torch.ones(len(self._optimiser.param_groups), dtype=torch.float64)

    def look(self, step: int, loss: Callable[[], Tensor], *, seed: int) -> None:
        """Look at the curvature if update `step` is one to look at: at the first, and every training.refresh from it.

        The gradients of `loss` are there; they stay.
        """
        kind = self._training.curvature
        if kind != Curvature.none and is_look(self._training, step):
            self._factors = factors(kind, self._named, loss, seed=seed, step=step)

    def update(self, step: int) -> float:
        """Take update `step` along the gradients that are there; return its learning rate (geometric mean)."""
        rate = learning_rate(self._training, step)
        for group, factor in zip(self._optimiser.param_groups, self._factors.tolist(), strict=True):
            group["lr"] = rate * factor
        self._optimiser.step()
        return rate * (1.0 if _by_block(self._training) else float(self._factors[0]))

    def moments(self) -> dict[str, Tensor]:
        """Return {moment/parameter: tensor}; none before the first update, or where the rule keeps none.

        A rule that looks at the curvature adds FACTORS: by what it multiplies each group's learning rate.
        """
        looked = {} if self._training.curvature == Curvature.none else {FACTORS: self._factors}
        return looked | {
            f"{moment}/{name}": self._optimiser.state[parameter][moment]
            for name, parameter in self._named.items()
            for moment in MOMENTS[self._training.optimiser]
            if self._optimiser.state[parameter].get(moment) is not None
        }

    def restore(self, moments: Mapping[str, Tensor], step: int) -> None:
        """Put back what `moments` returned after `step` updates."""
        self._factors = moments.get(FACTORS, self._factors)
        for key, tensor in moments.items():
            if key == FACTORS:
                continue
            moment, _, name = key.partition("/")
            state = self._optimiser.state[self._named[name]]
            state[moment] = tensor.clone()
            if self._training.optimiser in _ADAPTIVE:
                state["step"] = torch.tensor(float(step))
