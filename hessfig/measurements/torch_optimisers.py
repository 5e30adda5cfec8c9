"""Reads the settings and moments of a torch optimiser, for quantities of a training's next step.

The formulas of the next step (`hessfig.measurements.stability.next_update`) know Adam,
AdamW and SGD with momentum, each with one rule for all parameters. What they read is
returned in the form of a stored training, so that both take the same way.
"""

from collections.abc import Mapping, Sequence
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

    STEPS/parameter is the number of updates of each parameter that the optimiser holds; the
    others do not move.

    Parameters
    ----------
    training : TrainingConfig
        Rule, learning rate, betas, eps and momentum, in the terms of a training of hessfig.
    updates : int
        The largest number of updates of a parameter.
    moments : dict
        `exp_avg`, `exp_avg_sq` of Adam and AdamW, `momentum_buffer` of SGD.
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

    The schedule is constant: the learning rate is the one that the optimiser has now, as a
    scheduler of torch has set it.

    Raises
    ------
    UserError
        Where groups of parameters have rules of their own, a rule is none that the formulas
        know (Nesterov's momentum, dampening, amsgrad), or the optimiser holds no parameter of
        the network.

    Examples
    --------
    One step of SGD from a gradient of ones leaves them as its momentum:

    >>> import torch
    >>> network = torch.nn.Linear(1, 1, bias=False)
    >>> optimiser = torch.optim.SGD(network.parameters(), lr=0.1, momentum=0.9)
    >>> network(torch.ones(1)).backward()
    >>> optimiser.step()
    >>> state = state_of_optimiser(optimiser, network)
    >>> state.training.momentum, state.updates, state.moments["momentum_buffer/weight"].tolist()
    (0.9, 1, [[1.0]])
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
    moments = _moments(optimiser, network, training.optimiser.facts.moments)
    if not moments:
        count = sum(len(group["params"]) for group in optimiser.param_groups)
        raise UserError(
            "optimiser: it contains none of the network's parameters",
            got=f"{type(optimiser).__name__} of {count} others",
            allowed="the optimiser that updates this network",
            remedy="make the optimiser from network.parameters(), after layers were replaced",
        )
    return OptimiserState(training, max(steps_of(moments).values()), moments)


def _moments(
    optimiser: torch.optim.Optimizer, network: nn.Module, kinds: Sequence[str]
) -> dict[str, Tensor]:
    """Return the moments of these kinds, and the number of updates, of every parameter of the network that is held.

    Parameters are known by identity, since optimisers keep no names. A moment that does not
    exist yet is left out, and counts as zero.
    """
    names = {id(parameter): name for name, parameter in network.named_parameters()}
    moments = {}
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            name = names.get(id(parameter))
            if name is None:
                continue
            state = optimiser.state.get(parameter, {})
            # SGD counts no steps: a state says that there was one at least.
            count = int(state.get("step", 1)) if state else 0
            moments[f"{STEPS}/{name}"] = torch.tensor(count)
            for kind in kinds:
                if state.get(kind) is not None:
                    moments[f"{kind}/{name}"] = state[kind].detach()
    return moments


def steps_of(moments: Mapping[str, Tensor]) -> dict[str, int]:
    """Return the number of updates of each parameter that an optimiser of torch holds; none for a stored training.

    Examples
    --------
    >>> import torch
    >>> steps_of({"updates/weight": torch.tensor(3), "exp_avg/weight": torch.zeros(2)})
    {'weight': 3}
    """
    steps = {}
    for key, tensor in moments.items():
        group, _, name = key.partition("/")
        if group == STEPS:
            steps[name] = int(tensor)
    return steps


def _rule(optimiser: torch.optim.Optimizer) -> dict[str, Any]:
    """Return the settings that all groups of parameters share. Raises UserError where they differ, or are not plain."""
    rules = []
    for group in optimiser.param_groups:
        rules.append({key: group[key] for key in _RULES if key in group})
    shared = rules[0]
    other = []
    for key, value in shared.items():
        if any(rule[key] != value for rule in rules):
            other.append(key)
    for key, usual in _PLAIN.items():
        if shared.get(key, usual) != usual:
            other.append(key)
    if other:
        name = type(optimiser).__name__
        raise _refusal(["optimiser"], f"{name} with {first_few(other)} of its own")
    return shared


def _refusal(asked: list[str], got: str) -> UserError:
    """Return the error for a rule that the formulas of the next step do not know."""
    return UserError(
        f"{first_few(asked)}: the step rule is not one that is known",
        got=f"optimiser: {got}",
        allowed="torch.optim.Adam, AdamW or SGD, with one rule for all parameters (weight decays may differ)",
        remedy="hessfig.Monitor(..., optimiser=optimiser), or leave these quantities out",
    )
