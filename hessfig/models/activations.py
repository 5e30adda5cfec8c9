"""The activations of MLPs, by setting."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor
from torch.nn import functional as F

from hessfig.config import MLP

ACTIVATIONS: dict[MLP, Callable[[Tensor], Tensor]] = {
    MLP.relu: F.relu,
    MLP.gelu: F.gelu,
    MLP.linear: lambda x: x,
}
