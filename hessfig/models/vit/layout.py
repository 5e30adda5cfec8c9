"""The vision transformer's weights by name: patches, positions, the layers of a transformer, a classifier."""

from __future__ import annotations

from collections.abc import Iterator

from hessfig.config.choices import Norm
from hessfig.config.schema import Config, with_defaults
from hessfig.models.protocol import Layout, Weight
from hessfig.models.transformer.layout import layer_weights, norm_weights
from hessfig.tasks.digits import CLASSES, SIDE
from hessfig.terms import Group, Matrix

_EMBEDDINGS, _BIASES = (Group.embeddings.value,), (Group.biases.value,)


def layout(config: Config) -> Layout:
    """Return every parameter of the network in the order of its modules: weights, then biases and norms as others."""
    return Layout(tuple(_weights(config)))


def _weights(config: Config) -> Iterator[Weight]:
    model = with_defaults(config.model)
    pixels, width = model.patch**2, model.d_model
    yield Weight(Matrix.W_patch.value, "patch.weight", pixels * width, 0, _EMBEDDINGS)
    yield Weight("b_patch", "patch.bias", width, 0, (*_EMBEDDINGS, *_BIASES), is_main=False)
    yield Weight(Matrix.W_pos.value, "pos.weight", SIDE**2 // pixels * width, 0, _EMBEDDINGS)
    for layer in range(1, model.n_layers + 1):
        yield from layer_weights(config, model, layer)
    if model.norm == Norm.pre:
        yield from norm_weights("ln_out", model, 0)
    yield Weight(Matrix.W_U.value, "head.weight", CLASSES * width)
    yield Weight("b_U", "head.bias", CLASSES, 0, _BIASES, is_main=False)
