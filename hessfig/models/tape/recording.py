"""Records built-in networks on a tape, step by step.

Every method adds the steps of one formula of docs/networks.md, and returns the name of
the variable that holds its value. Two savings change no number beyond rounding: the
last layer is recorded at the scored positions only, since nothing reads its other
outputs, and variables of the first layer may hold each distinct row once (`merged`).
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config.enums import MLP, Kind, Norm, Positions, Scores
from hessfig.config.science import ModelConfig
from hessfig.curvature.problem import Batch
from hessfig.models import components, networks
from hessfig.models.components import UNIT_EPS, Attending, GatedMLP, RMSNorm
from hessfig.models.tape import component_steps
from hessfig.models.tape.component_steps import NOT_ON_THE_TAPE, Fixed, Gain, Multiply
from hessfig.models.tape.steps import (
    DERIVATIVES,
    Activate,
    Mixing,
    Normalise,
    Sum,
    of_sigmoid,
)
from hessfig.models.tape.tape import BIAS, WEIGHT, LinearMap, Lookup, Node, Tape, Weight
from hessfig.terms import Matrix

EVERY = slice(None)


class Builder:
    """Adds the steps of one network to a tape; methods take and return names of variables.

    For variables that store each distinct row once, `index` maps the rows of the batch to
    these rows. Steps that act row by row keep it (`alike`); those that mix positions need
    one row per position (`spread`).

    Parameters
    ----------
    batch : Batch
        Its inputs are evaluated; targets are not read.
    model : ModelConfig
    merged : bool
        Whether equal rows of the first layer are stored once.
    """

    def __init__(self, batch: Batch, model: ModelConfig, *, merged: bool) -> None:
        self.tape = Tape()
        self.batch = batch
        self.model = model
        self.merged = merged
        self.index: dict[str, Tensor] = {}

    def step(
        self,
        make: Callable[..., Node],
        output: str,
        *inputs: str,
        weights: Mapping[str, Weight] | None = None,
        **settings: Any,
    ) -> str:
        """Add a step with named inputs, created from names, values and settings."""
        values = [self.tape.values[name] for name in inputs]
        return self.tape.add(make(inputs, output, *values, **settings), weights)

    def layer(
        self, layer: networks.Layer, index: int, hidden: str, queries: slice
    ) -> str:
        """Add a layer of a transformer, its outputs at the positions `queries`.

        With h the residual stream that enters,

        - pre-LN: r = h + attention(LN h) W_O, out = r + MLP(LN r);
        - post-LN: r = LN(h + attention(h) W_O), out = LN(r + MLP(r));
        - `sandwich`: pre-LN, with a norm of each branch before it is added.

        Without `attention_skip`, h is missing from the first sum. Keys and values need all
        positions, queries and all that follows only `queries`.
        """
        norm, attention = self.model.norm, layer.attn
        before, after = norm in (Norm.pre, Norm.sandwich), norm == Norm.post
        if before:
            x = self.normalise(hidden, f"norm{index}", layer.ln1, (index, "ln1"))
        else:
            x = hidden
        length = self.index.get(hidden, self.tape.values[hidden]).shape[1]
        mixed = self.attention(
            attention,
            index,
            x,
            queries,
            allowed=~attention.causal_mask[:length, :length],
        )
        residual = self.linear(
            mixed, f"attended{index}", attention.o, (index, Matrix.W_O)
        )
        residual = self._branch(residual, layer.ln1_post, (index, "ln1_post"))
        if self.model.attention_skip:
            kept = self.spread(self._select(hidden, queries))
            residual = self.sum(kept, residual, f"residual{index}")
        if after:
            residual = self.normalise(
                residual, f"norm{index}", layer.ln1, (index, "ln1")
            )
        if self.model.mlp == MLP.none:
            return residual
        return self._feed_forward(layer, index, residual)

    def _branch(self, x: str, norm: nn.Module, weights: tuple[int, str]) -> str:
        """Add the step between a sublayer and the sum with its skip: a norm, a fixed factor, or nothing."""
        if self.model.norm == Norm.sandwich:
            x = self.normalise(x, f"{x}_normed", norm, weights)
        factor = self.model.residual_scale
        if factor == 1:
            return x
        return self.alike(Fixed, f"{x}_scaled", x, maps=component_steps.times(factor))

    def attention(
        self,
        attention: Attending,
        index: int,
        x: str,
        queries: slice,
        *,
        allowed: Tensor,
    ) -> str:
        """Add queries, keys, values and mixing at the positions `queries`; `allowed` is the mask of all positions.

        m = a(q k^T / c + bias) v by head, with the components that the settings name: shared
        keys and values, a soft cap, biases, a centre that subtracts `centring` times the equal
        weights 1 / (number of allowed keys), a difference of two sets, and a gate.
        """
        model, sets = self.model, attention.sets
        heads = model.n_heads * sets
        kv_heads = attention.kv_heads
        query, key = self._query_and_key(attention, index, x, queries, len(allowed))
        value = self.spread(
            self.linear(x, f"v{index}", attention.v, (index, Matrix.W_V))
        )
        value = self._repeated(value, kv_heads, heads // kv_heads)
        settings: dict[str, Any] = {
            "kind": model.attention,
            "allowed": allowed[queries],
            "bias": self._bias(attention, len(allowed))[:, queries],
            "cap": model.softcap if model.scores == Scores.softcap else None,
        }
        if model.centring:
            equal = components.equal_weights(
                allowed[queries], like=self.tape.values[value]
            )
            settings["centre"] = model.centring * equal
        if not settings["bias"].any():
            del settings["bias"]
        mixed = self.step(
            Mixing,
            f"m{index}",
            query,
            key,
            value,
            heads=heads,
            scale=attention.divisor,
            **settings,
        )
        return self._gated(
            attention, index, x, queries, self._one_set(attention, index, mixed)
        )

    def _query_and_key(
        self, attention: Attending, index: int, x: str, queries: slice, length: int
    ) -> tuple[str, str]:
        """Add queries and keys: their projections, then norms, gains and rotations, in this order.

        With W_QK as one matrix, q = x W_QK has d numbers for each head, and the key is x itself
        for every head.
        """
        heads = self.model.n_heads * attention.sets
        kv_heads = attention.kv_heads * attention.sets
        matrix = Matrix.W_QK if attention.is_single else Matrix.W_Q
        query = self.spread(
            self.linear(
                self._select(x, queries), f"q{index}", attention.q, (index, matrix)
            )
        )
        if attention.is_single:
            return query, self.step(
                Fixed,
                f"k{index}",
                self.spread(x),
                maps=component_steps.repeated(1, heads),
            )
        key = self.spread(self.linear(x, f"k{index}", attention.k, (index, Matrix.W_K)))
        if self.model.scores == Scores.qk_norm:
            query = self._head_norm(query, heads, attention.q_norm, (index, "gain_Q"))
            key = self._head_norm(key, kv_heads, attention.k_norm, (index, "gain_K"))
        if attention.score_gain is not None:
            query = self._head_norm(query, heads, self._unit(query, heads))
            weight = {WEIGHT: (index, "gain_S")}
            query = self.step(
                Gain, f"{query}_gain", query, weights=weight, gain=attention.score_gain
            )
            key = self._head_norm(key, kv_heads, self._unit(key, kv_heads))
        if self.model.positions == Positions.rope:
            positions = torch.arange(length, device=self.tape.values[key].device)
            query = self.step(
                Fixed,
                f"{query}_turned",
                query,
                maps=component_steps.rotation(heads, positions[queries]),
            )
            key = self.step(
                Fixed,
                f"{key}_turned",
                key,
                maps=component_steps.rotation(kv_heads, positions),
            )
        return query, self._repeated(
            key, attention.kv_heads, self.model.n_heads // attention.kv_heads
        )

    def _bias(
        self, attention: Attending, length: int
    ) -> Float[Tensor, "heads length length"]:
        r"""Return the bias of the scores: the sink, the slopes of ALiBi and the bias of sigmoid attention.

        In head h = 1, 2, ..., for query i and key j,

        .. math:: \text{bias}_{hij} = \beta \, [j = 1] - 2^{-8 h / n_{heads}} \, |i - j| - \log L,

        each term where the settings have it. It is constant, so derivatives see it in the
        pattern only.
        """
        like = attention.v.weight
        bias = components.with_sink(
            like.new_zeros(1, length, length), components.score_sink(self.model)
        )
        bias = bias + components.sigmoid_bias(
            self.model, self._longest(attention, length)
        )
        if self.model.positions != Positions.alibi:
            return bias
        return bias + components.slopes(self.model, attention.sets, length, like=like)

    @staticmethod
    def _longest(attention: Attending, length: int) -> int:
        """Return the length of sequences, including positions that no scored position reads."""
        if isinstance(attention, networks.SelfAttention):
            return len(attention.causal_mask)
        return length

    def _repeated(self, x: str, groups: int, repeats: int) -> str:
        """Repeat shared keys or values for the heads that read them."""
        if repeats == 1:
            return x
        return self.step(
            Fixed, f"{x}_shared", x, maps=component_steps.repeated(groups, repeats)
        )

    def _unit(self, x: str, heads: int) -> RMSNorm:
        """Return the norm without gain for cosine scores."""
        value = self.tape.values[x]
        return RMSNorm(value.shape[-1] // heads, UNIT_EPS).to(value)

    def _head_norm(
        self,
        x: str,
        heads: int,
        norm: nn.Module,
        weights: tuple[int, str] | None = None,
    ) -> str:
        """Add a separate norm of every head, with one gain for all heads.

        Heads are cut into rows of their own, normalised, and joined again.
        """
        rows = self.step(Fixed, f"{x}_split", x, maps=component_steps.split(heads))
        held_weights = None if weights is None else {WEIGHT: weights}
        normed = self.step(
            Normalise, f"{x}_normed", rows, weights=held_weights, norm=norm
        )
        return self.step(
            Fixed, f"{x}_joined", normed, maps=component_steps.joined(heads)
        )

    def _one_set(self, attention: Attending, index: int, mixed: str) -> str:
        """Add the difference of the two sets of differential attention, and its norm times 1 - lambda.

        z = A1 v - lambda A2 v, head by head; both sets read the same values.
        """
        if attention.sets == 1:
            return mixed
        heads, factor = self.model.n_heads, self.model.differential_lambda
        mixed = self.step(
            Fixed, f"d{index}", mixed, maps=component_steps.difference(heads, factor)
        )
        if attention.head_norm is None:
            return mixed
        mixed = self._head_norm(mixed, heads, attention.head_norm, (index, "gain_D"))
        return self.step(
            Fixed, f"{mixed}_less", mixed, maps=component_steps.times(1 - factor)
        )

    def _gated(
        self, attention: Attending, index: int, x: str, queries: slice, mixed: str
    ) -> str:
        """Add the gate: mixed values times sigmoid(x W_G + b_G), entry by entry."""
        if attention.g is None:
            return mixed
        gate = self.linear(
            self._select(x, queries), f"g{index}", attention.g, (index, Matrix.W_G)
        )
        gate = self.alike(
            Activate, f"open{index}", gate, act=torch.sigmoid, derivatives=of_sigmoid
        )
        return self.step(Multiply, f"gated{index}", mixed, self.spread(gate))

    def _feed_forward(self, layer: networks.Layer, index: int, residual: str) -> str:
        """Add r + phi(y W_in) W_out, or r + (phi(y W_gate) * y W_in) W_out, and its norms.

        y = LN r with pre-LN, and r otherwise; biases are added where the maps have them.
        """
        norm, mlp = self.model.norm, layer.mlp
        before, after = norm in (Norm.pre, Norm.sandwich), norm == Norm.post
        if before:
            y = self.normalise(residual, f"norm_mlp{index}", layer.ln2, (index, "ln2"))
        else:
            y = residual
        z = self.linear(y, f"z{index}", mlp.fc_in, (index, Matrix.W_in))
        if isinstance(mlp, GatedMLP):
            bent = self.linear(y, f"gate{index}", mlp.gate, (index, Matrix.W_gate))
        else:
            bent = z
        p = self.alike(
            Activate,
            f"p{index}",
            bent,
            act=mlp.act,
            derivatives=DERIVATIVES[self.model.mlp],
        )
        if isinstance(mlp, GatedMLP):
            p = self.alike(Multiply, f"pz{index}", p, z)
        output = self.linear(p, f"mlp{index}", mlp.fc_out, (index, Matrix.W_out))
        total = self.sum(
            residual,
            self._branch(output, layer.ln2_post, (index, "ln2_post")),
            f"hidden{index}",
        )
        if after:
            return self.normalise(total, f"norm_mlp{index}", layer.ln2, (index, "ln2"))
        return total

    def linear(
        self, x: str, output: str, linear: nn.Linear, weight: tuple[int, Matrix]
    ) -> str:
        """Add a linear map with its bias, if it has one."""
        layer, matrix = weight
        names = {WEIGHT: weight, BIAS: (layer, matrix.replace("W", "b", 1))}
        return self.alike(LinearMap, output, x, weights=names, linear=linear)

    def normalise(
        self, x: str, output: str, norm: nn.Module, weights: tuple[int, str]
    ) -> str:
        """Add a norm with its gain and shift, if it has them."""
        layer, name = weights
        names = {WEIGHT: (layer, f"{name}_gain"), BIAS: (layer, f"{name}_shift")}
        return self.alike(Normalise, output, x, weights=names, norm=norm)

    def sum(self, left: str, right: str, output: str) -> str:
        """Add a sum of two variables with the same order of rows."""
        return self.alike(Sum, output, left, right)

    def alike(
        self, make: Callable[..., Node], output: str, *inputs: str, **settings: Any
    ) -> str:
        """Add a step that acts on each row separately, so that its rows have the same order as those of its input."""
        if inputs[0] in self.index:
            self.index[output] = self.index[inputs[0]]
        return self.step(make, output, *inputs, **settings)

    def _select(self, x: str, positions: slice) -> str:
        """Return the rows of x at `positions`, either all of them or each distinct row once.

        Of merged rows, the distinct ones among those positions are kept, with an index of their
        own.
        """
        name = f"{x}@{positions.start}:{positions.stop}"
        if positions == EVERY or name in self.tape.values:
            if positions == EVERY:
                return x
            return name
        if x not in self.index:
            return self.step(
                Fixed,
                name,
                x,
                maps=component_steps.at_positions(positions, self._rows(x)),
            )
        rows, self.index[name] = self.index[x][:, positions].unique(return_inverse=True)
        return self.step(
            Fixed,
            name,
            x,
            maps=component_steps.picked(rows.unsqueeze(0), self._rows(x)),
        )

    def spread(self, x: str) -> str:
        """Return x with one row per position of every sequence."""
        name = f"{x}*"
        if x not in self.index or name in self.tape.values:
            if x not in self.index:
                return x
            return name
        return self.step(
            Fixed, name, x, maps=component_steps.picked(self.index[x], self._rows(x))
        )

    def _rows(self, x: str) -> int:
        return self.tape.values[x].shape[1]


def can_build(network: nn.Module, model: ModelConfig) -> bool:
    """Whether the steps of this kind of network are known, with these settings.

    Settings do not describe a network that a user has built, even if it is of a
    built-in class.
    """
    is_own = model.kind == Kind.python
    return (
        not is_own
        and model.attention not in NOT_ON_THE_TAPE
        and isinstance(network, tuple(_RECORDERS))
    )


def build_tape(
    network: nn.Module, batch: Batch, model: ModelConfig, *, merged: bool = False
) -> Tape:
    """Evaluate `network` on `batch` step by step, with the last layer at the scored positions only.

    Positions after the last scored one, which a causal network never reads, are not
    evaluated. If `merged`, variables that depend only on token and position (embeddings,
    and queries, keys and values of the first layer) are evaluated once for equal tokens at
    equal positions. Products are then equal up to rounding, with fewer operations.

    Parameters
    ----------
    network : Module
        One that `can_build` knows.
    batch : Batch
    model : ModelConfig
    merged : bool

    Returns
    -------
    Tape
        With values, but without cotangents (`Tape.record`); the last value is f at the
        scored positions.
    """
    build = Builder(batch, model, merged=merged)
    record = next(
        record for kind, record in _RECORDERS.items() if isinstance(network, kind)
    )
    record(build, network)
    return build.tape


def _transformer(build: Builder, network: networks.Transformer) -> None:
    """Record token and position embeddings, the layers and the unembedding f = h W_U + b_U.

    Row t of a sequence starts as h = W_E[token t] + W_pos[t], times factors of the positions
    if there is a sink of the embeddings. Pairs of token and position that occur several
    times are one row if merged.
    """
    tokens = build.batch.inputs[:, : build.batch.scored.stop]
    positions = torch.arange(tokens.shape[1], device=tokens.device).expand_as(tokens)
    if build.merged:
        pairs, places = (
            torch.stack([tokens, positions])
            .flatten(1)
            .unique(dim=1, return_inverse=True)
        )
        build.index["tokens"] = places.view(tokens.shape)
        tokens, positions = pairs[:1], pairs[1:]
    build.tape.add(
        Lookup("tokens", tokens, network.tok_embed.weight), {WEIGHT: (0, Matrix.W_E)}
    )
    hidden = "tokens"
    if network.pos is not None:
        build.tape.add(
            Lookup("positions", positions, network.pos.weight),
            {WEIGHT: (0, Matrix.W_pos)},
        )
        hidden = build.sum("tokens", "positions", "hidden0")
    if sink := networks.embedding_sink(build.model):
        factors = networks.position_factors(
            positions[0], sink, build.tape.values[hidden]
        )
        hidden = build.alike(
            Fixed, "sunk0", hidden, maps=component_steps.times(factors.unsqueeze(1))
        )
    hidden = _layers(build, network, hidden, last=build.batch.scored)
    build.linear(hidden, "outputs", network.head, (0, Matrix.W_U))


def _layers(
    build: Builder,
    network: networks.Transformer | networks.VisionTransformer,
    hidden: str,
    *,
    last: slice,
) -> str:
    """Add all layers, with outputs of the last layer at the positions `last`, and the final norm, if there is one.

    The last layer alone may be cut to the scored positions: below it, every position may be
    a key of a scored one.
    """
    for index, layer in enumerate(network.layers, start=1):
        queries = last if index == len(network.layers) else EVERY
        hidden = build.layer(layer, index, hidden, queries)  # type: ignore[arg-type]
    if build.model.norm in (Norm.pre, Norm.sandwich):
        hidden = build.normalise(hidden, "final", network.ln_out, (0, "ln_out"))
    return hidden


def _linear_mlp(build: Builder, network: networks.LinearMLP) -> None:
    """Record f = W_E[token] W_1 ... W_D at the scored positions, each token once if merged."""
    tokens = build.batch.inputs[:, build.batch.scored]
    if build.merged:
        tokens, build.index["tokens"] = tokens.unique(return_inverse=True)
        tokens = tokens.unsqueeze(0)
    embedding = Lookup("tokens", tokens, network.tok_embed.weight)
    hidden = build.tape.add(embedding, {WEIGHT: (0, Matrix.W_E)})
    for index, layer in enumerate(network.layers, start=1):
        hidden = build.linear(hidden, f"hidden{index}", layer, (index, Matrix.W))  # type: ignore[arg-type]
    build.spread(hidden)


def _mlp(build: Builder, network: networks.PrefixMLP) -> None:
    """Record the MLP on prefixes: f_p = phi(... phi((x_1, ..., x_p, 0, ..., 0) W_in) ... W) W_U."""
    embedding = Lookup(
        "tokens", build.batch.inputs[:, : network.reach], network.tok_embed.weight
    )
    rows = build.tape.add(embedding, {WEIGHT: (0, Matrix.W_E)})
    known = networks.known(build.tape.values[rows], build.batch.scored)
    rows = build.step(Fixed, "prefixes", rows, maps=component_steps.prefixes(known))
    for index, layer in enumerate(network.layers, start=1):
        weight = (index, Matrix.W_in if index == 1 else Matrix.W)
        z = build.linear(rows, f"z{index}", layer, weight)  # type: ignore[arg-type]
        rows = build.step(
            Activate,
            f"p{index}",
            z,
            act=network.act,
            derivatives=DERIVATIVES[build.model.mlp],
        )
    build.linear(rows, "outputs", network.head, (0, Matrix.W_U))


def _vision_transformer(build: Builder, network: networks.VisionTransformer) -> None:
    """Record patches and positions, the layers at all positions, and the mean of these times W_U."""
    build.tape.values["pixels"] = network.patches(build.batch.inputs)
    patches = build.linear("pixels", "patches", network.patch, (0, Matrix.W_patch))
    rows = build.tape.values[patches]
    positions = torch.arange(rows.shape[1], device=rows.device).expand(rows.shape[:2])
    build.tape.add(
        Lookup("positions", positions, network.pos.weight), {WEIGHT: (0, Matrix.W_pos)}
    )
    hidden = build.sum(patches, "positions", "hidden0")
    hidden = _layers(build, network, hidden, last=EVERY)
    mean = build.step(
        Fixed, "mean", hidden, maps=component_steps.averaged(rows.shape[1])
    )
    build.linear(mean, "outputs", network.head, (0, Matrix.W_U))


def _bare_attention(build: Builder, network: networks.BareAttention) -> None:
    """Record one layer of attention on given vectors; there is no causal mask, only that of a window."""
    build.tape.values["inputs"] = network.hidden(build.batch.inputs, 0)
    outside = components.outside_window(
        build.batch.length, build.model.window, build.batch.inputs.device
    )
    build.attention(network, 1, "inputs", EVERY, allowed=~outside)


_RECORDERS: dict[type[nn.Module], Callable[[Builder, Any], None]] = {
    networks.Transformer: _transformer,
    networks.LinearMLP: _linear_mlp,
    networks.PrefixMLP: _mlp,
    networks.VisionTransformer: _vision_transformer,
    networks.BareAttention: _bare_attention,
}
