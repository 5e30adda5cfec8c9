"""The whole Hessian of a transformer, its weights in the order of the paper's Figure 1."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.problem import Objective
from hessfig.weights import Weight

_PER_LAYER = {
    "W_Q": "attn.q.weight",
    "W_K": "attn.k.weight",
    "W_V": "attn.v.weight",
    "W_O": "attn.o.weight",
    "W_in": "mlp.fc_in.weight",
    "b_in": "mlp.fc_in.bias",
    "W_out": "mlp.fc_out.weight",
    "b_out": "mlp.fc_out.bias",
}


@dataclass(frozen=True)
class WholeHessian:
    """`matrix` is symmetric; parameter `names[i]` takes `sizes[i]` rows, row by row of its (inputs, outputs) matrix."""

    matrix: Float[Tensor, "parameters parameters"]
    names: list[str]
    sizes: list[int]


def dense_hessian(problem: Objective) -> WholeHessian:
    """Return the full Hessian of a transformer without LayerNorm.

    Order: W_E, W_pos, then W_Q, W_K, W_V, W_O, W_in, b_in, W_out, b_out of each layer, W_U, b_U (Figure 1); the
    attention's biases are left out. Linear maps are stored (outputs, inputs) and transposed here.
    """
    paths = _paths(problem.network)
    parameters = [problem.network.get_parameter(path) for path in paths.values()]
    weights = [Weight(name, path, p.numel()) for (name, path), p in zip(paths.items(), parameters, strict=True)]
    from hessfig.curvature.curvlinops import whole_hessian

    matrix = whole_hessian(problem, weights)
    order = torch.cat(_published_order(list(paths.values()), parameters))
    return WholeHessian(matrix[order][:, order], list(paths), [p.numel() for p in parameters])


def _paths(network: nn.Module) -> dict[str, str]:
    paths = {"W_E": "tok_embed.weight", "W_pos": "pos.weight"}
    held = dict(network.named_parameters())
    for index in range(len(network.layers)):  # type: ignore[arg-type]
        suffix = "" if len(network.layers) == 1 else f"_{index + 1}"  # type: ignore[arg-type]
        paths |= {f"{name}{suffix}": f"layers.{index}.{path}" for name, path in _PER_LAYER.items()}
    paths |= {"W_U": "head.weight", "b_U": "head.bias"}
    return {name: path for name, path in paths.items() if path in held}


def _published_order(paths: list[str], parameters: list[nn.Parameter]) -> list[Tensor]:
    start, order = 0, []
    for path, parameter in zip(paths, parameters, strict=True):
        index = torch.arange(start, start + parameter.numel()).reshape(parameter.shape)
        is_table = path in ("tok_embed.weight", "pos.weight") or parameter.ndim == 1
        order.append((index if is_table else index.T).flatten())
        start += parameter.numel()
    return order
