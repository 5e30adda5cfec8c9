"""A GPT-2-style transformer from TransformerLens's native classes, with the ablations of the paper."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor, nn
from transformer_lens.config import TransformerBridgeConfig
from transformer_lens.model_bridge.sources.native import NativeBlock, NativeModel

from hessfig.config import MLP, ModelConfig, Norm, with_defaults
from hessfig.models.activations import ACTIVATIONS
from hessfig.models.transformer.attention import SelfAttention
from hessfig.models.transformer.sinks import embedding_sink, position_factors


class Layer(NativeBlock):
    """Attention and MLP sublayers with LayerNorm before, after or nowhere, and an optional attention skip."""

    def __init__(self, native: TransformerBridgeConfig, model: ModelConfig) -> None:
        super().__init__(native)
        self.attn = SelfAttention(native, model)
        self.norm, self.attention_skip, self.has_mlp = model.norm, model.attention_skip, model.mlp != MLP.none
        if self.has_mlp:
            self.mlp.act = ACTIVATIONS[model.mlp]
        elif model.norm == Norm.post:
            self.ln2 = nn.Identity()

    def forward(
        self, hidden: Float[Tensor, "batch length d_model"], queries: slice = slice(None)
    ) -> Float[Tensor, "batch queries d_model"]:
        """Return the layer's output at the positions `queries`."""
        after = self.norm == Norm.post
        attended = self.attn(hidden if after else self.ln1(hidden), queries)
        residual = hidden[:, queries] + attended if self.attention_skip else attended
        residual = self.ln1(residual) if after else residual
        return self.feed_forward(residual) if self.has_mlp else residual

    def feed_forward(self, residual: Float[Tensor, "batch queries d_model"]) -> Tensor:
        """Return the residual stream after the MLP sublayer."""
        if self.norm == Norm.post:
            return self.ln2(residual + self.mlp(residual))
        return residual + self.mlp(self.ln2(residual))


class Transformer(NativeModel):
    """Token and position embeddings, `n_layers` layers, final norm (pre-LN only), unembedding with bias.

    Equals TransformerLens's native model, given equal weights, for softmax attention with
    norm `none` or `pre` (tests/models/test_transformer.py).
    """

    def __init__(self, model: ModelConfig, *, vocabulary: int, length: int) -> None:
        native = native_config(model, vocabulary=vocabulary, length=length)
        super().__init__(native)
        self.layers = nn.ModuleList(Layer(native, model) for _ in range(model.n_layers))
        self.head = nn.Linear(model.d_model, vocabulary, bias=True)
        self.sink = embedding_sink(model)
        if model.norm == Norm.post:
            self.ln_out = nn.Identity()

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocab"]:
        """Return the logits at every position."""
        return self.head(self.ln_out(self.hidden(tokens, len(self.layers))))

    def hidden(
        self, tokens: Int[Tensor, "batch length"], depth: int
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the residual stream after `depth` layers (0: the embeddings)."""
        hidden = self.tok_embed(tokens) + self.pos.weight[: tokens.shape[1]]
        if self.sink:
            hidden = hidden * position_factors(tokens.shape[1], self.sink, hidden)
        for layer in self.layers[:depth]:
            hidden = layer(hidden)
        return hidden

    def from_hidden(
        self, hidden: Float[Tensor, "batch length d_model"], depth: int, scored: slice
    ) -> Float[Tensor, "batch scored vocab"]:
        """Return the logits at the scored positions, given the residual stream after `depth` layers.

        The last layer is computed at the scored positions only: no other position enters the loss.
        """
        for layer in self.layers[depth:-1]:
            hidden = layer(hidden)
        hidden = self.layers[-1](hidden, scored) if depth < len(self.layers) else hidden[:, scored]
        return self.head(self.ln_out(hidden))


def native_config(model: ModelConfig, *, vocabulary: int, length: int) -> TransformerBridgeConfig:
    """Translate a model configuration into TransformerLens's."""
    model = with_defaults(model)
    return TransformerBridgeConfig(
        n_layers=model.n_layers,
        n_heads=model.n_heads,
        d_model=model.d_model,
        d_head=model.d_head,
        d_mlp=model.d_mlp,
        d_vocab=vocabulary,
        n_ctx=length,
        act_fn="gelu" if model.mlp == MLP.gelu else "relu",
        attn_only=model.mlp == MLP.none,
        normalization_type=None if model.norm == Norm.none else "LN",
    )
