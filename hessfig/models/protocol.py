"""The interface that every kind of network provides to the rest of the package.

Only the standard library is imported, because plans and previews need names and sizes,
not tensors.
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


ONCE = "once "  # prefix of the hash of a function whose results cannot be reused; such a hash is unique


class Structure(StrEnum):
    """Network structures with exact norms, operation counts and spreads of scores.

    Causal layers of attention and MLP, a single attention, or linear maps of single
    tokens.
    """

    layers = "layers"
    attention = "attention"
    tokens = "tokens"


class Draw(StrEnum):
    """Distribution of initial weights.

    As in the paper: N(0, 0.64 / d_model), N(0, 0.64 / inputs), or the uniform default
    of PyTorch. Also N(0, 2 / inputs), which preserves the scale of activations through
    many layers of ReLU (arXiv 1502.01852).
    """

    width = "width"
    inputs = "inputs"
    uniform = "uniform"
    relu = "relu"


@dataclass(frozen=True)
class NetworkKind:
    """A kind of network, `hessfig.models.kinds.<kind>.KIND`; every field below `layout` has a default.

    `layout` names the weights of the configured network. A kind has either a `skeleton`
    (an uninitialised network for sequences of a given length, whose weights are drawn
    as in the paper, see states.initialised) or a function `draw` (network, data and
    loss from sigma and seed). `check` raises UserError for settings that cannot be
    built. `axes` returns which of sigma and seed change the network.
    `is_structural_zero` returns whether a block vanishes by the structure of the
    network. `files` is a hash of the present files behind model.path or model.factory;
    planning stores it in model.sha256, and other files are refused later. `source` is a
    hash of code and files of the user, for keys of cells. `is_own` is true if the
    user's code creates network, data and loss; a cell is then reused only if that code
    returns the same objects (see sweep.own_content). `about` describes how the data are
    stored, for previews and manifests; `product_bytes` estimates the memory of a
    product, for previews (None: not known). `completed` fills in settings of locations,
    before any file is read.

    Facts about the kind: `data` is the task.data it takes, and `also_takes` lists
    further data. `place` is the setting with the source of the network, for kinds that
    bring their own sizes ("" if sizes are settings). `matrices` returns the weights of
    the paper that it has, in order. `reads` maps the settings of the group model that
    it reads to the conditions under which it reads them (as SettingInfo.where; "" for
    always). `weights_drawn` gives the distribution of weights of a skeleton.
    `structure` is None for networks that have only double backward. `check_model`
    raises UserError for settings of the network that do not fit together, before
    anything is planned.
    """

    layout: Callable[[Config], Layout]
    skeleton: Callable[[Config], nn.Module] | None = None
    draw: Callable[[Config, float | None, int], Objective] | None = None
    check: Callable[[Config], None] = lambda config: None
    axes: Callable[[Config], frozenset[str]] = lambda config: frozenset(
        {"sigma", "seed"}
    )
    is_structural_zero: Callable[[ModelConfig, Block, Part], bool] = (
        lambda model, block, part: False
    )
    files: Callable[[Config], str] = lambda config: ""
    source: Callable[[Config], str] = lambda config: ""
    is_own: bool = False
    about: Callable[[Config], str] = lambda config: ""
    product_bytes: Callable[[Config], float | None] = lambda config: None
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
        """All task.data that the kind takes, the default first."""
        return (self.data, *self.also_takes)

    @property
    def has_scores(self) -> bool:
        """Whether its attention scores can be computed."""
        return self.structure in (Structure.layers, Structure.attention)


def built(
    name: str, sizes: Callable[[Config], dict[str, int]] = lambda config: {}
) -> Callable[[Config], nn.Module]:
    """Return the skeleton of a class in hessfig.models.networks, which is imported when a network is built."""

    def skeleton(config: Config) -> nn.Module:
        kind_of_network = getattr(import_module("hessfig.models.networks"), name)
        network: nn.Module = kind_of_network(config.model, **sizes(config))
        return network

    return skeleton


def kinds() -> list[str]:
    """Return the names of all kinds, without importing them."""
    return [module.name for module in pkgutil.iter_modules(folder.__path__)]


def kinds_where(fact: Callable[[NetworkKind], bool]) -> list[str]:
    """Return the names of the kinds for which `fact` is true, shipped kinds first and in their order."""
    shipped = [name.value for name in Shipped]
    matching = [name for name in kinds() if fact(kind(name))]
    return sorted(
        matching,
        key=lambda name: (
            shipped.index(name) if name in shipped else len(shipped),
            name,
        ),
    )


@cache
def kind(name: str) -> NetworkKind:
    """Return the kind called `name`. Raises UserError if there is none."""
    known = kinds()
    if name not in known:
        otherwise = "your own: model=python model.factory=FILE.py:FUNCTION"
        raise unknown_name(
            "model.kind: there is no such kind of network", name, known, otherwise
        )
    record = import_module(f"{folder.__name__}.{name}").KIND
    assert isinstance(record, NetworkKind)
    return record
