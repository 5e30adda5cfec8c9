"""H or H_f by plain double backward, a vector at a time: slow, and right for every twice differentiable network."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessfig.curvature.problem import Scalar, Suffix
from hessfig.terms import Part


class DoubleBackward:
    """H or H_f in some parameters of a suffix, with the interface of curvlinops' operators."""

    def __init__(self, suffix: Suffix, part: Part, parameters: Sequence[nn.Parameter]) -> None:
        names = {parameter: name for name, parameter in suffix.named_parameters()}
        self._suffix, self._terms = suffix, suffix.terms(part)
        self._names = [names[parameter] for parameter in parameters]
        self._at = [parameter.detach().clone().requires_grad_() for parameter in parameters]

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Multiply: one tensor (*shape, k) a parameter in and out."""
        with torch.enable_grad(), differentiable_twice():
            pieces = [self._of_batch(start, scalar, columns) for start, scalar in self._terms]
        return [torch.stack(of_parameter).sum(dim=0) for of_parameter in zip(*pieces, strict=True)]

    def _of_batch(self, start: Tensor, scalar: Scalar, columns: Sequence[Tensor]) -> list[Tensor]:
        at = dict(zip(self._names, self._at, strict=True))
        value = scalar(functional_call(self._suffix, at, (start,)))
        slopes = torch.autograd.grad(value, self._at, create_graph=True, materialize_grads=True)
        products = [
            self._product(slopes, [column[..., k] for column in columns]) for k in range(columns[0].shape[-1])
        ]
        return [torch.stack(of_parameter, dim=-1) for of_parameter in zip(*products, strict=True)]

    def _product(self, slopes: Sequence[Tensor], vectors: Sequence[Tensor]) -> Sequence[Tensor]:
        along = torch.stack(
            [(slope * vector).sum() for slope, vector in zip(slopes, vectors, strict=True)]
        ).sum()
        if not along.requires_grad:
            return [torch.zeros_like(at) for at in self._at]
        return torch.autograd.grad(along, self._at, retain_graph=True, materialize_grads=True)


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
