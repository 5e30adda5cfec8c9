"""A network and its loss, run once: what they raise, and outputs and losses that cannot serve, are refused."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.func import functional_call

from hessfig.errors import UserError
from hessfig.models.python.checks import oddity, shape_of, words_of
from hessfig.tasks.batch import Batch
from hessfig.tasks.weights import takes_numbers

_REMEDY = "for cross_entropy: outputs (..., classes), targets (...) of class numbers"


def check_run(network: nn.Module, loss: nn.Module, batch: Batch) -> Tensor:
    """Run network and loss once and return the outputs.

    They must be a tensor, the same twice, and something the loss can take and be differentiated in.
    """
    with torch.no_grad():
        outputs, again = (_called("the network", network, batch.inputs) for _ in range(2))
    if not isinstance(outputs, Tensor) or oddity(outputs) or not outputs.is_floating_point():
        raise UserError(
            "the network's output is not a tensor of real numbers",
            got=shape_of(outputs),
            allowed="a tensor, floating point",
            remedy="wrap it in a module that returns the tensor the loss needs",
        )
    if outputs.shape != again.shape or not torch.equal(outputs.nan_to_num(), again.nan_to_num()):
        raise UserError(
            "the network's outputs change from call to call",
            got=f"{shape_of(outputs)}, then another",
            allowed="a deterministic network",
            remedy="network.eval(), or take the randomness out",
        )
    _check_loss(loss, outputs, batch.targets)
    return outputs


def check_reached(network: nn.Module, batch: Batch) -> None:
    """Warn where no parameter reaches the outputs: every number will be zero, which is rarely meant."""
    at = {
        name: p.detach().requires_grad_() for name, p in network.named_parameters() if p.is_floating_point()
    }
    with torch.enable_grad():
        outputs = _called("the network", partial(functional_call, network, at), (batch.inputs,))
    if not outputs.requires_grad:
        warnings.warn(
            "no parameter reaches the network's outputs (detached, or under torch.no_grad()): all derivatives are zero",
            RuntimeWarning,
            stacklevel=2,
        )


def _called(what: str, module: Callable[..., Any], *given: Any) -> Any:
    """Return module(*given). Raises UserError, which says what was raised, when it raises anything."""
    try:
        return module(*given)
    except UserError:
        raise
    except (Exception, SystemExit) as error:
        raise UserError(
            f"{what} raises {type(error).__name__} when it is called",
            got=f"{words_of(error)}; given {' and '.join(map(shape_of, given))}",
            allowed=f"{'loss(outputs, targets)' if len(given) > 1 else 'network(inputs)'} without an error",
            remedy=_REMEDY
            if len(given) > 1
            else "call it yourself: network.double()(inputs), with the same inputs",
        ) from error


def _check_loss(loss: nn.Module, outputs: Tensor, targets: Tensor) -> None:
    """Raise UserError for a loss that is not one real number, the same twice, with a derivative in the outputs."""
    if takes_numbers(loss) and outputs.shape != targets.shape:
        _misfit(outputs, targets, "they differ in shape, and would be broadcast")
    leaf = outputs.detach().requires_grad_()
    with torch.enable_grad():
        value = _called("the loss", loss, leaf, targets)
        if not isinstance(value, Tensor) or value.shape != () or not value.is_floating_point():
            _misfit(outputs, targets, f"it returned {shape_of(value)}")
        if value.requires_grad:
            _differentiated(value, leaf)
            again = float(_called("the loss", loss, leaf, targets).detach())
            if again != float(value.detach()) and again == again:
                _misfit(outputs, targets, f"it returned {float(value.detach()):.6g}, then {again:.6g}")
            return
    raise UserError(
        "the loss has no derivative in the network's outputs",
        got=f"{float(value):.6g}, detached from them or constant",
        allowed="a loss that autograd can follow back to the outputs",
        remedy="take .detach(), .item(), argmax and torch.no_grad() out of it",
    )


def _differentiated(value: Tensor, leaf: Tensor) -> None:
    (slope,) = _called(
        "the loss's backward pass", lambda _: torch.autograd.grad(value, leaf, allow_unused=True), leaf
    )
    if slope is None:
        raise UserError(
            "the loss does not depend on the network's outputs",
            got=f"{float(value.detach()):.6g}",
            allowed="a loss of outputs and targets",
            remedy="use its first argument",
        )


def _misfit(outputs: Tensor, targets: Tensor, why: str) -> NoReturn:
    raise UserError(
        "the loss cannot take the network's output",
        got=f"outputs {shape_of(outputs)}, targets {shape_of(targets)}: {why}"[:400],
        allowed="loss(outputs, targets) with one real number as its value: a tensor of shape ()",
        remedy=f"{_REMEDY}; .squeeze() or .mean() for a loss of several",
    )
