"""Built-in networks in torch: transformer, MLPs, vision transformer, CNN, and a single attention layer."""

import math
from collections.abc import Iterable
from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.config.enums import MLP, Norm, Positions, Sink
from hessfig.config.schema import with_defaults
from hessfig.config.science import ModelConfig
from hessfig.models.components import (
    ACTIVATIONS,
    Attending,
    GatedMLP,
    PlainMLP,
    norm_layer,
    outside_window,
)
from hessfig.terms import GATED

# The residual stream, at all positions and at those of the queries.
Residual = Float[Tensor, "batch length d_model"]
Queried = Float[Tensor, "batch queries d_model"]
Tokens = Int[Tensor, "batch length"]
Images = Float[Tensor, "batch side side"]
ScoredLogits = Float[Tensor, "batch scored vocab"]


def embedding_sink(model: ModelConfig) -> float:
    """Return beta, where the embedding of the first position is multiplied by 1 + beta."""
    if model.sink in (Sink.embedding, Sink.both):
        return model.sink_beta
    return 0.0


def position_factors(
    positions: Int[Tensor, " rows"], beta: float, like: Tensor
) -> Float[Tensor, "rows 1"]:
    """Return 1 + beta at position 0, else 1: a fixed factor, so the parameters remain W_E and W_pos."""
    return (1 + beta * (positions == 0).to(like.dtype)).unsqueeze(1)


class SelfAttention(Attending):
    """Causal self-attention: pattern(X W_Q W_K^T X^T / (t sqrt(d_head))) X W_V W_O (eq. 1 with a mask).

    The native attention of TransformerLens, extended by a `temperature` t, the form X
    W_QK X^T with a single matrix, a sink on the first key, outputs at selected query
    positions, and the components of hessfig.models.components.
    """

    causal_mask: Tensor

    def __init__(self, model: ModelConfig, length: int) -> None:
        d_head = with_defaults(model).d_head or 0
        super().__init__(model, d_head, d_head, is_bare=False)
        later = torch.ones(length, length, dtype=torch.bool).triu(diagonal=1)
        self.register_buffer(
            "causal_mask",
            later | outside_window(length, model.window),
            persistent=False,
        )

    def forward(self, hidden: Residual, queries: slice = slice(None)) -> Queried:
        """Return the attention output at the positions `queries`."""
        return self.o(self.mixed(hidden, queries, self.causal_mask))


class Layer(nn.Module):
    """Attention and MLP sublayers with norms before, after, around or none, and an optional skip of the attention."""

    def __init__(self, model: ModelConfig, length: int) -> None:
        super().__init__()
        self.model = model
        self.norm = model.norm
        self.attention_skip = model.attention_skip
        self.has_mlp, is_sandwich = model.mlp != MLP.none, model.norm == Norm.sandwich
        self.ln1 = _norm(model, model.norm != Norm.none)
        self.attn = SelfAttention(model, length)
        self.ln2 = _norm(model, model.norm != Norm.none and self.has_mlp)
        if self.has_mlp:
            hidden = with_defaults(model).d_mlp or 0
            self.mlp = (GatedMLP if model.mlp in GATED else PlainMLP)(
                model.d_model, hidden, model.mlp
            )
        self.ln1_post = _norm(model, is_sandwich)
        self.ln2_post = _norm(model, is_sandwich and self.has_mlp)

    def forward(self, hidden: Residual, queries: slice = slice(None)) -> Queried:
        """Return the layer's output at the positions `queries`."""
        after = self.norm == Norm.post
        attended = self.ln1_post(
            self.attn(hidden if after else self.ln1(hidden), queries)
        )
        branch = self.model.residual_scale * attended
        residual = hidden[:, queries] + branch if self.attention_skip else branch
        residual = self.ln1(residual) if after else residual
        if self.has_mlp:
            return self.feed_forward(residual)
        return residual

    def feed_forward(self, residual: Queried) -> Tensor:
        """Return the residual stream after the MLP sublayer."""
        if self.norm == Norm.post:
            return self.ln2(residual + self.model.residual_scale * self.mlp(residual))
        return residual + self.model.residual_scale * self.ln2_post(
            self.mlp(self.ln2(residual))
        )


