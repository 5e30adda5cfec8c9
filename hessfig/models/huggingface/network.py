"""A causal language model of transformers as a network that can be cut behind a layer and before its head."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from hessfig.models.huggingface.architecture import Names

Call = tuple[tuple[Any, ...], dict[str, Any]]


class CausalNetwork(nn.Module):
    """Maps tokens to logits as `model` does, piece by piece.

    A layer is called as the model itself calls it: mask and rotary positions are those of one recorded forward pass
    of the same length (they depend on nothing else). models.huggingface.loading compares the logits.
    """

    def __init__(self, model: nn.Module, names: Names) -> None:
        super().__init__()
        self.model, self._names = model, names
        embedding = model.get_submodule(names.embedding)
        assert isinstance(embedding, nn.Embedding)
        embedding.padding_idx = None  # its word has derivatives like any other
        self._calls: dict[tuple[int, torch.device], list[Call]] = {}

    @property
    def layers(self) -> nn.ModuleList:
        """The layers, in order."""
        found = self.model.get_submodule(self._names.layers)
        assert isinstance(found, nn.ModuleList)
        return found

    @property
    def unembedding(self) -> nn.Parameter:
        """The head's matrix; the embedding's own parameter where they are tied."""
        return self.model.get_parameter("lm_head.weight")

    def forward(self, tokens: Int[Tensor, "batch length"]) -> Float[Tensor, "batch length vocabulary"]:
        """Return the logits at every position."""
        return self.from_hidden(self.hidden(tokens, 0), 0, slice(None))

    def hidden(self, inputs: Int[Tensor, "batch length"], depth: int) -> Float[Tensor, "batch length width"]:
        """Return the residual stream after `depth` layers (0: the embeddings)."""
        hidden = self.model.get_submodule(self._names.embedding)(inputs)
        if self._names.positions:
            places = torch.arange(inputs.shape[1], device=inputs.device)
            hidden = hidden + self.model.get_submodule(self._names.positions)(places)
        return self._through(hidden, 0, depth)

    def features(
        self, hidden: Float[Tensor, "batch length width"], depth: int, scored: slice
    ) -> Float[Tensor, "batch scored width"]:
        """Return the normed residual stream at the scored positions, given that after `depth` layers."""
        hidden = self._through(hidden, depth, len(self.layers))
        return self.model.get_submodule(self._names.norm)(hidden[:, scored])

    def from_hidden(
        self, hidden: Tensor, depth: int, scored: slice
    ) -> Float[Tensor, "batch scored vocabulary"]:
        """Return the logits at the scored positions, given the residual stream after `depth` layers."""
        return self.model.get_submodule("lm_head")(self.features(hidden, depth, scored))

    def _through(self, hidden: Tensor, first: int, last: int) -> Tensor:
        calls = self._recorded(hidden.shape[1], hidden.device) if last > first else []
        for layer, (args, words) in list(zip(self.layers, calls, strict=False))[first:last]:
            hidden = layer(hidden, *args, **words)
        return hidden

    def _recorded(self, length: int, device: torch.device) -> list[Call]:
        """Return what every layer is called with beside the residual stream, for sequences of `length`."""
        if (length, device) not in self._calls:
            self._calls[length, device] = self._record(length, device)
        return self._calls[length, device]

    @torch.no_grad()
    def _record(self, length: int, device: torch.device) -> list[Call]:
        calls: list[Call] = []

        def note(module: nn.Module, args: tuple[Any, ...], words: dict[str, Any]) -> None:
            calls.append((args[1:], words))

        hooks = [layer.register_forward_pre_hook(note, with_kwargs=True) for layer in self.layers]
        try:
            tokens = torch.zeros(1, length, dtype=torch.long, device=device)
            self.model(input_ids=tokens, use_cache=False, logits_to_keep=1)
        finally:
            for hook in hooks:
                hook.remove()
        return calls
