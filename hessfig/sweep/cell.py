"""A cell: one quantity of one network at one state, keyed by what changes its numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hessfig.config import Config
from hessfig.record import FROBENIUS, digest

if TYPE_CHECKING:
    from hessfig.sweep.plan import Setup


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
        return {
            **self.setup.science(self.quantity),
            "sigma": self.sigma,
            "seed": self.seed,
            **step,
            **settled,
            **own,
        }

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
