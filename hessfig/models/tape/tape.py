"""The linearised tape: nodes, weights, and the sweeps of tangents up and cotangents down."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor, nn


def narrow(node: Node, dtype: torch.dtype) -> None:
    """Cast what a step multiplies tangents with to `dtype`, but for what its class lists as `sharp`.

    A float32 network is another one where attention saturates: at sigma = 10 its scores are rounded by more than 1, and
    1 - p is lost where a weight p is almost 1. So values and cotangents are found in float64, the Jacobian of the
    softmax stays in it, and only linear maps are narrow: products are those of the float64 network to float32's
    rounding (docs/accuracy.md).
    """
    for name, attribute in vars(type(node)).items():
        if isinstance(attribute, cached_property):
            getattr(node, name)
    sharp = (*getattr(node, "sharp", ()), "parameters", "perturbed")
    for name, value in vars(node).items():
        if name not in sharp:
            setattr(node, name, _cast(value, dtype))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    if isinstance(value, tuple):
        return tuple(_cast(one, dtype) for one in value)
    is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
    return value.detach().to(dtype) if is_number else value


_CPU = Path("/proc/cpuinfo")  # of Linux


def _is_intel(cpu: Path) -> bool:
    """Whether the first processor is Intel's."""
    return cpu.exists() and "GenuineIntel" in cpu.read_text(errors="replace").partition("\n\n")[0]


# MKL, behind `@`, takes narrow kernels on processors of other makers; oneDNN, in the same torch, the widest there are.
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_BY_ONEDNN = _HAS_ONEDNN and not _is_intel(_CPU)


def times_transposed(rows: Float[Tensor, "*n k"], matrix: Float[Tensor, "m k"]) -> Float[Tensor, "*n m"]:
    """Return rows matrix^T.

    Float32 on the CPU goes to oneDNN, in full precision: 2.3 times MKL's rate on an AMD EPYC, and 0.9 times it on an
    Intel Xeon, which keeps MKL (docs/performance.md). It knows no float64.
    """
    if not _goes_to_onednn(rows):
        return rows @ matrix.T
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, None, "none", [], "")
    return product


def _goes_to_onednn(rows: Tensor) -> bool:
    return _BY_ONEDNN and rows.dtype == torch.float32 and rows.device.type == "cpu"


Tangent = Tensor | None


@runtime_checkable
class Node(Protocol):
    """One step; `inputs` and `output` name variables of the tape, `value` is the output at the point.

    `cotangent` is set once, by `Tape.record`, before anything is multiplied; what follows from it may be kept.
    """

    inputs: tuple[str, ...]
    output: str
    value: Tensor
    cotangent: Tensor | None

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return the tangent of the output."""

    def pull_back(self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]) -> list[Tangent]:
        """Return the tangents of the inputs' cotangents (None where not `needed`)."""


class Step:
    """What the steps have in common: the cotangent of the output, once it is recorded."""

    cotangent: Tensor | None = None

    @property
    def y_bar(self) -> Float[Tensor, "batch length 1 d"]:
        """The recorded cotangent, with the axis that tangents have."""
        assert self.cotangent is not None
        return self.cotangent.unsqueeze(2)


def plus(a: Tangent, b: Tangent) -> Tangent:
    """Add, where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b


Probes = Float[Tensor, "k *weight"]
WEIGHT, BIAS = "weight", "bias"


@runtime_checkable
class Holder(Node, Protocol):
    """A step with parameters of its own: those of its module, under the module's names for them.

    `perturbed` holds the tangents of those that are perturbed, while they are.
    """

    parameters: dict[str, Tensor]
    perturbed: dict[str, Probes]

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of the cotangent of parameter `name`, summed over batch and positions."""


