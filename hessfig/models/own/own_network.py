"""Builds the problem that is measured from a user's network, data and loss, and checks one run of it."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.curvature.double_backward import no_derivative, steps_of
from hessfig.curvature.losses import CrossEntropy, Inside, batch_weights, takes_numbers
from hessfig.curvature.problem import Batch, Objective, real_parameters
from hessfig.curvature.rounding import LOSS, OUTPUTS
from hessfig.curvature.witness import peak
from hessfig.errors import UserError
from hessfig.models.own.any_batch import KeptInputs, far
from hessfig.models.own.batches import tensor_batches
from hessfig.models.own.border import Asked
from hessfig.models.own.own_checks import (
    Raised,
    not_one_number,
    oddity,
    shape_of,
    words_of,
)
from hessfig.models.own.own_loss import ForeignCall, loss_module
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
    if changes_inputs(network, batches[0]):
        network = KeptInputs(network)
    module = loss_module(loss, real)
    outputs = [check_run(network, module, batch) for batch in batches]
    check_reached(network, batches[0])
    if loss == "cross_entropy":
        say_which_axis(outputs[0], batches[0].targets)
    weights = batch_weights(module, outputs, [batch.targets for batch in batches])
    return _built(asked, network, module, batches, weights)


def whole_problem(asked: Asked, network: nn.Module, real: torch.dtype) -> Built:
    """Return the problem of a network whose output is the user's loss, for losses that read more than outputs."""
    call = ForeignCall(asked, network, real)
    meant = asked.meant_loss
    reading = call.reading(meant)
    rows, targets, inside = call.whole(reading, several=call.has_outputs(meant))
    weights = [1.0] * len(call.given)
    if len(weights) > 1:
        loss = loss_module("cross_entropy" if meant is None else meant, real)
        outputs = [*map(reading.outputs, call.results)]
        weights = batch_weights(loss, outputs, [one.targets for one in call.given])
        inside = Inside(str(loss.reduction))
    batches = tensor_batches(rows.inputs, targets, real)
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
    pairs = zip(batches, weights, strict=True)
    counted = [(batch, weight) for batch, weight in pairs if weight]
    if not counted:
        raise UserError(
            "the divisor of the loss is zero: no target counts",
            got="targets that are all ignored, or weigh nothing",
            allowed="a target that counts",
            remedy="leave ignored samples out",
        )
    each = [weight / len(batch.inputs) for batch, weight in counted]
    if max(each) - min(each) <= LOSS.double * max(each):
        return [batch for batch, _ in counted]
    return [replace(batch, weight=float(one)) for batch, one in counted]


_REMEDY = "for cross_entropy: outputs (..., classes), targets (...) of class numbers"
_ALLOWED = (
    "loss(outputs, targets) with one real number as its value: a tensor of shape ()"
)


def check_run(network: nn.Module, loss: nn.Module, batch: Batch) -> Tensor:
    """Check network and loss in a run, and return the outputs.

    Outputs must be a tensor, equal in two calls up to rounding, and the loss must be
    differentiable in them.
    """
    outputs, again = (_outputs(network, batch.inputs.clone()) for _ in range(2))
    is_plain = isinstance(outputs, Tensor) and not oddity(outputs)
    if not is_plain or not outputs.is_floating_point():
        raise UserError(
            "the network's output is not a tensor of real numbers",
            got=shape_of(outputs),
            allowed="a tensor, floating point",
            remedy="outputs='NAME' (or a number) of the one that the loss takes; for a loss of all of them, "
            f"{{'{_first_argument(network)}': inputs}} as the inputs, and a function loss(outputs, targets)",
        )
    # A card adds in any order.
    if not far(outputs, again) <= OUTPUTS.of(outputs.dtype) * peak(outputs):
        raise UserError(
            "the network's outputs change from call to call",
            got=f"{shape_of(outputs)}, then another",
            allowed="a deterministic network",
            remedy="network.eval() for dropout; for noise, make it an input, network(inputs, noise), or draw it in "
            "forward() from a generator made there: torch.Generator().manual_seed(0)",
        )
    if not outputs.ndim and (takes_numbers(loss) or isinstance(loss, CrossEntropy)):
        raise UserError(
            "the network returns one number, and no outputs that this loss can take",
            got=f"{shape_of(outputs)}, and the loss {type(loss).__name__}",
            allowed="outputs whose first axis runs over samples; or a number that is itself the loss",
            remedy="where it is the loss: loss=lambda outputs, targets: outputs",
        )
    _check_loss(loss, outputs, batch.targets)
    return outputs


def _first_argument(network: nn.Module) -> str:
    """Return the name of the argument that takes the inputs."""
    return next(iter(inspect.signature(network.forward).parameters), "x")


def changes_inputs(network: nn.Module, batch: Batch) -> bool:
    """Whether a network changes its inputs in place."""
    given = batch.inputs.clone()
    _outputs(network, given)
    return not torch.equal(given.nan_to_num(), batch.inputs.nan_to_num())


