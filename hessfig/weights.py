"""Named weights of a network, each a view of a parameter, and the groups that they form.

Standard library only: plans and previews need names and sizes, not tensors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hessfig.terms import Group

# Number of parameters up to which the cost of a product is mostly overhead.
SMALL = 2**16


@dataclass(frozen=True)
class Weight:
    """A named weight of `layer` (1-based; 0: outside the layers): `parameter`, or parameter[index] for a view.

    `size` is the number of entries, `groups` are the groups that contain the weight.
    Weights that are not `is_main` (biases, gains of norms) are selected by name and by
    groups, but not by "every weight". `axes` are the lengths into which the first axis
    of the parameter is split before it is indexed. `is_finer` marks a part of another
    named weight (a head), which belongs to no group.
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


@dataclass(frozen=True)
class Layout:
    """The weights of a network in the order of its parameters, and the groups they form.

    Weights with the same name and layer form a group of that name. `parameters` holds
    every parameter once; it is the group `all` if `weights` are views or incomplete.
    `shared` lists weights of a layer under different names with common entries, which
    the layer as a group would count twice. `empty` lists parameters without entries,
    which are in no block.
    """

    weights: tuple[Weight, ...]
    parameters: tuple[Weight, ...] = ()
    shared: tuple[tuple[Weight, Weight], ...] = ()
    empty: tuple[str, ...] = ()

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
        return list(
            dict.fromkeys(weight.name for weight in self.weights if weight.is_main)
        )

    @property
    def others(self) -> list[str]:
        """Further names for sides of blocks: the other weights, then the groups."""
        further = [weight.name for weight in self.weights if not weight.is_main]
        groups = [group.value for group in Group if self.layers_of(group.value)]
        return [
            name
            for name in dict.fromkeys([*further, *groups])
            if name not in self.names
        ]

    def layers_of(self, name: str) -> list[int]:
        """Return the layers with a weight or group of this name; 0 means outside the layers."""
        return list(self._layers.get(name, ()))

    def has_layer(self, name: str) -> bool:
        """Whether the weight exists in layers."""
        return self.layers_of(name) != [0]

    def members(self, layer: int, name: str) -> tuple[Weight, ...]:
        """Return the weights of this name in `layer`: a single weight, or those of a group; empty if there are none."""
        here = self._by_layer.get(layer, ())
        named = tuple(weight for weight in here if weight.name == name)
        if named or name not in list(Group):
            return named
        if name == Group.all:
            return (self.parameters or self.weights) if layer == 0 else ()
        if name == Group.layer:
            if layer:
                return tuple(weight for weight in here if not weight.is_finer)
            return ()
        return tuple(weight for weight in here if name in weight.groups)

    def side(self, layer: int, name: str) -> tuple[Weight, ...]:
        """Return the weights of one side of a block of `layer`: those of the layer, otherwise those outside the layers.

        Raises KeyError if there are none.
        """
        members = self.members(layer, name) or self.members(0, name)
        if not members:
            raise KeyError(f"there is no weight {name} in layer {layer}")
        return members

    def size(self, layer: int, name: str) -> int:
        """Return the number of entries of one side of a block."""
        return sum(weight.size for weight in self.side(layer, name))

    @cached_property
    def _by_layer(self) -> dict[int, tuple[Weight, ...]]:
        by_layer: dict[int, list[Weight]] = {}
        for weight in self.weights:
            by_layer.setdefault(weight.layer, []).append(weight)
        return {layer: tuple(weights) for layer, weights in by_layer.items()}

    @cached_property
    def _layers(self) -> dict[str, list[int]]:
        """The layers of every name in order, computed once because a network may have thousands of layers."""
        names = [
            *(group.value for group in Group),
            *(weight.name for weight in self.weights),
        ]
        layers: dict[str, list[int]] = {name: [] for name in names}
        for layer in sorted({0, *self._by_layer}):
            here = self._by_layer.get(layer, ())
            for name in {*Group, *(weight.name for weight in here)}:
                if self.members(layer, name):
                    layers[str(name)].append(layer)
        return layers


def bias_of(
    name: str, parameter: str, size: int, layer: int = 0, *groups: Group
) -> Weight:
    """Return the bias that belongs to the weight `name`: b_V for W_V."""
    named_groups = tuple(group.value for group in (*groups, Group.biases))
    return Weight(
        name.replace("W", "b", 1), parameter, size, layer, named_groups, is_main=False
    )


def norm_of(
    name: str,
    place: str,
    size: int,
    layer: int = 0,
    paths: Iterable[str] = ("weight", "bias"),
) -> list[Weight]:
    """Return gain and shift of the LayerNorm at `place`; `paths` are the paths of its parameters, if any."""
    groups = (Group.norms.value,)
    named = zip(("gain", "shift"), paths, strict=False)
    return [
        Weight(f"{name}_{word}", f"{place}.{path}", size, layer, groups, is_main=False)
        for word, path in named
    ]


def every_parameter(named: Iterable[tuple[str, int]]) -> Layout:
    """Return the layout of an unknown network: every parameter under its own name, outside the layers."""
    whole = tuple(Weight(name, name, size) for name, size in named)
    return Layout(whole, whole)
