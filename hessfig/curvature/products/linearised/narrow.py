"""Products in float32 of a network that is evaluated in float64."""

from __future__ import annotations

from functools import cached_property
from typing import Any

import torch

from hessfig.curvature.products.linearised.node import Node


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
