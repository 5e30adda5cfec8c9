"""HookedTransformer's function without its hooks, in plain torch: a network that can be cut behind a layer."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.models.transformer_lens.settings import Sizes

_ACTIVATIONS: dict[str, Callable[[Tensor], Tensor]] = {
    "relu": F.relu,
    "gelu": F.gelu,
    "gelu_new": partial(F.gelu, approximate="tanh"),
    "silu": F.silu,
}


class HookedNetwork(nn.Module):
    """Parameters by TransformerLens's own names and shapes, but for the head: W_U and b_U are one matrix.

    logits = [h, 1] @ [W_U^T, b_U]^T with h the normed residual stream, so that b_U is a column of the unembedding.
    """

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.embed = _held(W_E=(sizes.vocabulary, sizes.d_model))
        self.pos_embed = _held(W_pos=(sizes.context, sizes.d_model))
        self.blocks = nn.ModuleList(_Layer(sizes) for _ in range(sizes.n_layers))
        self.ln_final = _norm(sizes)
        self.unembed = _held(weight=(sizes.vocabulary, sizes.d_model + 1))

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, in order."""
        return self.blocks

    @property
    def unembedding(self) -> nn.Parameter:
        """[W_U^T, b_U], (vocabulary, width + 1)."""
        return self.get_parameter("unembed.weight")

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        return self.from_hidden(self.hidden(tokens, 0), 0, slice(None))

    def hidden(self, inputs: Int[Tensor, "batch length"], depth: int) -> Float[Tensor, "batch length width"]:
        """Return the residual stream after `depth` layers (0: the embeddings)."""
        hidden = F.embedding(inputs, self.embed["W_E"]) + self.pos_embed["W_pos"][: inputs.shape[1]]
        for layer in self.blocks[:depth]:
            hidden = layer(hidden)
        return hidden

    def features(
        self, hidden: Float[Tensor, "batch length width"], depth: int, scored: slice
    ) -> Float[Tensor, "batch scored width_1"]:
        """Return the normed residual stream at the scored positions, and a 1 behind it, for the bias."""
        for layer in self.blocks[depth:]:
            hidden = layer(hidden)
        return F.pad(self.ln_final(hidden[:, scored]), (0, 1), value=1.0)

    def from_hidden(
        self, hidden: Tensor, depth: int, scored: slice
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """Return the logits at the scored positions, given the residual stream after `depth` layers."""
        return self.features(hidden, depth, scored) @ self.unembed["weight"].T


class _Layer(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.ln1, self.attn = _norm(sizes), _Attention(sizes)
        self.has_mlp = sizes.d_mlp > 0
        if self.has_mlp:
            self.ln2, self.mlp = _norm(sizes), _MLP(sizes)

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        hidden = hidden + self.attn(self.ln1(hidden))
        return hidden + self.mlp(self.ln2(hidden)) if self.has_mlp else hidden


class _Attention(nn.Module):
    """Causal attention; W_Q, W_K, W_V are (heads, width, d_head), W_O is (heads, d_head, width)."""

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        heads, inner = sizes.n_heads, (sizes.n_heads, sizes.d_model, sizes.d_head)
        for name in "QKV":
            self.register_parameter(f"W_{name}", _empty(*inner))
            self.register_parameter(f"b_{name}", _empty(heads, sizes.d_head))
        self.W_O, self.b_O = _empty(heads, sizes.d_head, sizes.d_model), _empty(sizes.d_model)
        self.scale = sizes.scale

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        q, k, v = (self._projected(hidden, name) for name in "QKV")
        scores = q @ k.transpose(-1, -2) / self.scale
        later = torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu(1)
        mixed = scores.masked_fill(later, float("-inf")).softmax(-1) @ v
        return torch.einsum("bhle,hew->blw", mixed, self.W_O) + self.b_O

    def _projected(self, hidden: Tensor, name: str) -> Float[Tensor, "batch heads length d_head"]:
        weight, bias = getattr(self, f"W_{name}"), getattr(self, f"b_{name}")
        return torch.einsum("blw,hwe->bhle", hidden, weight) + bias.unsqueeze(1)


class _MLP(nn.Module):
    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        self.W_in, self.b_in = _empty(sizes.d_model, sizes.d_mlp), _empty(sizes.d_mlp)
        self.W_out, self.b_out = _empty(sizes.d_mlp, sizes.d_model), _empty(sizes.d_model)
        self.act = _ACTIVATIONS[sizes.activation]

    def forward(self, hidden: Float[Tensor, "batch length width"]) -> Float[Tensor, "batch length width"]:
        return self.act(hidden @ self.W_in + self.b_in) @ self.W_out + self.b_out


class _LayerNorm(nn.Module):
    """LayerNorm; that of LNPre has neither gain nor shift, which were folded into what reads it."""

    w: nn.Parameter | None
    b: nn.Parameter | None

    def __init__(self, sizes: Sizes) -> None:
        super().__init__()
        is_whole = sizes.norm == "LN"
        self.register_parameter("w", _empty(sizes.d_model) if is_whole else None)
        self.register_parameter("b", _empty(sizes.d_model) if is_whole else None)
        self.eps = sizes.eps

    def forward(self, hidden: Float[Tensor, "*shape width"]) -> Float[Tensor, "*shape width"]:
        return F.layer_norm(hidden, hidden.shape[-1:], self.w, self.b, self.eps)


def _norm(sizes: Sizes) -> nn.Module:
    return nn.Identity() if sizes.norm is None else _LayerNorm(sizes)


def _held(**shapes: tuple[int, ...]) -> nn.ParameterDict:
    return nn.ParameterDict({name: _empty(*shape) for name, shape in shapes.items()})


def _empty(*shape: int) -> nn.Parameter:
    return nn.Parameter(torch.empty(*shape), requires_grad=False)
