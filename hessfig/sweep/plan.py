"""From a configuration to cells: one network at one state and one quantity, keyed by what changes its numbers."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import product
from pathlib import Path
from typing import Any

from hessfig.config import Config, DType, Reuse, sigma_values, with_defaults
from hessfig.config.keys import in_key
from hessfig.errors import UserError
from hessfig.files import write_text
from hessfig.measurements.catalogue import quantity, source_of
from hessfig.measurements.quantity import Quantity, check_served
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.models.registry import kind
from hessfig.record import CHECKSUM, FROBENIUS, checksum, digest, read_checked
from hessfig.states import point
from hessfig.sweep.limits import check_cost, check_distinct, check_number
from hessfig.terms import Block


@dataclass(frozen=True, eq=False)
class Cell:
    """One quantity of one network at one state. Its key names its stored result.

    `settled`: what pilots settled for it, by name (probes of a column, for norms by estimator=auto).
    """

    setup: Setup
    sigma: float | None
    seed: int
    quantity: str = FROBENIUS
    settled: Mapping[str, int] = field(default_factory=dict)
    step: int | None = None

    @property
    def config(self) -> Config:
        return self.setup.config

    @cached_property
    def science(self) -> dict[str, Any]:
        """Everything that changes the numbers of this cell."""
        settled = {"settled": dict(self.settled)} if self.settled else {}
        step = {} if self.step is None else {"step": self.step}
        content = self.setup.content(self.sigma, self.seed)
        own = {"content": content} if content else {}
        return {**self.setup.science(self.quantity), "sigma": self.sigma, "seed": self.seed, **step, **settled, **own}

    @cached_property
    def key(self) -> str:
        return digest(self.science)

    @property
    def labels(self) -> dict[str, Any]:
        """What tells this cell from the others of its sweep."""
        return {
            "variant": self.setup.name,
            "num_layers": self.num_layers,
            "sigma": self.sigma,
            "step": self.step,
            "seed": self.seed,
            "quantity": self.quantity,
        }

    @property
    def num_layers(self) -> int:
        """Layers of the network: as configured for the package's own, as named by its user for another."""
        return self.setup.layout.num_layers

    def __str__(self) -> str:
        variant = f"{self.setup.name}, " if self.setup.name else ""
        sigma = "" if self.sigma is None else f"sigma={self.sigma:g}, "
        step = "" if self.step is None else f"step={self.step}, "
        quantity = "" if self.quantity == FROBENIUS else f", {self.quantity}"
        return f"{variant}n_layers={self.num_layers}, {sigma}{step}seed={self.seed}{quantity}"


MET = "networks.json"
ALGORITHM_VERSION = 4
FLOAT32_VERSION = 2  # since 2, which 1 did not name, networks of the package are evaluated in float64
Variants = Sequence["tuple[str, Config] | Setup"]
Settled = Callable[["Setup", float | None], Mapping[str, int]]


