"""Networks made of layers: cut behind a layer, or before their unembedding, so that a weight costs what it reaches."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

from torch import Tensor, nn


@runtime_checkable
class Layered(Protocol):
    """A network that offers its suffixes; other networks are evaluated whole."""

    def hidden(self, inputs: Tensor, depth: int) -> Tensor:
        """Return the activations after `depth` layers (0: the embeddings), (batch, length, width)."""

    def from_hidden(self, hidden: Tensor, depth: int, scored: slice) -> Tensor:
        """Return the outputs at the scored positions, given the activations after `depth` layers."""


@runtime_checkable
class Headed(Layered, Protocol):
    """A layered network whose outputs are features @ unembedding^T: with a large vocabulary they need not be held.

    A further property `unembedding_bias`, a parameter (vocabulary), says that a bias is added to them.
    """

    @property
    def unembedding(self) -> nn.Parameter:
        """The matrix (vocabulary, width) that turns features into outputs; it may be that of the embedding too."""

    def features(self, hidden: Tensor, depth: int, scored: slice) -> Tensor:
        """Return what the unembedding is applied to, (batch, scored, width)."""


def unembedding_of(network: Headed) -> list[nn.Parameter]:
    """Return what turns features into outputs: the matrix, and the bias (vocabulary) of a network that has one."""
    bias = getattr(network, "unembedding_bias", None)
    return [network.unembedding] if bias is None else [network.unembedding, bias]


def scored_outputs(network: nn.Module, inputs: Tensor, scored: slice, *, everywhere: bool = False) -> Tensor:
    """Return the outputs that enter the loss: those at the scored positions, or all of a network that has no layers.

    The last layer is evaluated where it is scored; `everywhere`: at all positions, as in a call of the whole network.
    """
    if not isinstance(network, Layered):
        return network(inputs)
    start = network.hidden(inputs, 0)
    return (
        network.from_hidden(start, 0, slice(None))[:, scored] if everywhere else network.from_hidden(start, 0, scored)
    )
