"""A network that nobody knows, with its data and loss: checked at the border, its weights named."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, did_you_mean
from hessfig.models.protocol import Drawn
from hessfig.models.python.naming import Spec, named_layout
from hessfig.tasks.batch import Batch
from hessfig.tasks.losses import LOSSES


def as_drawn(found: Any, *, dtype: str, source: str) -> Drawn:
    """Return what a factory made as a checked problem. Raises UserError when it made something else."""
    if hasattr(found, "network") and hasattr(found, "targets"):
        found = (found.network, found.inputs, found.targets, found.loss, found.weights)
    if not isinstance(found, tuple) or len(found) not in (4, 5) or not isinstance(found[0], nn.Module):
        raise UserError(
            f"model.factory: {source} returned something else than a problem",
            got=_shape_of(found),
            allowed="(network, inputs, targets, loss), (network, inputs, targets, loss, weights) or a hessfig.Problem",
            remedy="return a torch.nn.Module, its inputs, the targets and a loss",
        )
    return foreign(*found, dtype=dtype)


def foreign(
    network: nn.Module,
    inputs: Any,
    targets: Any,
    loss: Any,
    weights: Mapping[str, Spec] | None = None,
    *,
    dtype: str,
) -> Drawn:
    """Check and name everything; the network is copied when it is not of type `dtype`.

    `inputs` and `targets` are tensors or lists of them (batches, weighted by their size). `loss`: cross_entropy, mse,
    mse_sum, or a module with `reduction`. `weights`: {name: parameter, (parameter, index) or a list of these}; a name
    may be pinned to a layer (W_V@2). Raises UserError for what does not fit.
    """
    _check_mode(network)
    real = getattr(torch, dtype)
    if any(p.is_floating_point() and p.dtype != real for p in network.parameters()):
        network = copy.deepcopy(network).to(real)
    batches = _batches(inputs, targets, real)
    module = _loss(loss)
    for batch in batches:
        _check_run(network, module, batch)
    return Drawn(network, batches[0], module, named_layout(network, weights), tuple(batches[1:]))


def _batches(inputs: Any, targets: Any, real: torch.dtype) -> list[Batch]:
    xs, ys = (list(side) if isinstance(side, list | tuple) else [side] for side in (inputs, targets))
    if len(xs) != len(ys) or not xs or not all(isinstance(x, Tensor) for x in (*xs, *ys)):
        raise UserError(
            "inputs and targets are not tensors, or lists of as many tensors",
            got=f"{_shape_of(inputs)} and {_shape_of(targets)}",
            allowed="tensors whose first axis runs over samples",
            remedy="wrap networks of other inputs in a module that takes one tensor",
        )
    return [Batch(_typed(x, real), _typed(y, real), slice(None)) for x, y in zip(xs, ys, strict=True)]


def _typed(tensor: Tensor, real: torch.dtype) -> Tensor:
    return tensor.to(real) if tensor.is_floating_point() else tensor


def _loss(loss: Any) -> nn.Module:
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    if isinstance(loss, nn.Module) and getattr(loss, "reduction", None) in ("mean", "sum"):
        return loss
    known = ", ".join(LOSSES)
    raise UserError(
        "loss is not known",
        got=loss if isinstance(loss, str) else _shape_of(loss),
        allowed=f"{known}, or a torch.nn.Module loss(outputs, targets) with reduction 'mean' or 'sum'",
        remedy=did_you_mean(loss, LOSSES) if isinstance(loss, str) else "set .reduction on your loss module",
    )


def _check_mode(network: nn.Module) -> None:
    random = (nn.modules.dropout._DropoutNd, nn.modules.batchnorm._BatchNorm)
    loose = [
        name
        for name, module in network.named_modules()
        if isinstance(module, random) and module.training and getattr(module, "p", 1.0) > 0
    ]
    if loose:
        raise UserError(
            "the network is in training mode: its outputs are random or depend on the whole batch",
            got=f"training: {', '.join(loose[:3])}",
            allowed="dropout and batch norms in evaluation mode",
            remedy="network.eval()",
        )


def _check_run(network: nn.Module, loss: nn.Module, batch: Batch) -> None:
    """Run network and loss once: outputs must be a tensor, the same twice, and something the loss can take."""
    with torch.no_grad():
        outputs, again = network(batch.inputs), network(batch.inputs)
        if not isinstance(outputs, Tensor):
            raise UserError(
                "the network's output is not a tensor",
                got=type(outputs).__name__,
                allowed="a tensor",
                remedy="wrap it in a module that returns the tensor the loss needs",
            )
        if not torch.equal(outputs, again) and bool(outputs.isfinite().all()):
            raise UserError(
                "the network's outputs change from call to call",
                got=f"differences up to {float((outputs - again).abs().max()):.2g}",
                allowed="a deterministic network",
                remedy="network.eval(), or take the randomness out",
            )
        _check_loss(loss, outputs, batch.targets)


def _check_loss(loss: nn.Module, outputs: Tensor, targets: Tensor) -> None:
    try:
        value = loss(outputs, targets)
        fits = isinstance(value, Tensor) and value.numel() == 1
        why = "" if fits else f"it returned {_shape_of(value)}"
    except Exception as error:
        fits, why = False, f"{type(error).__name__}: {error}"
    if not fits:
        raise UserError(
            "the loss cannot take the network's output",
            got=f"outputs {_shape_of(outputs)}, targets {_shape_of(targets)}: {why}"[:400],
            allowed="loss(outputs, targets) with one number as its value",
            remedy="for cross_entropy: outputs (..., classes), targets (...) of class numbers",
        )


def _shape_of(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"tensor {tuple(thing.shape)} of {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, tuple):
        return f"a tuple of {len(thing)}: {', '.join(type(part).__name__ for part in thing)}"
    return type(thing).__name__
