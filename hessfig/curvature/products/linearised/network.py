"""From a network of hessfig.models to its tape."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.config import MLP, ModelConfig, Norm, QueryKey
from hessfig.curvature.products.linearised.layernorm import Normalise
from hessfig.curvature.products.linearised.mixing import Mixing
from hessfig.curvature.products.linearised.node import Node
from hessfig.curvature.products.linearised.steps import Activate, Gather, Repeat, Select, Sum
from hessfig.curvature.products.linearised.tape import Tape, Weight
from hessfig.curvature.products.linearised.weights import BIAS, WEIGHT, LinearMap, Lookup
from hessfig.models.linear_mlp.network import LinearMLP
from hessfig.models.self_attention.network import BareAttention
from hessfig.models.transformer.network import Layer, Transformer
from hessfig.tasks.batch import Batch
from hessfig.terms import Matrix

_QUERIES = slice(None)


def can_build(network: nn.Module) -> bool:
    """Whether the steps of this kind of network are known."""
    return isinstance(network, Transformer | LinearMLP | BareAttention)


def build_tape(network: nn.Module, batch: Batch, model: ModelConfig, *, merged: bool = False) -> Tape:
    """Evaluate `network` on `batch` step by step; the last layer at the scored positions only.

    `merged`: what depends on a position's token and place alone (embeddings and the first layer's queries, keys and
    values) is evaluated once for all positions that share them, and positions behind the last scored one, which a
    causal network never reads, not at all. The same products up to rounding, in fewer operations.
    """
    builder = _Builder(batch, model, merged=merged)
    if isinstance(network, Transformer):
        builder.transformer(network)
    elif isinstance(network, LinearMLP):
        builder.linear_mlp(network)
    else:
        assert isinstance(network, BareAttention), "can_build says which networks have a tape"
        builder.bare_attention(network)
    return builder.tape


class _Builder:
    """Adds the steps of one network to a tape; methods take and return names of variables.

    `index` says for variables that hold every distinct row once where the rows of the batch stand in them.
    """

    def __init__(self, batch: Batch, model: ModelConfig, *, merged: bool) -> None:
        self.tape, self.batch, self.model, self.merged = Tape(), batch, model, merged
        self.index: dict[str, Tensor] = {}

    def transformer(self, network: Transformer) -> None:
        tokens = self.batch.inputs[:, : self.batch.scored.stop] if self.merged else self.batch.inputs
        positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
        if self.merged:
            pairs, places = torch.stack([tokens, positions]).flatten(1).unique(dim=1, return_inverse=True)
            self.index["tokens"] = places.view(tokens.shape)
            tokens, positions = pairs[:1], pairs[1:]
        self.tape.add(Lookup("tokens", tokens, network.tok_embed.weight), {WEIGHT: (0, Matrix.W_E)})
        self.tape.add(Lookup("positions", positions, network.pos.weight), {WEIGHT: (0, Matrix.W_pos)})
        hidden = self._sum("tokens", "positions", "hidden0")
        for index, layer in enumerate(network.layers, start=1):
            queries = self.batch.scored if index == len(network.layers) else _QUERIES
            hidden = self._layer(layer, index, hidden, queries)  # type: ignore[arg-type]
        if self.model.norm == Norm.pre:
            hidden = self._normalise(hidden, "final", network.ln_out, (0, "ln_out"))
        self._linear(hidden, "outputs", network.head, (0, Matrix.W_U))

    def linear_mlp(self, network: LinearMLP) -> None:
        tokens = self.batch.inputs[:, self.batch.scored]
        if self.merged:
            tokens, self.index["tokens"] = tokens.unique(return_inverse=True)
            tokens = tokens.unsqueeze(0)
        embedding = Lookup("tokens", tokens, network.tok_embed.weight)
        hidden = self.tape.add(embedding, {WEIGHT: (0, Matrix.W_E)})
        for index, layer in enumerate(network.layers, start=1):
            hidden = self._linear(hidden, f"hidden{index}", layer, (index, Matrix.W))  # type: ignore[arg-type]
        self._spread(hidden)

    def bare_attention(self, network: BareAttention) -> None:
        self.tape.values["inputs"] = network.hidden(self.batch.inputs, 0)
        length = self.batch.length
        allowed = torch.ones(length, length, dtype=torch.bool, device=self.batch.inputs.device)
        self._attention(network, 1, "inputs", _QUERIES, scale=network.scale, allowed=allowed)

    def _layer(self, layer: Layer, index: int, hidden: str, queries: slice) -> str:
        norm, attention = self.model.norm, layer.attn
        x = self._normalise(hidden, f"norm{index}", layer.ln1, (index, "ln1")) if norm == Norm.pre else hidden
        length = self.batch.scored.stop if self.merged else self.batch.length
        allowed = ~attention.causal_mask[:length, :length][queries]
        scale = attention.scale * attention.temperature
        mixed = self._attention(attention, index, x, queries, scale=scale, allowed=allowed)
        residual = self._linear(mixed, f"attended{index}", attention.o, (index, Matrix.W_O))
        if self.model.attention_skip:
            kept = self._spread(self._select(hidden, queries))
            residual = self._sum(kept, residual, f"residual{index}")
        if norm == Norm.post:
            residual = self._normalise(residual, f"norm{index}", layer.ln1, (index, "ln1"))
        return residual if self.model.mlp == MLP.none else self._feed_forward(layer, index, residual)

    def _attention(
        self, attention: Any, index: int, x: str, queries: slice, *, scale: float, allowed: Tensor
    ) -> str:
        single, heads = self.model.query_key == QueryKey.single, self.model.n_heads
        matrix = Matrix.W_QK if single else Matrix.W_Q
        query = self._spread(
            self._linear(self._select(x, queries), f"q{index}", attention.q, (index, matrix))
        )
        if single:
            x_keys = self._spread(x)
            key = self.tape.add(Repeat((x_keys,), f"k{index}", self.tape.values[x_keys], heads))
        else:
            key = self._spread(self._linear(x, f"k{index}", attention.k, (index, Matrix.W_K)))
        value = self._spread(self._linear(x, f"v{index}", attention.v, (index, Matrix.W_V)))
        values = [self.tape.values[name] for name in (query, key, value)]
        is_linear = bool(attention.is_linear)
        step = Mixing(
            (query, key, value),
            f"m{index}",
            values,
            heads=heads,
            scale=scale,
            is_linear=is_linear,
            allowed=allowed,
        )
        return self.tape.add(step)

    def _feed_forward(self, layer: Layer, index: int, residual: str) -> str:
        pre, post = self.model.norm == Norm.pre, self.model.norm == Norm.post
        y = self._normalise(residual, f"norm_mlp{index}", layer.ln2, (index, "ln2")) if pre else residual
        z = self._linear(y, f"z{index}", layer.mlp.fc_in, (index, Matrix.W_in))
        p = self.tape.add(Activate((z,), f"p{index}", self.tape.values[z], layer.mlp, self.model.mlp))
        output = self._linear(p, f"mlp{index}", layer.mlp.fc_out, (index, Matrix.W_out))
        total = self._sum(residual, output, f"hidden{index}")
        return self._normalise(total, f"norm_mlp{index}", layer.ln2, (index, "ln2")) if post else total

    def _linear(self, x: str, output: str, linear: nn.Linear, weight: tuple[int, Matrix]) -> str:
        layer, matrix = weight
        names = {WEIGHT: weight, BIAS: (layer, matrix.replace("W", "b", 1))}
        return self._alike(LinearMap((x,), output, self.tape.values[x], linear), names)

    def _normalise(self, x: str, output: str, norm: nn.Module, weights: tuple[int, str]) -> str:
        assert isinstance(norm, nn.LayerNorm)
        layer, name = weights
        names = {WEIGHT: (layer, f"{name}_gain"), BIAS: (layer, f"{name}_shift")}
        return self._alike(Normalise((x,), output, self.tape.values[x], norm), names)

    def _sum(self, left: str, right: str, output: str) -> str:
        return self._alike(Sum((left, right), output, [self.tape.values[left], self.tape.values[right]]))

    def _alike(self, node: Node, weights: Mapping[str, Weight] | None = None) -> str:
        """Add a step that acts on every row alone: its rows stand where those of its input do."""
        if node.inputs[0] in self.index:
            self.index[node.output] = self.index[node.inputs[0]]
        return self.tape.add(node, weights)

    def _select(self, x: str, positions: slice) -> str:
        """Return the rows of x at `positions`: as they are, or every distinct one once."""
        name = f"{x}@{positions.start}:{positions.stop}"
        if positions == _QUERIES or name in self.tape.values:
            return x if positions == _QUERIES else name
        if x not in self.index:
            return self.tape.add(Select((x,), name, self.tape.values[x], positions))
        rows, self.index[name] = self.index[x][:, positions].unique(return_inverse=True)
        return self.tape.add(Gather((x,), name, self.tape.values[x], rows.unsqueeze(0)))

    def _spread(self, x: str) -> str:
        """Return x with a row a position of every sequence."""
        name = f"{x}*"
        if x not in self.index or name in self.tape.values:
            return x if x not in self.index else name
        return self.tape.add(Gather((x,), name, self.tape.values[x], self.index[x]))
