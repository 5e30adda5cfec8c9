"""Stored states: weights of a file, and those of the checkpoints of a training."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor, nn

from hessfig.config.enums import State
from hessfig.config.schema import Config
from hessfig.curvature.problem import Objective
from hessfig.errors import UserError, did_you_mean, first_few
from hessfig.models.weight_files import read_weights
from hessfig.states.initialised import initialised
from hessfig.states.training.checkpoints import Folder, Tensors, TrainingState
from hessfig.states.training.loop import ensure
from hessfig.states.training.trajectory import Trajectory


def load_weights(network: nn.Module, path: Path, sha256: str | None = None) -> None:
    """Copy the tensors of `path` into `network`, rounded to its dtype.

    Raises UserError if the file is missing, differs from `sha256` or holds anything but
    tensors, and if names, shapes or numbers do not fit. The message lists missing and
    surplus names, and nothing is copied.
    """
    tensors = read_weights(path, sha256=sha256)
    current = network.state_dict()
    _check_names(
        path, tensors, [name for name, _ in network.named_parameters()], list(current)
    )
    for name, tensor in tensors.items():
        _check_tensor(path, name, tensor, current[name])
    # The file may lack constants such as masks.
    network.load_state_dict(tensors, strict=False)


def _check_names(
    path: Path, tensors: Mapping[str, Tensor], needed: list[str], current: list[str]
) -> None:
    missing = [name for name in needed if name not in tensors]
    surplus = [name for name in tensors if name not in current]
    if missing or surplus:
        hint = did_you_mean(missing[0], surplus) if missing and surplus else ""
        raise UserError(
            f"state.path: the names in {path} do not match this network",
            got=f"missing: {first_few(missing)}; surplus: {first_few(surplus)}",
            allowed=f"the network's {len(needed)} names: {first_few(needed)}",
            remedy=f"for {missing[0]!r}: {hint}"
            if hint
            else "use the model settings with which the file was saved",
        )


def _check_tensor(path: Path, name: str, tensor: Tensor, current: Tensor) -> None:
    if tensor.shape != current.shape:
        raise UserError(
            f"state.path: {name} in {path} has another shape",
            got=tuple(tensor.shape),
            allowed=str(tuple(current.shape)),
            remedy="use the model settings with which the file was saved (model.d_model, model.n_layers, ...)",
        )
    if (
        tensor.is_floating_point() != current.is_floating_point()
        or not tensor.isfinite().all()
    ):
        raise UserError(
            f"state.path: {name} in {path} contains numbers that are not finite, or not of a floating-point type",
            got=f"{int((~tensor.isfinite()).sum())} of {tensor.numel()} not finite, {tensor.dtype}",
            allowed="finite floating-point numbers",
            remedy="save the weights again, from before the training diverged",
        )


def trained(config: Config, *, sigma: float | None, seed: int, step: int) -> Objective:
    """Return network, data and loss after `step` updates, with weights rounded to the configured dtype.

    Raises Diverged if the training does not reach `step`.
    """
    import torch

    objective = initialised(config, sigma=sigma, seed=seed)
    weights = _at(config, sigma, seed, step).weights
    with torch.no_grad():
        for name, parameter in objective.network.named_parameters():
            parameter.copy_(weights[name])
    return objective


def moments(
    config: Config, *, sigma: float | None, seed: int, step: int | None
) -> Tensors:
    """Return {moment/parameter: tensor} of the optimiser at the configured state; empty before the first update.

    Raises UserError for a loaded state, whose moments are unknown.
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


def _at(config: Config, sigma: float | None, seed: int, step: int) -> TrainingState:
    """Return the training after `step` updates. Train if this state is not stored."""
    trajectory = Trajectory(config, sigma, seed)
    folder = Folder(trajectory)
    state = folder.at(step)
    if state is None:
        ensure(trajectory, [step])
        state = folder.at(step)
    assert state is not None, "it was trained for just now"
    return state
