"""A causal MLP: every position sees the embeddings of all tokens up to it, side by side."""

from __future__ import annotations

from itertools import pairwise

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.config import ModelConfig
from hessfig.models.activations import ACTIVATIONS


class PrefixMLP(nn.Module):
    """logits_p = W_U phi(W ... phi(W_in x_p + b_in) ... + b) + b_U, x_p = (e_1, ..., e_p, 0, ..., 0).

    e_t is the embedding of token t; the first `reach` tokens have a place in x. A token's position is told by the
    columns of W_in that it meets, so there is no W_pos.
    """

    def __init__(self, model: ModelConfig, *, width: int, vocabulary: int, reach: int) -> None:
        super().__init__()
        self.tok_embed = nn.Embedding(vocabulary, model.d_model)
        widths = [reach * model.d_model] + [width] * model.n_layers
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in pairwise(widths))
        self.head = nn.Linear(width, vocabulary)
        self.act, self.reach = ACTIVATIONS[model.mlp], reach

    def hidden(self, tokens: Int[Tensor, "batch length"], depth: int) -> Float[Tensor, "batch reach width"]:
        """Return the activations after `depth` layers (0: the embeddings) of the first `reach` positions."""
        embedded = self.tok_embed(tokens[:, : self.reach])
        return self._layers(prefixes(embedded, slice(None)), 0, depth) if depth else embedded

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Float[Tensor, "batch scored vocab"]:
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
    """Return x_p for the chosen positions p: the rows up to p side by side, zeros in the place of later ones."""
    return (embedded[:, None] * known(embedded, positions)[..., None]).flatten(2)


def known(embedded: Float[Tensor, "batch reach ..."], positions: slice) -> Float[Tensor, "positions reach"]:
    """Return 1 where a position sees a token, 0 for later tokens."""
    reach = embedded.shape[1]
    return torch.ones(reach, reach, dtype=embedded.dtype, device=embedded.device).tril()[positions]
