"""The draws of the published code, in its order and from its generators: weights, embeddings and signs of a repeat."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config.enums import Kind
from hessfig.config.grid import sigma_values
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.states.philox import OFFSET, cuda_normal, cuda_uniform
from hessfig.terms import Matrix, Part

# Of the published sweeps; hessfig.models.network_checks refuses others for linear MLPs.
FIRST_SEED, REPEATS = (1234, 20)
SCALE = 0.8
_LAYER = ("attn.q", "attn.o", "attn.k", "attn.v", "mlp.fc_in", "mlp.fc_out")
_EMBEDDINGS = ("tok_embed.weight", "pos.weight")
_COLUMNS = (Matrix.W_Q.value, Matrix.W_V.value)
_PARTS = (Part.H, Part.H_o, Part.H_f)
BEFORE_MLP = 7_864_320  # numbers that numpy's generator had given before Figure 8; found by its published values


def draw_for(
    config: Config, network: nn.Module, *, sigma: float, seed: int
) -> Callable[[str, torch.Size], Tensor]:
    """Return the function that gives a parameter of `network` by name and shape, as the published code drew it.

    Transformer (Figures 3, 5, 6 and 7): weights are N(0, (0.8 / sqrt(d_model))^2) from
    the CPU's generator of `seed`, embeddings N(0, sigma^2) from a CUDA generator of
    `seed`, which advances with every sigma of the grid. Linear MLP (Figure 8):
    everything is from one CUDA generator of seed 1234, which runs through all depths,
    repeats and sigmas. Raises UserError for a sigma that the grid does not have.
    """
    place = sigma_index(config, sigma)
    if config.model.kind == Kind.linear_mlp:
        of_kind = _of_linear_mlp
    else:
        of_kind = _of_transformer
    drawn = of_kind(config, dict(network.named_parameters()), place, seed)
    # In float32, as all of them.
    drawn |= {name: drawn[name] * sigma for name in _EMBEDDINGS if name in drawn}
    return lambda name, shape: drawn[name]


def sigma_index(config: Config, sigma: float) -> int:
    """Return the place of `sigma` in the grid, on which the position of every generator depends."""
    grid = sigma_values(config.grid)
    if sigma not in grid:
        raise UserError(
            "sigma: the published draws go through the grid, which does not have this value",
            got=sigma,
            allowed=", ".join(f"{value:.12g}" for value in grid),
            remedy="give a value of the grid, or choose another grid",
        )
    return grid.index(sigma)


def _of_transformer(
    config: Config, parameters: dict[str, Tensor], place: int, seed: int
) -> dict[str, Tensor]:
    """Return the weights, and the embeddings for sigma = 1; matrices are drawn as (inputs, outputs)."""
    layers = [
        f"layers.{layer}.{name}.weight"
        for layer in range(config.model.n_layers)
        for name in _LAYER
    ]
    generator = torch.Generator().manual_seed(seed)
    drawn = dict[str, Tensor]()
    for name in (
        *_EMBEDDINGS,
        *(name for name in layers if name in parameters),
        "head.weight",
    ):
        inputs_last = parameters[name].shape
        shape = inputs_last if name in _EMBEDDINGS else inputs_last[::-1]
        matrix = torch.empty(shape).normal_(
            0, SCALE / config.model.d_model**0.5, generator=generator
        )
        drawn[name] = matrix.T
    for number, name in enumerate(_EMBEDDINGS, start=2 * place):
        shape = parameters[name].shape
        drawn[name] = _normal(shape, seed=seed, offset=OFFSET * number)
    return drawn


def _of_linear_mlp(
    config: Config, parameters: dict[str, Tensor], place: int, seed: int
) -> dict[str, Tensor]:
    """Return the weights, and the embedding for sigma = 1; every repeat draws an embedding first that is not used."""
    depth = config.model.n_layers
    points = len(sigma_values(config.grid))
    before = sum(REPEATS * (shallower + 1 + points) for shallower in range(1, depth))
    start = before + (seed - FIRST_SEED) * (depth + 1 + points)
    drawn = dict[str, Tensor]()
    for layer in range(depth):
        shape = parameters[f"layers.{layer}.weight"].shape
        drawn[f"layers.{layer}.weight"] = torch.from_numpy(
            cuda_uniform(
                prod(shape),
                seed=FIRST_SEED,
                offset=OFFSET * (start + 1 + layer),
                bound=shape[1] ** -0.5,
            )
        ).view(shape)
    name = _EMBEDDINGS[0]
    drawn[name] = _normal(
        parameters[name].shape,
        seed=FIRST_SEED,
        offset=OFFSET * (start + depth + 1 + place),
    )
    return drawn


def _normal(shape: torch.Size, *, seed: int, offset: int) -> Tensor:
    return torch.from_numpy(cuda_normal(prod(shape), seed=seed, offset=offset)).view(
        shape
    )


def signs(
    config: Config,
    shape: torch.Size,
    *,
    sigma: float,
    seed: int,
    layer: int,
    col: str,
    part: Part,
) -> Float[Tensor, "dim num_probes"]:
    """Return the published probes of one part of a diagonal block, in the order of hessfig's entries.

    Every part has probes of its own, from numpy's global generator. Transformer: seeded
    with `seed`; sigma by sigma and layer by layer, W_Q before W_V, H before H_o before
    H_f. Entries run over the matrix as (inputs, outputs). Linear MLP: one stream of
    seed 1234 through all depths, repeats and sigmas, after BEFORE_MLP numbers; entries
    run over (outputs, inputs). `shape` is that of the weight, (outputs, inputs).
    """
    count = config.estimator.num_probes
    place = sigma_index(config, sigma)
    if config.model.kind == Kind.linear_mlp:
        first = _entries_before(config, place, seed, layer) * count + BEFORE_MLP
        return _sign_vectors(FIRST_SEED, first, count, shape)
    column = (place * config.model.n_layers + layer - 1) * len(
        _COLUMNS
    ) + _COLUMNS.index(col)
    estimate = column * len(_PARTS) + _PARTS.index(part)
    drawn = _sign_vectors(seed, estimate * count * prod(shape), count, shape)
    return drawn.T.unflatten(1, shape[::-1]).transpose(1, 2).flatten(1).T


def _sign_vectors(
    seed: int, first: int, count: int, shape: torch.Size
) -> Float[Tensor, "dim num_probes"]:
    numbers = numpy_numbers(seed, first, count * prod(shape)).reshape(count, -1)
    return torch.from_numpy(np.where(numbers > 0.5, 1.0, -1.0)).T


def _entries_before(config: Config, place: int, seed: int, layer: int) -> int:
    """Return how many entries the weights have whose vectors are drawn before: of each, one vector is counted."""
    width = config.model.d_model
    points = len(sigma_values(config.grid))
    sizes = [
        (depth - 1) * width**2 + width * config.task.vocabulary
        for depth in range(1, config.model.n_layers + 1)
    ]
    cells_before = (seed - FIRST_SEED) * points + place
    return (
        REPEATS * points * sum(sizes[:-1])
        + cells_before * sizes[-1]
        + (layer - 1) * width**2
    )


_MOST_KEPT = 256
_reached: dict[tuple[int, int], Any] = {}


def numpy_numbers(seed: int, first: int, count: int) -> np.ndarray:
    """Return `count` numbers in [0, 1) of numpy's global generator after seeding with `seed`, from the `first` on.

    Its Mersenne twister is run up to there, in constant memory and about 6 ns per
    number, from the last position that this process reached before: 0.2 s for the last
    sigma of Figure 3a, 8 s for the last network of Figure 8.
    """
    bits = np.random.MT19937()
    generator = np.random.RandomState(bits)
    start = max(
        (place for of, place in _reached if of == seed and place <= first), default=0
    )
    if start:
        bits.state = _reached.pop((seed, start))
    else:
        generator.seed(seed)
    bits.random_raw(2 * (first - start), output=False)  # two 32-bit words per number
    numbers = generator.random_sample(count)
    if len(_reached) == _MOST_KEPT:
        _reached.pop(next(iter(_reached)))
    _reached[seed, first + count] = bits.state
    return numbers
