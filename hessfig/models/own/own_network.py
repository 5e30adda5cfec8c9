"""Builds the problem that is measured from a user's network, data and loss, with weights of batches."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import nn

from hessfig.curvature.losses import Inside, batch_weights
from hessfig.curvature.problem import Batch, Objective
from hessfig.curvature.rounding import LOSS
from hessfig.errors import UserError
from hessfig.models.own.any_batch import KeptInputs
from hessfig.models.own.batches import tensor_batches
from hessfig.models.own.border import Asked
from hessfig.models.own.own_loss import ForeignCall, loss_module
from hessfig.models.own.run_checks import (
    changes_inputs,
    check_reached,
    check_run,
    say_which_axis,
)
from hessfig.models.own.weight_names import named_layout


@dataclass(frozen=True)
class Built:
    """A problem that may represent a user's function, and the share of each of the user's batches in its loss."""

    problem: Objective
    shares: dict[int, float]


def split_problem(asked: Asked, network: nn.Module, real: torch.dtype) -> Built:
    """Return the problem of a network (a copy of the user's, or the user's own) and a loss of its outputs.

    Raises UserError for batches, losses and names that do not fit.
    """
    inputs = asked.inputs
    targets = asked.targets
    loss = asked.meant_loss
    if not asked.is_plain:
        network, targets, loss = ForeignCall(asked, network, real).split(asked.loss)
        inputs = network.inputs
    batches = tensor_batches(inputs, targets, real)
    network = KeptInputs(network) if changes_inputs(network, batches[0]) else network
    module = loss_module(loss, real)
    outputs = [check_run(network, module, batch) for batch in batches]
    check_reached(network, batches[0])
    if loss == "cross_entropy":
        say_which_axis(outputs[0], batches[0].targets)
    weights = batch_weights(module, outputs, [batch.targets for batch in batches])
    return _built(asked, network, module, batches, weights)


def whole_problem(asked: Asked, network: nn.Module, real: torch.dtype) -> Built:
    """Return the problem of a network whose output is the user's loss, for losses that read more than outputs."""
    call, meant = ForeignCall(asked, network, real), asked.meant_loss
    reading = call.reading(meant)
    rows, _, inside = call.whole(reading, several=call.has_outputs(meant))
    weights = [1.0] * len(call.given)
    if len(weights) > 1:
        loss = loss_module("cross_entropy" if meant is None else meant, real)
        weights = batch_weights(
            loss,
            [*map(reading.outputs, call.results)],
            [one.targets for one in call.given],
        )
        inside = Inside(str(loss.reduction))
    batches = tensor_batches(
        rows.inputs, [torch.zeros(len(one)) for one in rows.inputs], real
    )
    check_reached(rows, batches[0])
    return _built(asked, rows, inside, batches, weights)


def _built(
    asked: Asked,
    network: nn.Module,
    loss: nn.Module,
    batches: list[Batch],
    weights: list[float],
) -> Built:
    numbers = [number for number, weight in enumerate(weights) if weight]
    counted = _weighed(batches, weights)
    problem = Objective(
        network,
        counted[0],
        loss,
        named_layout(network, asked.weights),
        tuple(counted[1:]),
    )
    return Built(problem, dict(zip(numbers, problem.shares, strict=True)))


def _weighed(batches: list[Batch], weights: list[float]) -> list[Batch]:
    """Return the batches that count, with the divisors of their means, unless these are proportional to samples.

    Divisors that are sums of class weights are so up to rounding.
    """
    counted = [
        (batch, weight)
        for batch, weight in zip(batches, weights, strict=True)
        if weight
    ]
    if not counted:
        raise UserError(
            "the divisor of the loss is zero: no target counts",
            got="targets that are all ignored, or weigh nothing",
            allowed="a target that counts",
            remedy="leave ignored samples out",
        )
    sizes = [len(batch.inputs) for batch, _ in counted]
    each = [weight / size for (_, weight), size in zip(counted, sizes, strict=True)]
    if max(each) - min(each) <= LOSS.double * max(each):
        return [batch for batch, _ in counted]
    return [replace(batch, weight=float(one)) for batch, one in counted]
