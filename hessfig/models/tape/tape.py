r"""The linearised tape: nodes and weights, forward passes of tangents, and backward passes of cotangents.

The network is a sequence of steps y = F(x, w). At a fixed point everything that the
products need is recorded once: the values, and the cotangents ybar = dl/dy of the
linearised loss <dl/df, f> with dl/df held fixed. A product with a block of the Hessian
then takes

.. math:: dy = F_x \, dx + F_w \, dw \quad\text{(push)}, \qquad
          d\bar x = F_x^T \, d\bar y + (dF_x)^T \, \bar y, \qquad
          d\bar w = F_w^T \, d\bar y + (dF_w)^T \, \bar y \quad\text{(pull back)},

where dF_x is the change of the Jacobian along (dx, dw): the *second-order terms*. The
second line is the derivative of xbar = F_x^T ybar, so it gives the Hessian times dw
(Pearlmutter, Neural Computation 6 (1994) 147). What goes into it decides the part:

- H_o: d(fbar) = (d2l/df2) df, without second-order terms, so J^T (d2l/df2) J dw;
- H_f: d(fbar) = 0, with second-order terms, so the Hessian of <dl/df, f>;
- H: both.

H_f is never a difference of two products, which would lose its digits where it is much
smaller than H_o.

Tensors: values are (batch, length, width), tangents of k probes (batch, length, k,
width), and tangents of weights (k, shape of the weight). A tangent None is zero.
"""

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
    """Cast the tensors by which a step multiplies tangents to `dtype`, except those that its class lists as `sharp`.

    If attention saturates, a network in float32 is a different network: at sigma = 10,
    scores have rounding errors above 1, and 1 - p is lost for weights p close to 1.
    Therefore values and cotangents are computed in float64, the Jacobian of the softmax
    remains in float64, and only linear maps are cast. Products then equal those of the
    float64 network up to the rounding of float32 (docs/accuracy.md).

    Cached properties are evaluated before, in float64. `parameters` keep their type: they
    are those of the network.
    """
    for name, attribute in vars(type(node)).items():
        if isinstance(attribute, cached_property):
            getattr(node, name)
    sharp = (*getattr(node, "sharp", ()), "parameters", "perturbed")
    for name, value in vars(node).items():
        if name not in sharp:
            setattr(node, name, _cast(value, dtype))


def _cast(value: Any, dtype: torch.dtype) -> Any:
    """Return a tensor of real numbers, or a tuple with such tensors, in `dtype`; anything else as it is."""
    if isinstance(value, tuple):
        return tuple(_cast(one, dtype) for one in value)
    is_number = isinstance(value, torch.Tensor) and value.is_floating_point()
    if is_number:
        return value.detach().to(dtype)
    return value


_CPU = Path("/proc/cpuinfo")  # on Linux


def _is_intel(cpu: Path) -> bool:
    """Whether the first processor is made by Intel."""
    return (
        cpu.exists()
        and "GenuineIntel" in cpu.read_text(errors="replace").partition("\n\n")[0]
    )


# MKL, used by `@`, selects narrow kernels on other processors; oneDNN, also part of
# torch, selects the widest ones.
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(
    torch.ops.mkldnn, "_linear_pointwise"
)
_BY_ONEDNN = _HAS_ONEDNN and not _is_intel(_CPU)


def times_transposed(
    rows: Float[Tensor, "*n k"], matrix: Float[Tensor, "m k"]
) -> Float[Tensor, "*n m"]:
    """Return rows matrix^T.

    Float32 on the CPU uses oneDNN in full precision, which is 2.3 times as fast as MKL on
    an AMD EPYC; on an Intel Xeon it has 0.9 times the speed, so MKL is used there
    (docs/performance.md). oneDNN does not support float64.
    """
    if not _goes_to_onednn(rows):
        return rows @ matrix.T
    product: Tensor = torch.ops.mkldnn._linear_pointwise(
        rows, matrix, None, "none", [], ""
    )
    return product


def _goes_to_onednn(rows: Tensor) -> bool:
    """Whether the product takes oneDNN: float32 on a CPU that is not Intel's."""
    return _BY_ONEDNN and rows.dtype == torch.float32 and rows.device.type == "cpu"


Tangent = Tensor | None


