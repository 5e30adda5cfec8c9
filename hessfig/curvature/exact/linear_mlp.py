"""Linear MLPs: f = e W_1 ... W_D at every scored position, with e the embedding of its token."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.exact.grouping import labels_of, one_of_each
from hessfig.curvature.exact.items import ItemMatrices
from hessfig.curvature.exact.kronecker import kronecker_squared_norm
from hessfig.curvature.exact.readout import loss_rows
from hessfig.curvature.problem import Problem
from hessfig.curvature.same_network import check_same
from hessfig.terms import Part


def linear_mlp_norms(problem: Problem, layer: int, parts: Sequence[Part]) -> dict[Part, float]:
    """Return the norms of the diagonal block of W_layer: H = H_o and H_f = 0, the outputs being linear in W.

    H = sum_n h_n h_n^T (x) J^T (d2l/df2) J with h_n the inputs of the layer and J = W_{layer+1} ... W_D; equal tokens
    share their h_n.
    """
    hidden, rows = _factors(problem, layer)
    labels = labels_of(hidden.flatten(0, 1))
    matrices = ItemMatrices(((rows, rows),)).merged(labels)
    inputs = one_of_each(hidden.flatten(0, 1), labels)
    square = kronecker_squared_norm((inputs @ inputs.T).square(), matrices, symmetric=True)
    return _parts(float(square.sqrt()), parts)


def linear_mlp_traces(problem: Problem, layer: int, parts: Sequence[Part]) -> dict[Part, float]:
    """Return the traces of the same block: sum_n |h_n|^2 tr(J^T (d2l/df2) J)."""
    hidden, rows = _factors(problem, layer)
    sizes = hidden.flatten(0, 1).square().sum(dim=1)
    return _parts(float((sizes * ItemMatrices(((rows, rows),)).traces()).sum()), parts)


def _factors(problem: Problem, layer: int) -> tuple[Tensor, Tensor]:
    """Return h_n at the scored positions and R J with R^T R = d2l/df2."""
    network: Any = problem.network
    hidden = network.hidden(problem.batch.inputs, layer - 1)[:, problem.batch.scored]
    root, behind = (
        loss_rows(problem, network.from_hidden(hidden, layer - 1, slice(None)))[1],
        _behind(network, layer),
    )
    check_same(problem, hidden @ network.layers[layer - 1].weight.T @ behind.T, "exact engine")
    return hidden, root @ behind


def _parts(value: float, parts: Sequence[Part]) -> dict[Part, float]:
    values = {Part.H_o: value, Part.H_f: 0.0, Part.H: value}
    return {part: values[part] for part in parts}


def _behind(network: Any, layer: int) -> Float[Tensor, "outputs m"]:
    product = torch.eye(network.layers[-1].out_features).to(network.layers[-1].weight)
    for linear in reversed(network.layers[layer:]):
        product = product @ linear.weight
    return product
