"""The linear MLP: an embedding and a chain of linear maps."""

from __future__ import annotations

from itertools import pairwise

from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.config import ModelConfig


class LinearMLP(nn.Module):
    """Embedding, n_layers - 1 square linear maps and a linear read-out, without biases (Figure 8)."""

    def __init__(self, model: ModelConfig, *, vocabulary: int) -> None:
        super().__init__()
        self.tok_embed = nn.Embedding(vocabulary, model.d_model)
        widths = [model.d_model] * model.n_layers + [vocabulary]
        self.layers = nn.ModuleList(nn.Linear(a, b, bias=False) for a, b in pairwise(widths))

    def hidden(
        self, tokens: Int[Tensor, "batch length"], depth: int
    ) -> Float[Tensor, "batch length d_model"]:
        """Return the activations after `depth` layers (0: the embeddings)."""
        hidden = self.tok_embed(tokens)
        for layer in self.layers[:depth]:
            hidden = layer(hidden)
        return hidden

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Float[Tensor, "batch scored vocab"]:
        """Return the outputs at the scored positions, given the activations after `depth` layers."""
        hidden = hidden[:, scored]
        for layer in self.layers[depth:]:
            hidden = layer(hidden)
        return hidden
