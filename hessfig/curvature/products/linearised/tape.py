"""The network as a list of steps: tangents forward from perturbed weights, cotangent tangents back to others."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.products.linearised.narrow import narrow
from hessfig.curvature.products.linearised.node import Node, Tangent, plus
from hessfig.curvature.products.linearised.weights import Holder, Probes

Weight = tuple[int, str]
Tangents = dict[str, Tangent]


class Tape:
    """Steps in order of evaluation; the last one's output is the scored output f.

    `record` stores the cotangents of the linearised loss <dl/df, f>, which H_f needs, once for all products.
    `holders` are the steps that hold weights, `names` the modules' own names for these.
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.holders: dict[Weight, Holder] = {}
        self.names: dict[Weight, str] = {}
        self.values: dict[str, Tensor] = {}

    def add(self, node: Node, weights: Mapping[str, Weight] | None = None) -> str:
        """Append a step, which holds `weights` (by its module's names for them); return the name of its output."""
        self.nodes.append(node)
        self.values[node.output] = node.value
        for name, weight in (weights or {}).items():
            assert isinstance(node, Holder)
            if name in node.parameters:
                self.holders[weight], self.names[weight] = node, name
        return node.output

    def parameter(self, weight: Weight) -> Tensor:
        """Return the parameter behind a weight."""
        return self.holders[weight].parameters[self.names[weight]]

    @property
    def output(self) -> Tensor:
        return self.nodes[-1].value

    def record(self, gradient: Float[Tensor, "batch scored vocab"]) -> None:
        """Store dl/dy at every step, with dl/df = `gradient` held fixed."""
        bars: Tangents = {self.nodes[-1].output: gradient.unsqueeze(2)}
        for node in reversed(self.nodes):
            bar = bars.pop(node.output)
            assert bar is not None
            node.cotangent = bar.squeeze(2)
            needed = [True] * len(node.inputs)
            _accumulate(bars, node, node.pull_back(bar, None, needed))

    def narrow(self, dtype: torch.dtype) -> None:
        """Let products run in `dtype`; the output stays as it was recorded."""
        output = self.output
        for node in self.nodes:
            narrow(node, dtype)
            self.values[node.output] = node.value
        self.nodes[-1].value = output

    def push(self, dw: Mapping[Weight, Probes]) -> Tangents:
        """Return the tangents of all variables for perturbed weights `dw`."""
        tangents: Tangents = {}
        for weight, probes in dw.items():
            self.holders[weight].perturbed[self.names[weight]] = probes
        reached = self.reach(dw)
        for node in self.nodes:
            if node.output in reached:
                tangents[node.output] = node.push([tangents.get(name) for name in node.inputs])
        return tangents

    def pull_back(
        self, df_bar: Tangent, tangents: Tangents | None, rows: Collection[Weight]
    ) -> dict[Weight, Probes | None]:
        """Return the weight products of `rows`; with `tangents`, those of H_f (second-order terms added)."""
        reached, products, held = self.reach(rows), {}, defaultdict[str, list[Weight]](list)
        for row in rows:
            held[self.holders[row].output].append(row)
        bars: Tangents = {self.nodes[-1].output: df_bar}
        for node in reversed(self.nodes):
            if node.output not in reached:
                continue
            bar = bars.pop(node.output, None)
            dxs = None if tangents is None else [tangents.get(name) for name in node.inputs]
            for row in held.get(node.output, ()):
                products[row] = self.holders[row].weight_product(self.names[row], bar, dxs)
            needed = [name in reached for name in node.inputs]
            if any(needed):
                _accumulate(bars, node, node.pull_back(bar, dxs, needed))
        return products

    def release(self, dw: Collection[Weight]) -> None:
        """Forget the perturbation of weights `dw`."""
        for weight in dw:
            del self.holders[weight].perturbed[self.names[weight]]

    def reach(self, weights: Collection[Weight]) -> set[str]:
        """Return the variables that depend on `weights`."""
        reached = {self.holders[weight].output for weight in weights}
        for node in self.nodes:
            if reached.intersection(node.inputs):
                reached.add(node.output)
        return reached


def _accumulate(bars: Tangents, node: Node, contributions: list[Tangent]) -> None:
    for name, contribution in zip(node.inputs, contributions, strict=True):
        bars[name] = plus(bars.get(name), contribution)


def zeros_like_weight(weight: Tensor, k: int, dtype: torch.dtype) -> Probes:
    """Return the product of a row that nothing reaches."""
    return torch.zeros(k, *weight.shape, dtype=dtype, device=weight.device)
