"""Draw a network: weights from the seed alone, embeddings anew at each sigma."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hessfig.config import DType, Kind, ModelConfig, SigmaScales
from hessfig.models.bare import BareAttention, LinearMLP
from hessfig.rng import stream
from hessfig.tasks.addition import VOCABULARY

WEIGHT_VARIANCE = 0.64
_EMBEDDINGS = {
    SigmaScales.both: ("tok_embed.weight", "pos.weight"),
    SigmaScales.tokens: ("tok_embed.weight",),
}


def build_model(model: ModelConfig, *, sigma: float, seed: int, length: int, dtype: DType) -> nn.Module:
    """Return the network of `model` with weights of repeat `seed` and embeddings of scale `sigma`.

    Weights are N(0, 0.64 / d_model), biases 0 (linear MLP: PyTorch's uniform default); token and position
    embeddings are N(0, sigma^2), redrawn at each sigma (`sigma_scales=tokens`: positions at the weights' scale).
    All draws are made in float64 and rounded to `dtype`, each weight from a stream of its own name, so that no
    setting shifts the draws of another.
    """
    network = _skeleton(model, length).to(getattr(torch, dtype))
    draw_weights(network, _draw_for(model, sigma, seed))
    if isinstance(network, BareAttention):
        network.sigma = sigma
    return network.requires_grad_(False)


def draw_weights(network: nn.Module, draw: Callable[[str, torch.Size], Tensor]) -> None:
    """Set every weight matrix to `draw(name, shape)`, every bias to 0, every LayerNorm to the identity."""
    norms = {f"{name}.weight" for name, module in network.named_modules() if isinstance(module, nn.LayerNorm)}
    for name, parameter in network.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 2:
                parameter.copy_(draw(name, parameter.shape))
            else:
                parameter.fill_(1.0 if name in norms else 0.0)


def _skeleton(model: ModelConfig, length: int) -> nn.Module:
    if model.kind == Kind.linear_mlp:
        return LinearMLP(model, vocabulary=VOCABULARY)
    if model.kind == Kind.self_attention:
        return BareAttention(model)
    from hessfig.models.transformer.network import Transformer

    return Transformer(model, vocabulary=VOCABULARY, length=length)


def _draw_for(model: ModelConfig, sigma: float, seed: int) -> Callable[[str, torch.Size], Tensor]:
    def draw(name: str, shape: torch.Size) -> Tensor:
        if name in _EMBEDDINGS[model.sigma_scales]:
            generator = stream(seed, "embedding", name, float(sigma))
            return sigma * torch.randn(shape, dtype=torch.float64, generator=generator)
        generator = stream(seed, "weight", name)
        if model.kind == Kind.linear_mlp:
            bound = shape[1] ** -0.5
            return (2 * torch.rand(shape, dtype=torch.float64, generator=generator) - 1) * bound
        return (
            torch.randn(shape, dtype=torch.float64, generator=generator)
            * (WEIGHT_VARIANCE / model.d_model) ** 0.5
        )

    return draw
