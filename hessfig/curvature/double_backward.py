"""Products by double backward, which are right for every network that can be differentiated twice; and their checks."""

import sys
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from hessfig.curvature.problem import Scalar, Suffix
from hessfig.curvature.rounding import PRODUCTS, norm_of_all
from hessfig.errors import UserError, plain
from hessfig.rng import TURN, OfTheProcess, stream
from hessfig.terms import Part

_DIFFERENTIABLE_ONCE = "Error"  # what torch puts into the graph of such a function's gradient


class DoubleBackward:
    """A part of the Hessian in some parameters of a suffix, with the interface of curvlinops' operators."""

    def __init__(self, suffix: Suffix, part: Part, parameters: Sequence[nn.Parameter]) -> None:
        names = {parameter: name for name, parameter in suffix.named_parameters()}
        self._suffix, self._terms = suffix, suffix.terms(part)
        self._multiply = self._outer if part == Part.H_o else self._whole
        self._names = [names[parameter] for parameter in parameters]
        self._at = [parameter.detach().clone().requires_grad_() for parameter in parameters]

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Multiply: one tensor (*shape, k) a parameter in and out."""
        with torch.enable_grad(), differentiable_twice():
            pieces = [self._of_batch(start, scalar, columns) for start, scalar in self._terms]
        return summed(pieces)

    def _of_batch(self, start: Tensor, scalar: Scalar, columns: Sequence[Tensor]) -> list[Tensor]:
        at = dict(zip(self._names, self._at, strict=True))
        vectors = [[column[..., k] for column in columns] for k in range(columns[0].shape[-1])]
        products = self._multiply(self._suffix.at(at, start), scalar, vectors)
        return [torch.stack(of_parameter, dim=-1) for of_parameter in zip(*products, strict=True)]

    def _whole(self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the Hessian of scalar(outputs) times every vector: the gradient of <gradient, v>."""
        slopes = of_second_order(gradients(scalar(outputs), self._at, create_graph=True))
        return [gradients(inner(slopes, vector), self._at) for vector in vectors]

    def _outer(self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return J^T B J times every vector, B the scalar's Hessian in the outputs.

        J^T c is linear in c, so that J v is the gradient of <J^T c, v> in c.
        """
        leaf, cotangent = outputs.detach().requires_grad_(), torch.zeros_like(outputs).requires_grad_()
        (slope,) = gradients(scalar(leaf), [leaf], create_graph=True)
        pulled = of_second_order(gradients(outputs, self._at, cotangent, create_graph=True))
        found = []
        for vector in vectors:
            (tangent,) = gradients(inner(pulled, vector), [cotangent])
            (curved,) = gradients(inner([slope], [tangent]), [leaf])
            found.append(gradients(outputs, self._at, curved))
        return found


def gradients(
    value: Tensor, at: Sequence[Tensor], along: Tensor | None = None, *, create_graph: bool = False
) -> list[Tensor]:
    """Return the gradient of `value` (times `along`) in `at`, zeros for what it does not depend on; graphs are kept.

    With `create_graph`, cotangents require gradients: torch would take the gradients of a function that is
    differentiable once for constants where they do not, silently.
    """
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in at]
    if create_graph and along is None:
        along = torch.ones_like(value, requires_grad=True)
    return list(
        torch.autograd.grad(value, at, along, retain_graph=True, create_graph=create_graph, materialize_grads=True)
    )


def of_second_order(slopes: list[Tensor]) -> list[Tensor]:
    """Return first derivatives. Raises RuntimeError where a function that has no second ones is among their graph.

    torch.autograd.grad would take such a function's derivative for zero, silently.
    """
    seen, ahead = set(), [slope.grad_fn for slope in slopes]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name().rpartition("::")[2] == _DIFFERENTIABLE_ONCE:
            raise RuntimeError("a function in the network or the loss is marked as differentiable once")
        seen.add(node)
        ahead += [further for further, _ in node.next_functions]
    return slopes


def summed(pieces: Iterable[Sequence[Tensor]]) -> list[Tensor]:
    """Return the sum of lists of tensors, one a parameter: those of all batches."""
    return [torch.stack(of_parameter).sum(dim=0) for of_parameter in zip(*pieces, strict=True)]


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two lists of tensors."""
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()


_KERNELS = ("flash", "mem_efficient", "cudnn", "math")  # of attention


@contextmanager
def _plain_attention() -> Iterator[None]:
    """As torch.nn.attention.sdpa_kernel, whose context another thread could not leave."""
    place, fast_path = torch.backends.cuda, torch.backends.mha.get_fastpath_enabled()
    before = {kernel: getattr(place, f"{kernel}_sdp_enabled")() for kernel in _KERNELS}
    try:
        torch.backends.mha.set_fastpath_enabled(False)
        for kernel in _KERNELS:
            getattr(place, f"enable_{kernel}_sdp")(kernel == "math")
        yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fast_path)
        for kernel, was in before.items():
            getattr(place, f"enable_{kernel}_sdp")(was)


@contextmanager
def _full_precision() -> Iterator[None]:
    """Multiply numbers of float32 as such: a training may have asked for TF32 or bfloat16 in their place."""
    backends: Any = torch.backends
    settings = (backends.cuda.matmul, backends.mkldnn.matmul)
    before, whole = [one.fp32_precision for one in settings], backends.fp32_precision
    if not {*before} & {"tf32", "bf16"}:
        yield
        return
    word = _precision()
    _set_precision(word and "highest", dict.fromkeys(settings, "ieee"))
    try:
        yield
    finally:
        _set_precision(word, {one: "none" if was == whole else was for one, was in zip(settings, before, strict=True)})


