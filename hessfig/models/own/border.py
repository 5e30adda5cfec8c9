"""Opens the request of a user once: checks the network, takes it out of its wrapper, and finds its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from hessfig.config.machine import bytes_of
from hessfig.curvature.double_backward import differentiating
from hessfig.models.own.batches import (
    as_tensors,
    check_targets,
    is_plain,
    keep_batches,
    read_batches,
)
from hessfig.models.own.own_checks import checked_network
from hessfig.models.own.weight_names import FOUND, TRAINABLE
from hessfig.models.own.wrappers import opener_of
from hessfig.rng import kept_draws
from hessfig.weights import Layout


class OfNetwork:
    """What a request asks of its network, in either form."""

    network: nn.Module
    weights: Any

    @property
    def device(self) -> torch.device:
        """The device of the network."""
        return next(self.network.parameters()).device

    @property
    def is_trainable(self) -> bool:
        """Whether only parameters that require gradients are measured."""
        return isinstance(self.weights, str) and self.weights == TRAINABLE


@dataclass(frozen=True)
class Asked(OfNetwork):
    """The request of a user: a network, its batches, the loss and the names of weights, as they were given.

    `memory` are the bytes that products may take, if the user bounds them.
    """

    network: nn.Module
    inputs: Any
    targets: Any
    loss: Any
    weights: Any = None
    outputs: str | int | None = None
    memory: float | None = None

    @property
    def is_plain(self) -> bool:
        """Whether the network takes one tensor and the loss takes its output, so that it is called without labels."""
        return self.outputs is None and is_plain(self.inputs, self.targets)

    @property
    def meant_loss(self) -> Any:
        """The loss: cross-entropy by default, unless the network is asked for its own loss."""
        if self.loss is None and self.is_plain:
            return "cross_entropy"
        return self.loss


def open_request(
    network: Any,
    inputs: Any,
    targets: Any,
    loss: Any,
    weights: Any = None,
    outputs: str | int | None = None,
    memory: Any = None,
) -> Asked:
    """Return the request of a user; a wrapper of another library is replaced by the network inside.

    Raises UserError if the network cannot be measured, and for a `memory` that is not a
    size.
    """
    most = None if memory is None else bytes_of(memory)
    network = checked_network(network)
    check_targets(targets)
    inputs = as_tensors(keep_batches(inputs))
    targets = as_tensors(keep_batches(targets, "targets"))
    is_found = isinstance(weights, str) and weights == FOUND
    opener = opener_of(network)
    with differentiating(), kept_draws():
        if opener is not None:
            model = opener.wrapped(network)
            if weights is None or is_found:
                weights = by_role(model)
            network, inputs, targets = opener.bridge_as_network(
                network, model, inputs, targets
            )
        elif is_found:
            batch = read_batches(inputs, targets, next(network.parameters()).dtype)[0]
            weights = by_role(network, inputs=batch.words or batch.arguments)
    return Asked(network, inputs, targets, loss, weights, outputs, most)


def by_role(network: nn.Module, inputs: Any = None) -> Layout:
    """Return the weights of a transformer by what they do; the search is imported only where it is asked for."""
    from hessfig.models.found_weights import find_weights

    return find_weights(network, inputs=inputs)


def any_function(asked: Asked) -> str:
    """Return the problem that takes any function of the network and any batch, with the batches of a request."""
    given = asked.inputs
    inputs = "batch"
    goal = "batch"
    is_list = isinstance(given, list) and bool(given)
    batches, one = ("batches", given[0]) if is_list else ("batch", given)
    if not (asked.targets is None or isinstance(asked.targets, str)):
        if is_list:
            batches = "list(zip(inputs, targets))"
        else:
            batches = "(inputs, targets)"
        inputs, goal = "batch[0]", "batch[1]"
    elif isinstance(one, tuple) and len(one) == 2 and asked.loss is not None:
        inputs = "batch[0]"
        goal = "batch[1]"
        one = one[0]
    stars = "**" if isinstance(one, Mapping) else "*" if isinstance(one, tuple) else ""
    call = f"network({stars}{inputs})"
    more = ", batch_weights=[...]" if is_list and len(given) > 1 else ""
    if asked.loss is not None:
        loss = f"loss({call}, {goal})"
    elif asked.targets is not None and goal != "batch":
        loss = f"torch.nn.functional.cross_entropy({call}, {goal})"
    else:
        loss = call
    return f"hessfig.Problem(network, {batches}, compute_loss=lambda network, batch: {loss}{more}), with any function"
