"""A trained state: weights from the checkpoint of its step, trained for when it is not there."""

from __future__ import annotations

from hessfig.config import Config, State
from hessfig.errors import UserError
from hessfig.models.protocol import Drawn
from hessfig.states.initialised import initialised
from hessfig.states.training.checkpoint import Tensors
from hessfig.states.training.kept import Folder, Moment
from hessfig.states.training.loop import ensure
from hessfig.states.training.trajectory import Trajectory


def trained(config: Config, *, sigma: float | None, seed: int, step: int) -> Drawn:
    """Return network, data and loss after `step` updates, weights rounded to the configured type.

    Raises Diverged when the training does not reach `step`.
    """
    import torch

    found, weights = initialised(config, sigma=sigma, seed=seed), _at(config, sigma, seed, step).weights
    with torch.no_grad():
        for name, parameter in found.network.named_parameters():
            parameter.copy_(weights[name])
    return found


def moments(config: Config, *, sigma: float | None, seed: int, step: int | None) -> Tensors:
    """Return {moment/parameter: tensor} of the optimiser at the configured state; none before the first update.

    Raises UserError for a loaded state, of which nobody knows them.
    """
    if config.state.kind == State.loaded:
        raise UserError(
            "a loaded state has no moments of an optimiser",
            got="state=loaded",
            allowed="state=trained, or state=initialised",
            remedy="leave out the quantities that need them",
        )
    if not step:
        return {}
    return _at(config, sigma, seed, step).moments


def _at(config: Config, sigma: float | None, seed: int, step: int) -> Moment:
    """Return the training after `step` updates, trained for when it is not kept."""
    trajectory = Trajectory(config, sigma, seed)
    folder = Folder(trajectory)
    found = folder.at(step)
    if found is None:
        ensure(trajectory, [step])
        found = folder.at(step)
    assert found is not None, "it was trained for just now"
    return found
