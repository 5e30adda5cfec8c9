"""From a network of hessfig.models to its tape."""

from __future__ import annotations

import torch
from torch import nn

from hessfig.config import ModelConfig, Norm
from hessfig.curvature.products.linearised.builder import EVERY, Builder
from hessfig.curvature.products.linearised.fixed import Mean, Prefixes, Scale
from hessfig.curvature.products.linearised.steps import Activate
from hessfig.curvature.products.linearised.tape import Tape
from hessfig.curvature.products.linearised.weights import WEIGHT, Lookup
from hessfig.models.linear_mlp.network import LinearMLP
from hessfig.models.mlp.network import PrefixMLP
from hessfig.models.self_attention.network import BareAttention
from hessfig.models.transformer.network import Transformer
from hessfig.models.transformer.sinks import embedding_sink, position_factors
from hessfig.models.vit.network import VisionTransformer
from hessfig.tasks.batch import Batch
from hessfig.terms import Matrix


def can_build(network: nn.Module) -> bool:
    """Whether the steps of this kind of network are known."""
    return isinstance(network, Transformer | LinearMLP | PrefixMLP | VisionTransformer | BareAttention)


def build_tape(network: nn.Module, batch: Batch, model: ModelConfig, *, merged: bool = False) -> Tape:
    """Evaluate `network` on `batch` step by step; the last layer at the scored positions only.

    Positions behind the last scored one, which a causal network never reads, are not evaluated. `merged`: what depends
    on a position's token and place alone (embeddings and the first layer's queries, keys and values) is evaluated once
    for all positions that share them. The same products up to rounding, in fewer operations.
    """
    build = Builder(batch, model, merged=merged)
    if isinstance(network, Transformer):
        _transformer(build, network)
    elif isinstance(network, LinearMLP):
        _linear_mlp(build, network)
    elif isinstance(network, PrefixMLP):
        _mlp(build, network)
    elif isinstance(network, VisionTransformer):
        _vision_transformer(build, network)
    else:
        assert isinstance(network, BareAttention), "can_build says which networks have a tape"
        _bare_attention(build, network)
    return build.tape


def _transformer(build: Builder, network: Transformer) -> None:
    tokens = build.batch.inputs[:, : build.batch.scored.stop]
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    if build.merged:
        pairs, places = torch.stack([tokens, positions]).flatten(1).unique(dim=1, return_inverse=True)
        build.index["tokens"] = places.view(tokens.shape)
        tokens, positions = pairs[:1], pairs[1:]
    build.tape.add(Lookup("tokens", tokens, network.tok_embed.weight), {WEIGHT: (0, Matrix.W_E)})
    build.tape.add(Lookup("positions", positions, network.pos.weight), {WEIGHT: (0, Matrix.W_pos)})
    hidden = build.sum("tokens", "positions", "hidden0")
    if embedding_sink(build.model):
        factors = position_factors(positions[0], embedding_sink(build.model), build.tape.values[hidden])
        hidden = build.alike(Scale((hidden,), "sunk0", build.tape.values[hidden], factors))
    for index, layer in enumerate(network.layers, start=1):
        queries = build.batch.scored if index == len(network.layers) else EVERY
        hidden = build.layer(layer, index, hidden, queries)  # type: ignore[arg-type]
    if build.model.norm == Norm.pre:
        hidden = build.normalise(hidden, "final", network.ln_out, (0, "ln_out"))
    build.linear(hidden, "outputs", network.head, (0, Matrix.W_U))


def _linear_mlp(build: Builder, network: LinearMLP) -> None:
    tokens = build.batch.inputs[:, build.batch.scored]
    if build.merged:
        tokens, build.index["tokens"] = tokens.unique(return_inverse=True)
        tokens = tokens.unsqueeze(0)
    embedding = Lookup("tokens", tokens, network.tok_embed.weight)
    hidden = build.tape.add(embedding, {WEIGHT: (0, Matrix.W_E)})
    for index, layer in enumerate(network.layers, start=1):
        hidden = build.linear(hidden, f"hidden{index}", layer, (index, Matrix.W))  # type: ignore[arg-type]
    build.spread(hidden)


def _mlp(build: Builder, network: PrefixMLP) -> None:
    embedding = Lookup("tokens", build.batch.inputs[:, : network.reach], network.tok_embed.weight)
    rows = build.tape.add(embedding, {WEIGHT: (0, Matrix.W_E)})
    rows = build.tape.add(Prefixes((rows,), "prefixes", build.tape.values[rows], build.batch.scored))
    for index, layer in enumerate(network.layers, start=1):
        weight = (index, Matrix.W_in if index == 1 else Matrix.W)
        z = build.linear(rows, f"z{index}", layer, weight)  # type: ignore[arg-type]
        rows = build.tape.add(Activate((z,), f"p{index}", build.tape.values[z], network, build.model.mlp))
    build.linear(rows, "outputs", network.head, (0, Matrix.W_U))


def _vision_transformer(build: Builder, network: VisionTransformer) -> None:
    build.tape.values["pixels"] = network.patches(build.batch.inputs)
    patches = build.linear("pixels", "patches", network.patch, (0, Matrix.W_patch))
    rows = build.tape.values[patches]
    positions = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[:2])
    build.tape.add(Lookup("positions", positions, network.pos.weight), {WEIGHT: (0, Matrix.W_pos)})
    hidden = build.sum(patches, "positions", "hidden0")
    for index, layer in enumerate(network.layers, start=1):
        hidden = build.layer(layer, index, hidden, EVERY)  # type: ignore[arg-type]
    if build.model.norm == Norm.pre:
        hidden = build.normalise(hidden, "final", network.ln_out, (0, "ln_out"))
    mean = build.tape.add(Mean((hidden,), "mean", build.tape.values[hidden]))
    build.linear(mean, "outputs", network.head, (0, Matrix.W_U))


def _bare_attention(build: Builder, network: BareAttention) -> None:
    build.tape.values["inputs"] = network.hidden(build.batch.inputs, 0)
    length = build.batch.length
    allowed = torch.ones(length, length, dtype=torch.bool, device=build.batch.inputs.device)
    build.attention(network, 1, "inputs", EVERY, scale=network.scale, allowed=allowed)
