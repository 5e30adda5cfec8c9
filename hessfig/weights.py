"""Named weights of a network, each a view of a parameter, and the groups that they form.

Standard library only: plans and previews need names and sizes, not tensors.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from hessfig.terms import Group

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
        groups = [group.value for group in Group if self.layers_of(group.value)]
        return [name for name in dict.fromkeys([*further, *groups]) if name not in self.names]

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
        members = self.members(layer, name) or self.members(0, name)
        if not members:
            raise KeyError(f"there is no weight {name} in layer {layer}")
        return members

    def size(self, layer: int, name: str) -> int:
        """Return the entries of one side of a block: its dimension."""
        return sum(weight.size for weight in self.side(layer, name))

    @cached_property
    def _by_layer(self) -> dict[int, tuple[Weight, ...]]:
        by_layer: dict[int, list[Weight]] = {}
        for weight in self.weights:
            by_layer.setdefault(weight.layer, []).append(weight)
        return {layer: tuple(weights) for layer, weights in by_layer.items()}

    @cached_property
    def _layers(self) -> dict[str, list[int]]:
        """The layers of every name, in order: found once, for a network may have thousands of layers."""
        names = [*(group.value for group in Group), *(weight.name for weight in self.weights)]
        layers: dict[str, list[int]] = {name: [] for name in names}
        for layer in sorted({0, *self._by_layer}):
            here = self._by_layer.get(layer, ())
            for name in {*Group, *(weight.name for weight in here)}:
                if self.members(layer, name):
                    layers[str(name)].append(layer)
        return layers


def bias_of(name: str, parameter: str, size: int, layer: int = 0, *groups: Group) -> Weight:
    """Return the bias that goes with the weight called `name`: that of W_V is b_V."""
    named_groups = tuple(group.value for group in (*groups, Group.biases))
    return Weight(name.replace("W", "b", 1), parameter, size, layer, named_groups, is_main=False)


def norm_of(
    name: str, place: str, size: int, layer: int = 0, paths: Iterable[str] = ("weight", "bias")
) -> list[Weight]:
    """Return gain and shift of the LayerNorm at `place`; `paths` are its parameters, as far as there are any."""
    groups = (Group.norms.value,)
    named = zip(("gain", "shift"), paths, strict=False)
    return [Weight(f"{name}_{word}", f"{place}.{path}", size, layer, groups, is_main=False) for word, path in named]


def every_parameter(named: Iterable[tuple[str, int]]) -> Layout:
    """Return the layout of an unknown network: every parameter by its own name, none in a layer."""
    whole = tuple(Weight(name, name, size) for name, size in named)
    return Layout(whole, whole)
