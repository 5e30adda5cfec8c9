"""Which points bench_scaling.py measures: one setting varied at a time round the paper's cell, and what is left out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from hessfig.config.enums import Method
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.models.exact.support import Level, exactness
from hessfig.sweep.variant import Variant

WHOLE, TOP, EXACT = "hutchinson", "hutchinson, top layer", "exact"


@dataclass(frozen=True)
class Setting:
    """What is varied; the defaults are the paper's cell."""

    d_model: int = 128
    n_layers: int = 1
    digits: int = 5
    batch_size: int = 64
    num_probes: int = 20


PAPER, TOY = Setting(), Setting(d_model=8, digits=2, batch_size=4, num_probes=4)
AXES: dict[str, tuple[int, ...]] = {
    "d_model": (32, 64, 128, 256),
    "n_layers": (1, 2, 3, 4, 5),
    "sequence_length": (2, 3, 4, 5, 6, 7, 8),  # digits
    "batch_size": (16, 32, 64, 128, 256),
    "num_probes": (5, 10, 20, 40, 80),
}
TOY_AXES: dict[str, tuple[int, ...]] = {
    "d_model": (4, 8, 16),
    "n_layers": (1, 2, 3),
    "sequence_length": (1, 2, 3),
    "batch_size": (2, 4, 8),
    "num_probes": (2, 4, 8),
}


@dataclass(frozen=True)
class Job:
    """One thing to measure: the blocks of some layers, by one method, at one setting."""

    method: Method
    setting: Setting
    layers: tuple[int, ...]

    def __str__(self) -> str:
        settings = ", ".join(f"{key}={value}" for key, value in vars(self.setting).items())
        return f"{self.method}, {settings}, layers {', '.join(map(str, self.layers))}"


@dataclass(frozen=True)
class Point:
    """A place on an axis: what is varied, to what, and the job that tells an engine's cost there."""

    axis: str
    x: int
    engine: str
    job: Job


def plan(base: Setting, axes: Mapping[str, tuple[int, ...]]) -> tuple[list[Point], list[dict[str, Any]]]:
    """Return the points of every axis, and what is not measured there with the reason."""
    points, skipped = [], []
    for axis, value in ((axis, value) for axis, values in axes.items() for value in values):
        setting, x = _varied(base, axis, value)
        expensive = _expensive_layers(setting, only_probes_vary=axis == "num_probes" and setting != base)
        points += [Point(axis, x, engine, job) for engine, job in _jobs(axis, setting, expensive).items()]
        reasons = [{"layer": layer, "reason": reason} for layer, reason in expensive.items()]
        skipped += [{"axis": axis, "x": x, "engine": EXACT, **reason} for reason in reasons]
    return points, skipped


def _varied(base: Setting, axis: str, value: int) -> tuple[Setting, int]:
    """Return the setting and its place on the axis: sequences of d-digit sums are 3 d + 3 tokens long."""
    if axis == "sequence_length":
        return replace(base, digits=value), 3 * value + 3
    return replace(base, **{axis: value}), value


def _jobs(axis: str, setting: Setting, expensive: Mapping[int, str]) -> dict[str, Job]:
    every = tuple(range(1, setting.n_layers + 1))
    jobs = {WHOLE: Job(Method.hutchinson, setting, every)}
    if axis == "n_layers":
        jobs[TOP] = Job(Method.hutchinson, setting, every[-1:])
    if cheap := tuple(layer for layer in every if layer not in expensive):
        jobs[EXACT] = Job(Method.exact, setting, cheap)
    return jobs


def _expensive_layers(setting: Setting, *, only_probes_vary: bool) -> dict[int, str]:
    """Return the layers whose exact norms are not all cheap, or not worth measuring, and why."""
    if only_probes_vary:
        return {1: "exact norms take no probes: one point serves the whole axis"}
    config = config_of(Job(Method.exact, setting, ()))
    reasons: dict[int, list[str]] = {}
    for block in Variant("", config).blocks:
        found = {part: exactness(config.model, block, part) for part in config.parts}
        expensive = [f"{part} ({e.level}, {e.reason})" for part, e in found.items() if e.level != Level.cheap]
        if expensive:
            reasons.setdefault(block.layer, []).append(f"{block.row}: {', '.join(expensive)}")
    return {layer: "; ".join(words) for layer, words in reasons.items()}


def config_of(job: Job) -> Config:
    """Return the configuration of the job's cell."""
    setting = job.setting
    return Config(
        task=TaskConfig(digits=setting.digits, batch_size=setting.batch_size),
        model=ModelConfig(n_layers=setting.n_layers, d_model=setting.d_model),
        estimator=EstimatorConfig(job.method, num_probes=setting.num_probes),
    )
