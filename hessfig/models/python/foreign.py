"""A network that nobody knows, with its data and loss: checked at the border, its weights named."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, did_you_mean, plain
from hessfig.models.protocol import Drawn
from hessfig.models.python import elementary
from hessfig.models.python.checks import (
    check_apart,
    check_mode,
    check_network,
    check_tensor,
    shape_of,
    words_of,
)
from hessfig.models.python.naming import named_layout
from hessfig.models.python.running import check_reached, check_run
from hessfig.tasks.batch import Batch
from hessfig.tasks.losses import LOSSES
from hessfig.tasks.weights import batch_weights


def as_drawn(found: Any, *, dtype: str, source: str) -> Drawn:
    """Return what a factory made as a checked problem. Raises UserError when it made something else."""
    if hasattr(found, "network") and hasattr(found, "targets"):
        found = (found.network, found.inputs, found.targets, found.loss, found.weights)
    if not isinstance(found, tuple) or len(found) not in (4, 5) or not isinstance(found[0], nn.Module):
        raise UserError(
            f"model.factory: {source} returned something else than a problem",
            got=shape_of(found),
            allowed="(network, inputs, targets, loss), (network, inputs, targets, loss, weights) or a hessfig.Problem",
            remedy="return a torch.nn.Module, its inputs, the targets and a loss",
        )
    return foreign(*found, dtype=dtype)


def foreign(
    network: Any,
    inputs: Any,
    targets: Any,
    loss: Any,
    weights: Any = None,
    *,
    dtype: str,
) -> Drawn:
    """Check and name everything.

    The network is copied when it is not of type `dtype`, or has a module under two names. `inputs` and `targets` are
    tensors or lists of them (batches, which weigh what the loss's mean divides by). `loss`: cross_entropy, mse,
    mse_sum, or a module with `reduction`. `weights`: {name: parameter, (parameter, index) or a list of these}; a name
    may be pinned to a layer (W_V@2). Raises UserError for what does not fit.
    """
    real = getattr(torch, dtype)
    with torch.inference_mode(False):
        check_network(network)
        batches, module = _batches(inputs, targets, real), _loss(loss, network, real)
        network = _cast(_differentiable(network), real, "the network")
        outputs = [check_run(network, module, batch) for batch in batches]
        check_reached(network, batches[0])
        batches = _weighed(module, batches, outputs)
        return Drawn(network, batches[0], module, named_layout(network, weights), tuple(batches[1:]))


def _cast(module: nn.Module, real: torch.dtype, what: str) -> nn.Module:
    """Return the module in a floating-point type: a copy, unless it has that type."""
    held = [p for p in module.parameters() if p.is_floating_point()]
    if not any(p.dtype != real or p.is_inference() for p in held):
        return module
    return _copied(module, what).to(real)


def _copied(module: nn.Module, what: str) -> nn.Module:
    try:
        return copy.deepcopy(module)
    except Exception as error:
        raise UserError(
            f"{what} cannot be copied",
            got=words_of(error),
            allowed="a module that copy.deepcopy copies",
            remedy="convert it yourself (module.double()), without a module under two names",
        ) from error


def _differentiable(network: nn.Module) -> nn.Module:
    """Return the network as torch can differentiate it: the network itself, or a copy where something is changed.

    A module under two names becomes two that share their parameters: torch.func.functional_call does not put back those
    of one. Modules that torch cannot differentiate twice are replaced (see `elementary`).
    """
    if len(list(_modules(network))) == len(list(network.modules())) and not elementary.differ(network):
        return network
    network = _copied(network, "the network")
    _split(network, {id(network)})
    elementary.replace_in(network)
    return network


def _split(module: nn.Module, seen: set[int]) -> None:
    for name, child in module._modules.items():
        if child is not None and id(child) in seen:
            module._modules[name] = _twin(child)
        elif child is not None:
            seen.add(id(child))
            _split(child, seen)


def _modules(module: nn.Module, above: tuple[int, ...] = ()) -> Iterator[nn.Module]:
    """Yield every module once for each of its names. Raises UserError for one that holds itself."""
    yield module
    for name, child in module._modules.items():
        if child is None:
            continue
        if id(child) in (*above, id(module)):
            raise UserError(
                "the network holds itself",
                got=name,
                allowed="modules that form a tree",
                remedy="keep the reference outside of nn.Module's attributes, in a tuple or list",
            )
        yield from _modules(child, (*above, id(module)))


def _twin(module: nn.Module) -> nn.Module:
    """Return another module with the same parameters, buffers and attributes."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    for held in ("_parameters", "_buffers"):
        twin.__dict__[held] = dict(module.__dict__[held])
    twin.__dict__["_modules"] = {
        name: None if child is None else _twin(child) for name, child in module._modules.items()
    }
    return twin


def _batches(inputs: Any, targets: Any, real: torch.dtype) -> list[Batch]:
    xs, ys = (list(side) if isinstance(side, list | tuple) else [side] for side in (inputs, targets))
    if len(xs) != len(ys) or not xs or not all(isinstance(x, Tensor) for x in (*xs, *ys)):
        raise UserError(
            "inputs and targets are not tensors, or lists of as many tensors",
            got=f"{shape_of(inputs)} and {shape_of(targets)}",
            allowed="tensors whose first axis runs over samples",
            remedy="torch.as_tensor(array); wrap networks of other inputs in a module that takes one tensor",
        )
    for name, side in (("inputs", xs), ("targets", ys)):
        for tensor in side:
            check_tensor(name, tensor)
    return [Batch(_typed(x, real), _typed(y, real), slice(None)) for x, y in zip(xs, ys, strict=True)]


def _typed(tensor: Tensor, real: torch.dtype) -> Tensor:
    found = tensor.detach().to(real) if tensor.is_floating_point() else tensor.detach()
    return found.clone() if found.is_inference() else found


def _loss(loss: Any, network: nn.Module, real: torch.dtype) -> nn.Module:
    if isinstance(loss, str) and loss in LOSSES:
        return LOSSES[loss]()
    reduction = getattr(loss, "reduction", None)
    if isinstance(loss, nn.Module) and isinstance(reduction, str) and reduction in ("mean", "sum"):
        check_mode(loss)
        check_apart(loss, network)
        floating = [t for t in chain(loss.parameters(), loss.buffers()) if t.is_floating_point()]
        return _copied(loss, "the loss").to(real) if any(t.dtype != real for t in floating) else loss
    raise UserError(
        "loss is not known",
        got=plain(loss) if isinstance(loss, str) else shape_of(loss),
        allowed=f"{', '.join(LOSSES)}, or a torch.nn.Module loss(outputs, targets) with reduction 'mean' or 'sum'",
        remedy=did_you_mean(loss[:100], LOSSES) or f"for example loss={next(iter(LOSSES))!r}"
        if isinstance(loss, str)
        else "set .reduction on your loss module",
    )


def _weighed(loss: nn.Module, batches: list[Batch], outputs: list[Tensor]) -> list[Batch]:
    """Return the batches that count, with what the mean over each divides by where that is not the samples."""
    found = batch_weights(loss, outputs, [batch.targets for batch in batches])
    counted = [(batch, weight) for batch, weight in zip(batches, found, strict=True) if weight]
    if not counted:
        raise UserError(
            "the loss divides by nothing: no target counts",
            got="targets that are all ignored, or weigh nothing",
            allowed="a target that counts",
            remedy="leave ignored samples out",
        )
    sizes = [len(batch.inputs) for batch, _ in counted]
    if all(one * sizes[0] == counted[0][1] * size for (_, one), size in zip(counted, sizes, strict=True)):
        return [batch for batch, _ in counted]
    return [replace(batch, weight=float(one)) for batch, one in counted]
