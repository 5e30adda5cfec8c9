"""A single self-attention layer without mask, skip, bias or read-out: the setting of the theorems."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config.enums import Data
from hessfig.config.schema import Config, ModelConfig
from hessfig.errors import UserError
from hessfig.models.blocks import attention_groups, attention_matrices, is_structural_zero, weight_size
from hessfig.models.protocol import Kind, Layout, Structure, Weight
from hessfig.terms import Matrix

if TYPE_CHECKING:
    from torch import nn


_PATHS = {Matrix.W_Q: "q", Matrix.W_QK: "q", Matrix.W_K: "k", Matrix.W_V: "v"}


def layout(config: Config) -> Layout:
    """Return the weights of the one layer."""
    sizes = {matrix: weight_size(matrix, config.model, config.task) for matrix in attention_matrices(config.model)}
    return Layout(
        tuple(Weight(one.value, f"{_PATHS[one]}.weight", size, 1, attention_groups(one)) for one, size in sizes.items())
    )


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.networks import BareAttention

    return BareAttention(config.model)


def _check_model(model: ModelConfig) -> None:
    if model.d_head is not None and model.n_heads > 1 and model.d_head * model.n_heads != model.d_model:
        raise UserError(
            "model.d_head * model.n_heads must be model.d_model: kind=self_attention has no output projection",
            got=f"{model.d_head} * {model.n_heads} != {model.d_model}",
            allowed="equal products",
            remedy="leave model.d_head out",
        )
    if model.n_layers != 1:
        raise UserError(
            "model.n_layers: kind=self_attention is one layer",
            got=model.n_layers,
            allowed="1",
            remedy="use model.kind=transformer",
        )


KIND = Kind(
    layout=layout,
    skeleton=_skeleton,
    is_structural_zero=is_structural_zero,
    data=Data.gaussian,
    matrices=attention_matrices,
    structure=Structure.attention,
    check_model=_check_model,
)
