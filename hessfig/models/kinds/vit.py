"""Small vision transformers on 8 x 8 images of digits: patches, learned positions, mean over tokens."""

from __future__ import annotations

from collections.abc import Iterator

from hessfig.config.enums import Data, Norm
from hessfig.config.schema import Config, with_defaults
from hessfig.errors import UserError
from hessfig.models.blocks import FIRST, OF_LAYERS, is_structural_zero, layer_matrices
from hessfig.models.kinds.transformer import layer_weights
from hessfig.models.protocol import NetworkKind, built
from hessfig.tasks import digits
from hessfig.tasks.digits import CLASSES, SIDE
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight, bias_of, norm_of

_EMBEDDINGS = (Group.embeddings.value,)


def layout(config: Config) -> Layout:
    """Return all parameters of the network in the order of its modules: weights, biases and norms."""
    return Layout(tuple(_weights(config)))


def _weights(config: Config) -> Iterator[Weight]:
    model = with_defaults(config.model)
    pixels = model.patch**2
    width = model.d_model
    yield Weight(Matrix.W_patch.value, "patch.weight", pixels * width, 0, _EMBEDDINGS)
    yield bias_of(Matrix.W_patch, "patch.bias", width, 0, Group.embeddings)
    yield Weight(
        Matrix.W_pos.value, "pos.weight", SIDE**2 // pixels * width, 0, _EMBEDDINGS
    )
    for layer in range(1, model.n_layers + 1):
        yield from layer_weights(config, model, layer)
    if model.norm == Norm.pre:
        yield from norm_of("ln_out", "ln_out", width)
    yield Weight(Matrix.W_U.value, "head.weight", CLASSES * width)
    yield bias_of("W_U", "head.bias", CLASSES)


def _check(config: Config) -> None:
    if SIDE % config.model.patch:
        raise UserError(
            f"model.patch does not divide the pictures' side of {SIDE} pixels",
            got=config.model.patch,
            allowed=", ".join(
                str(patch) for patch in range(1, SIDE + 1) if SIDE % patch == 0
            ),
            remedy="model.patch=2",
        )
    digits.check_batch(config.task)


KIND = NetworkKind(
    layout=layout,
    skeleton=built(
        "VisionTransformer", lambda config: {"side": SIDE, "classes": CLASSES}
    ),
    check=_check,
    is_structural_zero=is_structural_zero,
    source=lambda config: digits.source(config.task),
    data=Data.digits,
    matrices=lambda model: [
        Matrix.W_patch,
        Matrix.W_pos,
        *layer_matrices(model),
        Matrix.W_U,
    ],
    reads={**dict.fromkeys((*OF_LAYERS, "patch"), ""), **FIRST},
)
