"""One network at one point of weight space as plain files that can be read without hessfig: weights, batches, names."""

import io
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.torch import save
from torch import Tensor

from hessfig.config.enums import State
from hessfig.config.keys import in_manifest
from hessfig.config.schema import Config
from hessfig.curvature.problem import Batch, Objective
from hessfig.models.protocol import kind
from hessfig.states.point import drawn
from hessfig.states.stored_states import moments
from hessfig.tasks.examples import cascade_batch, has_cascades, unseen_batch
from hessfig.weights import Weight

WEIGHTS, OPTIMISER = "weights.safetensors", "optimiser.safetensors"
MEASURED = "batch.npz"
HELD_OUT = "held_out.npz"
CASCADES = "cascades.npz"
NETWORK, README = "network.json", "README.md"
_ABOUT = {
    WEIGHTS: "every parameter and buffer by its name in the state_dict, in the type in which it is measured",
    OPTIMISER: "the optimiser's moments after the training's last update, as MOMENT/PARAMETER",
    MEASURED: "the measuring batch: `inputs_k`, `targets_k` and `scored_k` (first scored position, and end) of batch k",
    HELD_OUT: "the examples of `accuracy` and `held_out_loss`, in the form of batch.npz",
    CASCADES: "the sums of `cascade_accuracy`, in the form of batch.npz",
    NETWORK: "what was exported: sigma, step, seed, every setting, the loss, and the weight of each name",
}


def plain_files(
    config: Config,
    *,
    sigma: float | None,
    seed: int,
    step: int | None,
    said: Mapping[str, Any],
) -> dict[str, bytes]:
    """Return the files of one network by name; `said` holds further entries of network.json.

    A trained state is read from its training, which is run if it is not stored. Raises
    UserError for weights that do not fit.
    """
    objective = drawn(config, sigma=sigma, seed=seed, step=step)
    tensors = {
        name: value
        for name, value in objective.network.state_dict().items()
        if isinstance(value, Tensor)
    }
    files = {WEIGHTS: tensors_as_bytes(tensors)}
    if config.state.kind == State.trained and (
        kept := moments(config, sigma=sigma, seed=seed, step=step)
    ):
        files[OPTIMISER] = tensors_as_bytes(kept)
    files[MEASURED] = batches_as_bytes(objective.batches)
    files |= {
        name: batches_as_bytes([batch]) for name, batch in _unseen(config).items()
    }
    point = {"sigma": sigma, "step": step, "seed": seed}
    content = {
        **said,
        **point,
        **_described(objective),
        "settings": _without_places(in_manifest(config)),
    }
    files[NETWORK] = (json.dumps(content, indent=1) + "\n").encode()
    return {**files, README: _readme(files).encode()}


def tensors_as_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    """Return tensors by name as a safetensors file; tensors that share memory are written twice."""
    return save(
        {
            name: tensor.detach().cpu().clone().contiguous()
            for name, tensor in tensors.items()
        }
    )


def batches_as_bytes(batches: Iterable[Batch]) -> bytes:
    """Return batches as an .npz file: `inputs_k`, `targets_k`, and `scored_k`, first scored position and end."""
    arrays: dict[str, Any] = {}
    for number, batch in enumerate(batches):
        start, stop, _ = batch.scored.indices(
            batch.inputs.shape[1] if batch.inputs.ndim > 1 else 1
        )
        arrays |= {
            f"inputs_{number}": batch.inputs.numpy(),
            f"targets_{number}": batch.targets.numpy(),
        }
        arrays[f"scored_{number}"] = np.array([start, stop])
    buffer = io.BytesIO()
    np.savez(buffer, **arrays)
    return buffer.getvalue()


def _unseen(config: Config) -> dict[str, Batch]:
    """Return the held-out examples of trained networks, if the task has any."""
    task, size = config.task, config.training.evaluation_size
    if kind(config.model.kind).draw is not None or not task.data.facts.is_trainable:
        return {}
    examples = {HELD_OUT: unseen_batch(task, size, config.dtype)}
    if has_cascades(task):
        examples[CASCADES] = cascade_batch(task, size, config.dtype)
    return examples


def _described(objective: Objective) -> dict[str, Any]:
    """Return the loss, the weight of each batch in its mean, and the definition of every named weight."""
    shapes = {
        name: list(parameter.shape)
        for name, parameter in objective.network.named_parameters()
    }
    layout = objective.layout
    return {
        "loss": {
            "module": type(objective.loss).__name__,
            "reduction": getattr(objective.loss, "reduction", None),
        },
        "weight_decay": objective.decay,
        "batch_sizes": [batch.size for batch in objective.batches],
        "weights": [
            _named(weight, shapes[weight.parameter]) for weight in layout.weights
        ],
        "all": [weight.parameter for weight in layout.side(0, "all")],
    }


def _named(weight: Weight, shape: list[int]) -> dict[str, Any]:
    """Return the definition of a named weight: a parameter, or its part parameter.reshape(axes, ...)[index]."""
    entry: dict[str, Any] = {
        "name": weight.name,
        "layer": weight.layer,
        "parameter": weight.parameter,
        "shape": shape,
    }
    if weight.index is not None:
        entry |= {"axes": list(weight.axes), "index": repr(weight.index)}
    return {**entry, "size": weight.size, "groups": list(weight.groups)}


def _without_places(content: Any) -> Any:
    """Return the settings with only the last part of every absolute path, because the rest depends on the machine."""
    if isinstance(content, dict):
        return {key: _without_places(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_without_places(item) for item in content]
    is_place = isinstance(content, str) and Path(content).is_absolute()
    if is_place:
        return Path(content).name
    return content


def _readme(files: Mapping[str, bytes]) -> str:
    rows = "".join(
        f"| `{name}` | {about} |\n" for name, about in _ABOUT.items() if name in files
    )
    return _README.format(rows=rows)


_README = """# One network, as plain files

Written by `hessfig export`. No file needs hessfig to be read: `.npz` is numpy's (no pickle), `.safetensors` that of
`safetensors.torch.load_file`.

| file | content |
|---|---|
{rows}
The page `docs/conventions.md` of hessfig says what turns these into numbers of a table: the formulas of the networks,
the loss, the order of vectors, H, H_o and H_f, and how seeds give random numbers.
"""
