"""Steepest descent in norms over all parameters, as an optimiser of torch; steepest directions, dual norms, lengths."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.terms import StepNorm

Tensors = Sequence[Tensor]


def steepest(slopes: Tensors, norm: StepNorm) -> tuple[list[Tensor], float]:
    r"""Return the d with ||d|| <= 1 whose inner product with `slopes` is largest, and that product, the dual norm.

    euclidean: g / |g|. largest_entry, max over all entries: the signs of g; sum |g_i|.
    blockwise, max over parameters l of |d_l|: g_l / |g_l| each; sum |g_l|. spectral,
    max over parameters of the largest singular value (a vector is a matrix of one
    column, a tensor of several axes has a row for each entry of the first): U_l V_l^T
    of G_l = U_l S_l V_l^T, without what belongs to singular values 0; sum tr S_l. What
    is 0 stays 0.
    """
    if norm == StepNorm.euclidean:
        whole = math.hypot(*(float(slope.norm()) for slope in slopes))
        return [_over(slope, whole) for slope in slopes], whole
    directions = []
    sizes = []
    for slope in slopes:
        if norm == StepNorm.largest_entry:
            direction = slope.sign()
            size = float(slope.abs().sum())
        elif norm == StepNorm.spectral:
            direction, size = _orthogonalised(slope)
        else:
            size = float(slope.norm())
            direction = _over(slope, size)
        directions.append(direction)
        sizes.append(size)
    return directions, math.fsum(sizes)


def length(tensors: Tensors, norm: StepNorm) -> float:
    """Return the norm of a vector that is given as one tensor per parameter; tensors may be empty."""
    sizes = []
    for tensor in tensors:
        if not tensor.numel():
            continue
        if norm == StepNorm.largest_entry:
            size = tensor.abs().max()
        elif norm == StepNorm.spectral:
            size = torch.linalg.matrix_norm(_matrix(tensor), 2)
        else:
            size = tensor.norm()
        sizes.append(float(size))
    if norm == StepNorm.euclidean:
        return math.hypot(*sizes)
    return max(sizes)


def _orthogonalised(slope: Tensor) -> tuple[Tensor, float]:
    left, values, right = torch.linalg.svd(_matrix(slope), full_matrices=False)
    rounding = torch.finfo(values.dtype).eps * max(left.shape[0], right.shape[1])
    kept = values > rounding * values[:1]
    return (left[:, kept] @ right[kept]).view_as(slope), float(values.sum())


def _matrix(tensor: Tensor) -> Tensor:
    if tensor.ndim:
        return tensor.reshape(len(tensor), math.prod(tensor.shape[1:]))
    return tensor.reshape(1, 1)


def _over(tensor: Tensor, size: float) -> Tensor:
    if size:
        return tensor / size
    return torch.zeros_like(tensor)


class NormDescent(torch.optim.Optimizer):
    """w' = w - lr ||g||_* d, where d maximises g.d over ||d|| <= 1 and ||g||_* is that maximum (arXiv 2603.05002).

    `weight_decay` times w is added to the gradient.
    """

    def __init__(
        self, params: Iterable[nn.Parameter], lr: float, weight_decay: float, norm: str
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "norm": norm})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        """Take a step along the current gradients; parameters without a gradient do not move."""
        del closure
        for group in self.param_groups:
            parameters = [one for one in group["params"] if one.grad is not None]
            slopes = [one.grad + group["weight_decay"] * one for one in parameters]
            directions, dual = steepest(slopes, StepNorm(group["norm"]))
            for parameter, direction in zip(parameters, directions, strict=True):
                parameter -= group["lr"] * dual * direction
