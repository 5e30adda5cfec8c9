"""The function whose curvature is measured: a network, a batch and a loss, cut down to what a weight can reach."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hessfig.models.parameters import weight
from hessfig.tasks.batch import Batch
from hessfig.tasks.losses import output_gradient
from hessfig.terms import Matrix


@dataclass(frozen=True)
class Problem:
    """Loss of `network` on `batch`; blocks of its Hessian are what everything here computes."""

    network: nn.Module
    batch: Batch
    loss: nn.Module

    @property
    def dtype(self) -> torch.dtype:
        return next(self.network.parameters()).dtype

    def to(self, device: torch.device) -> Problem:
        """Return the same problem on `device`."""
        return Problem(self.network.to(device), self.batch.to(device), self.loss)

    def weight(self, layer: int, matrix: Matrix) -> nn.Parameter:
        """Return the parameter that holds `matrix` of `layer`."""
        return weight(self.network, layer, matrix)

    def suffix(self, layer: int, matrices: list[Matrix]) -> Suffix:
        """Return the part of the network that depends on `matrices` of `layer`, with its input computed once."""
        if Matrix.W_E in matrices or Matrix.W_pos in matrices:
            return Suffix(self, None)
        depth = len(self.network.layers) if matrices == [Matrix.W_U] else max(layer, 1) - 1  # type: ignore[arg-type]
        return Suffix(self, depth)


class Suffix(nn.Module):
    """Maps the residual stream after `depth` layers (or the raw inputs, `depth` None) to the scored outputs.

    `inputs`, `outputs` and `gradient` = dl/df are evaluated once and shared by all products.
    """

    def __init__(self, problem: Problem, depth: int | None) -> None:
        super().__init__()
        self.network, self.depth, self.loss = problem.network, depth, problem.loss
        self.scored, self.targets = problem.batch.scored, problem.batch.targets
        with torch.no_grad():
            tokens = problem.batch.inputs
            self.inputs = tokens if depth is None else problem.network.hidden(tokens, depth)  # type: ignore[operator]
            self.outputs = self(self.inputs)
        self.gradient = output_gradient(self.loss, self.outputs, self.targets)

    @property
    def bytes_per_probe(self) -> int:
        """Memory one probe's products take, counted from above: every activation of the suffix, some six times over."""
        activations = sum(_entries_per_position(module) for module in self.network.modules())
        positions = self.inputs.shape[0] * self.inputs.shape[1]
        return 6 * activations * positions * self.outputs.element_size()

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the outputs at the scored positions."""
        hidden, depth = (self.network.hidden(inputs, 0), 0) if self.depth is None else (inputs, self.depth)  # type: ignore[operator]
        return self.network.from_hidden(hidden, depth, self.scored)  # type: ignore[operator]


def _entries_per_position(module: nn.Module) -> int:
    return module.out_features if isinstance(module, nn.Linear) else 0
