"""Cross-field checks: the first setting that cannot be run is named, with what is allowed."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hessfig.config.checks.counts import check_count
from hessfig.config.checks.figure import check_figure, check_filters
from hessfig.config.checks.landscape import check_landscape
from hessfig.config.checks.launcher import check_launcher
from hessfig.config.checks.model import check_model
from hessfig.config.checks.spectrum import check_spectrum
from hessfig.config.checks.task import check_task
from hessfig.config.checks.training import check_training
from hessfig.config.choices import Method
from hessfig.config.grid import check_grid
from hessfig.config.schema import Config, SweepConfig
from hessfig.errors import UserError

FEWEST_ALIGNED = 4
MOST_PROBES = 100_000  # far beyond what an error of a thousandth takes
LARGEST_SEED = 2**53  # a table holds whole numbers up to here
# Beyond these, sizes are slips: resamples are held in memory at once, and deeper networks take minutes to be planned.
_MOST = {
    "task.base": 1_000_000,
    "resamples": 100_000,
    "model.n_layers": 2_000,
    "estimator.num_probes": MOST_PROBES,
}


def check(config: Config) -> None:
    """Raise UserError for the first setting that cannot be run (cross-field checks)."""
    _check_counts(config)
    check_grid(config.grid)
    check_model(config.model)
    _check_estimator(config)
    check_spectrum(config.spectrum)
    check_landscape(config.landscape)
    check_task(config)
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
        most = _MOST.get(key)
        check_count(key, value, most=most, example=most // 10 if most and value and value > most else 1)


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
