"""What a network is to the rest of the house: named weights, each a view of a parameter; and what its kind offers.

Standard library only: plans and previews need names and sizes, not tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import Data
from hessfig.terms import Block, Group, Matrix, Part

if TYPE_CHECKING:
    from torch import nn

    from hessfig.config import Config, ModelConfig
    from hessfig.tasks.batch import Batch


ONCE = "once "  # how the hash of a function begins of which nothing can be reused: nothing else ever has it
SMALL = 2**16  # parameters of a network, up to which a product costs little beside its start


@dataclass(frozen=True)
class Weight:
    """A named weight of `layer` (1-based; 0: outside the layers): `parameter`, or parameter[index] for a view.

    `size` counts its entries, `groups` are those it belongs to. Weights that are not `is_main` (biases, gains of
    norms) are reached by name and through groups, but are left out where every weight is meant. `axes`: the lengths
    that the parameter's first axis is taken apart into before it is indexed. `is_finer` tells a part of another named
    weight (a head), which belongs to no group. `is_below`: outside the layers, it acts before the first one, as
    embeddings do.
    """

    name: str
    parameter: str
    size: int
    layer: int = 0
    groups: tuple[str, ...] = ()
    index: Any = None
    is_main: bool = True
    axes: tuple[int, ...] = ()
    is_finer: bool = False
    is_below: bool = False


@dataclass(frozen=True)
class Layout:
    """The weights of a network in the order of its parameters, and the groups they form.

    Weights that share name and layer form a group of that name. `parameters`: every parameter once, which is what
    the group `all` means where `weights` are views, or not all there is. `shared`: weights of a layer under different
    names that have entries in common, so that the layer as a group would count these twice.
    """

    weights: tuple[Weight, ...]
    parameters: tuple[Weight, ...] = ()
    shared: tuple[tuple[Weight, Weight], ...] = ()

    @property
    def num_layers(self) -> int:
        return max((weight.layer for weight in self.weights), default=0)

    @property
    def is_small(self) -> bool:
        """Whether the network has at most SMALL parameters."""
        return sum(weight.size for weight in self.members(0, Group.all)) <= SMALL

    @property
    def names(self) -> list[str]:
        """The main weights by name, in order."""
        return list(dict.fromkeys(weight.name for weight in self.weights if weight.is_main))

    @property
    def others(self) -> list[str]:
        """Further names a block may use: the other weights, then the groups."""
        further = [weight.name for weight in self.weights if not weight.is_main]
        return [name for name in dict.fromkeys([*further, *self._groups]) if name not in self.names]

    def layers_of(self, name: str) -> list[int]:
        """Return the layers that have a weight or group of this name; 0 stands for 'outside the layers'."""
        return list(self._layers.get(name, ()))

    def has_layer(self, name: str) -> bool:
        """Whether the layers have this weight, each its own."""
        return self.layers_of(name) != [0]

    def members(self, layer: int, name: str) -> tuple[Weight, ...]:
        """Return the weights behind a name in `layer`: one weight, or those of a group; none if it has no such name."""
        here = self._by_layer.get(layer, ())
        named = tuple(weight for weight in here if weight.name == name)
        if named or name not in list(Group):
            return named
        if name == Group.all:
            return (self.parameters or self.weights) if layer == 0 else ()
        if name == Group.layer:
            return tuple(weight for weight in here if not weight.is_finer) if layer else ()
        return tuple(weight for weight in here if name in weight.groups)

    def side(self, layer: int, name: str) -> tuple[Weight, ...]:
        """Return the weights of one side of a block of `layer`: those of that layer, or of none.

        Raises KeyError when there are none.
        """
        found = self.members(layer, name) or self.members(0, name)
        if not found:
            raise KeyError(f"there is no weight {name} in layer {layer}")
        return found

    def size(self, layer: int, name: str) -> int:
        """Return the entries of one side of a block: its dimension."""
        return sum(weight.size for weight in self.side(layer, name))

    @property
    def _groups(self) -> list[str]:
        return [group.value for group in Group if self.layers_of(group.value)]

    @cached_property
    def _by_layer(self) -> dict[int, tuple[Weight, ...]]:
        found: dict[int, list[Weight]] = {}
        for weight in self.weights:
            found.setdefault(weight.layer, []).append(weight)
        return {layer: tuple(weights) for layer, weights in found.items()}

    @cached_property
    def _layers(self) -> dict[str, list[int]]:
        """The layers of every name, in order: found once, for a network may have thousands of layers."""
        names = [*(group.value for group in Group), *(weight.name for weight in self.weights)]
        found: dict[str, list[int]] = {name: [] for name in names}
        for layer in sorted({0, *self._by_layer}):
            here = self._by_layer.get(layer, ())
            for name in {*Group, *(weight.name for weight in here)}:
                if self.members(layer, name):
                    found[str(name)].append(layer)
        return found


@dataclass(frozen=True)
class Drawn:
    """A network at a point of weight space, with data and loss; `more` batches follow the first.

    `decay` / 2 |w|^2, over every parameter w, is added to the loss (task.weight_decay).
    """

    network: nn.Module
    batch: Batch
    loss: nn.Module
    layout: Layout
    more: tuple[Batch, ...] = ()
    decay: float = 0.0


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
class Kind:
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
    the paper's weights that it has, in order. `has_norms`, `has_sink`: whether model.norm and model.sink mean
    something. `weights_drawn` says how weights are drawn from the skeleton. `structure` is None for networks that only
    double backward knows. `components` are the settings beyond the paper's network that it reads (see
    hessfig.models.blocks.components). `check_model` raises UserError for settings of the network that do not fit
    together, before anything is planned.
    """

    layout: Callable[[Config], Layout]
    skeleton: Callable[[Config], nn.Module] | None = None
    draw: Callable[[Config, float | None, int], Drawn] | None = None
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
    has_norms: bool = False
    has_sink: bool = False
    weights_drawn: Draw = Draw.width
    structure: Structure | None = None
    components: tuple[str, ...] = ()
    check_model: Callable[[ModelConfig], None] = lambda model: None

    @property
    def takes(self) -> tuple[Data, ...]:
        """Every task.data it takes, the usual one first."""
        return (self.data, *self.also_takes)

    @property
    def has_scores(self) -> bool:
        """Whether its attention scores can be seen."""
        return self.structure in (Structure.layers, Structure.attention)


def bias_of(name: str, parameter: str, size: int, layer: int = 0, *groups: Group) -> Weight:
    """Return the bias that goes with the weight called `name`: that of W_V is b_V."""
    held = tuple(group.value for group in (*groups, Group.biases))
    return Weight(name.replace("W", "b", 1), parameter, size, layer, held, is_main=False)


def norm_of(
    name: str, place: str, size: int, layer: int = 0, paths: Iterable[str] = ("weight", "bias")
) -> list[Weight]:
    """Return gain and shift of the LayerNorm at `place`; `paths` are its parameters, as far as there are any."""
    held = (Group.norms.value,)
    named = zip(("gain", "shift"), paths, strict=False)
    return [Weight(f"{name}_{word}", f"{place}.{path}", size, layer, held, is_main=False) for word, path in named]


def every_parameter(named: Iterable[tuple[str, int]]) -> Layout:
    """Return the layout of an unknown network: every parameter by its own name, none in a layer."""
    whole = tuple(Weight(name, name, size) for name, size in named)
    return Layout(whole, whole)