class Transformer(nn.Module):
    """Token and position embeddings, `n_layers` layers, final norm (before or around alone), unembedding with bias.

    For softmax attention with norm `none` or `pre`, it equals the native model of
    TransformerLens with equal weights (tests/models/kinds/test_transformer.py). It is
    implemented here because that library imports all of transformers, which takes five
    seconds in every run.
    """

    def __init__(self, model: ModelConfig, *, vocabulary: int, length: int) -> None:
        super().__init__()
        self.tok_embed = nn.Embedding(vocabulary, model.d_model)
        self.pos = (
            nn.Embedding(length, model.d_model)
            if model.positions == Positions.learned
            else None
        )
        self.layers = nn.ModuleList(Layer(model, length) for _ in range(model.n_layers))
        self.ln_out = final_norm(model)
        self.head = nn.Linear(model.d_model, vocabulary)
        self.sink = embedding_sink(model)
        if model.tied:
            self.head.weight = self.tok_embed.weight

    def forward(self, tokens: Tokens) -> Float[Tensor, "batch length vocab"]:
        """Return the logits at every position."""
        return self.head(self.ln_out(self.hidden(tokens, len(self.layers))))

    def hidden(self, tokens: Tokens, depth: int) -> Residual:
        """Return the residual stream after `depth` layers (0: the embeddings)."""
        hidden = self.tok_embed(tokens)
        if self.pos is not None:
            hidden = hidden + self.pos.weight[: tokens.shape[1]]
        if self.sink:
            positions = torch.arange(tokens.shape[1], device=tokens.device)
            hidden = hidden * position_factors(positions, self.sink, hidden)
        return through(self.layers[:depth], hidden)

    def from_hidden(self, hidden: Residual, depth: int, scored: slice) -> ScoredLogits:
        """Return the logits at the scored positions, given the residual stream after `depth` layers.

        The last layer is computed at the scored positions only: no other position
        enters the loss.
        """
        hidden = through(self.layers[depth:-1], hidden)
        if depth < len(self.layers):
            hidden = self.layers[-1](hidden, scored)
        else:
            hidden = hidden[:, scored]
        return self.head(self.ln_out(hidden))


def through(layers: Iterable[nn.Module], hidden: Tensor) -> Tensor:
    """Return the output of a sequence of layers."""
    for layer in layers:
        hidden = layer(hidden)
    return hidden


def final_norm(model: ModelConfig) -> nn.Module:
    """Return the norm before the unembedding: none if norms follow the residual sums, or if there are no norms."""
    return _norm(model, model.norm in (Norm.pre, Norm.sandwich))


def _norm(model: ModelConfig, is_there: bool) -> nn.Module:
    if is_there:
        return norm_layer(model, model.d_model)
    return nn.Identity()


class PrefixMLP(nn.Module):
    """logits_p = W_U phi(W ... phi(W_in x_p + b_in) ... + b) + b_U, x_p = (e_1, ..., e_p, 0, ..., 0).

    e_t is the embedding of token t; x contains the first `reach` tokens. The columns of
    W_in that multiply a token encode its position, so there is no W_pos.
    """

    def __init__(
        self, model: ModelConfig, *, width: int, vocabulary: int, reach: int
    ) -> None:
        super().__init__()
        self.tok_embed = nn.Embedding(vocabulary, model.d_model)
        widths = [reach * model.d_model] + [width] * model.n_layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(width, vocabulary)
        self.act = ACTIVATIONS[model.mlp]
        self.reach = reach

    def hidden(self, tokens: Tokens, depth: int) -> Float[Tensor, "batch reach width"]:
        """Return the activations after `depth` layers (0: the embeddings) of the first `reach` positions."""
        embedded = self.tok_embed(tokens[:, : self.reach])
        if depth:
            return self._layers(prefixes(embedded, slice(None)), 0, depth)
        return embedded

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> ScoredLogits:
        """Return the logits at the scored positions, given the activations after `depth` layers."""
        rows = hidden[:, scored] if depth else prefixes(hidden, scored)
        return self.head(self._layers(rows, depth, len(self.layers)))

    def _layers(self, rows: Tensor, start: int, stop: int) -> Tensor:
        for layer in self.layers[start:stop]:
            rows = self.act(layer(rows))
        return rows


