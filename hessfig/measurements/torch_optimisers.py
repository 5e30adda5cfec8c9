"""Reads the settings and moments of a torch optimiser, for quantities of a training's next step.

The formulas of the next step (`hessfig.measurements.stability.next_update`) know Adam and
AdamW (also with amsgrad) and SGD with momentum (also Nesterov's), each with one rule for
all parameters of the network. What they read is returned in the form of a stored training,
so that both take the same way.
"""

import inspect
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
# What amsgrad divides by in place of exp_avg_sq.
LARGEST = "max_exp_avg_sq"
# What the formulas assume.
_PLAIN = {"dampening": 0, "maximize": False}
# The methods of an optimiser that make its update.
_MAKING = ("step", "_init_group")


@dataclass
class NesterovTraining(TrainingConfig):
    """A training by SGD with Nesterov's momentum, which trainings of hessfig do not have."""


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


def check_optimiser(optimiser: Any, names: list[str], network: nn.Module) -> None:
    """Raise UserError for an optimiser of `network` with which the quantities `names` cannot be measured.

    Quantities that read no optimiser can be measured with every one.
    """
    needs = {name: quantity(name).needs_optimiser for name in names}
    asked = [name for name in names if needs[name]]
    if optimiser is None and any(needs[name] != "any" for name in asked):
        raise _refusal(
            asked, "there is none", "hessfig.Monitor(..., optimiser=optimiser)"
        )
    if optimiser is None:
        return
    if not isinstance(optimiser, torch.optim.Optimizer):
        name = type(optimiser).__name__
        raise _refusal(asked or ["optimiser"], f"a {name}", "optimiser=None")
    if asked:
        _kind_of(optimiser, asked)
        _rule(optimiser, network, asked)


def _kind_of(optimiser: torch.optim.Optimizer, asked: list[str]) -> Optimiser:
    """Return the rule of an optimiser: its class is one of torch's, or makes its updates as one of them does.

    Raises
    ------
    UserError
        For another class, and for one that overrides what makes an update.

    Examples
    --------
    >>> class Named(torch.optim.AdamW):
    ...     title = "mine"
    >>> str(_kind_of(Named([torch.zeros(1)]), ["critical_step"]))
    'adamw'
    """
    given = type(optimiser)
    got = given.__name__
    for base in given.__mro__:
        if base not in _KINDS:
            continue
        own = []
        for name in _MAKING:
            # torch wraps the step of every class, to profile it.
            theirs = inspect.unwrap(getattr(given, name))
            if theirs is not inspect.unwrap(getattr(base, name)):
                own.append(name)
        if not own:
            return _KINDS[base]
        got = f"{got}, which overrides {first_few(own)} of {base.__name__}"
        break
    wrapped = getattr(optimiser, "optimizer", None)
    if isinstance(wrapped, torch.optim.Optimizer):
        inner = type(wrapped).__name__
        remedy = (
            f"optimiser=optimiser.optimizer, if its updates are those of this {inner}"
        )
        raise _refusal(asked, f"{got}, which wraps another", remedy)
    raise _refusal(asked, got)


def state_of_optimiser(
    optimiser: torch.optim.Optimizer | None, network: nn.Module
) -> OptimiserState:
    """Return the state of an optimiser of `network`; without one, that of plain gradient descent.

    The schedule is constant: the learning rate is the one that the optimiser has now, as a
    scheduler of torch has set it.

    Raises
    ------
    UserError
        Where groups of the network's parameters have rules of their own, a rule is none that
        the formulas know (dampening, maximize), or the optimiser holds no parameter of the
        network.

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
    asked = ["optimiser"]
    kind = _kind_of(optimiser, asked)
    rule = _rule(optimiser, network, asked)
    betas = rule.get("betas", (0.9, 0.999))
    made = NesterovTraining if rule.get("nesterov") else TrainingConfig
    training = made(
        optimiser=kind,
        learning_rate=float(rule["lr"]),
        betas=[float(beta) for beta in betas],
        eps=float(rule.get("eps", 1e-8)),
        momentum=float(rule.get("momentum", 0.0)),
        schedule=Schedule.constant,
        warmup=0,
    )
    kinds = list(kind.facts.moments)
    if rule.get("amsgrad"):
        kinds.append(LARGEST)
    moments = _moments(optimiser, network, kinds)
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


def _rule(
    optimiser: torch.optim.Optimizer, network: nn.Module, asked: list[str]
) -> dict[str, Any]:
    """Return the settings that all groups share which hold a parameter of the network.

    Raises
    ------
    UserError
        Where they differ, or are not plain.
    """
    held = {id(parameter) for parameter in network.parameters()}
    rules = []
    for group in optimiser.param_groups:
        if any(id(parameter) in held for parameter in group["params"]):
            rules.append({key: group[key] for key in _RULES if key in group})
    if not rules:
        return dict(optimiser.param_groups[0])
    shared = rules[0]
    differing = []
    for key, value in shared.items():
        if any(rule[key] != value for rule in rules):
            differing.append(key)
    unknown = []
    for key, usual in _PLAIN.items():
        if shared.get(key, usual) != usual:
            unknown.append(key)
    name = type(optimiser).__name__
    if differing:
        got = f"{name} whose groups of parameters differ in {first_few(differing)}"
        raise _refusal(asked, got)
    if unknown:
        raise _refusal(asked, f"{name} with {first_few(unknown)}")
    return shared


def _refusal(asked: list[str], got: str, remedy: str = "") -> UserError:
    """Return the error for a rule that the formulas of the next step do not know."""
    return UserError(
        f"{first_few(asked)}: the step rule is not one that is known",
        got=f"optimiser: {got}",
        allowed="torch.optim.Adam, AdamW or SGD, without dampening and maximize, and with one rule for all "
        "parameters of the network (weight decays may differ)",
        remedy=f"{remedy or 'such an optimiser'}, or leave these quantities out",
    )
