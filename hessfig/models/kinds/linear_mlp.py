"""Linear MLPs (Figure 8): an embedding, then n_layers linear maps, the last of them the read-out."""

from __future__ import annotations

from hessfig.config.schema import Config
from hessfig.models.blocks import is_structural_zero
from hessfig.models.protocol import Draw, NetworkKind, Structure, built
from hessfig.terms import Group, Matrix
from hessfig.weights import Layout, Weight


def layout(config: Config) -> Layout:
    """Return the weight of every layer, and the embedding."""
    width, vocabulary = config.model.d_model, config.task.vocabulary
    embeddings, mlp = (Group.embeddings.value,), (Group.mlp.value,)
    table = Weight(
        Matrix.W_E.value,
        "tok_embed.weight",
        vocabulary * width,
        0,
        embeddings,
        is_main=False,
    )
    outputs = [*[width] * (config.model.n_layers - 1), vocabulary]
    chain = (
        Weight(Matrix.W.value, f"layers.{layer - 1}.weight", width * length, layer, mlp)
        for layer, length in enumerate(outputs, start=1)
    )
    return Layout((table, *chain))


KIND = NetworkKind(
    layout=layout,
    skeleton=built("LinearMLP", lambda config: {"vocabulary": config.task.vocabulary}),
    is_structural_zero=is_structural_zero,
    matrices=lambda model: [Matrix.W],
    reads=dict.fromkeys(("n_layers", "d_model", "initialisation"), ""),
    weights_drawn=Draw.uniform,
    structure=Structure.tokens,
)
