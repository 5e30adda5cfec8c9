"""From a configuration to cells: what shares a network and a sigma, keyed by what changes its numbers."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from hessfig.config import Config, Method, sigma_values, with_defaults
from hessfig.config.blocks import weight_pairs
from hessfig.config.plain import as_plain
from hessfig.curvature.exact.support import check_exact
from hessfig.terms import Block, Matrix

ALGORITHM_VERSION = 3


@dataclass(frozen=True)
class Allocation:
    """The probes of each column of blocks (by name) at a few sigmas, in rising order; none: as configured."""

    probes: Mapping[str, Mapping[float, int]] = field(default_factory=dict)

    def at(self, sigma: float) -> dict[str, int]:
        """Return the probes of each column at `sigma`: linear in log sigma between the given ones, rounded up."""
        return {column: _interpolated(counts, sigma) for column, counts in self.probes.items()}


@dataclass(frozen=True, eq=False)
class Cell:
    """One network at one sigma: `variant` of a sweep, repeat `seed`. Its key names its stored result.

    `allotted`: the probes `auto` takes for a column, by the column's name (empty: estimator.num_probes).
    """

    variant: str
    config: Config
    sigma: float
    seed: int
    allotted: Mapping[str, int] = field(default_factory=dict)

    @cached_property
    def science(self) -> dict[str, Any]:
        """Everything that changes the numbers of this cell."""
        probes = {"allotted": dict(self.allotted)} if self.allotted else {}
        return {**science(self.config), "sigma": self.sigma, "seed": self.seed, **probes}

    @cached_property
    def key(self) -> str:
        return digest(self.science)

    def __str__(self) -> str:
        variant = f"{self.variant}, " if self.variant else ""
        return f"{variant}n_layers={self.config.model.n_layers}, sigma={self.sigma:g}, seed={self.seed}"


def plan(variants: list[tuple[str, Config]], allocations: Sequence[Allocation] = ()) -> list[Cell]:
    """Return the cells of a sweep, repeat by repeat, so that an early stop leaves whole curves.

    `allocations`: the probes of each variant, when there are any to go by. Raises UserError when exact norms are
    asked for that cannot be had.
    """
    for _, config in variants:
        _check_exact(config)
    config = variants[0][1]
    seeds = range(config.first_seed, config.first_seed + config.seeds)
    chosen = allocations or [Allocation()] * len(variants)
    return [
        Cell(variant, varied, sigma, seed, allocation.at(sigma))
        for seed in seeds
        for (variant, varied), allocation in zip(variants, chosen, strict=True)
        for sigma in sigma_values(varied.grid)
    ]


def _interpolated(counts: Mapping[float, int], sigma: float) -> int:
    logs, between = [math.log(given) for given in counts], list(counts.values())
    return math.ceil(np.interp(math.log(sigma), logs, between) - 1e-9)


def _check_exact(config: Config) -> None:
    if config.estimator.method == Method.exact:
        check_exact(config.model, blocks(config), config.parts)


def science(config: Config) -> dict[str, Any]:
    """Return the settings that change a number, without sigma and seed, as plain values."""
    plain = as_plain(config)
    estimator = {"method": plain["estimator"]["method"]}
    if config.estimator.method not in (Method.dense, Method.exact):
        estimator["num_probes"] = plain["estimator"]["num_probes"]
    if config.estimator.method not in (Method.xtrace, Method.exact):
        estimator["products"] = plain["estimator"]["products"]
    return {
        "algorithm": ALGORITHM_VERSION,
        "task": plain["task"],
        "model": as_plain(with_defaults(config.model)),
        "estimator": estimator,
        "blocks": [list(pair) for pair in weight_pairs(config.blocks, config.model)],
        "parts": sorted(plain["parts"]),
        "dtype": plain["dtype"],
        "device": config.device.partition(":")[0],
        "keep_dense": config.sweep.keep_dense,
    }


def digest(settings: object) -> str:
    """Return a hash of `settings` that does not depend on the order of keys."""
    return hashlib.sha256(json.dumps(settings, sort_keys=True).encode()).hexdigest()[:24]


def columns(config: Config) -> list[tuple[int, Matrix, list[Matrix]]]:
    """Return (layer, col, rows) for every column of blocks to measure; one column shares its products."""
    grouped: dict[tuple[int, Matrix], list[Matrix]] = {}
    for block in blocks(config):
        grouped.setdefault((block.layer, block.col), []).append(block.row)
    return [(layer, col, rows) for (layer, col), rows in grouped.items()]


def blocks(config: Config) -> list[Block]:
    """Return the blocks to measure, layer by layer; a pair without a layer of its own is in layer 0."""
    pairs = weight_pairs(config.blocks, config.model)
    layers = range(1, config.model.n_layers + 1)
    without = [Block(0, row, col) for row, col in pairs if not (row.has_layer or col.has_layer)]
    return without + [
        Block(layer, row, col) for layer in layers for row, col in pairs if row.has_layer or col.has_layer
    ]
