"""A single self-attention layer without mask, skip, bias or read-out: the setting of the theorems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config.schema import Config
from hessfig.models.blocks import is_structural_zero, matrices_of, weight_size
from hessfig.models.protocol import Kind, Layout, Weight
from hessfig.terms import Group, Matrix

if TYPE_CHECKING:
    from torch import nn


_PATHS = {Matrix.W_Q: "q", Matrix.W_QK: "q", Matrix.W_K: "k", Matrix.W_V: "v"}


def layout(config: Config) -> Layout:
    """Return the weights of the one layer."""
    return Layout(
        tuple(
            Weight(
                matrix.value,
                f"{_PATHS[matrix]}.weight",
                weight_size(matrix, config.model, config.task),
                1,
                (Group.attention.value,),
            )
            for matrix in matrices_of(config.model)
        )
    )


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.networks import BareAttention

    return BareAttention(config.model)


KIND = Kind(layout=layout, skeleton=_skeleton, is_structural_zero=is_structural_zero)
