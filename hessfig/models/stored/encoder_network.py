"""Encoders (ALBERT, BERT, RoBERTa) with a head for masked tokens, split after each layer."""

from collections.abc import Callable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.models.stored.architectures import ModelSizes
from hessfig.models.stored.families import Encoder


class EncoderNetwork(nn.Module):
    """Maps tokens to logits as `model` does, piece by piece; no position attends to the padding token.

    Hidden states have one more channel than the residual stream: 1 at padding and 0 elsewhere, for the mask of the
    attention. A layer may be used several times (ALBERT); the network is then split after all passes of lower layers,
    so that every pass of a weight is differentiated. causal_model.check_logits compares the logits.
    """

    def __init__(self, model: nn.Module, sizes: ModelSizes, activation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        assert sizes.names.encoder is not None
        self.model, self._sizes, self._paths = model, sizes, sizes.names.encoder
        self._activation = activation  # of the head
        for module in model.modules():
            if isinstance(module, nn.Embedding):
                module.padding_idx = None  # so that the padding token has derivatives like any other token

    @property
    def layers(self) -> nn.ModuleList:
        """The layers with separate weights, in order."""
        layers = self.model.get_submodule(self._sizes.names.layers)
        assert isinstance(layers, nn.ModuleList)
        inner = self._paths.inner
        return nn.ModuleList(layer.get_submodule(inner) for layer in layers) if inner else layers

    @property
    def unembedding(self) -> nn.Parameter:
        """The matrix of the head, which is the parameter of the embedding if they are tied."""
        return self.model.get_parameter(f"{self._paths.head}.weight")

    @property
    def unembedding_bias(self) -> nn.Parameter:
        """The bias of the unembedding."""
        return self.model.get_parameter(f"{self._paths.head}.bias")

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        return self.from_hidden(self.hidden(tokens, 0), 0, slice(None))

    def whole(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits of the whole model."""
        return self.model(input_ids=tokens, attention_mask=tokens.ne(self._sizes.padding).long()).logits

    def hidden(self, inputs: Int[Tensor, "batch length"], depth: int) -> Float[Tensor, "batch length width_1"]:
        """Return the residual stream after `depth` layers (0: the embeddings), with a channel that marks padding."""
        hidden = self.model.get_submodule(self._paths.embeddings)(input_ids=inputs)
        if self._paths.mapping:
            hidden = self.model.get_submodule(self._paths.mapping)(hidden)
        padding = inputs.eq(self._sizes.padding).to(hidden).unsqueeze(-1)
        return self._through(torch.cat([hidden, padding], dim=-1), 0, depth)

    def features(
        self, hidden: Float[Tensor, "batch length width_1"], depth: int, scored: slice
    ) -> Float[Tensor, "batch scored features"]:
        """Return the inputs of the unembedding: the residual stream after the map and the norm of the head."""
        residual = self._through(hidden, depth, len(self.layers))[:, scored, :-1]
        mapped = self._activation(self.model.get_submodule(self._paths.transform)(residual))
        return self.model.get_submodule(self._sizes.names.norm)(mapped)

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Float[Tensor, "batch scored vocabulary"]:
        """Return the logits at the scored positions, given the result of `hidden` for `depth`."""
        return self.model.get_submodule(self._paths.head)(self.features(hidden, depth, scored))

    def _through(self, hidden: Tensor, first: int, last: int) -> Tensor:
        residual, padding = hidden[..., :-1], hidden[..., -1:]
        mask = padding.squeeze(-1)[:, None, None, :] * torch.finfo(hidden.dtype).min
        layers = self.layers
        for layer in self._passes():
            if first <= layer < last:
                residual = layers[layer](residual, mask)
        return torch.cat([residual, padding], dim=-1)

    def _passes(self) -> list[int]:
        """Return the layer of each pass; passes of a group share one layer."""
        count, stored = self._sizes.n_layers, self._sizes.stored_layers
        return [int(place / (count / stored)) for place in range(count)]  # rounded as in transformers


def tied_biases(model: nn.Module, encoder: Encoder) -> None:
    """Give the head a single bias, that of the unembedding, whatever config.json specifies for tied weights.

    For models with an untied embedding, transformers keeps a second bias on which no output depends.
    """
    place, _, name = encoder.bias.rpartition(".")
    setattr(model.get_submodule(place), name, model.get_parameter(f"{encoder.head}.bias"))
