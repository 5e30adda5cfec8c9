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
from hessfig.terms import Part


def linear_mlp_norms(problem: Problem, layer: int, parts: Sequence[Part]) -> dict[Part, float]:
    """Return the norms of the diagonal block of W_layer: H = H_o and H_f = 0, the outputs being linear in W.

    H = sum_n h_n h_n^T (x) J^T (d2l/df2) J with h_n the inputs of the layer and J = W_{layer+1} ... W_D; equal tokens
    share their h_n.
    """
    network: Any = problem.network
    hidden = network.hidden(problem.batch.inputs, layer - 1)[:, problem.batch.scored]
    root = loss_rows(problem, network.from_hidden(hidden, layer - 1, slice(None)))[1]
    rows, labels = root @ _behind(network, layer), labels_of(hidden.flatten(0, 1))
    matrices = ItemMatrices(((rows, rows),)).merged(labels)
    inputs = one_of_each(hidden.flatten(0, 1), labels)
    square = kronecker_squared_norm((inputs @ inputs.T).square(), matrices, symmetric=True)
    norms = {Part.H_o: float(square.sqrt()), Part.H_f: 0.0, Part.H: float(square.sqrt())}
    return {part: norms[part] for part in parts}


def _behind(network: Any, layer: int) -> Float[Tensor, "outputs m"]:
    product = torch.eye(network.layers[-1].out_features).to(network.layers[-1].weight)
    for linear in reversed(network.layers[layer:]):
        product = product @ linear.weight
    return product
