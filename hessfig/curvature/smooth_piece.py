"""The smooth piece of a function at its weights: all that is piecewise constant keeps the value it has there."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from inspect import unwrap
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch._decomp import decomposition_table
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves, tree_map_only

from hessfig.curvature.dispatch import Dispatch

_aten = torch.ops.aten


class Constant(NamedTuple):
    """A piecewise constant result: the operation that returned it, and its value."""

    function: Any
    value: Tensor


class PieceOf(Dispatch):
    r"""Runs a function on the smooth piece that contains a point.

    A function such as f(w) = sum |w| consists of smooth pieces. On each of them f has a
    Hessian, which double backward computes at w. A central difference of gradients over
    a step h contains the jumps of the gradient between pieces too,

    .. math:: \frac{g(w + h v) - g(w - h v)}{2 h} = H v + \frac{1}{2 h} \sum_{\text{crossed}} \Delta g.

    With many samples the sum grows in proportion to h, and the second term does not
    depend on h: no comparison of steps shows it. So nothing is crossed here: results of
    operations that are piecewise constant in the weights (comparisons, indices, signs,
    roundings) are recorded at w, and returned in their order at other weights. ReLU and
    its like, which compare inside a kernel, are written out as comparisons, forward and
    backward.

    Kernels that torch does not see (Triton, C++, NumPy) hold nothing. A function that
    takes other operations at other weights (a loop until convergence) is held as far as
    the operations are the same.

    In the second example relu(w)^2 has the second derivative 2 at w = 0.1, and a
    difference over h = 0.2 takes the gradient on both sides of the kink at 0.

    Parameters
    ----------
    constants : sequence of Constant, optional
        Those that were recorded at the weights. Without them, they are recorded.

    Attributes
    ----------
    constants : list of Constant
        What was recorded.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.smooth_piece import PieceOf
    >>> with PieceOf() as here:
    ...     _ = torch.tensor([0.1, -0.1]).sign()
    >>> with PieceOf(here.constants):
    ...     print(torch.tensor([-0.1, -0.1]).sign().tolist())
    [1.0, -1.0]

    >>> def gradient(at):
    ...     w = torch.tensor(at, dtype=torch.float64, requires_grad=True)
    ...     return torch.autograd.grad(w.relu() ** 2, w)[0].item()
    >>> round((gradient(0.3) - gradient(-0.1)) / 0.4, 9)
    1.5
    >>> with PieceOf() as here:
    ...     _ = gradient(0.1)
    >>> with PieceOf(here.constants):
    ...     ahead = gradient(0.3)
    >>> with PieceOf(here.constants):
    ...     behind = gradient(-0.1)
    >>> round((ahead - behind) / 0.4, 9)
    2.0
    """

    supports_higher_order_operators = True

    def __init__(self, constants: Sequence[Constant] | None = None) -> None:
        super().__init__()
        self.constants: list[Constant] = []
        self._is_recording = constants is None
        self._ahead: Iterator[Constant] = iter(constants or ())

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        """Run an operation; its piecewise constant results are recorded, or are those that were recorded.

        Four kinds of operations: those that compare inside a kernel are replaced by
        comparisons (`_WRITTEN_OUT`), and run again under this mode; results that are indices
        or masks, or of `_STEPS`, are constant; extremes are a mean over a constant set; and
        selections (sort, topk, pools) return the entries at constant indices.
        """
        kwargs = kwargs or {}
        written = _WRITTEN_OUT.get(function)
        if written is not None and args[0].is_floating_point():
            with self:
                result = written(*args, **kwargs)
            if result is not NotImplemented:
                return args[0].copy_(result) if function._schema.is_mutable else result
        results = function(*args, **kwargs)
        if not _computes_numbers(function, (args, kwargs)):
            return results

        def of_result(result: Tensor) -> Tensor:
            is_constant = not result.is_floating_point() and not result.is_complex()
            if is_constant or function in _STEPS:
                return self._constant(function, result)
            return result

        if function in _EXTREMES:
            return self._mean_of_extremes(function, *args)
        if function == _aten.scatter_reduce.two and args[4] in {"amax", "amin"}:
            return self._mean_of_scattered(function, results, *args[:4], **kwargs)
        results = tree_map_only(Tensor, of_result, results)
        if function in _SELECTIONS or function in _POOLS:
            return _selected(function, args, kwargs, results[1]), results[1]
        return results

    def _mean_of_extremes(
        self, function: Any, entries: Tensor, axes: Any = (), keepdim: bool = False
    ) -> Tensor:
        r"""Return the mean of the entries that are extreme: the gradient of amax is shared among them.

        With the set E of entries that are extreme at the weights, the piece of the function is

        .. math:: \frac{1}{|E|} \sum_{i \in E} x_i,

        which is max x at the weights, and has the gradient 1 / |E| in every entry of E that
        torch gives to amax.
        """
        extreme = _EXTREMES[function](entries, axes, keepdim=True)
        is_extreme = self._constant(function, entries == extreme)
        along = axes or None
        total = torch.where(is_extreme, entries, 0.0).sum(along, keepdim)
        return total / is_extreme.sum(along, keepdim)

    def _mean_of_scattered(
        self,
        function: Any,
        extreme: Tensor,
        into: Tensor,
        along: int,
        index: Tensor,
        source: Tensor,
        **options: bool,
    ) -> Tensor:
        """Return for every place the mean of the entries that are scattered to it and extreme.

        The entry of `into` counts as one more where it is extreme itself, unless
        `include_self` is false and something is scattered to its place.
        """
        is_extreme = self._constant(function, source == extreme.gather(along, index))
        is_kept = into == extreme
        if not options.get("include_self", True):
            is_kept &= torch.ones_like(is_kept).scatter(along, index, False)
        is_kept = self._constant(function, is_kept)
        total = torch.where(is_kept, into, 0.0).scatter_add(
            along, index, torch.where(is_extreme, source, 0.0)
        )
        return total / is_kept.to(into).scatter_add(along, index, is_extreme.to(into))

    def _constant(self, function: Any, result: Tensor) -> Tensor:
        """Record a result, or return the next recorded one.

        Results belong to operations by their order of evaluation, their function and their
        shape. From the first operation on that is another one than at the weights, results are
        returned as they are.
        """
        if self._is_recording:
            # Functions of torch may change their own results.
            self.constants.append(Constant(function, result.clone()))
            return result
        recorded = next(self._ahead, None)
        if (
            recorded is None
            or recorded.function != function
            or recorded.value.shape != result.shape
        ):
            self._ahead = iter(())
            return result
        return recorded.value.clone()


def _computes_numbers(function: Any, arguments: Any) -> bool:
    """Whether an operation computes a new tensor from real numbers.

    Operations that change a tensor in place do not, and neither do those of indices and
    masks alone.
    """
    is_operation = isinstance(function, torch._ops.OpOverload)
    if not is_operation or function._schema.is_mutable:
        return False
    tensors = [leaf for leaf in tree_leaves(arguments) if isinstance(leaf, Tensor)]
    return any(tensor.is_floating_point() for tensor in tensors)


def _selected(function: Any, args: Any, kwargs: Any, indices: Tensor) -> Tensor:
    """Return the entries of the first argument at the indices of a selection.

    At fixed indices a selection is linear, y_k = x_{i(k)}, with the derivative that torch
    gives it.
    """
    entries = args[0]
    if function in _POOLS:
        # Indices of pools count along the last axes together.
        axes = -_POOLS[function]
        return entries.flatten(axes).gather(-1, indices.flatten(axes)).view_as(indices)
    place = _SELECTIONS[function]
    along = args[place] if len(args) > place else kwargs.get("dim", -1)
    if indices.ndim == entries.ndim:
        return entries.gather(along, indices)
    return entries.gather(along, indices.unsqueeze(along)).squeeze(along)


# Operations that return entries and their indices, and the number of their axes.
_POOLS = {
    _aten.max_pool2d_with_indices.default: 2,
    _aten.max_pool3d_with_indices.default: 3,
    _aten.adaptive_max_pool2d.default: 2,
    _aten.adaptive_max_pool3d.default: 3,
}
# Likewise, along one axis: its place among the arguments.
_SELECTIONS = {
    _aten.sort.default: 1,
    _aten.sort.stable: 1,
    _aten.topk.default: 2,
    _aten.max.dim: 1,
    _aten.min.dim: 1,
    _aten.kthvalue.default: 2,
    _aten.median.dim: 1,
    _aten.nanmedian.dim: 1,
    _aten.mode.default: 1,
    _aten.cummax.default: 1,
    _aten.cummin.default: 1,
}
_EXTREMES = {
    _aten.amax.default: torch.amax,
    _aten.max.default: torch.amax,
    _aten.amin.default: torch.amin,
    _aten.min.default: torch.amin,
}
# Piecewise constant, with floating-point results.
_STEPS = {
    _aten.sign.default,
    _aten.sgn.default,
    _aten.floor.default,
    _aten.ceil.default,
    _aten.trunc.default,
    _aten.round.default,
    _aten.round.decimals,
    _aten.heaviside.default,
}


def _clamped(entries: Tensor, least: Any = None, most: Any = None) -> Tensor:
    """Return min(max(x, least), most), by comparisons.

    On each piece it is x or a constant, with the derivative 1 or 0. At x = `least` the
    comparison is false, and the derivative is 1, as torch has it.
    """
    if least is not None:
        entries = torch.where(entries < least, least, entries)
    if most is not None:
        entries = torch.where(entries > most, most, entries)
    return entries


def _shrunk(grad: Tensor, entries: Tensor, bound: float) -> Tensor:
    """Return the gradient, zero where |x| <= bound."""
    return torch.where(entries.abs() <= bound, 0.0, grad)


def _with_sharp_order(
    entries: Tensor, order: Any = 2, *more: Any, **options: Any
) -> Any:
    """Return the 1-norm or the maximum norm; the others are smooth away from zero.

    sum |x_i|, max |x_i|, or min |x_i| for the order -inf, of absolute values that are
    written out themselves: |x| = x sgn(x).
    """
    if order not in {1, math.inf, -math.inf}:
        return NotImplemented
    axes = more[0] if more else options.get("dim")
    keepdim = more[1] if len(more) > 1 else options.get("keepdim", False)
    sizes = entries.to(options.get("dtype") or entries.dtype).abs()
    if order == 1:
        return sizes.sum(axes, keepdim)
    extreme = torch.amax if order > 0 else torch.amin
    return extreme(sizes, axes or (), keepdim)


def _distances(first: Tensor, second: Tensor, order: float, mode: Any = None) -> Any:
    """Return |x_i - y_j| in the 1-norm or the maximum norm; the Euclidean distance is smooth where it is not zero."""
    if order not in {1, math.inf}:
        return NotImplemented
    apart = first.unsqueeze(-2) - second.unsqueeze(-3)
    return torch.linalg.vector_norm(apart, order, -1)


def _distances_backward(
    grad: Tensor, first: Tensor, second: Tensor, order: float, distances: Tensor
) -> Any:
    r"""Return the gradient of such distances in x: the signs, of the largest entries alone for the maximum norm.

    .. math:: \frac{\partial}{\partial x_i} \sum_j G_{ij} |x_i - y_j|
              = \sum_j G_{ij} \, \mathrm{sgn}(x_i - y_j)

    entry by entry; for the maximum norm only the entries with |x_i - y_j| equal to the
    distance have a sign.
    """
    if order not in {1, math.inf}:
        return NotImplemented
    apart = first.unsqueeze(-2) - second.unsqueeze(-3)
    slopes = apart.sgn()
    if order == math.inf:
        slopes = slopes * (apart.abs() == distances.unsqueeze(-1))
    return (grad.unsqueeze(-1) * slopes).sum(-2)


def _leaky(
    entries: Tensor,
    noise: Tensor,
    least: float = 1 / 8,
    most: float = 1 / 3,
    is_training: bool = False,
    *more: Any,
) -> Any:
    """Return RReLU in evaluation mode, x or (least + most) / 2 x; its slopes are random in training."""
    if is_training:
        return NotImplemented
    return F.leaky_relu(entries, (least + most) / 2)


def _divided(entries: Tensor, other: Any, rounding_mode: str | None = None) -> Tensor:
    """Return the quotient, rounded: piecewise constant, by floor or trunc of a quotient that is seen."""
    quotient = entries / other
    if rounding_mode is None:
        return quotient
    if rounding_mode == "floor":
        return quotient.floor()
    return quotient.trunc()


# What compares inside a kernel, written as comparisons that can be seen (hardtanh is
# ReLU6 too); then the decompositions of torch.
def _without_compiler(decomposition: Callable[..., Any]) -> Callable[..., Any]:
    """Return a decomposition of torch that does not import torch's compiler, which takes more than a second.

    Its wrappers do. They promote types with fewer digits than float32, which are left
    to them.
    """
    bare = unwrap(decomposition)

    def of_floats(entries: Tensor, *args: Any, **kwargs: Any) -> Any:
        if entries.dtype in (torch.float32, torch.float64):
            return bare(entries, *args, **kwargs)
        return decomposition(entries, *args, **kwargs)

    return of_floats


_WRITTEN_OUT: dict[Any, Callable[..., Any]] = {
    _aten.abs.default: lambda entries: entries * entries.sgn(),
    _aten.clamp.default: _clamped,
    _aten.clamp.Tensor: _clamped,
    _aten.clamp_min.default: _clamped,
    _aten.clamp_max.default: lambda entries, most: _clamped(entries, None, most),
    _aten.hardtanh.default: lambda entries, least=-1.0, most=1.0: _clamped(
        entries, least, most
    ),
    _aten.maximum.default: _clamped,
    _aten.minimum.default: lambda entries, most: _clamped(entries, None, most),
    _aten.hardshrink.default: lambda entries, bound=0.5: _shrunk(
        entries, entries, bound
    ),
    _aten.hardshrink_backward.default: _shrunk,
    _aten.softshrink_backward.default: _shrunk,
    _aten.hardsigmoid_backward.default: lambda grad, at: torch.where(
        (at > -3) & (at < 3), grad / 6, 0.0
    ),
    _aten.fmax.default: lambda entries, other: torch.where(
        (entries >= other) | other.isnan(), entries, other
    ),
    _aten.fmin.default: lambda entries, other: torch.where(
        (entries <= other) | other.isnan(), entries, other
    ),
    _aten.frac.default: lambda entries: entries - entries.trunc(),
    _aten.median.default: lambda entries: entries.flatten().median(0).values,
    _aten.aminmax.default: lambda entries, dim=(), keepdim=False: (
        entries.amin(dim, keepdim),
        entries.amax(dim, keepdim),
    ),
    _aten.linalg_vector_norm.default: _with_sharp_order,
    _aten._cdist_forward.default: _distances,
    _aten._cdist_backward.default: _distances_backward,
    _aten.rrelu_with_noise.default: _leaky,
}
for _kind in ("Tensor", "Scalar"):
    _WRITTEN_OUT[getattr(_aten.remainder, _kind)] = lambda entries, other: (
        entries - (entries / other).floor() * other
    )
    _WRITTEN_OUT[getattr(_aten.fmod, _kind)] = lambda entries, other: (
        entries - (entries / other).trunc() * other
    )
    _WRITTEN_OUT[getattr(_aten.div, f"{_kind}_mode")] = _divided
_DECOMPOSED = (
    "relu threshold leaky_relu elu hardsigmoid hardswish softshrink _prelu_kernel "
    "huber_loss smooth_l1_loss threshold_backward leaky_relu_backward elu_backward "
    "hardswish_backward hardtanh_backward _prelu_kernel_backward huber_loss_backward "
    "smooth_l1_loss_backward rrelu_with_noise_backward"
)
for _name in _DECOMPOSED.split():
    _function = getattr(_aten, _name).default
    _WRITTEN_OUT[_function] = _without_compiler(decomposition_table[_function])
_IN_PLACE = "abs clamp clamp_min clamp_max hardtanh relu threshold leaky_relu elu"
for _name in _IN_PLACE.split():
    _function = getattr(_aten, _name).default
    _WRITTEN_OUT[getattr(_aten, f"{_name}_").default] = _WRITTEN_OUT[_function]