@runtime_checkable
class Node(Protocol):
    """One step; `inputs` and `output` are names of variables of the tape, and `value` is the output at the point.

    `Tape.record` sets `cotangent` once, before the first product, so that results may be
    cached.
    """

    inputs: tuple[str, ...]
    output: str
    value: Tensor
    cotangent: Tensor | None

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return the tangent dy of the output, given those of the inputs: dy = F_x dx + F_w dw.

        dw are the perturbations that `Holder.perturbed` contains.
        """

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return the tangents of the cotangents of the inputs (None if not `needed`).

        Parameters
        ----------
        dy_bar : Tensor or None
            d(ybar), (batch, length, k, width).
        dxs : sequence or None
            Tangents of the inputs. None drops the second-order terms, so that the result is
            F_x^T dy_bar: rows are pulled back.
        needed : sequence of bool
            Which inputs are on the way to a weight that is asked for.
        """


class Step:
    """Base of the steps, with the recorded cotangent of the output."""

    cotangent: Tensor | None = None

    @property
    def y_bar(self) -> Float[Tensor, "batch length 1 d"]:
        """The recorded cotangent ybar = dl/dy, with the further axis of tangents."""
        assert self.cotangent is not None
        return self.cotangent.unsqueeze(2)


def plus(a: Tangent, b: Tangent) -> Tangent:
    """Return a + b, where None is zero."""
    if a is None or b is None:
        if a is None:
            return b
        return a
    return a + b


Probes = Float[Tensor, "k *weight"]
WEIGHT, BIAS = "weight", "bias"


@runtime_checkable
class Holder(Node, Protocol):
    """A step with parameters, which have the same names as in its module.

    `perturbed` contains the tangents dw of perturbed parameters during a product; `push`
    and `pull_back` read them, and `Tape.release` clears them.
    """

    parameters: dict[str, Tensor]
    perturbed: dict[str, Probes]

    def weight_product(
        self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None
    ) -> Probes | None:
        r"""Return d(wbar) of parameter `name`, summed over batch and positions: a row of the product.

        .. math:: d\bar w = F_w^T \, d\bar y + (dF_w)^T \, \bar y

        All steps are linear in their parameters, so that dF_w comes from dx alone. Shape (k,
        shape of the parameter); None is zero.
        """


