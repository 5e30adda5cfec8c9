"""Checks of settings at the border: each raises UserError for the first value that cannot be meant.

Checks of a single setting are in the schema; this module checks several settings together.
"""

from importlib import import_module

from hessfig.config.enums import Launcher, Loss
from hessfig.config.grid import check_grid
from hessfig.config.machine import parse_shard
from hessfig.config.schema import Config
from hessfig.config.settings import settings, value_of
from hessfig.config.training_checks import check_training
from hessfig.errors import UserError

LARGEST_SEED = 2**53  # a table holds whole numbers up to here
# Packages above this one know the kinds of networks; their checks are named here, and imported when they are called.
_NETWORK_CHECKS = "hessfig.models.network_checks"


def check(config: Config) -> None:
    """Raise UserError for the first setting that cannot be run: one by itself, or with others."""
    for key, setting in settings().items():
        setting.check(value_of(config, key))
    network_checks = import_module(_NETWORK_CHECKS)
    check_grid(config.grid)
    network_checks.check_model(config.model)
    _check_estimator(config)
    network_checks.check_task(config)
    check_training(config)
    _check_seeds(config)
    if config.shard is not None:
        parse_shard(config.shard)
        _check_alone(config)


def _check_seeds(config: Config) -> None:
    last = config.first_seed + config.seeds - 1
    if config.first_seed < 0 or last > LARGEST_SEED:
        raise UserError(
            "first_seed: negative seeds are the pilot networks of estimator=auto"
            if config.first_seed < 0
            else "first_seed: no table can hold these seeds",
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

    Raises UserError for more samples than there are, a first k beyond them, and a loss that is no mean over samples.
    """
    landscape, size = config.landscape, size or config.task.batch_size
    count = size if landscape.samples is None else landscape.samples
    if count > size:
        raise UserError(
            "landscape.samples: k would run beyond the data",
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
            "it grows with k, and its L_k is no average of losses of single samples",
            got=config.task.loss,
            allowed="cross_entropy, mse",
            remedy="task.loss=cross_entropy",
        )
    return count