class LinearMap(Step):
    """y = x W^T + b. A perturbation dW adds x dW^T to dy and ybar dW to the tangent of xbar; db adds itself to dy."""

    def __init__(self, inputs: tuple[str, ...], output: str, x: Tensor, linear: nn.Linear) -> None:
        self.inputs, self.output, self.x, self.weight = inputs, output, x, linear.weight
        self.value, self.parameters = linear(x), dict[str, Tensor](linear.named_parameters())
        self.perturbed: dict[str, Probes] = {}

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        dy = None if dxs[0] is None else times_transposed(dxs[0], self.weight)
        dw, db = self.perturbed.get(WEIGHT), self.perturbed.get(BIAS)
        if dw is not None:
            dy = plus(dy, times_transposed(self.x, dw.flatten(0, 1)).unflatten(-1, dw.shape[:2]))
        return dy if db is None else plus(dy, db.expand(*self.x.shape[:2], *db.shape))

    def pull_back(self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]) -> list[Tangent]:
        if not needed[0]:
            return [None]
        first = None if dy_bar is None else times_transposed(dy_bar, self.weight.T)
        dw = self.perturbed.get(WEIGHT)
        return [first if dxs is None or dw is None else plus(first, self._from_weight(dw))]

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of Wbar, dybar^T x + ybar^T dx, or of bbar, dybar."""
        if name == BIAS:
            return None if dy_bar is None else dy_bar.sum(dim=(0, 1))
        product = None
        if dy_bar is not None:
            product = _summed(dy_bar.flatten(2), self.x).unflatten(0, dy_bar.shape[2:])
        if dxs is None or dxs[0] is None:
            return product
        assert self.cotangent is not None
        mixed = _summed(self.cotangent, dxs[0].flatten(2))
        return plus(product, mixed.unflatten(1, dxs[0].shape[2:]).transpose(0, 1))

    def _from_weight(self, dw: Probes) -> Float[Tensor, "batch length k inputs"]:
        assert self.cotangent is not None
        k, outputs, inputs = dw.shape
        by_input = dw.permute(0, 2, 1).reshape(k * inputs, outputs)
        return times_transposed(self.cotangent, by_input).unflatten(-1, (k, inputs))


def _summed(left: Float[Tensor, "batch length m"], right: Float[Tensor, "batch length n"]) -> Float[Tensor, "m n"]:
    """Return the sum of left^T right over batch and positions."""
    return times_transposed(left.flatten(0, 1).T, right.flatten(0, 1).T)


class Lookup(Step):
    """y = rows of the table W picked by `index`: token and position embeddings (linear in W)."""

    inputs: tuple[str, ...] = ()

    def __init__(self, output: str, index: Tensor, weight: Tensor) -> None:
        self.output, self.index, self.weight, self.value = output, index, weight, weight[index]
        self.parameters = {WEIGHT: weight}
        self.perturbed: dict[str, Probes] = {}

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        dw = self.perturbed.get(WEIGHT)
        return None if dw is None else torch.movedim(dw[:, self.index], 0, 2)

    def pull_back(self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]) -> list[Tangent]:
        return []

    def weight_product(self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None) -> Probes | None:
        """Return the tangent of Wbar: the rows of dybar summed by index."""
        if dy_bar is None:
            return None
        table = dy_bar.new_zeros(len(self.weight), *dy_bar.shape[2:])
        return table.index_add(0, self.index.flatten(), dy_bar.flatten(0, 1)).transpose(0, 1)


Weight = tuple[int, str]
Tangents = dict[str, Tangent]
PullBack = Callable[[Tangent, Sequence[Tangent] | None, Sequence[bool]], list[Tangent]]


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
        for node, bar, _ in self.down(gradient.unsqueeze(2), None, {node.output for node in self.nodes}):
            assert bar is not None
            node.cotangent = bar.squeeze(2)

    def narrow(self, dtype: torch.dtype) -> None:
        """Let products run in `dtype`; the output stays as it was recorded."""
        output = self.output
        for node in self.nodes:
            narrow(node, dtype)
            self.values[node.output] = node.value
        self.nodes[-1].value = output

    def push(self, dw: Mapping[Weight, Probes]) -> Tangents:
        """Return the tangents of all variables for perturbed weights `dw`."""
        for weight, probes in dw.items():
            self.holders[weight].perturbed[self.names[weight]] = probes
        return self.push_from({}, self.reach(dw))

    def push_from(self, known: Tangents, reached: Collection[str]) -> Tangents:
        """Return the tangents in `known`, and those of the other variables in `reached`."""
        tangents = dict(known)
        for node in self.nodes:
            if node.output in reached and node.output not in known:
                tangents[node.output] = node.push([tangents.get(name) for name in node.inputs])
        return tangents

    def pull_back(
        self,
        df_bar: Tangent,
        tangents: Tangents | None,
        rows: Collection[Weight],
        instead: Mapping[str, PullBack] | None = None,
    ) -> dict[Weight, Probes | None]:
        """Return the weight products of `rows`; with `tangents`, those of H_f (second-order terms added).

        `instead` names, by their outputs, steps that are pulled back in another way.
        """
        products, rows_of = {}, defaultdict[str, list[Weight]](list)
        for row in rows:
            rows_of[self.holders[row].output].append(row)
        for node, bar, dxs in self.down(df_bar, tangents, self.reach(rows), instead):
            for row in rows_of.get(node.output, ()):
                products[row] = self.holders[row].weight_product(self.names[row], bar, dxs)
        return products

    def pull_to(self, names: Collection[str], df_bar: Tangent, tangents: Tangents | None) -> Tangents:
        """Return the tangents of the cotangents of `names`, given that of the outputs.

        Without `tangents` these are the rows df_bar df/d(name); with them the second-order terms of H_f are added.
        """
        swept = self.down(df_bar, tangents, self.descendants(names))
        return {node.output: bar for node, bar, _ in swept if node.output in names}

    def down(
        self,
        df_bar: Tangent,
        tangents: Tangents | None,
        reached: Collection[str],
        instead: Mapping[str, PullBack] | None = None,
    ) -> Iterator[tuple[Node, Tangent, list[Tangent] | None]]:
        """Yield the steps in `reached` from the last one on, each before it is pulled back.

        With each come the tangent of its output's cotangent, to which all later steps have added, and those of its
        inputs, if there are `tangents`.
        """
        bars: Tangents = {self.nodes[-1].output: df_bar}
        for node in reversed(self.nodes):
            if node.output not in reached:
                continue
            bar = bars.pop(node.output, None)
            dxs = None if tangents is None else [tangents.get(name) for name in node.inputs]
            yield node, bar, dxs
            needed = [name in reached for name in node.inputs]
            if any(needed):
                pulled = (instead or {}).get(node.output, node.pull_back)(bar, dxs, needed)
                for name, part in zip(node.inputs, pulled, strict=True):
                    bars[name] = plus(bars.get(name), part)

    def release(self, dw: Collection[Weight]) -> None:
        """Forget the perturbation of weights `dw`."""
        for weight in dw:
            del self.holders[weight].perturbed[self.names[weight]]

    def reach(self, weights: Collection[Weight]) -> set[str]:
        """Return the variables that depend on `weights`."""
        return self.descendants({self.holders[weight].output for weight in weights})

    def descendants(self, names: Collection[str]) -> set[str]:
        """Return the variables in `names`, and all that depend on them."""
        reached = set(names)
        for node in self.nodes:
            if reached.intersection(node.inputs):
                reached.add(node.output)
        return reached


def zeros_like_weight(weight: Tensor, k: int, dtype: torch.dtype) -> Probes:
    """Return the product of a row that nothing reaches."""
    return torch.zeros(k, *weight.shape, dtype=dtype, device=weight.device)
