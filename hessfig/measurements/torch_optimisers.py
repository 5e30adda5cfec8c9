"""Reads the settings and moments of a torch optimiser, for quantities of a training's next step."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.config.enums import Schedule
from hessfig.config.training_settings import TrainingConfig
from hessfig.errors import UserError, first_few
from hessfig.measurements.catalogue import quantity
from hessfig.terms import Optimiser

_KINDS: dict[type[torch.optim.Optimizer], Optimiser] = {
    getattr(torch.optim, rule.facts.made_by): rule
    for rule in Optimiser
    if rule.facts.has_formula and rule.facts.moments
}
_RULES = (
    "lr",
    "betas",
    "eps",
    "momentum",
    "dampening",
    "nesterov",
    "amsgrad",
    "maximize",
)
STEPS = "updates"
# What the formulas assume.
_PLAIN = {"dampening": 0, "nesterov": False, "amsgrad": False, "maximize": False}


@dataclass(frozen=True)
class OptimiserState:
    """`updates` that were made, the settings of the next one, and {moment/parameter: tensor}.

    STEPS/parameter is the number of updates of each parameter that the optimiser holds;
    the others do not move.
    """

    training: TrainingConfig
    updates: int = 0
    moments: Mapping[str, Tensor] = field(default_factory=dict)


def check_optimiser(optimiser: Any, names: list[str]) -> None:
    """Raise UserError for an optimiser with which the quantities `names` cannot be measured."""
    needs = {name: quantity(name).needs_optimiser for name in names}
    asked = [name for name in names if needs[name]]
    if optimiser is None and any(needs[name] != "any" for name in asked):
        raise _refusal(asked, "there is none")
    if optimiser is not None and type(optimiser) not in _KINDS:
        raise _refusal(asked or ["optimiser"], type(optimiser).__name__)
    if optimiser is not None:
        _rule(optimiser)


def state_of_optimiser(
    optimiser: torch.optim.Optimizer | None, network: nn.Module
) -> OptimiserState:
    """Return the state of an optimiser of `network`; without one, that of plain gradient descent.

    Raises UserError where groups of parameters have rules of their own, a rule is none
    that the formulas know (Nesterov's momentum, dampening, amsgrad), or the optimiser
    holds no parameter of the network.
    """
    if optimiser is None:
        return OptimiserState(
            TrainingConfig(optimiser=Optimiser.gd, schedule=Schedule.constant, warmup=0)
        )
    rule = _rule(optimiser)
    training = TrainingConfig(
        optimiser=_KINDS[type(optimiser)],
        learning_rate=float(rule["lr"]),
        betas=list(rule.get("betas", (0.9, 0.999))),
        eps=rule.get("eps", 1e-8),
        momentum=rule.get("momentum", 0.0),
        schedule=Schedule.constant,
        warmup=0,
    )
    named = {id(parameter): name for name, parameter in network.named_parameters()}
    moments = dict[str, Tensor]()
    held = [
        parameter
        for group in optimiser.param_groups
        for parameter in group["params"]
        if id(parameter) in named
    ]
    for parameter in held:
        name, state = named[id(parameter)], optimiser.state.get(parameter, {})
        moments[f"{STEPS}/{name}"] = torch.tensor(
            int(state.get("step", 1)) if state else 0
        )
        known = [
            moment
            for moment in training.optimiser.facts.moments
            if state.get(moment) is not None
        ]
        moments |= {f"{moment}/{name}": state[moment].detach() for moment in known}
    if not held:
        raise UserError(
            "optimiser: it contains none of the network's parameters",
            got=f"{type(optimiser).__name__} of {sum(len(group['params']) for group in optimiser.param_groups)} others",
            allowed="the optimiser that updates this network",
            remedy="make the optimiser from network.parameters(), after layers were replaced",
        )
    return OptimiserState(training, max(steps_of(moments).values()), moments)


def steps_of(moments: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of updates of each parameter that an optimiser of torch holds; none for a stored training."""
    own = {
        key: tensor for key, tensor in moments.items() if key.startswith(f"{STEPS}/")
    }
    return {key.removeprefix(f"{STEPS}/"): int(tensor) for key, tensor in own.items()}


def _rule(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the settings that all groups of parameters share."""
    rules = [
        {key: group[key] for key in _RULES if key in group}
        for group in optimiser.param_groups
    ]
    other = [
        key for key in rules[0] if any(rule[key] != rules[0][key] for rule in rules)
    ]
    other += [key for key, usual in _PLAIN.items() if rules[0].get(key, usual) != usual]
    if other:
        raise _refusal(
            ["optimiser"],
            f"{type(optimiser).__name__} with {first_few(other)} of its own",
        )
    return rules[0]


def _refusal(asked: list[str], got: str) -> UserError:
    return UserError(
        f"{first_few(asked)}: the step rule is not one that is known",
        got=f"optimiser: {got}",
        allowed="torch.optim.Adam, AdamW or SGD, with one rule for all parameters (weight decays may differ)",
        remedy="hessfig.Monitor(..., optimiser=optimiser), or leave these quantities out",
    )