def _outputs(network: nn.Module, inputs: Tensor) -> Any:
    """Return the result of a network without its graph; gradients are enabled, as in a training."""
    with torch.enable_grad():
        outputs = _called("the network", network, inputs)
    if isinstance(outputs, Tensor):
        return outputs.detach()
    return outputs


CUT = "None of the inputs have requires_grad=True"  # warning of torch in a reentrant checkpoint


def check_reached(network: nn.Module, batch: Batch) -> None:
    """Warn if the outputs do not depend on any parameter, so that all derivatives are zero.

    Raises UserError if they depend on parameters through reentrant checkpoints, which
    autograd.grad does not support.
    """
    parameters = real_parameters(network)
    at = {name: one.detach().requires_grad_() for name, one in parameters.items()}
    with torch.enable_grad(), warnings.catch_warnings(record=True) as warned:
        warnings.simplefilter("always")
        outputs = _called(
            "the network", partial(functional_call, network, at), (batch.inputs,)
        )
    is_cut = any(CUT in str(one.message) for one in warned)
    if is_cut or "CheckpointFunctionBackward" in steps_of([outputs]):
        error = RuntimeError("use_reentrant=True cuts the graph")
        raise no_derivative(error, "the network uses reentrant checkpoints")
    if not outputs.requires_grad:
        warnings.warn(
            "no parameter reaches the network's outputs (detached, or under torch.no_grad()): all derivatives are zero",
            RuntimeWarning,
            stacklevel=2,
        )


def say_which_axis(outputs: Tensor, targets: Tensor) -> None:
    """Warn if classes may be along the last axis of outputs, as "cross_entropy" has them, or the second, as torch has.

    Both fit targets (batch, length) if there are as many classes as positions.
    """
    by_torch = (outputs.shape[0], *outputs.shape[2:])
    are_classes = outputs.ndim > 2 and not targets.is_floating_point()
    if are_classes and targets.shape == outputs.shape[:-1] == by_torch:
        warnings.warn(
            f"loss='cross_entropy' reads classes along the last axis of outputs {tuple(outputs.shape)}; the second "
            "fits the targets too: loss=torch.nn.CrossEntropyLoss() reads classes along that one",
            RuntimeWarning,
            stacklevel=4,
        )


def _called(what: str, module: Callable[..., Any], *given: Any) -> Any:
    """Return module(*given). Raises UserError with the original message for any exception."""
    try:
        return module(*given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise Raised(
            f"{what} raises {type(error).__name__} when it is called",
            got=f"{words_of(error)}; given {' and '.join(map(shape_of, given))}",
            allowed=f"{'loss(outputs, targets)' if len(given) > 1 else 'network(inputs)'} without an error",
            remedy=_REMEDY
            if len(given) > 1
            else "call it yourself: network.double()(inputs), with the same inputs",
        ) from error


def _check_loss(loss: nn.Module, outputs: Tensor, targets: Tensor) -> None:
    """Raise UserError unless the loss is one real number, equal in two calls, and differentiable in the outputs."""
    if takes_numbers(loss) and outputs.shape != targets.shape:
        _misfit(outputs, targets, "they differ in shape, and would be broadcast")
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = _called("the loss", loss, leaf, targets)
        if not isinstance(value, Tensor) or value.shape != ():
            raise not_one_number("the loss", value)
        if not value.is_floating_point():
            _misfit(outputs, targets, f"it returned {shape_of(value)}")
        if not value.requires_grad:
            raise UserError(
                "the loss has no derivative in the network's outputs",
                got=f"{float(value):.6g}, detached from them or constant",
                allowed="a loss that autograd can follow back to the outputs",
                remedy="remove .detach(), .item(), argmax and torch.no_grad() from it",
            )
        of_outputs = partial(torch.autograd.grad, value, allow_unused=True)
        slope = _called("the loss's backward pass", of_outputs, leaf)[0]
        first = float(value.detach())
        if slope is None:
            raise UserError(
                "the loss does not depend on the network's outputs",
                got=f"{first:.6g}",
                allowed="a loss of outputs and targets",
                remedy="use its first argument",
            )
        again = float(_called("the loss", loss, leaf, targets).detach())
        # Terms may cancel in the value.
        terms = max(abs(first), float((slope * leaf.detach()).abs().sum()))
        if abs(again - first) > OUTPUTS.of(leaf.dtype) * terms:
            raise UserError(
                "the loss is random: it changes from call to call",
                got=f"{first:.6g}, then {again:.6g}, of the same outputs and targets",
                allowed="a loss that depends only on outputs and targets",
                remedy="draw its random numbers once, before: noise = torch.randn(...), and let the loss use noise",
            )


def _misfit(outputs: Tensor, targets: Tensor, why: str) -> NoReturn:
    raise UserError(
        "the loss cannot take the network's output",
        got=f"outputs {shape_of(outputs)}, targets {shape_of(targets)}: {why}"[:400],
        allowed=_ALLOWED,
        remedy=f"{_REMEDY}; for mse: two tensors of one shape, such as outputs.squeeze(-1)",
    )
