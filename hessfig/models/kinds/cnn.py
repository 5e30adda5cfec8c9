"""Small convolutional networks on 8 x 8 images of digits: three stages of 2 n_layers convolutions, no batch norm."""

from __future__ import annotations

from collections.abc import Iterator

from hessfig.config.enums import Data, Norm
from hessfig.config.schema import Config, ModelConfig
from hessfig.errors import UserError
from hessfig.models.blocks import FIRST
from hessfig.models.kinds import mlp
from hessfig.models.protocol import Draw, NetworkKind, built
from hessfig.tasks import digits
from hessfig.terms import Block, Group, Matrix, Part
from hessfig.weights import Layout, Weight, bias_of, norm_of

STAGES, PIXELS = 3, 9
_CONVOLUTIONS = (Group.mlp.value,)


def layout(config: Config) -> Layout:
    """Return every parameter in the order of the modules; a layer is a convolution with the weight W."""
    return Layout(tuple(_weights(config)))


def convolutions(model: ModelConfig) -> int:
    """Return the number of convolutions: 2 model.n_layers in each stage."""
    return 2 * STAGES * model.n_layers


def channels(model: ModelConfig) -> int:
    """Return model.d_mlp; null: half of d_model.

    Six convolutions then have about as many weights as a transformer layer of that
    width: 45 (d / 2)^2 = 11 d^2 compared with 12 d^2.
    """
    return model.d_mlp or model.d_model // 2


def _weights(config: Config) -> Iterator[Weight]:
    model = config.model
    width = channels(config.model)
    for layer in range(1, convolutions(model) + 1):
        place = f"layers.{layer - 1}"
        inputs = 1 if layer == 1 else width
        yield Weight(
            Matrix.W.value,
            f"{place}.conv.weight",
            PIXELS * inputs * width,
            layer,
            _CONVOLUTIONS,
        )
        yield bias_of(Matrix.W, f"{place}.conv.bias", width, layer, Group.mlp)
        if model.norm == Norm.post:
            yield from norm_of("norm", f"{place}.norm", width, layer)
    yield Weight(Matrix.W_U.value, "head.weight", digits.CLASSES * width)
    yield bias_of("W_U", "head.bias", digits.CLASSES)


def _check_model(model: ModelConfig) -> None:
    mlp.check_activation(model, "a CNN has an activation behind every convolution")
    if model.norm == Norm.pre or channels(model) % model.n_heads:
        raise UserError(
            "model.norm, model.n_heads: a CNN has GroupNorm behind every convolution, or none; its groups are n_heads",
            got=f"model.norm={model.norm}, model.n_heads={model.n_heads}, {channels(model)} channels",
            allowed="model.norm=none or post, and n_heads that divides the channels (d_mlp, else half of d_model)",
            remedy="model.norm=post model.n_heads=2",
        )


def is_structural_zero(model: ModelConfig, block: Block, part: Part) -> bool:
    """Whether H_f(W, W) = 0: always for W_U; for other weights if the network is piecewise linear, as for an MLP."""
    if model.norm == Norm.none:
        return mlp.is_structural_zero(model, block, part)
    return part == Part.H_f and block.is_diagonal and block.row in (Matrix.W_U, "b_U")


KIND = NetworkKind(
    layout=layout,
    skeleton=built(
        "ConvolutionalNetwork",
        lambda config: {
            "convolutions": convolutions(config.model),
            "channels": channels(config.model),
            "classes": digits.CLASSES,
        },
    ),
    check=lambda config: digits.check_batch(config.task),
    axes=lambda config: frozenset({"seed"}),
    is_structural_zero=is_structural_zero,
    source=lambda config: digits.source(config.task),
    data=Data.digits,
    matrices=lambda model: [Matrix.W, Matrix.W_U],
    reads={
        **dict.fromkeys(("n_layers", "d_mlp", "initialisation"), ""),
        "n_heads": "model.norm=post",
        "d_model": "model.d_mlp=null",
        "norm": FIRST["norm"],
        "mlp": FIRST["mlp"],
    },
    weights_drawn=Draw.relu,
    check_model=_check_model,
)
