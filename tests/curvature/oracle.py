"""Ground truth for small networks: whole Hessians by dense automatic differentiation, with no code of hessfig."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import functional_call, jvp

from hessfig.curvature.problem import Objective, Suffix
from hessfig.models.networks import Transformer
from hessfig.terms import Matrix, Part
from tests.double_backward import hessian, jacobian

Weights = dict[str, Tensor]
Blocks = dict[tuple[Matrix, Matrix], Tensor]


class _Whole(torch.nn.Module):
    """All outputs first, the scored ones cut out afterwards."""

    def __init__(self, network: torch.nn.Module, scored: slice) -> None:
        super().__init__()
        self.network = network
        self.scored = scored

    def forward(self, inputs: Tensor) -> Tensor:
        if isinstance(self.network, Transformer):
            return self.network(inputs)[:, self.scored]
        return self.network.from_hidden(self.network.hidden(inputs, 0), 0, slice(None))[
            :, self.scored
        ]


def dense_oracle(
    objective: Objective, layer: int, matrices: list[Matrix]
) -> dict[Part, Blocks]:
    """Return every block of `matrices` of `layer` for H, H_o and H_f, each differentiated on its own.

    H is the Hessian of the loss, H_f that of <dl/df, f> with dl/df fixed, and H_o that
    of the loss of the network linearised at the weights.
    """
    whole = _Whole(objective.network, objective.batch.scored)
    names = {}
    for matrix in matrices:
        names[matrix] = f"network.{objective.layout.side(layer, matrix)[0].parameter}"
    at = {names[m]: objective.weight(layer, m).detach().clone() for m in matrices}

    def outputs(weights: Weights) -> Tensor:
        return functional_call(whole, weights, (objective.batch.inputs,))

    found = {
        part: torch.func.hessian(f)(at)
        for part, f in _functions(outputs, at, objective).items()
    }
    return {part: _as_matrices(blocks, names, at) for part, blocks in found.items()}


def _functions(
    outputs: Callable[[Weights], Tensor], at: Weights, objective: Objective
) -> dict[Part, Callable[[Weights], Tensor]]:
    primal = outputs(at).detach()
    leaf = primal.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(
        objective.loss(leaf, objective.batch.targets), leaf
    )

    def linearised(weights: Weights) -> Tensor:
        step = {name: weights[name] - at[name] for name in at}
        return primal + jvp(outputs, (at,), (step,))[1]

    return {
        Part.H: lambda weights: objective.loss(
            outputs(weights), objective.batch.targets
        ),
        Part.H_o: lambda weights: objective.loss(
            linearised(weights), objective.batch.targets
        ),
        Part.H_f: lambda weights: (gradient * outputs(weights)).sum(),
    }


def _as_matrices(
    blocks: dict[str, Weights], names: dict[Matrix, str], at: Weights
) -> Blocks:
    found = {}
    for row in names:
        for col in names:
            found[(row, col)] = blocks[names[row]][names[col]].reshape(
                at[names[row]].numel(), -1
            )
    return found


def whole_oracle(objective: Objective) -> dict[Part, Tensor]:
    """Return H, H_o and H_f in every parameter, in the layout's order, by double backward and explicit Jacobians."""
    suffix = Suffix(objective, None)
    names = [f"network.{weight.parameter}" for weight in objective.layout.weights]
    held = dict(suffix.named_parameters())
    at = [held[name].detach().clone().requires_grad_() for name in names]

    def outputs() -> Tensor:
        return functional_call(
            suffix, dict(zip(names, at, strict=True)), (objective.batch.inputs,)
        )

    def loss(z: Tensor) -> Tensor:
        return objective.loss(z.view_as(suffix.outputs), objective.batch.targets)

    slopes = jacobian(outputs, at)
    curvature = torch.autograd.functional.hessian(loss, suffix.outputs.flatten())
    return {
        Part.H: hessian(lambda: objective.loss(outputs(), objective.batch.targets), at),
        Part.H_o: slopes.T @ curvature @ slopes,
        Part.H_f: hessian(lambda: (outputs() * suffix.gradient).sum(), at),
    }


def places(objective: Objective, layer: int, name: str) -> Tensor:
    """Return where the entries of one side of a block stand in `whole_oracle`'s matrices."""
    start = 0
    found = {}
    for weight in objective.layout.weights:
        found[weight.parameter] = torch.arange(start, start + weight.size)
        start += weight.size
    return torch.cat(
        [found[weight.parameter] for weight in objective.layout.side(layer, name)]
    )
