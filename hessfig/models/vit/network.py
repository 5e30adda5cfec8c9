"""A vision transformer from the transformer's own layers, every token seeing every other."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config import ModelConfig, Norm
from hessfig.models.transformer.network import Layer, native_config


class VisionTransformer(nn.Module):
    """logits = W_U mean_t h_t + b_U, h the tokens W_patch x_t + b_patch + W_pos[t] after `n_layers` layers.

    x_t are the pixels of patch t, row by row. Layers as the transformer's, without its mask; with pre-LN a last
    LayerNorm stands before the mean. The one output position is the picture's class.
    """

    def __init__(self, model: ModelConfig, *, side: int, classes: int) -> None:
        super().__init__()
        self.patches_a_side = side // model.patch
        tokens = self.patches_a_side**2
        native = native_config(model, vocabulary=classes, length=tokens)
        self.patch = nn.Linear(model.patch**2, model.d_model)
        self.pos = nn.Embedding(tokens, model.d_model)
        self.layers = nn.ModuleList(Layer(native, model) for _ in range(model.n_layers))
        for layer in self.layers:
            layer.attn.causal_mask.fill_(False)  # type: ignore[union-attr, operator]
        self.ln_out = nn.LayerNorm(model.d_model, eps=native.eps) if model.norm == Norm.pre else nn.Identity()
        self.head = nn.Linear(model.d_model, classes)

    def patches(self, images: Float[Tensor, "batch side side"]) -> Float[Tensor, "batch tokens pixels"]:
        """Cut pictures into squares, row by row of squares."""
        count = self.patches_a_side
        squares = images.unflatten(1, (count, -1)).unflatten(3, (count, -1)).transpose(2, 3)
        return squares.flatten(3).flatten(1, 2)

    def hidden(
        self, images: Float[Tensor, "batch side side"], depth: int
    ) -> Float[Tensor, "batch tokens d_model"]:
        """Return the residual stream after `depth` layers (0: the embedded patches)."""
        hidden = self.patch(self.patches(images)) + self.pos.weight
        for layer in self.layers[:depth]:
            hidden = layer(hidden)
        return hidden

    def from_hidden(
        self, hidden: Float[Tensor, "batch tokens d_model"], depth: int, scored: slice
    ) -> Float[Tensor, "batch 1 classes"]:
        """Return the logits of every picture, given the residual stream after `depth` layers."""
        for layer in self.layers[depth:]:
            hidden = layer(hidden)
        return self.head(self.ln_out(hidden).mean(dim=1, keepdim=True))[:, scored]
