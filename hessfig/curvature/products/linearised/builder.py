"""How a tape is put together: steps by name, equal rows once where that is asked for, the layer of a transformer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from hessfig.config import MLP, ModelConfig, Norm, QueryKey
from hessfig.curvature.products.linearised.layernorm import Normalise
from hessfig.curvature.products.linearised.mixing import Mixing
from hessfig.curvature.products.linearised.node import Node
from hessfig.curvature.products.linearised.steps import Activate, Gather, Repeat, Select, Sum
from hessfig.curvature.products.linearised.tape import Tape, Weight
from hessfig.curvature.products.linearised.weights import BIAS, WEIGHT, LinearMap
from hessfig.models.transformer.network import Layer
from hessfig.models.transformer.sinks import score_sink
from hessfig.tasks.batch import Batch
from hessfig.terms import Matrix

EVERY = slice(None)


class Builder:
    """Adds the steps of one network to a tape; methods take and return names of variables.

    `index` says for variables that hold every distinct row once where the rows of the batch stand in them.
    """

    def __init__(self, batch: Batch, model: ModelConfig, *, merged: bool) -> None:
        self.tape, self.batch, self.model, self.merged = Tape(), batch, model, merged
        self.index: dict[str, Tensor] = {}

    def layer(self, layer: Layer, index: int, hidden: str, queries: slice) -> str:
        """Add a layer of a transformer, its outputs at the positions `queries`."""
        norm, attention = self.model.norm, layer.attn
        x = self.normalise(hidden, f"norm{index}", layer.ln1, (index, "ln1")) if norm == Norm.pre else hidden
        length = self.index.get(hidden, self.tape.values[hidden]).shape[1]
        allowed = ~attention.causal_mask[:length, :length][queries]
        scale = attention.scale * attention.temperature
        mixed = self.attention(attention, index, x, queries, scale=scale, allowed=allowed)
        residual = self.linear(mixed, f"attended{index}", attention.o, (index, Matrix.W_O))
        if self.model.attention_skip:
            kept = self.spread(self._select(hidden, queries))
            residual = self.sum(kept, residual, f"residual{index}")
        if norm == Norm.post:
            residual = self.normalise(residual, f"norm{index}", layer.ln1, (index, "ln1"))
        return residual if self.model.mlp == MLP.none else self._feed_forward(layer, index, residual)

    def attention(
        self, attention: Any, index: int, x: str, queries: slice, *, scale: float, allowed: Tensor
    ) -> str:
        """Add queries, keys, values and their mixing."""
        single, heads = self.model.query_key == QueryKey.single, self.model.n_heads
        matrix = Matrix.W_QK if single else Matrix.W_Q
        query = self.spread(self.linear(self._select(x, queries), f"q{index}", attention.q, (index, matrix)))
        if single:
            x_keys = self.spread(x)
            key = self.tape.add(Repeat((x_keys,), f"k{index}", self.tape.values[x_keys], heads))
        else:
            key = self.spread(self.linear(x, f"k{index}", attention.k, (index, Matrix.W_K)))
        value = self.spread(self.linear(x, f"v{index}", attention.v, (index, Matrix.W_V)))
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
            sink=score_sink(self.model),
        )
        return self.tape.add(step)

    def _feed_forward(self, layer: Layer, index: int, residual: str) -> str:
        pre, post = self.model.norm == Norm.pre, self.model.norm == Norm.post
        y = self.normalise(residual, f"norm_mlp{index}", layer.ln2, (index, "ln2")) if pre else residual
        z = self.linear(y, f"z{index}", layer.mlp.fc_in, (index, Matrix.W_in))
        p = self.tape.add(Activate((z,), f"p{index}", self.tape.values[z], layer.mlp, self.model.mlp))
        output = self.linear(p, f"mlp{index}", layer.mlp.fc_out, (index, Matrix.W_out))
        total = self.sum(residual, output, f"hidden{index}")
        return self.normalise(total, f"norm_mlp{index}", layer.ln2, (index, "ln2")) if post else total

    def linear(self, x: str, output: str, linear: nn.Linear, weight: tuple[int, Matrix]) -> str:
        """Add a linear map with its bias, if it has one."""
        layer, matrix = weight
        names = {WEIGHT: weight, BIAS: (layer, matrix.replace("W", "b", 1))}
        return self.alike(LinearMap((x,), output, self.tape.values[x], linear), names)

    def normalise(self, x: str, output: str, norm: nn.Module, weights: tuple[int, str]) -> str:
        """Add a LayerNorm with its gain and shift."""
        assert isinstance(norm, nn.LayerNorm)
        layer, name = weights
        names = {WEIGHT: (layer, f"{name}_gain"), BIAS: (layer, f"{name}_shift")}
        return self.alike(Normalise((x,), output, self.tape.values[x], norm), names)

    def sum(self, left: str, right: str, output: str) -> str:
        """Add a sum of two variables whose rows stand alike."""
        return self.alike(Sum((left, right), output, [self.tape.values[left], self.tape.values[right]]))

    def alike(self, node: Node, weights: Mapping[str, Weight] | None = None) -> str:
        """Add a step that acts on every row alone: its rows stand where those of its input do."""
        if node.inputs[0] in self.index:
            self.index[node.output] = self.index[node.inputs[0]]
        return self.tape.add(node, weights)

    def _select(self, x: str, positions: slice) -> str:
        """Return the rows of x at `positions`: as they are, or every distinct one once."""
        name = f"{x}@{positions.start}:{positions.stop}"
        if positions == EVERY or name in self.tape.values:
            return x if positions == EVERY else name
        if x not in self.index:
            return self.tape.add(Select((x,), name, self.tape.values[x], positions))
        rows, self.index[name] = self.index[x][:, positions].unique(return_inverse=True)
        return self.tape.add(Gather((x,), name, self.tape.values[x], rows.unsqueeze(0)))

    def spread(self, x: str) -> str:
        """Return x with a row a position of every sequence."""
        name = f"{x}*"
        if x not in self.index or name in self.tape.values:
            return x if x not in self.index else name
        return self.tape.add(Gather((x,), name, self.tape.values[x], self.index[x]))
