"""Checks of settings at the border: each raises UserError for the first value that cannot be meant.

Checks of a single setting are in the schema; this module checks several settings
together.
"""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

from hessfig.config.enums import Curvature, Data, Launcher, Loss, State, TrainingData
from hessfig.config.grid import check_grid
from hessfig.config.schema import Config, TrainingConfig
from hessfig.config.settings import settings, value_of
from hessfig.errors import UserError, install_extra
from hessfig.terms import Optimiser

MOST_KEPT = 10_000  # states of a training
LARGEST_SEED = 2**53  # a table holds whole numbers up to here
# Kinds of networks and shares have checks of their own, which are imported when they
# are called.
NETWORK_CHECKS, SHARES = "hessfig.models.network_checks", "hessfig.config.shards"


def check_config(config: Config) -> None:
    """Raise UserError for the first setting that cannot be run: one by itself, or with others."""
    for key, setting in settings().items():
        setting.check(value_of(config, key))
    network_checks = import_module(NETWORK_CHECKS)
    check_grid(config.grid)
    network_checks.check_model(config.model)
    _check_estimator(config)
    network_checks.check_task(config)
    network_checks.check_idle(config)
    network_checks.check_draws(config)
    check_training(config)
    _check_seeds(config)
    if config.shard is not None:
        import_module(SHARES).parse_shard(config.shard)
        _check_alone(config)


def _check_seeds(config: Config) -> None:
    last = config.first_seed + config.seeds - 1
    if config.first_seed < 0 or last > LARGEST_SEED:
        raise UserError(
            "first_seed: negative seeds are the pilot networks of estimator=auto"
            if config.first_seed < 0
            else "first_seed: no table can contain these seeds",
            got=f"seeds {config.first_seed} to {last}",
            allowed=f"whole numbers from 0 to {LARGEST_SEED}",
            remedy="for example first_seed=1234",
        )


def _check_estimator(config: Config) -> None:
    estimator, facts = config.estimator, config.estimator.method.facts
    if estimator.num_probes % facts.multiple:
        raise UserError(
            "estimator.num_probes: xtrace spends half its products on a sketch",
            got=estimator.num_probes,
            allowed="an even number >= 2",
            remedy=f"estimator.num_probes={estimator.num_probes + 1}",
        )
    if estimator.num_probes < facts.fewest:
        raise UserError(
            f"estimator.num_probes: {estimator.method} spends a third of its probes on finding the block's axes",
            got=estimator.num_probes,
            allowed=f"a whole number >= {facts.fewest}",
            remedy=f"estimator.num_probes={facts.fewest}",
        )


def _check_alone(config: Config) -> None:
    if config.launcher.kind == Launcher.slurm:
        raise UserError(
            "shard: the tasks of launcher=slurm are shards themselves",
            got=f"shard={config.shard}, launcher.kind=slurm",
            allowed="either of them",
            remedy="leave shard out, or launcher",
        )


def number_of_samples(config: Config, *, size: int | None = None) -> int:
    """Return how many samples of the task's batch (of `size` samples, where no setting says it) the landscape is of.

    Raises UserError for more samples than there are, a first k beyond them, and a loss
    that is not a mean over samples.
    """
    landscape = config.landscape
    size = size or config.task.batch_size
    count = size if landscape.samples is None else landscape.samples
    if count > size:
        raise UserError(
            "landscape.samples: the largest k is beyond the data",
            got=count,
            allowed=f"2 to {size} (task.batch_size)",
            remedy=f"task.batch_size={count}, or landscape.samples={size}",
        )
    if landscape.first >= count:
        raise UserError(
            "landscape.first: the smallest k is beyond the data",
            got=landscape.first,
            allowed=f"1 to {count - 1}, one less than there are samples",
            remedy="landscape.first=1",
        )
    if config.task.loss == Loss.mse_sum_unshifted:
        raise UserError(
            "task.loss: the published sum of squares is a sum over everything, not a mean over samples: "
            "it grows with k, and its L_k is not an average of losses of single samples",
            got=config.task.loss,
            allowed="cross_entropy, mse",
            remedy="task.loss=cross_entropy",
        )
    return count


def check_training(config: Config) -> None:
    """Raise UserError for the first setting of the training that cannot be run, and for steps it does not have."""
    training = config.training
    _check_steps("training.checkpoints", training.checkpoints, training)
    if config.state.kind == State.trained:
        if config.state.step == []:
            raise UserError(
                "state.step is empty",
                got="[]",
                allowed="null (the last), a step, or a list of steps",
                remedy=f"for example state.step=[0,{training.steps}]",
            )
        _check_steps("state.step", _listed(config.state.step), training)
        _check_trained(config)


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
        twice = next(
            (step for step in asked if asked.count(step) > 1), f"{len(asked)} steps"
        )
        raise UserError(
            f"{key}: each step is named once, and at most {MOST_KEPT} are",
            got=twice,
            allowed="steps that differ",
            remedy=f"{key}=[{','.join(map(str, dict.fromkeys(asked[:5])))}]",
        )


def _check_trained(config: Config) -> None:
    training = config.training
    data = config.task.data
    rule = config.training.optimiser.facts
    if not data.facts.is_trainable:
        raise UserError(
            f"state=trained: there is no task to train on (task.data={data})",
            got=f"task.data={data}, model.kind={config.model.kind}",
            allowed="; ".join(
                f"task.data={dataset}" for dataset in Data if dataset.facts.is_trainable
            ),
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
            allowed=", ".join(
                other for other in Optimiser if not other.facts.is_of_extra
            ),
            remedy=install_extra("optimisers"),
        )
