"""Networks at initialisation: weights from the seed alone, embeddings drawn again at each sigma."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from hessfig.config.enums import Draws, Initialisation, SigmaScales
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig
from hessfig.curvature.problem import Objective
from hessfig.models.components import GAINS
from hessfig.models.protocol import Draw, kind
from hessfig.rng import stream
from hessfig.states import published
from hessfig.tasks.batch import draw_batch, loss_module
from hessfig.weights import Layout

WEIGHT_VARIANCE = 0.64
GPT2_DEVIATION = 0.02
# The maps whose outputs are added to the residual stream.
_RESIDUAL = ("attn.o.weight", "mlp.fc_out.weight")
_EMBEDDINGS = {
    SigmaScales.both: ("tok_embed.weight", "patch.weight", "pos.weight"),
    SigmaScales.tokens: ("tok_embed.weight", "patch.weight"),
}


def initialised(config: Config, *, sigma: float | None, seed: int) -> Objective:
    """Draw the batch (from the task's seed) and the network (from `seed` and `sigma`).

    `sigma` is None where it does not apply; a network with embeddings then draws them
    with sigma = 1.
    """
    maker = kind(config.model.kind)
    if maker.draw is not None:
        return maker.draw(config, sigma, seed)
    batch = draw_batch(config.task, width=config.model.d_model, dtype=config.dtype)
    network = build_network(config, sigma=1.0 if sigma is None else sigma, seed=seed)
    task = config.task
    return Objective(
        network, batch, loss_module(task), maker.layout(config), decay=task.weight_decay
    )


def build_network(config: Config, *, sigma: float, seed: int) -> nn.Module:
    """Return the configured network with weights of repeat `seed` and embeddings of scale `sigma`.

    Weights are N(0, 0.64 / d_model), biases 0 (linear MLP: PyTorch's uniform default;
    kind mlp: N(0, 0.64 / inputs); cnn: N(0, 2 / inputs)); token and position embeddings
    are N(0, sigma^2), redrawn at each sigma (`sigma_scales=tokens`: positions at the
    weights' scale). `initialisation=gpt2`: weights N(0, 0.02^2), those whose outputs
    are added to the residual stream divided by sqrt(2 n_layers), as GPT-2 does.
    `scaled_weight` is multiplied by `weight_scale`. All draws are made in float64 and
    rounded to the configured type, each weight from a stream of its own name, so that
    no setting shifts the draws of another. `state.draw=published`: those of
    hessfig.states.published.
    """
    from hessfig.models.networks import BareAttention

    maker = kind(config.model.kind)
    assert maker.skeleton is not None, "a kind either draws itself or has a skeleton"
    network = maker.skeleton(config).to(getattr(torch, config.dtype))
    scaled = _scaled(config.model, maker.layout(config))
    draw = _draw_for(config.model, sigma, seed, scaled)
    if config.state.draw == Draws.published:
        draw = published.draw_for(config, network, sigma=sigma, seed=seed)
    draw_weights(network, draw)
    if isinstance(network, BareAttention):
        network.sigma = sigma
    return network.requires_grad_(False)


def draw_weights(network: nn.Module, draw: Callable[[str, torch.Size], Tensor]) -> None:
    """Set every weight matrix to `draw(name, shape)`, every bias to 0, every norm to the identity, every gain to 1."""
    gains = {
        f"{name}.weight"
        for name, module in network.named_modules()
        if isinstance(module, GAINS)
    }
    for name, parameter in network.named_parameters():
        with torch.no_grad():
            if parameter.ndim == 2:
                parameter.copy_(draw(name, parameter.shape))
            else:
                parameter.fill_(1.0 if name in gains else 0.0)


def _draw_for(
    model: ModelConfig, sigma: float, seed: int, scaled: frozenset[str]
) -> Callable[[str, torch.Size], Tensor]:
    def draw(name: str, shape: torch.Size) -> Tensor:
        if name in _EMBEDDINGS[model.sigma_scales]:
            generator = stream(seed, "embedding", name, float(sigma))
            return sigma * torch.randn(shape, dtype=torch.float64, generator=generator)
        drawn = _weight(model, name, shape, stream(seed, "weight", name))
        if name in scaled:
            return drawn * model.weight_scale
        return drawn

    return draw


def _weight(
    model: ModelConfig, name: str, shape: torch.Size, generator: torch.Generator
) -> Tensor:
    """Draw one weight matrix (outputs, inputs) at the scale of its initialisation."""
    drawn = kind(model.kind).weights_drawn
    is_gpt2 = model.initialisation == Initialisation.gpt2
    if drawn == Draw.uniform and not is_gpt2:
        numbers = torch.rand(shape, dtype=torch.float64, generator=generator)
        return (2 * numbers - 1) * shape[1] ** -0.5
    if is_gpt2:
        shrunk = (2 * model.n_layers) ** -0.5 if name.endswith(_RESIDUAL) else 1.0
        deviation = GPT2_DEVIATION * shrunk
    elif drawn == Draw.relu:
        deviation = (2 / shape[1]) ** 0.5
    else:
        # The paper's weights have d_model inputs; where a weight has many more, its own
        # number keeps the scale.
        inputs = shape[1] if drawn == Draw.inputs else model.d_model
        deviation = (WEIGHT_VARIANCE / inputs) ** 0.5
    return torch.randn(shape, dtype=torch.float64, generator=generator) * deviation


def _scaled(model: ModelConfig, layout: Layout) -> frozenset[str]:
    """Return the parameters that `scaled_weight` selects: the weights of that name, or those of the MLP."""
    chosen = (
        weight
        for weight in layout.weights
        if weight.is_main and model.scaled_weight in (weight.name, *weight.groups)
    )
    return frozenset(weight.parameter for weight in chosen)