def prefixes(
    embedded: Float[Tensor, "batch reach d"], positions: slice
) -> Float[Tensor, "batch positions reach_d"]:
    """Return x_p for the positions p: the concatenated rows up to p, with zeros for later rows."""
    return (embedded[:, None] * known(embedded, positions)[..., None]).flatten(2)


def known(
    embedded: Float[Tensor, "batch reach ..."], positions: slice
) -> Float[Tensor, "positions reach"]:
    """Return 1 if a token is known at a position, and 0 for later tokens."""
    reach = embedded.shape[1]
    return torch.ones(
        reach, reach, dtype=embedded.dtype, device=embedded.device
    ).tril()[positions]


class LinearMLP(nn.Module):
    """Embedding, n_layers - 1 square linear maps and a linear read-out, without biases (Figure 8)."""

    def __init__(self, model: ModelConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.tok_embed = nn.Embedding(vocabulary, model.d_model)
        widths = [model.d_model] * model.n_layers + [vocabulary]
        self.layers = nn.ModuleList(
            nn.Linear(a, b, bias=False) for a, b in pairwise(widths)
        )

    def hidden(self, tokens: Tokens, depth: int) -> Residual:
        """Return the activations after `depth` layers (0: the embeddings)."""
        return through(self.layers[:depth], self.tok_embed(tokens))

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> ScoredLogits:
        """Return the outputs at the scored positions, given the activations after `depth` layers."""
        return through(self.layers[depth:], hidden[:, scored])


class BareAttention(Attending):
    """F(X) = a(X W_Q W_K^T X^T / (t sqrt(d_K))) X W_V (eq. 1): no mask, skip, bias or output projection.

    The inputs are `sigma` times a fixed Gaussian sample. Several heads split W_V's
    columns.
    """

    def __init__(self, model: ModelConfig) -> None:
        super().__init__(
            model,
            with_defaults(model).d_head or 0,
            model.d_model // model.n_heads,
            is_bare=True,
        )
        self.sigma = 1.0

    def hidden(self, inputs: Residual, depth: int) -> Tensor:
        """Return the scaled inputs (depth 0 is the only one)."""
        del depth
        return self.sigma * inputs

    def from_hidden(self, hidden: Residual, depth: int, scored: slice) -> Tensor:
        """Return F at the scored positions."""
        del depth
        return self.mixed(
            hidden,
            scored,
            outside_window(hidden.shape[1], self.model.window, hidden.device),
        )


class VisionTransformer(nn.Module):
    """logits = W_U mean_t h_t + b_U, h the tokens W_patch x_t + b_patch + W_pos[t] after `n_layers` layers.

    x_t are the pixels of patch t, row by row. Layers are those of the transformer
    without its mask; with pre-LN there is a final LayerNorm before the mean. The only
    output position is the class of the image.
    """

    def __init__(self, model: ModelConfig, *, side: int, classes: int) -> None:
        super().__init__()
        self.patches_a_side = side // model.patch
        tokens = self.patches_a_side**2
        self.patch = nn.Linear(model.patch**2, model.d_model)
        self.pos = nn.Embedding(tokens, model.d_model)
        self.layers = nn.ModuleList(Layer(model, tokens) for _ in range(model.n_layers))
        for layer in self.layers:
            layer.attn.causal_mask.fill_(False)  # type: ignore[union-attr, operator]
        self.ln_out = final_norm(model)
        self.head = nn.Linear(model.d_model, classes)

    def patches(self, images: Images) -> Float[Tensor, "batch tokens pixels"]:
        """Split images into squares, row by row."""
        count = self.patches_a_side
        squares = (
            images.unflatten(1, (count, -1)).unflatten(3, (count, -1)).transpose(2, 3)
        )
        return squares.flatten(3).flatten(1, 2)

    def hidden(
        self, images: Images, depth: int
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the residual stream after `depth` layers (0: the embedded patches)."""
        return through(
            self.layers[:depth], self.patch(self.patches(images)) + self.pos.weight
        )

    def from_hidden(
        self, hidden: Float[Tensor, "batch tokens d_model"], depth: int, scored: slice
    ) -> Float[Tensor, "batch 1 classes"]:
        """Return the logits of every image, given the residual stream after `depth` layers."""
        hidden = through(self.layers[depth:], hidden)
        return self.head(self.ln_out(hidden).mean(dim=1, keepdim=True))[:, scored]


class GroupNorm(nn.GroupNorm):
    """GroupNorm in elementary operations; the backward pass of torch's GroupNorm has no forward-mode derivative."""

    def forward(
        self, input: Float[Tensor, "batch channels *pixels"]
    ) -> Float[Tensor, "batch channels *pixels"]:
        """Normalise every group of channels to mean 0 and variance 1 over its pixels; apply gain and shift."""
        groups = input.unflatten(1, (self.num_groups, -1)).flatten(2)
        centred = groups - groups.mean(dim=2, keepdim=True)
        scaled = (
            centred * (centred.square().mean(dim=2, keepdim=True) + self.eps).rsqrt()
        )
        gain, shift = (
            one.view(-1, *[1] * (input.ndim - 2)) for one in (self.weight, self.bias)
        )
        return scaled.view_as(input) * gain + shift


class Convolution(nn.Module):
    """h <- phi(N(W * h + b)) with 3 x 3 kernels and zero padding; if it `halves`, on means of 2 x 2 pixels.

    Activations are (batch, pixels, channels), pixels row by row. W is stored as
    (channels, 9 inputs): for every output channel, the 3 x 3 pixels of each input
    channel in turn. N is GroupNorm or the identity.
    """

    def __init__(
        self, model: ModelConfig, *, inputs: int, channels: int, halves: bool
    ) -> None:
        super().__init__()
        self.conv = nn.Linear(9 * inputs, channels)
        self.norm = (
            GroupNorm(model.n_heads, channels)
            if model.norm == Norm.post
            else nn.Identity()
        )
        self.act = ACTIVATIONS[model.mlp]
        self.halves = halves

    def forward(
        self, rows: Float[Tensor, "batch pixels inputs"]
    ) -> Float[Tensor, "batch fewer channels"]:
        """Return the activations of all pixels, or of a quarter as many if it halves."""
        side = math.isqrt(rows.shape[1])
        images = rows.transpose(1, 2).unflatten(2, (side, side))
        images = F.avg_pool2d(images, 2) if self.halves else images
        kernel = self.conv.weight.unflatten(1, (-1, 3, 3))
        activations = self.act(
            self.norm(F.conv2d(images, kernel, self.conv.bias, padding=1))
        )
        return activations.flatten(2).transpose(1, 2)


class ConvolutionalNetwork(nn.Module):
    """logits = W_U mean_p h_p + b_U, h after three stages (whole, half, quarter side) of `convolutions` in all."""

    def __init__(
        self, model: ModelConfig, *, convolutions: int, channels: int, classes: int
    ) -> None:
        super().__init__()
        inputs, each = [1] + [channels] * (convolutions - 1), convolutions // 3
        self.layers = nn.ModuleList(
            Convolution(
                model,
                inputs=held,
                channels=channels,
                halves=rank > 0 and rank % each == 0,
            )
            for rank, held in enumerate(inputs)
        )
        self.head = nn.Linear(channels, classes)

    def hidden(
        self, images: Images, depth: int
    ) -> Float[Tensor, "batch pixels channels"]:
        """Return the activations after `depth` convolutions (0: the pixels)."""
        return through(self.layers[:depth], images.flatten(1).unsqueeze(2))

    def from_hidden(
        self, hidden: Float[Tensor, "batch pixels channels"], depth: int, scored: slice
    ) -> Float[Tensor, "batch 1 classes"]:
        """Return the logits of every image, given the activations after `depth` convolutions."""
        return self.head(
            through(self.layers[depth:], hidden).mean(dim=1, keepdim=True)
        )[:, scored]
