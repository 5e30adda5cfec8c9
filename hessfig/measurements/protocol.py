"""What a quantity is: a name, what it enters a cell's key with, what it costs, and how it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hessfig.config import Config, DType, EstimatorConfig, ModelConfig, SpectrumConfig
from hessfig.models.protocol import Layout
from hessfig.terms import Block, Part

if TYPE_CHECKING:
    from torch import Generator

    from hessfig.curvature.problem import Problem

Row = dict[str, Any]
Arrays = dict[str, Any]


@dataclass(frozen=True)
class At:
    """Where a network stands, for quantities that ask more than its weights: its settings, sigma, seed and step."""

    config: Config
    sigma: float | None = None
    seed: int = 0
    step: int | None = None


@dataclass(frozen=True)
class Request:
    """What is asked of a network: which blocks and parts, by which estimator, from whose streams.

    `model` holds the settings of the network, for engines that know its kind. `stream` returns the generator of a
    column's probes. `settled` is what pilots settled for this cell (see Quantity.pilots); `spectrum` is how eigenvalues
    are found; `at` is the place the cell is about.
    """

    blocks: Sequence[Block]
    parts: Sequence[Part]
    estimator: EstimatorConfig
    model: ModelConfig
    dtype: DType
    stream: Callable[[int, str], Generator]
    settled: Mapping[str, Any] = field(default_factory=dict)
    at: At = field(default_factory=lambda: At(Config()))
    spectrum: SpectrumConfig = field(default_factory=SpectrumConfig)


@dataclass(frozen=True)
class Measured:
    """Rows of the table (what they share is filled in: see `row_of`), and arrays to be kept beside them."""

    rows: list[Row]
    arrays: Arrays = field(default_factory=dict)


def every_block(block: Block) -> bool:
    """Serve every block."""
    del block
    return True


def no_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Depend on nothing beside network, task and state."""
    del config, layout
    return {}


def no_check(config: Config, layout: Layout) -> None:
    """Accept all settings."""
    del config, layout


def no_estimate(config: Config, layout: Layout) -> float:
    """Estimate nothing: the first cells will tell."""
    del config, layout
    return 0.0


@dataclass(frozen=True)
class Quantity:
    """A number (or several) of a network at a state. A module or folder of hessfig.measurements holds one as QUANTITY.

    `measure` returns rows and arrays; `settings` what enters the key of a cell; `check` raises UserError for settings
    that cannot be measured, before anything is; `operations` counts floating-point operations of a cell, roughly.
    `serves` says which blocks have this quantity: asked for beside others, it is measured for those.
    `version` is part of the key: a change that moves numbers counts it up. `gives` names the rows, where they are not
    of the quantity's own name: two quantities that give the same are not measured side by side.
    """

    name: str
    measure: Callable[[Problem, Request], Measured]
    settings: Callable[[Config, Layout], dict[str, Any]] = no_settings
    check: Callable[[Config, Layout], None] = no_check
    operations: Callable[[Config, Layout], float] = no_estimate
    serves: Callable[[Block], bool] = every_block
    version: int = 1
    gives: tuple[str, ...] = ()

    @property
    def rows(self) -> tuple[str, ...]:
        """The names its rows have in the table."""
        return self.gives or (self.name,)


def row_of(block: Block | None = None, **columns: Any) -> Row:
    """Return a row of the table about `block` (None: about the whole network); index and error may be left out."""
    place: Row = {"layer": 0, "row_layer": 0, "row": "", "col": ""}
    if block is not None:
        place = {
            "layer": block.layer,
            "row_layer": block.row_layer,
            "row": str(block.row),
            "col": str(block.col),
        }
    return {**place, "part": "", "index": None, "error": None, "num_probes": 0, **columns}
