"""Multilayer perceptrons on the transformer's task, with as many parameters as a transformer of the same settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config.choices import MLP
from hessfig.config.schema import Config, ModelConfig
from hessfig.errors import UserError
from hessfig.models.mlp.layout import layout, reach, width
from hessfig.models.protocol import Kind
from hessfig.terms import Block, Group, Matrix, Part

if TYPE_CHECKING:
    from torch import nn


def _skeleton(config: Config) -> nn.Module:
    from hessfig.models.mlp.network import PrefixMLP

    return PrefixMLP(
        config.model, width=width(config), vocabulary=config.task.vocabulary, reach=reach(config.task)
    )


def _check(config: Config) -> None:
    if config.model.mlp == MLP.none:
        raise UserError(
            "model.mlp: kind=mlp is nothing but an MLP",
            got=MLP.none,
            allowed="relu, gelu, linear",
            remedy="model.mlp=relu",
        )


def is_structural_zero(model: ModelConfig, block: Block, part: Part) -> bool:
    """Whether H_f(W, W) = 0: for W_U always; for every weight and bias while the activation is piecewise linear.

    With ReLU (or none) the outputs are piecewise affine in each weight alone, embeddings included: between two kinks
    the network is a product of matrices. Groups of weights are not: their products bend.
    """
    if part != Part.H_f or not block.is_diagonal or block.row in list(Group):
        return False
    return model.mlp != MLP.gelu or block.row in (Matrix.W_U, "b_U")


KIND = Kind(layout=layout, skeleton=_skeleton, check=_check, is_structural_zero=is_structural_zero)
