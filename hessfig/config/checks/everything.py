"""Cross-field checks: the first setting that cannot be run is named, with what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hessfig.config.checks.figure import check_figure, check_filters
from hessfig.config.checks.landscape import check_landscape
from hessfig.config.checks.launcher import check_launcher
from hessfig.config.checks.model import check_model
from hessfig.config.checks.spectrum import check_spectrum
from hessfig.config.choices import Data, Kind, Loss, Method
from hessfig.config.grid import check_grid
from hessfig.config.schema import Config, SweepConfig, TaskConfig
from hessfig.config.training import check_training
from hessfig.errors import UserError

FEWEST_ALIGNED = 4
_SMALLEST_BASE = 2
LARGEST_SEED = 2**53  # a table holds whole numbers up to here
# Beyond these, sizes are slips: resamples are held in memory at once, and no table has more layers.
_MOST = {"task.base": 1_000_000, "resamples": 100_000, "model.n_layers": 10_000}


def check(config: Config) -> None:
    """Raise UserError for the first setting that cannot be run (cross-field checks)."""
    _check_counts(config)
    check_grid(config.grid)
    check_model(config.model)
    _check_estimator(config)
    check_spectrum(config.spectrum)
    check_landscape(config.landscape)
    _check_task(config)
    check_training(config)
    _check_sweep(config.sweep)
    _check_seeds(config)
    check_launcher(config)
    check_figure(config.figure)
    check_filters(config)
    if not config.parts or len(set(config.parts)) < len(config.parts):
        raise UserError(
            "parts: each is named once" if config.parts else "parts is empty",
            got=f"[{','.join(config.parts)}]",
            allowed="a list of H, H_o, H_f",
            remedy="for example parts=[H]",
        )
    if not (math.isfinite(config.tolerance) and config.tolerance > 0):
        raise UserError(
            "tolerance", got=config.tolerance, allowed="a finite number > 0", remedy="tolerance=0.1"
        )
    if config.workers != "auto" and (type(config.workers) is not int or config.workers < 1):
        raise UserError(
            "workers", got=config.workers, allowed="auto or a whole number >= 1", remedy="workers=auto"
        )


def _check_counts(config: Config) -> None:
    counts: Mapping[str, int | None] = {
        "seeds": config.seeds,
        "model.n_layers": config.model.n_layers,
        "model.n_heads": config.model.n_heads,
        "model.d_model": config.model.d_model,
        "model.d_head": config.model.d_head,
        "model.d_mlp": config.model.d_mlp,
        "model.patch": config.model.patch,
        "model.vocabulary": config.model.vocabulary,
        "task.batch_size": config.task.batch_size,
        "task.length": config.task.length,
        "task.digits": config.task.digits,
        "task.base": config.task.base,
        "estimator.num_probes": config.estimator.num_probes,
        "resamples": config.resamples,
    }
    for key, value in counts.items():
        if value is not None and value < 1:
            raise UserError(key, got=value, allowed="a whole number >= 1", remedy=f"for example {key}=1")
        if value is not None and value > _MOST.get(key, value):
            most = _MOST[key]
            raise UserError(
                f"{key} is too large",
                got=value,
                allowed=f"1 to {most}",
                remedy=f"for example {key}={most // 10}",
            )


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
    estimator = config.estimator
    if estimator.method == Method.xtrace and estimator.num_probes % 2:
        raise UserError(
            "estimator.num_probes: xtrace spends half its products on a sketch",
            got=estimator.num_probes,
            allowed="an even number >= 2",
            remedy=f"estimator.num_probes={estimator.num_probes + 1}",
        )
    if estimator.method in (Method.aligned, Method.auto) and estimator.num_probes < FEWEST_ALIGNED:
        raise UserError(
            f"estimator.num_probes: {estimator.method} spends a third of its probes on finding the block's axes",
            got=estimator.num_probes,
            allowed=f"a whole number >= {FEWEST_ALIGNED}",
            remedy=f"estimator.num_probes={FEWEST_ALIGNED}",
        )
    if not 0 < estimator.variance_share < 1:
        raise UserError(
            "estimator.variance_share",
            got=estimator.variance_share,
            allowed="a share between 0 and 1",
            remedy="for example estimator.variance_share=0.1",
        )


def _check_sweep(sweep: SweepConfig) -> None:
    for window in sweep.windows:
        if not _is_window(window):
            raise UserError(
                "sweep.windows: a window is two sigmas, low before high",
                got=window,
                allowed="[low, high], null for an open end",
                remedy="for example 'sweep.windows=[[null,1]]'",
            )


def _is_window(window: Any) -> bool:
    if not isinstance(window, list) or len(window) != 2:
        return False
    ends = [end for end in window if end is not None]
    return all(isinstance(end, int | float) for end in ends) and sorted(set(ends)) == ends


_DATA_OF: dict[str, Data] = {
    Kind.python: Data.python,
    Kind.self_attention: Data.gaussian,
    Kind.vit: Data.digits,
    Kind.huggingface: Data.tokens,
    Kind.transformer_lens: Data.tokens,
}  # others: addition
_READ = (Data.digits, Data.tokens)


def _check_task(config: Config) -> None:
    task, kind = config.task, config.model.kind
    if (task.data == Data.python) != (kind == Kind.python):
        raise UserError(
            "task.data and model.kind do not fit: model.factory makes the data too",
            got=f"task.data={task.data}, model.kind={kind}",
            allowed="python with python",
            remedy="model=python task=python, or sweep=network, which has both",
        )
    data = _DATA_OF.get(kind, Data.addition)
    if task.data != data:
        raise UserError(
            "task.data and model.kind do not fit",
            got=f"task.data={task.data}, model.kind={kind}",
            allowed="gaussian with self_attention; digits with vit; tokens with huggingface, transformer_lens; "
            "addition with transformer, mlp or linear_mlp",
            remedy=f"task={data}",
        )
    if task.base < _SMALLEST_BASE or (task.base != TaskConfig.base and data != Data.addition):
        raise UserError(
            "task.base: the base of the numbers that are added",
            got=f"task.base={task.base}, task.data={data}",
            allowed=f"a whole number >= {_SMALLEST_BASE} with task=addition",
            remedy="task.base=10",
        )
    if task.path is not None and data not in _READ:
        raise UserError(
            "task.path: only pictures and tokens are read from a file",
            got=f"task.data={data}",
            allowed="task=digits, task=tokens",
            remedy="leave task.path out, or model=vit task=digits, or model=huggingface task=tokens",
        )
    if data != Data.tokens and (task.length, task.first_scored) != (
        TaskConfig.length,
        TaskConfig.first_scored,
    ):
        raise UserError(
            "task.length, task.first_scored: only sequences of tokens have them",
            got=f"task.length={task.length}, task.first_scored={task.first_scored}, task.data={data}",
            allowed="with task=tokens",
            remedy="leave them out",
        )
    if data == Data.gaussian and task.loss == Loss.cross_entropy:
        raise UserError(
            "task.loss: Gaussian targets need a square loss",
            got=task.loss,
            allowed="mse, mse_sum_unshifted",
            remedy="task.loss=mse",
        )
