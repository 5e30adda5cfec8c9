"""H, H_o or H_f by plain double backward, vector by vector: slow, right for every twice differentiable network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessfig.curvature.problem import Scalar, Suffix
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
        return [torch.stack(of_parameter).sum(dim=0) for of_parameter in zip(*pieces, strict=True)]

    def _of_batch(self, start: Tensor, scalar: Scalar, columns: Sequence[Tensor]) -> list[Tensor]:
        at = dict(zip(self._names, self._at, strict=True))
        vectors = [[column[..., k] for column in columns] for k in range(columns[0].shape[-1])]
        products = self._multiply(functional_call(self._suffix, at, (start,)), scalar, vectors)
        return [torch.stack(of_parameter, dim=-1) for of_parameter in zip(*products, strict=True)]

    def _whole(self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the Hessian of scalar(outputs) times every vector: the gradient of <gradient, v>."""
        slopes = _known(gradients(scalar(outputs), self._at, create_graph=True))
        return [gradients(inner(slopes, vector), self._at) for vector in vectors]

    def _outer(self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return J^T B J times every vector, B the scalar's Hessian in the outputs.

        J^T c is linear in c, so that J v is the gradient of <J^T c, v> in c.
        """
        leaf, cotangent = outputs.detach().requires_grad_(), torch.zeros_like(outputs).requires_grad_()
        (slope,) = gradients(scalar(leaf), [leaf], create_graph=True)
        pulled = _known(gradients(outputs, self._at, cotangent, create_graph=True))
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
        torch.autograd.grad(
            value, at, along, retain_graph=True, create_graph=create_graph, materialize_grads=True
        )
    )


def _known(slopes: list[Tensor]) -> list[Tensor]:
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


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two lists of tensors."""
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Keep to attention kernels that have second derivatives: the fused ones have none."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)
