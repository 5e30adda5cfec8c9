"""Linear MLPs (Figure 8): an embedding, then n_layers linear maps, the last of them the read-out."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config.schema import Config
from hessfig.models.blocks import is_structural_zero, weight_size
from hessfig.models.protocol import Kind, Layout, Weight
from hessfig.terms import Group, Matrix

if TYPE_CHECKING:
    from torch import nn


def layout(config: Config) -> Layout:
    """Return the weight of every layer, and the embedding as a further name."""
    model, task = config.model, config.task
    table = Weight(
        Matrix.W_E.value,
        "tok_embed.weight",
        task.vocabulary * model.d_model,
        0,
        (Group.embeddings.value,),
        is_main=False,
    )
    chain = [
        Weight(
            Matrix.W.value,
            f"layers.{layer - 1}.weight",
            weight_size(Matrix.W, model, task, layer),
            layer,
            (Group.mlp.value,),
        )
        for layer in range(1, model.n_layers + 1)
    ]
    return Layout((table, *chain))


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.networks import LinearMLP

    return LinearMLP(config.model, vocabulary=config.task.vocabulary)


KIND = Kind(layout=layout, skeleton=_skeleton, is_structural_zero=is_structural_zero)
