"""Checks of the training: its steps, the states it keeps, and a task that can be trained on."""

from importlib.util import find_spec
from typing import Any

from hessfig.config.enums import Curvature, Data, State, TrainingData
from hessfig.config.schema import Config, TrainingConfig
from hessfig.errors import UserError
from hessfig.terms import Optimiser

MOST_KEPT = 10_000


def check_training(config: Config) -> None:
    """Raise UserError for the first setting of the training that cannot be run, and for steps it does not have."""
    training = config.training
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
    training, data, rule = config.training, config.task.data, config.training.optimiser.facts
    if not data.facts.is_trainable:
        raise UserError(
            f"state=trained: there is no task to train on (task.data={data})",
            got=f"task.data={data}, model.kind={config.model.kind}",
            allowed="; ".join(f"task.data={one}" for one in Data if one.facts.is_trainable),
            remedy="model=gpt2 task=addition, or weights of your own: state=loaded state.path=FILE",
        )
    if rule.is_full_batch and training.data != TrainingData.fixed:
        raise UserError(
            f"training.optimiser={training.optimiser} is full batch, and fresh data have no whole",
            got=f"training.data={training.data}",
            allowed="training.data=fixed",
            remedy="training=gd, or training.data=fixed (the task's batch of task.batch_size sums)",
        )
    if (rule.divides or rule.of_matrices) and training.curvature != Curvature.none:
        raise UserError(
            f"training.optimiser={training.optimiser} has no learning rate that the curvature could divide",
            got=f"training.curvature={training.curvature}",
            allowed="training.curvature=none",
            remedy="training.curvature=none, or training.optimiser=sgd",
        )
    check_installed(training.optimiser, f"training.optimiser={training.optimiser}")


def check_installed(rule: Optimiser, what: str) -> None:
    """Raise UserError for a step rule of a package that is not there."""
    if rule.facts.is_of_extra and not find_spec("pytorch_optimizer"):
        raise UserError(
            f"{what} needs the package pytorch-optimizer",
            got="it is not installed",
            allowed=", ".join(one for one in Optimiser if not one.facts.is_of_extra),
            remedy="pip install 'hessfig[optimisers]'",
        )