class LinearMap(Step):
    r"""y = x W^T + b.

    .. math:: dy = dx \, W^T + x \, dW^T + db, \qquad
              d\bar x = d\bar y \, W + \bar y \, dW, \qquad
              d\bar W = d\bar y^T x + \bar y^T dx, \qquad d\bar b = d\bar y,

    the last two summed over batch and positions. The terms with ybar are of second order.

    Parameters
    ----------
    inputs, output : str
        Names of variables.
    x : (batch, length, n)
    linear : Linear
        With W of (m, n), and b or none.
    """

    def __init__(
        self, inputs: tuple[str, ...], output: str, x: Tensor, linear: nn.Linear
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.x = x
        self.weight = linear.weight
        self.value = linear(x)
        self.parameters = dict[str, Tensor](linear.named_parameters())
        self.perturbed: dict[str, Probes] = {}

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return dx W^T + x dW^T + db; the k perturbations are one product with the (k m, n) matrix of all of them."""
        dy = None if dxs[0] is None else times_transposed(dxs[0], self.weight)
        dw = self.perturbed.get(WEIGHT)
        db = self.perturbed.get(BIAS)
        if dw is not None:
            dy = plus(
                dy,
                times_transposed(self.x, dw.flatten(0, 1)).unflatten(-1, dw.shape[:2]),
            )
        if db is None:
            return dy
        return plus(dy, db.expand(*self.x.shape[:2], *db.shape))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return dybar W + ybar dW."""
        if not needed[0]:
            return [None]
        if dy_bar is None:
            first = None
        else:
            first = times_transposed(dy_bar, self.weight.T)
        dw = self.perturbed.get(WEIGHT)
        return [
            first if dxs is None or dw is None else plus(first, self._from_weight(dw))
        ]

    def weight_product(
        self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None
    ) -> Probes | None:
        """Return the tangent of Wbar, dybar^T x + ybar^T dx, or of bbar, dybar."""
        if name == BIAS:
            if dy_bar is None:
                return None
            return dy_bar.sum(dim=(0, 1))
        product = None
        if dy_bar is not None:
            product = _summed(dy_bar.flatten(2), self.x).unflatten(0, dy_bar.shape[2:])
        if dxs is None or dxs[0] is None:
            return product
        assert self.cotangent is not None
        mixed = _summed(self.cotangent, dxs[0].flatten(2))
        return plus(product, mixed.unflatten(1, dxs[0].shape[2:]).transpose(0, 1))

    def _from_weight(self, dw: Probes) -> Float[Tensor, "batch length k inputs"]:
        """Return ybar dW for every probe, as one product with the (k n, m) matrix of all of them."""
        assert self.cotangent is not None
        k, outputs, inputs = dw.shape
        by_input = dw.permute(0, 2, 1).reshape(k * inputs, outputs)
        return times_transposed(self.cotangent, by_input).unflatten(-1, (k, inputs))


def _summed(
    left: Float[Tensor, "batch length m"], right: Float[Tensor, "batch length n"]
) -> Float[Tensor, "m n"]:
    """Return the sum of left^T right over batch and positions."""
    return times_transposed(left.flatten(0, 1).T, right.flatten(0, 1).T)


class Lookup(Step):
    """y = rows of the table W picked by `index`: token and position embeddings.

    y = E W with a one-hot matrix E, so it is linear in W and has no inputs: dy = E dW, and
    d(Wbar) = E^T d(ybar) adds the rows of each token. There is no second-order term.

    Parameters
    ----------
    output : str
    index : (batch, length)
    weight : (rows, width)
    """

    inputs: tuple[str, ...] = ()

    def __init__(self, output: str, index: Tensor, weight: Tensor) -> None:
        self.output = output
        self.index = index
        self.weight = weight
        self.value = weight[index]
        self.parameters = {WEIGHT: weight}
        self.perturbed: dict[str, Probes] = {}

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        dw = self.perturbed.get(WEIGHT)
        if dw is None:
            return None
        return torch.movedim(dw[:, self.index], 0, 2)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return []

    def weight_product(
        self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None
    ) -> Probes | None:
        """Return the tangent of Wbar: the rows of dybar summed by index."""
        if dy_bar is None:
            return None
        table = dy_bar.new_zeros(len(self.weight), *dy_bar.shape[2:])
        return table.index_add(0, self.index.flatten(), dy_bar.flatten(0, 1)).transpose(
            0, 1
        )


Weight = tuple[int, str]
Tangents = dict[str, Tangent]
PullBack = Callable[[Tangent, Sequence[Tangent] | None, Sequence[bool]], list[Tangent]]


class Tape:
    """Steps in order of evaluation; the output of the last step is the scored output f.

    `record` stores the cotangents of the linearised loss <dl/df, f>, which H_f needs, once
    for all products. `holders` maps weights to their steps, and `names` maps weights to
    their names in the modules.

    Examples
    --------
    Two linear maps f = x A^T B^T, the loss <g, f>, and its Hessian between B and A times dA.
    With A = 2, B = 3, x = 5 and g = 7 it is g x = 35, and df = B dA x = 15:

    >>> from torch.nn import Linear
    >>> def with_weight(number):
    ...     linear = Linear(1, 1, bias=False, dtype=torch.float64).requires_grad_(False)
    ...     linear.weight.fill_(number)
    ...     return linear
    >>> tape, x = Tape(), torch.tensor([[[5.0]]], dtype=torch.float64)
    >>> first = LinearMap(("x",), "y", x, with_weight(2.0))
    >>> _ = tape.add(first, {"weight": (1, "A")})
    >>> _ = tape.add(LinearMap(("y",), "f", first.value, with_weight(3.0)), {"weight": (1, "B")})
    >>> tape.record(torch.tensor([[[7.0]]], dtype=torch.float64))
    >>> tangents = tape.push({(1, "A"): torch.ones(1, 1, 1, dtype=torch.float64)})
    >>> tangents["f"].item(), tape.pull_back(None, tangents, [(1, "B")])[1, "B"].item()
    (15.0, 35.0)
    """

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.holders: dict[Weight, Holder] = {}
        self.names: dict[Weight, str] = {}
        self.values: dict[str, Tensor] = {}

    def add(self, node: Node, weights: Mapping[str, Weight] | None = None) -> str:
        """Append a step with `weights` (by their names in its module); return the name of its output."""
        self.nodes.append(node)
        self.values[node.output] = node.value
        for name, weight in (weights or {}).items():
            assert isinstance(node, Holder)
            if name in node.parameters:
                self.holders[weight], self.names[weight] = node, name
        return node.output

    def parameter(self, weight: Weight) -> Tensor:
        """Return the parameter of a weight."""
        return self.holders[weight].parameters[self.names[weight]]

    @property
    def output(self) -> Tensor:
        return self.nodes[-1].value

    def record(self, gradient: Float[Tensor, "batch scored vocab"]) -> None:
        """Store ybar = dl/dy at every step, with dl/df = `gradient` held fixed: one plain backward pass.

        A step's cotangent is stored when all later steps have been pulled back.
        """
        for node, bar, _ in self.down(
            gradient.unsqueeze(2), None, {node.output for node in self.nodes}
        ):
            assert bar is not None
            node.cotangent = bar.squeeze(2)

    def narrow(self, dtype: torch.dtype) -> None:
        """Compute products in `dtype`; the recorded output f is not changed, because d2l/df2 is evaluated at it."""
        output = self.output
        for node in self.nodes:
            narrow(node, dtype)
            self.values[node.output] = node.value
        self.nodes[-1].value = output

    def push(self, dw: Mapping[Weight, Probes]) -> Tangents:
        """Return the tangents of all variables for the perturbations `dw` of weights, (k, shape of the weight) each.

        The perturbations stay in their steps, where the pull-back needs them, until `release`.
        """
        for weight, probes in dw.items():
            self.holders[weight].perturbed[self.names[weight]] = probes
        return self.push_from({}, self.reach(dw))

    def push_from(self, known: Tangents, reached: Collection[str]) -> Tangents:
        """Return the tangents in `known` and those of the other variables in `reached`."""
        tangents = dict(known)
        for node in self.nodes:
            if node.output in reached and node.output not in known:
                tangents[node.output] = node.push(
                    [tangents.get(name) for name in node.inputs]
                )
        return tangents

    def pull_back(
        self,
        df_bar: Tangent,
        tangents: Tangents | None,
        rows: Collection[Weight],
        instead: Mapping[str, PullBack] | None = None,
    ) -> dict[Weight, Probes | None]:
        """Return the weight products d(wbar) of `rows`; with `tangents`, second-order terms are added.

        Parameters
        ----------
        df_bar : (batch, scored, k, v) or None
            The tangent of the outputs' cotangent: (d2l/df2) df, or None for H_f.
        tangents : dict or None
            From `push`; None for H_o.
        rows : weights
            Only steps behind at least one of them are visited.
        instead : dict, optional
            Maps outputs of steps to functions that replace their pull-back, as H_oT needs for
            the scores.
        """
        products = {}
        rows_of = defaultdict[str, list[Weight]](list)
        for row in rows:
            rows_of[self.holders[row].output].append(row)
        for node, bar, dxs in self.down(df_bar, tangents, self.reach(rows), instead):
            for row in rows_of.get(node.output, ()):
                products[row] = self.holders[row].weight_product(
                    self.names[row], bar, dxs
                )
        return products

    def pull_to(
        self, names: Collection[str], df_bar: Tangent, tangents: Tangents | None
    ) -> Tangents:
        """Return the tangents of the cotangents of `names`, given that of the outputs.

        Without `tangents` these are the rows df_bar df/d(name); with `tangents`, second-order
        terms of H_f are added.
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
        """Yield the steps in `reached` in reverse order, each before it is pulled back.

        Each comes with the tangent of the cotangent of its output, which includes all later
        steps, and with the tangents of its inputs, if `tangents` are given. A cotangent is
        dropped once its step has been pulled back, so that only those on the way are in memory.
        """
        bars: Tangents = {self.nodes[-1].output: df_bar}
        for node in reversed(self.nodes):
            if node.output not in reached:
                continue
            bar = bars.pop(node.output, None)
            if tangents is None:
                dxs = None
            else:
                dxs = [tangents.get(name) for name in node.inputs]
            yield node, bar, dxs
            needed = [name in reached for name in node.inputs]
            if any(needed):
                pulled = (instead or {}).get(node.output, node.pull_back)(
                    bar, dxs, needed
                )
                for name, part in zip(node.inputs, pulled, strict=True):
                    bars[name] = plus(bars.get(name), part)

    def release(self, dw: Collection[Weight]) -> None:
        """Clear the perturbations of the weights `dw`."""
        for weight in dw:
            del self.holders[weight].perturbed[self.names[weight]]

    def reach(self, weights: Collection[Weight]) -> set[str]:
        """Return the variables that depend on `weights`: the only ones with tangents that are not zero."""
        return self.descendants({self.holders[weight].output for weight in weights})

    def descendants(self, names: Collection[str]) -> set[str]:
        """Return the variables in `names` and all variables that depend on them."""
        reached = set(names)
        for node in self.nodes:
            if reached.intersection(node.inputs):
                reached.add(node.output)
        return reached


def zeros_like_weight(weight: Tensor, k: int, dtype: torch.dtype) -> Probes:
    """Return the product for a weight that does not affect the outputs."""
    return torch.zeros(k, *weight.shape, dtype=dtype, device=weight.device)
