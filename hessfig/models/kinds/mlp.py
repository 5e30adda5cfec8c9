"""MLPs with as many parameters as a transformer with the same settings."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from hessfig.config.enums import MLP, Sink
from hessfig.config.enums import Kind as KindName
from hessfig.config.schema import Config, ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.blocks import FIRST
from hessfig.models.kinds import transformer
from hessfig.models.protocol import Draw, NetworkKind, built
from hessfig.terms import Block, Group, Matrix, Part
from hessfig.weights import Layout, Weight, bias_of

_MATCHED = (
    "model.d_mlp=null"  # settings of the transformer with the same number of parameters
)
_WIDEST = 2**31  # above every number of hidden units
_MLP, _EMBEDDINGS = (Group.mlp.value,), (Group.embeddings.value,)


def layout(config: Config) -> Layout:
    """Return embedding, hidden layers (W_in for the first, W for the others), read-out and biases."""
    return Layout(tuple(_weights(config, width(config))))


def reach(task: TaskConfig) -> int:
    """Return the number of tokens in the inputs: all but the last, which predicts nothing."""
    return 3 * task.digits + 2


def width(config: Config) -> int:
    """Return model.d_mlp; null: the number h of hidden units for which the MLP is closest in size to the transformer.

    n(h) = V d + (L d + 1) h + (D - 1)(h + 1) h + (h + 1) V for V tokens, width d,
    prefixes of L tokens and D layers grows with h. The transformer has the same
    settings (d_mlp = 4 d_model, its biases and norms counted).
    """
    if config.model.d_mlp:
        return config.model.d_mlp
    goal = _transformer_size(config)
    widths = range(1, _WIDEST)
    high = widths[bisect_left(widths, goal, key=partial(_size, config))]
    low = high - 1
    if low == 0 or _size(config, high) - goal < goal - _size(config, low):
        return high
    return low


def _size(config: Config, hidden: int) -> int:
    return sum(weight.size for weight in _weights(config, hidden))


def _transformer_size(config: Config) -> int:
    model = replace(
        config.model, kind=KindName.transformer.value, sink=Sink.none, mlp=MLP.relu
    )
    return sum(
        weight.size
        for weight in transformer.layout(replace(config, model=model)).weights
    )


def _weights(config: Config, hidden: int) -> Iterator[Weight]:
    model, vocabulary = config.model, config.task.vocabulary
    yield Weight(
        Matrix.W_E.value, "tok_embed.weight", vocabulary * model.d_model, 0, _EMBEDDINGS
    )
    for layer in range(1, model.n_layers + 1):
        name, inputs = (
            (Matrix.W_in, reach(config.task) * model.d_model)
            if layer == 1
            else (Matrix.W, hidden)
        )
        yield Weight(
            name.value, f"layers.{layer - 1}.weight", inputs * hidden, layer, _MLP
        )
        yield bias_of(name, f"layers.{layer - 1}.bias", hidden, layer, Group.mlp)
    yield Weight(Matrix.W_U.value, "head.weight", vocabulary * hidden)
    yield bias_of("W_U", "head.bias", vocabulary)


def check_activation(model: ModelConfig, why: str) -> None:
    """Raise UserError for model.mlp=none; `why` explains where this kind of network has an activation."""
    if model.mlp == MLP.none:
        raise UserError(
            f"model.mlp: {why}",
            got=MLP.none,
            allowed="relu, gelu, linear",
            remedy="model.mlp=relu",
        )


def is_structural_zero(model: ModelConfig, block: Block, part: Part) -> bool:
    """Whether H_f(W, W) = 0: always for W_U; for every weight and bias if the activation is piecewise linear.

    With ReLU (or no activation) the outputs are piecewise affine in each single weight,
    including embeddings: between kinks the network is a product of matrices. This does
    not hold for groups of weights, whose products are not affine.
    """
    if part != Part.H_f or not block.is_diagonal or block.row in list(Group):
        return False
    return model.mlp != MLP.gelu or block.row in (Matrix.W_U, "b_U")


def _matrices(model: ModelConfig) -> list[Matrix]:
    return [
        Matrix.W_E,
        Matrix.W_in,
        *([Matrix.W] if model.n_layers > 1 else []),
        Matrix.W_U,
    ]


KIND = NetworkKind(
    layout=layout,
    skeleton=built(
        "PrefixMLP",
        lambda config: {
            "width": width(config),
            "vocabulary": config.task.vocabulary,
            "reach": reach(config.task),
        },
    ),
    check=lambda config: check_activation(
        config.model, "kind=mlp is nothing but an MLP"
    ),
    is_structural_zero=is_structural_zero,
    matrices=_matrices,
    reads={
        **dict.fromkeys(
            (
                "n_layers",
                "d_model",
                "d_mlp",
                "initialisation",
                "scaled_weight",
                "weight_scale",
            ),
            "",
        ),
        "mlp": FIRST["mlp"],
        "norm": f"{_MATCHED} {FIRST['norm']}",
        "d_head": _MATCHED,
        "query_key": _MATCHED,
        "n_heads": (
            f"{_MATCHED} model.d_head!=null",
            f"{_MATCHED} model.query_key=single",
        ),
    },
    weights_drawn=Draw.inputs,
)
