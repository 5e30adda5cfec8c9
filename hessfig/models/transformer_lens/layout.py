"""The weights of a TransformerLens network by name: parameters as TransformerLens has them, heads as finer views."""

from __future__ import annotations

from collections.abc import Iterator

from hessfig.models.protocol import Layout, Weight
from hessfig.models.transformer_lens.settings import Sizes
from hessfig.terms import Group, Matrix

HEAD = "unembed.weight"  # (vocabulary, width + 1): W_U transposed, and b_U as its last column
_ALL = slice(None)
_EMBEDDINGS, _BIASES, _NORMS = (Group.embeddings.value,), (Group.biases.value,), (Group.norms.value,)
_PROJECTIONS = (Matrix.W_Q.value, Matrix.W_K.value, Matrix.W_V.value)


def layout_of(sizes: Sizes) -> Layout:
    """Return every weight in the order of the layers; `parameters` has each parameter once, for the group all."""
    weights, table = tuple(_weights(sizes)), sizes.vocabulary * (sizes.d_model + 1)
    own = tuple(weight for weight in weights if not weight.is_finer and weight.parameter != HEAD)
    return Layout(weights, (*own, Weight(HEAD, HEAD, table)))


def _weights(sizes: Sizes) -> Iterator[Weight]:
    width, words = sizes.d_model, sizes.vocabulary
    yield Weight(Matrix.W_E.value, "embed.W_E", words * width, 0, _EMBEDDINGS)
    yield Weight(Matrix.W_pos.value, "pos_embed.W_pos", sizes.context * width, 0, _EMBEDDINGS)
    for layer in range(1, sizes.n_layers + 1):
        yield from _layer(sizes, layer, f"blocks.{layer - 1}")
    yield from _norm("ln_out", "ln_final", sizes, 0)
    yield Weight(Matrix.W_U.value, HEAD, words * width, index=(_ALL, slice(0, width)))
    yield Weight("b_U", HEAD, words, 0, _BIASES, index=(_ALL, width), is_main=False)


def _layer(sizes: Sizes, layer: int, place: str) -> Iterator[Weight]:
    yield from _norm("ln1", f"{place}.ln1", sizes, layer)
    inner = sizes.n_heads * sizes.d_head
    for name in _PROJECTIONS:
        yield from _by_head(name, inner, sizes, layer, place)
    yield from _by_head(Matrix.W_O.value, sizes.d_model, sizes, layer, place)
    if sizes.d_mlp:
        yield from _norm("ln2", f"{place}.ln2", sizes, layer)
        for name, outputs in ((Matrix.W_in.value, sizes.d_mlp), (Matrix.W_out.value, sizes.d_model)):
            size = sizes.d_model * sizes.d_mlp
            yield Weight(name, f"{place}.mlp.{name}", size, layer, (Group.mlp.value,))
            yield _bias(name, f"{place}.mlp", outputs, layer, Group.mlp)


def _by_head(name: str, outputs: int, sizes: Sizes, layer: int, place: str) -> Iterator[Weight]:
    """Yield a weight of attention, its bias, and its heads (counted from 1)."""
    path, size = f"{place}.attn.{name}", sizes.d_head * sizes.d_model
    yield Weight(name, path, sizes.n_heads * size, layer, (Group.attention.value,))
    yield _bias(name, f"{place}.attn", outputs, layer, Group.attention)
    for head in range(sizes.n_heads):
        yield Weight(f"{name}.head{head + 1}", path, size, layer, index=head, is_main=False, is_finer=True)


def _bias(name: str, place: str, size: int, layer: int, group: Group) -> Weight:
    bias = name.replace("W", "b", 1)
    return Weight(bias, f"{place}.{bias}", size, layer, (group.value, *_BIASES), is_main=False)


def _norm(name: str, place: str, sizes: Sizes, layer: int) -> Iterator[Weight]:
    for kind, word in (("w", "gain"), ("b", "shift")) if sizes.norm == "LN" else ():
        yield Weight(f"{name}_{word}", f"{place}.{kind}", sizes.d_model, layer, _NORMS, is_main=False)