def _precision() -> str:
    """Return the word of torch's older interface; nothing where the newer one, a setting each, says otherwise."""
    try:
        return torch.get_float32_matmul_precision()
    except RuntimeError:
        return ""


def _set_precision(word: str, each: Mapping[Any, str]) -> None:
    if word:
        torch.set_float32_matmul_precision(word)
    for setting, value in each.items():
        setting.fp32_precision = value


_PLAIN_ATTENTION = OfTheProcess(_plain_attention)


def differentiable_twice() -> AbstractContextManager[None]:
    """Keep to attention kernels that have second derivatives: the fused ones have none."""
    return _PLAIN_ATTENTION


@contextmanager
def differentiating() -> Iterator[None]:
    """Record gradients in full precision, whatever modes the caller is in; other threads wait for their turn."""
    off = (torch.autocast(kind, enabled=False) for kind in ("cpu", "cuda"))
    with TURN, torch.inference_mode(False), next(off), next(off), torch.enable_grad(), _full_precision():
        yield


_TINY = sys.float_info.min
Tensors = Sequence[Tensor]


@runtime_checkable
class TensorsOperator(Protocol):
    """A symmetric operator on lists of tensors, one a parameter, (*shape, k)."""

    def __matmul__(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """Multiply."""


def verified_or_fallback(
    fast: TensorsOperator,
    reliable: TensorsOperator,
    other_part: TensorsOperator,
    parameters: Sequence[nn.Parameter],
    name: str,
) -> TensorsOperator:
    """Return `fast` if `fault` finds nothing wrong with it, else `reliable`, with a warning.

    Raises UserError where `reliable` cannot multiply, and ArithmeticError where the one that is left is not symmetric.
    """
    why = fault(fast, reliable, other_part, parameters)
    if not why:
        return fast
    message = f"{name}: {plain(why)}; plain double backward is used instead"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    first, second = (_random(parameters, word) for word in ("u", "v"))
    if not _is_symmetric(first, second, (reliable @ first, reliable @ second), _floor(other_part, second)):
        raise ArithmeticError(f"the products of {name} are not those of a symmetric operator: u.Av differs from v.Au")
    return reliable


def fault(
    fast: TensorsOperator, reliable: TensorsOperator, other_part: TensorsOperator, parameters: Sequence[nn.Parameter]
) -> str:
    """Return what is wrong with `fast`: nothing if it is symmetric and agrees with `reliable` on a random vector.

    It is wrong too where it cannot multiply at all (an operation without a derivative in forward mode, or one that vmap
    does not know). What is small compared with the products of `other_part` of the Hessian counts as rounding. Raises
    UserError where `reliable` cannot multiply.
    """
    first, second = (_random(parameters, word) for word in ("u", "v"))
    truth, floor = _multiplied(reliable, second), _floor(other_part, second)
    images = _attempted(fast, first, second)
    if isinstance(images, Exception):
        return f"curvlinops cannot differentiate this network ({type(images).__name__}: {images})"
    difference = [a - b for a, b in zip(images[1], truth, strict=True)]
    off = _norm(difference) / max(_norm(truth), _norm(images[1]), floor, _TINY)
    agrees = off <= PRODUCTS.of(first[0].dtype) or not (_is_finite(truth) or _is_finite(images[1]))
    is_right = agrees and _is_symmetric(first, second, images, floor)
    return "" if is_right else f"curvlinops' product is off by {off:.1%} here"


def _floor(other_part: TensorsOperator, vector: Tensors) -> float:
    return 1e-6 * _norm(other_part @ vector)


def _multiplied(reliable: TensorsOperator, vector: Tensors) -> Tensors:
    try:
        return reliable @ vector
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            "the network or its loss cannot be differentiated twice",
            got=plain(f"{type(error).__name__}: {error}", most=300),
            allowed="operations that have a derivative of their derivative",
            remedy="write the operation in elementary ones; choose no attention kernel in forward()",
        ) from error


def _attempted(fast: TensorsOperator, *vectors: Tensors) -> tuple[Tensors, Tensors] | Exception:
    """Return the products by both vectors, or what was raised: `reliable` has multiplied, so the network is sound."""
    try:
        first, second = (fast @ vector for vector in vectors)
        return first, second
    except Exception as error:
        return error


def _is_finite(columns: Tensors) -> bool:
    return all(bool(column.isfinite().all()) for column in columns)


def _random(parameters: Sequence[nn.Parameter], name: str) -> list[Tensor]:
    generator = stream(0, "belief", name)  # the name of the stream is part of the numbers
    draws = [torch.randn((*p.shape, 1), dtype=torch.float64, generator=generator) for p in parameters]
    return [draw.to(p) for draw, p in zip(draws, parameters, strict=True)]


def _is_symmetric(u: Tensors, v: Tensors, images: tuple[Tensors, Tensors], floor: float) -> bool:
    """Whether u.Av = v.Au up to rounding, `images` being Au and Av. Products that are not finite cannot tell."""
    difference = abs(_dot(v, images[0]) - _dot(u, images[1]))
    scale = _norm(u) * max(_norm(images[0]), _norm(images[1]), floor)
    return not difference > PRODUCTS.of(u[0].dtype) * scale


def _norm(columns: Tensors) -> float:
    return norm_of_all(columns, _dot(columns, columns) ** 0.5)


def _dot(left: Tensors, right: Tensors) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(left, right, strict=True))
