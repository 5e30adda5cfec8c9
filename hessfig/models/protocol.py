"""What a kind of networks offers to the rest of the house.

Standard library only: plans and previews need names and sizes, not tensors.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

from hessfig.config.enums import Data
from hessfig.errors import unknown_name
from hessfig.models import kinds as folder
from hessfig.terms import Block, Matrix, Part
from hessfig.terms import Kind as Shipped
from hessfig.weights import Layout

if TYPE_CHECKING:
    from torch import nn

    from hessfig.config.schema import Config
    from hessfig.config.science import ModelConfig
    from hessfig.curvature.problem import Objective


ONCE = "once "  # how the hash of a function begins of which nothing can be reused: nothing else ever has it


class Structure(StrEnum):
    """Networks whose structure the exact engine, the counts of operations and the spread of scores know.

    Causal layers of attention and MLP, one attention alone, or linear maps of single tokens.
    """

    layers = "layers"
    attention = "attention"
    tokens = "tokens"


class Draw(StrEnum):
    """How a weight is drawn: N(0, 0.64 / d_model), N(0, 0.64 / its inputs), or PyTorch's uniform default, as the paper
    does; N(0, 2 / its inputs), which keeps the scale of activations through many layers of ReLU (arXiv 1502.01852)."""

    width = "width"
    inputs = "inputs"
    uniform = "uniform"
    relu = "relu"


@dataclass(frozen=True)
class NetworkKind:
    """A kind of networks. `hessfig.models.kinds.<kind>.KIND` is one; everything below `layout` has an honest default.

    `layout` names the weights of the configured network. Give either `skeleton` (an uninitialised network for
    sequences of a length; weights are then drawn as the paper draws them, see states.initialised) or `draw` (network,
    data and loss from sigma and seed, for kinds that make all of it themselves). `check` raises UserError for
    settings that cannot be built. `axes` says which of sigma and seed change the network. `is_structural_zero` says
    which blocks vanish by the shape of the network. `files` is a hash of the files behind model.path or model.factory
    as they are now: planning keeps it in model.sha256, and readers refuse others. `source` tells code and files of the
    user's own apart, for cells' keys. `is_own`: the user's code makes network, data and loss, so that a cell is reused
    only if what it returns is what it was (see sweep.own_content). `about` says how the data are held, for previews and
    manifests. `completed` fills in settings that say where something is, before any file is read.

    What is true of the kind: `data` is the task.data it takes, `also_takes` is further data. `place` is the setting
    that says what it is made of, for kinds that bring their own sizes ("" where settings are the sizes). `matrices` are
    the paper's weights that it has, in order. `reads` are the settings of the group model that it reads, each with the
    settings under which it does (as SettingInfo.where; "" always). `weights_drawn` says how weights are drawn from the
    skeleton. `structure` is None for networks that only double backward knows. `check_model` raises UserError for
    settings of the network that do not fit together, before anything is planned.
    """

    layout: Callable[[Config], Layout]
    skeleton: Callable[[Config], nn.Module] | None = None
    draw: Callable[[Config, float | None, int], Objective] | None = None
    check: Callable[[Config], None] = lambda config: None
    axes: Callable[[Config], frozenset[str]] = lambda config: frozenset({"sigma", "seed"})
    is_structural_zero: Callable[[ModelConfig, Block, Part], bool] = lambda model, block, part: False
    files: Callable[[Config], str] = lambda config: ""
    source: Callable[[Config], str] = lambda config: ""
    is_own: bool = False
    about: Callable[[Config], str] = lambda config: ""
    completed: Callable[[Config], Config] = lambda config: config
    data: Data = Data.addition
    also_takes: tuple[Data, ...] = ()
    place: str = ""
    matrices: Callable[[ModelConfig], list[Matrix]] = lambda model: []
    reads: Mapping[str, str | tuple[str, ...]] = field(default_factory=dict)
    weights_drawn: Draw = Draw.width
    structure: Structure | None = None
    check_model: Callable[[ModelConfig], None] = lambda model: None

    @property
    def takes(self) -> tuple[Data, ...]:
        """Every task.data it takes, the usual one first."""
        return (self.data, *self.also_takes)

    @property
    def has_scores(self) -> bool:
        """Whether its attention scores can be seen."""
        return self.structure in (Structure.layers, Structure.attention)


def kinds() -> list[str]:
    """Return the names of all kinds, without importing one."""
    return [module.name for module in pkgutil.iter_modules(folder.__path__)]


def kinds_where(fact: Callable[[NetworkKind], bool]) -> list[str]:
    """Return the names of the kinds of which `fact` is true, the shipped ones in their order."""
    shipped = [name.value for name in Shipped]
    matching = [name for name in kinds() if fact(kind(name))]
    return sorted(matching, key=lambda name: (shipped.index(name) if name in shipped else len(shipped), name))


@cache
def kind(name: str) -> NetworkKind:
    """Return the kind called `name`. Raises UserError when there is none."""
    known = kinds()
    if name not in known:
        otherwise = "your own: model=python model.factory=FILE.py:FUNCTION"
        raise unknown_name("model.kind: there is no such kind of network", name, known, otherwise)
    record = import_module(f"{folder.__name__}.{name}").KIND
    assert isinstance(record, NetworkKind)
    return record