@dataclass(frozen=True, eq=False)
class Setup:
    """One variant of a sweep: its name, its settings, and what follows from them, found once for all its cells."""

    name: str
    config: Config
    _sciences: dict[str, dict[str, Any]] = field(default_factory=dict, repr=False)
    _contents: dict[str, str] = field(default_factory=dict, repr=False)

    @cached_property
    def layout(self) -> Layout:
        """The weights of the configured network."""
        return kind(self.config.model.kind).layout(self.config)

    @cached_property
    def blocks(self) -> list[Block]:
        """The blocks that are asked for."""
        return blocks_of(self.config.blocks, self.layout, self.config.model)

    @cached_property
    def axes(self) -> frozenset[str]:
        """Which of sigma and seed change the network."""
        return point.axes(self.config)

    def science(self, name: str) -> dict[str, Any]:
        """Return everything that changes the numbers of a quantity, without sigma and seed, as plain values."""
        if name not in self._sciences:
            chosen = self.quantity(name)
            self._sciences[name] = {
                **self._network,
                "quantity": chosen.name,
                "version": [chosen.version, source_of(name, self.config.config_dir)],
                "settings": chosen.settings(self.config, self.layout),
            }
        return self._sciences[name]

    def content(self, sigma: float | None, seed: int) -> str:
        """Return a hash of what the user's code returns for a network of the user's own; empty for others."""
        maker = kind(self.config.model.kind)
        if maker.content is None:
            return ""
        seed = seed if "seed" in self.axes else self.config.first_seed
        label = self._label(sigma, seed)
        if label not in self._contents:
            known = self._known.get(digest([self._network, label]))
            self._contents[label] = known or maker.content(self.config, sigma, seed)
        return self._contents[label]

    def networks(self) -> dict[str, str]:
        """Return the contents of the variant's networks, where they are the user's own, by sigma and seed."""
        seeds = self.seeds() if "seed" in self.axes else range(self.config.first_seed, self.config.first_seed + 1)
        found = {self._label(sigma, seed): self.content(sigma, seed) for sigma in self.sigmas() for seed in seeds}
        return {label: content for label, content in found.items() if content}

    def met(self) -> dict[str, str]:
        """Return the contents of its networks by settings, sigma and seed, for runs with reuse=sources."""
        return {digest([self._network, label]): content for label, content in self.networks().items()}

    def quantity(self, name: str) -> Quantity:
        """Return the quantity called `name`, of the package or of the user's own files."""
        return quantity(name, self.config.config_dir)

    def sigmas(self) -> list[float | None]:
        """Return the swept scales; None alone where sigma means nothing."""
        return [*sigma_values(self.config.grid)] if "sigma" in self.axes else [None]

    def steps(self) -> list[int | None]:
        """Return the steps of a trained state; None alone where there are none."""
        return point.steps(self.config)

    @property
    def num_sigmas(self) -> int:
        """How many scales are swept: counted, for a grid may be too long to be listed."""
        grid = self.config.grid
        return len(grid.values or range(grid.points)) if "sigma" in self.axes else 1

    def seeds(self) -> range:
        """Return the repeats."""
        return range(self.config.first_seed, self.config.first_seed + self.config.seeds)

    def check(self) -> None:
        """Raise UserError when something that is asked for cannot be had."""
        kind(self.config.model.kind).check(self.config)
        point.check(self.config)
        self._check_quantities()
        check_served([self.quantity(name) for name in self.config.quantities], self.blocks)
        for name in self.config.quantities:
            self.quantity(name).check(self.config, self.layout)
            self.science(name)

    def _check_quantities(self) -> None:
        names = self.config.quantities
        if not names or len({self.quantity(name).name for name in names}) < len(names):
            raise UserError(
                "quantities: each is named once",
                got=names,
                allowed="a list of names",
                remedy="for example quantities=[frobenius,trace]",
            )

    @staticmethod
    def _label(sigma: float | None, seed: int) -> str:
        return f"seed={seed}" if sigma is None else f"sigma={sigma!r}, seed={seed}"

    @cached_property
    def _known(self) -> dict[str, str]:
        """What was returned in earlier runs, if that is to be trusted."""
        folder = Path(self.config.output_dir) / self.config.sweep.name
        return read_met(folder) if self.config.reuse == Reuse.sources else {}

    @cached_property
    def _network(self) -> dict[str, Any]:
        plain = in_key(replace(self.config, model=with_defaults(self.config.model)))
        narrow = {"float32": FLOAT32_VERSION} if self.config.dtype == DType.float32 else {}
        return {
            "algorithm": ALGORITHM_VERSION,
            "task": plain["task"],
            "model": plain["model"],
            "source": kind(self.config.model.kind).source(self.config),
            "state": point.science(self.config),
            "dtype": plain["dtype"],
            "device": self.config.device.partition(":")[0],
            **narrow,
        }


def setups_of(variants: Variants) -> list[Setup]:
    """Return the variants ready to be planned, as they are if they were before.

    Raises UserError for the first thing that cannot be had.
    """
    return _checked([one if isinstance(one, Setup) else Setup(one[0], point.pinned(one[1])) for one in variants])


def read_met(folder: Path) -> dict[str, str]:
    """Return what `note_met` left in the folder of a sweep."""
    try:
        found = read_checked(folder / MET)["networks"]
        return {str(label): str(content) for label, content in found.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return {}


def note_met(folder: Path, setups: list[Setup]) -> None:
    """Keep, beside the table, what the user's code returned in this run and those before."""
    met = {label: content for setup in setups for label, content in setup.met().items()}
    if met:
        content = {"networks": {**read_met(folder), **met}}
        write_text(folder / MET, json.dumps({**content, CHECKSUM: checksum(content)}, indent=1) + "\n")


def _checked(setups: list[Setup]) -> list[Setup]:
    check_number(setups)
    for setup in setups:
        setup.check()
    check_distinct(setups)
    check_cost(setups)
    return setups


def nothing_settled(setup: Setup, sigma: float | None) -> Mapping[str, int]:
    """Settle nothing: no pilots were needed, or none are finished."""
    return {}


def plan(setups: list[Setup], settled: Settled = nothing_settled) -> list[Cell]:
    """Return the cells of a sweep, repeat by repeat, so that an early stop leaves whole curves."""
    return list(_cells(setups, settled))


def _cells(setups: list[Setup], settled: Settled) -> Iterator[Cell]:
    for seed in setups[0].seeds():
        for setup in setups:
            for sigma, step in product(setup.sigmas(), setup.steps()):
                for name in setup.config.quantities:
                    chosen = settled(setup, sigma) if name == FROBENIUS else {}
                    yield Cell(setup, sigma, seed, name, chosen, step)
