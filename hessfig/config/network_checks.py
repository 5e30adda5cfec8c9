"""Checks of the training, and where those of the network and its task are."""

from __future__ import annotations

import math
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from hessfig.config.enums import Optimiser, State, TrainingData
from hessfig.config.keys import TRAINABLE
from hessfig.config.range_checks import check_count
from hessfig.config.schema import Config, ModelConfig, TrainingConfig
from hessfig.errors import UserError

# Rooms above this one know the kinds of networks; what they check is named here, and imported when it is called.
_CHECKS = "hessfig.models.checks"


def check_model(model: ModelConfig) -> None:
    """Raise UserError for the first setting of the network that cannot be built."""
    import_module(_CHECKS).check_model(model)


def check_task(config: Config) -> None:
    """Raise UserError for data that the network does not take, and for settings that the data do not have."""
    import_module(_CHECKS).check_task(config)


MOST_STEPS, MOST_KEPT = 100_000_000, 10_000
_FEWEST = {"steps": 1, "batch_size": 1, "evaluate_every": 1, "evaluation_size": 1, "refresh": 1, "warmup": 0}
_DEFAULT = TrainingConfig()


def check_training(config: Config) -> None:
    """Raise UserError for the first setting of the training that cannot be run, and for steps it does not have."""
    training = config.training
    for name, least in _FEWEST.items():
        value, example = getattr(training, name), getattr(_DEFAULT, name)
        check_count(f"training.{name}", value, fewest=least, most=MOST_STEPS, example=example)
    _check_numbers(training)
    _check_steps("training.checkpoints", training.checkpoints, training)
    if config.state.kind == State.trained:
        if config.state.step == []:
            raise UserError(
                "state.step names no step",
                got="[]",
                allowed="null (the last), a step, or a list of steps",
                remedy=f"for example state.step=[0,{training.steps}]",
            )
        _check_steps("state.step", _listed(config.state.step), training)
        _check_task(config)
    elif config.state.step is not None:
        raise UserError(
            f"state.step: only a trained state has steps (state.kind={config.state.kind})",
            got=config.state.step,
            allowed="null",
            remedy="state=trained, or state.step=null",
        )


def _check_numbers(training: TrainingConfig) -> None:
    betas = {f"betas[{place}]": beta for place, beta in enumerate(training.betas)}
    if len(betas) != 2:
        _refuse("betas", training.betas, "two numbers", "[0.9,0.98]")
    _each(training, ("learning_rate", "eps"), lambda value: value > 0, "a finite number > 0")
    _each(training, ("weight_decay",), lambda value: value >= 0, "a finite number >= 0")
    _each(training, ("momentum",), lambda value: 0 <= value < 1, "0 <= momentum < 1")
    _each(training, ("cascades",), lambda value: 0 <= value <= 1, "a share from 0 to 1")
    for name, beta in betas.items():
        if not 0 <= beta < 1:
            _refuse(name, beta, "0 <= beta < 1", "0.9", key="betas", example="[0.9,0.98]")


def _each(training: TrainingConfig, names: Sequence[str], is_allowed: Any, allowed: str) -> None:
    for name in names:
        value = getattr(training, name)
        if not (math.isfinite(value) and is_allowed(value)):
            _refuse(name, value, allowed, str(getattr(_DEFAULT, name)))


def _refuse(name: str, got: Any, allowed: str, example_value: str, *, key: str = "", example: str = "") -> None:
    raise UserError(
        f"training.{name}",
        got=got,
        allowed=allowed,
        remedy=f"for example training.{key or name}={example or example_value}",
    )


def _listed(asked: Any) -> list[Any]:
    return [] if asked is None else asked if isinstance(asked, list) else [asked]


def _check_steps(key: str, asked: list[Any], training: TrainingConfig) -> None:
    for step in asked:
        if type(step) is not int or step < 0:
            raise UserError(
                f"{key}: a step is a whole number >= 0",
                got=step,
                allowed="a step, or a list of steps",
                remedy=f"for example {key}=[0,{training.steps}]",
            )
        if step > training.steps:
            raise UserError(
                f"{key} is beyond the end of the training",
                got=step,
                allowed=f"0 to {training.steps} (training.steps)",
                remedy=f"training.steps={step}",
            )
    if len(set(asked)) < len(asked) or len(asked) > MOST_KEPT:
        twice = next((step for step in asked if asked.count(step) > 1), f"{len(asked)} steps")
        raise UserError(
            f"{key}: each step is named once, and at most {MOST_KEPT} are",
            got=twice,
            allowed="steps that differ",
            remedy=f"{key}=[{','.join(map(str, dict.fromkeys(asked[:5])))}]",
        )


def _check_task(config: Config) -> None:
    training, data = config.training, config.task.data
    if data not in TRAINABLE:
        raise UserError(
            f"state=trained: there is no task to train on (task.data={data})",
            got=f"task.data={data}, model.kind={config.model.kind}",
            allowed="; ".join(f"task.data={one}" for one in TRAINABLE),
            remedy="model=gpt2 task=addition, or weights of your own: state=loaded state.path=FILE",
        )
    if training.optimiser == Optimiser.gd and training.data != TrainingData.fixed:
        raise UserError(
            "training.optimiser=gd is full batch, and fresh data have no whole",
            got=f"training.data={training.data}",
            allowed="training.data=fixed",
            remedy="training=gd, or training.data=fixed (the task's batch of task.batch_size sums)",
        )
