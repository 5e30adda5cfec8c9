"""The point of weight space of a cell: the configured state for a sigma, a seed and a step."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import Draws, State
from hessfig.config.grid import sigma_values
from hessfig.config.keys import step_values
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.files import check_pin, existing_file, fingerprint, is_file
from hessfig.models.protocol import kind
from hessfig.states.training import trajectory

if TYPE_CHECKING:
    from hessfig.curvature.problem import Objective


def drawn(
    config: Config, *, sigma: float | None, seed: int, step: int | None = None
) -> Objective:
    """Return network, data and loss at the configured state. Raises UserError for weights that do not fit."""
    if config.state.kind == State.trained:
        from hessfig.states.stored_states import trained

        return trained(
            config,
            sigma=sigma,
            seed=seed,
            step=step_values(config)[-1] if step is None else step,
        )
    from hessfig.states.initialised import initialised

    objective = initialised(config, sigma=sigma, seed=seed)
    if config.state.kind == State.loaded:
        from hessfig.states.stored_states import load_weights

        load_weights(objective.network, _path(config), config.state.sha256)
    return objective


def check(config: Config) -> None:
    """Read the weights of a file and raise UserError if they are not those of the configured network."""
    if config.state.kind == State.loaded:
        drawn(config, sigma=None, seed=config.first_seed)


def axes(config: Config) -> frozenset[str]:
    """Return which of sigma and seed change the network at this state."""
    if config.state.kind == State.loaded:
        return frozenset()
    return kind(config.model.kind).axes(config)


def steps(config: Config) -> list[int | None]:
    """Return the steps of a trained state; only None for states without steps."""
    if config.state.kind == State.trained:
        return [*step_values(config)]
    return [None]


def science(config: Config) -> dict[str, Any]:
    """Return what identifies this state besides sigma, seed and step. A file is identified by its content."""
    if config.state.kind == State.trained:
        version = trajectory.ALGORITHM_VERSION
        # Cells measured when there was one have none.
        trained_by = {"algorithm": version} if version > 1 else {}
        training = trajectory.science(config)["training"]
        return {"kind": State.trained.value, "training": training, **trained_by}
    if config.state.kind == State.initialised:
        # The published generators go through the grid: another grid has other numbers
        # at the same sigma.
        order: dict[str, Any] = {}
        if config.state.draw == Draws.published:
            order = {"draw": Draws.published.value, "grid": sigma_values(config.grid)}
        return {"kind": State.initialised.value, **order}
    return {
        "kind": State.loaded.value,
        "sha256": config.state.sha256 or fingerprint(_path(config)),
    }


def pinned(config: Config) -> Config:
    """Return `config` with the current hashes of the files that it names, so that readers refuse other content.

    Raises UserError for a missing file, for one whose hash differs from that in
    `config`, and for a hash without a file.
    """
    config = kind(config.model.kind).completed(config)
    state = config.state
    task = config.task
    model = config.model
    is_loaded = state.kind == State.loaded
    state_hash = _hash("state.path", _path(config)) if is_loaded else ""
    # Else its reader says what is wrong.
    is_there = task.path is not None and is_file(Path(task.path))
    task_hash = _hash("task.path", Path(str(task.path))) if is_there else ""
    model_hash = kind(model.kind).files(config)
    for key, place, actual, planned in (
        ("state.path", state.path, state_hash, state.sha256),
        ("task.path", task.path, task_hash, task.sha256),
        (
            "model.path" if model.path else "model.factory",
            model.path or model.factory,
            model_hash,
            model.sha256,
        ),
    ):
        check_pin(place, key, found=actual, planned=planned)
    return replace(
        config,
        state=replace(state, sha256=state_hash or None),
        task=replace(task, sha256=task_hash or None),
        model=replace(model, sha256=model_hash or None),
    )


def _hash(key: str, path: Path) -> str:
    try:
        return fingerprint(path)
    except OSError as error:
        raise UserError(
            f"{key}: {path} cannot be read",
            got=error.strerror,
            allowed="a readable file",
            remedy="check its permissions",
        ) from error


def _path(config: Config) -> Path:
    if not config.state.path:
        raise UserError(
            "state.path is missing",
            got="state=loaded without state.path",
            allowed="state.path=FILE.safetensors",
            remedy="name the file that contains the weights",
        )
    return existing_file(
        "state.path",
        "a .safetensors file, or a state_dict saved by torch.save",
        Path(config.state.path),
    )
