"""What a network, its data and its loss must be to be measured: each misfit is refused with what would fit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NoReturn

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, first_few, plain
from hessfig.tasks.batch import Batch
from hessfig.tasks.weights import takes_numbers

_ODD = ("is_sparse", "is_sparse_csr", "is_nested", "is_quantized", "is_meta", "is_complex")
_REMEDY = "for cross_entropy: outputs (..., classes), targets (...) of class numbers"


def check_network(network: Any) -> None:
    """Raise UserError for what is no network with real numbers as parameters, ready to be evaluated."""
    if not isinstance(network, nn.Module):
        raise UserError(
            "the network is no module",
            got=shape_of(network),
            allowed="a torch.nn.Module that maps one tensor to one tensor",
            remedy="wrap a function in a torch.nn.Module whose forward() calls it",
        )
    held = dict(network.named_parameters())
    lazy = [name for name, p in held.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    odd = [name for name, p in held.items() if name not in lazy and _oddity(p)]
    if lazy or odd or not any(p.is_floating_point() for p in held.values()):
        what = (
            "parameters without a shape"
            if lazy
            else "parameters that are no dense real tensors"
            if odd
            else "none"
        )
        raise UserError(
            f"the network's parameters: {what}",
            got=first_few(lazy or odd),
            allowed="parameters of real numbers, floating point",
            remedy="call the network once, network(inputs)" if lazy else "hold them as real tensors",
        )
    check_mode(network)


def check_mode(network: nn.Module) -> None:
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


def _oddity(tensor: Tensor) -> str:
    """Return why a tensor cannot be measured with: sparse, complex, ...; nothing for a plain one."""
    for name in _ODD:
        found = getattr(tensor, name, False)
        if found() if callable(found) else found:
            return name.removeprefix("is_")
    return ""


def check_tensor(name: str, tensor: Tensor) -> None:
    odd = _oddity(tensor)
    if odd or tensor.ndim == 0 or tensor.numel() == 0:
        what = f"a tensor that is {odd}" if odd else "no sample" if tensor.ndim else "a single number"
        raise UserError(
            f"{name}: {what}",
            got=shape_of(tensor),
            allowed="dense tensors of real or whole numbers whose first axis runs over one sample or more",
            remedy="torch.view_as_real(...) or .to_dense()" if odd else "leave empty batches out",
        )


def check_apart(loss: nn.Module, network: nn.Module) -> None:
    """Raise UserError for a loss that holds parameters of the network: outputs are all that a loss may depend on."""
    own = {id(parameter) for parameter in network.parameters()}
    shared = [name for name, parameter in loss.named_parameters() if id(parameter) in own]
    if shared:
        raise UserError(
            "the loss holds parameters of the network",
            got=first_few(shared),
            allowed="a loss of outputs and targets alone",
            remedy="measure the loss without its penalty: a penalty's own Hessian is known",
        )


def check_run(network: nn.Module, loss: nn.Module, batch: Batch) -> Tensor:
    """Run network and loss once and return the outputs.

    They must be a tensor, the same twice, and something the loss can take and be differentiated in.
    """
    with torch.no_grad():
        outputs, again = (_called("the network", network, batch.inputs) for _ in range(2))
    if not isinstance(outputs, Tensor) or _oddity(outputs) or not outputs.is_floating_point():
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


def _called(what: str, module: Callable[..., Any], *given: Tensor) -> Any:
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


def words_of(error: BaseException) -> str:
    return plain(f"{type(error).__name__}: {error}".strip().replace("\n", " "), most=300)


def shape_of(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"tensor {tuple(thing.shape)} of {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, tuple | list):
        return (
            f"a {type(thing).__name__} of {len(thing)}: {first_few([type(part).__name__ for part in thing])}"
        )
    return f"{type(thing).__name__}" if thing is not None else "None"
