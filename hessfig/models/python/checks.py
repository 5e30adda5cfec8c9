"""What a network, its loss and its data must be before anything is run: misfits are refused with what would fit."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from hessfig.errors import UserError, first_few, plain

_ODD = ("is_sparse", "is_sparse_csr", "is_nested", "is_quantized", "is_meta", "is_complex")


def check_network(network: Any) -> None:
    """Raise UserError for what is no network with real numbers as parameters, ready to be evaluated."""
    if not isinstance(network, nn.Module):
        raise UserError(
            "the network is no module",
            got=shape_of(network),
            allowed="a torch.nn.Module that maps one tensor to one tensor",
            remedy="wrap a function in a torch.nn.Module whose forward() calls it",
        )
    parallel = (nn.DataParallel, nn.parallel.DistributedDataParallel)
    if any(isinstance(module, parallel) for module in network.modules()):
        raise UserError(
            "the network is spread over devices",
            got=type(network).__name__,
            allowed="the network itself, on one device",
            remedy="network.module",
        )
    held = dict(network.named_parameters())
    lazy = [name for name, p in held.items() if isinstance(p, nn.parameter.UninitializedParameter)]
    odd = [name for name, p in held.items() if name not in lazy and oddity(p)]
    if lazy or odd or not any(p.is_floating_point() for p in held.values()):
        what = (
            "parameters without a shape"
            if lazy
            else "parameters that are no dense real tensors"
            if odd
            else "there are none"
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


def oddity(tensor: Tensor) -> str:
    """Return why a tensor cannot be measured with: sparse, complex, ...; nothing for a plain one."""
    for name in _ODD:
        found = getattr(tensor, name, False)
        if found() if callable(found) else found:
            return name.removeprefix("is_")
    return ""


def check_tensor(name: str, tensor: Tensor) -> None:
    odd = oddity(tensor)
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


def words_of(error: BaseException) -> str:
    return plain(f"{type(error).__name__}: {error}".strip().replace("\n", " "), most=300)


def shape_of(thing: Any) -> str:
    if isinstance(thing, Tensor):
        return f"tensor {'' if thing.is_nested else tuple(thing.shape)} of {str(thing.dtype).removeprefix('torch.')}"
    if isinstance(thing, tuple | list):
        return (
            f"a {type(thing).__name__} of {len(thing)}: {first_few([type(part).__name__ for part in thing])}"
        )
    return f"{type(thing).__name__}" if thing is not None else "None"
