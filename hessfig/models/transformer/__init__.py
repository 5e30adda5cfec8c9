"""The GPT-2-style transformer and its ablations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config.schema import Config
from hessfig.models.protocol import Kind
from hessfig.models.structure import is_structural_zero
from hessfig.models.transformer.layout import layout

if TYPE_CHECKING:
    from torch import nn


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.transformer.network import Transformer
    from hessfig.tasks.addition import sequence_length

    return Transformer(
        config.model, vocabulary=config.task.vocabulary, length=sequence_length(config.task.digits)
    )


KIND = Kind(layout=layout, skeleton=_skeleton, is_structural_zero=is_structural_zero)
