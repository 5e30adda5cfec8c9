"""Checks of settings at the border: each raises UserError for the first value that cannot be meant."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from hessfig.config.grid import check_grid
from hessfig.config.network_checks import check_model, check_task, check_training
from hessfig.config.range_checks import check_count, check_landscape, check_launcher
from hessfig.config.schema import Config, FigureConfig, SpectrumConfig, SweepConfig
from hessfig.errors import UserError

NARROWEST, WIDEST = 2.0, 20.0  # inches


def check_figure(figure: FigureConfig) -> None:
    """Raise UserError for a width that no page has, for panels without a name and for no files."""
    width = figure.width
    if width is not None and not NARROWEST <= width <= WIDEST:
        raise UserError(
            "figure.width is in inches",
            got=width,
            allowed=f"{NARROWEST:g} to {WIDEST:g}, or null",
            remedy="for example figure.width=3.25, a column of two, or figure.width=6.75",
        )
    _check_once("figure.formats", list(figure.formats), "pdf, png, svg", "figure.formats=[pdf]")
    if not figure.formats:
        raise UserError(
            "figure.formats is empty", got="[]", allowed="pdf, png, svg", remedy="for example figure.formats=[pdf]"
        )
    _check_once("figure.panels", figure.panels, "names of panels", "for example figure.panels=[W_V:H_o]")


def check_filters(config: Config) -> None:
    """Raise UserError for rows and parts that are neither a name nor a list of names."""
    for key in ("rows", "part"):
        value = getattr(config, key)
        names = value if isinstance(value, list) else [value]
        if value is not None and not (names and all(isinstance(name, str) and name for name in names)):
            raise UserError(key, got=value, allowed="a name or a list of names", remedy=f"for example {_EXAMPLES[key]}")


def _check_once(key: str, names: list[Any], allowed: str, example: str) -> None:
    if len(set(names)) < len(names) or "" in names:
        raise UserError(f"{key}: each is named once", got=f"[{','.join(names)}]", allowed=allowed, remedy=example)


_EXAMPLES = {"rows": "rows=W_Q or 'rows=[W_Q,W_V]'", "part": "part=H_o or 'part=[H_o,H]'"}


FEWEST_STEPS, MOST = 2, 1_000_000  # beyond, a number is a slip


def check_spectrum(spectrum: SpectrumConfig) -> None:
    """Raise UserError for the first setting of a spectrum that cannot be run."""
    counts = {"k": (spectrum.k, 1), "steps": (spectrum.steps, FEWEST_STEPS), "num_probes": (spectrum.num_probes, 1)}
    for name, (value, fewest) in counts.items():
        key = f"spectrum.{name}"
        check_count(key, value, fewest=fewest, most=MOST, example=_default(key))
    for key, share in {"spectrum.tolerance": spectrum.tolerance, "spectrum.cut": spectrum.cut}.items():
        if not (math.isfinite(share) and 0 < share < 1):
            raise UserError(
                key, got=share, allowed="a number between 0 and 1", remedy=f"for example {key}={_default(key):g}"
            )


def _default(key: str) -> float:
    found: float = getattr(SpectrumConfig(), key.partition(".")[2])
    return found


MOST_PROBES = 100_000  # far beyond what an error of a thousandth takes
LARGEST_SEED = 2**53  # a table holds whole numbers up to here
# Beyond these, sizes are slips: resamples are held in memory at once, and deeper networks take minutes to be planned.
_MOST = {"task.base": 1_000_000, "resamples": 100_000, "model.n_layers": 2_000, "estimator.num_probes": MOST_PROBES}


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
            allowed="a list of H, H_o, H_f; of H_oT, H_fT for blocks=[query_key]",
            remedy="for example parts=[H]",
        )
    if not (math.isfinite(config.tolerance) and config.tolerance > 0):
        raise UserError("tolerance", got=config.tolerance, allowed="a finite number > 0", remedy="tolerance=0.1")
    if config.workers != "auto" and (type(config.workers) is not int or config.workers < 1):
        raise UserError("workers", got=config.workers, allowed="auto or a whole number >= 1", remedy="workers=auto")


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
