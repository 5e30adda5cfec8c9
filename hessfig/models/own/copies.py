"""Copies of networks of users, cast to another type and made twice differentiable."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.curvature.problem import cast
from hessfig.errors import UserError
from hessfig.models.own.border import Asked
from hessfig.models.own.in_place import InPlace
from hessfig.models.own.own_checks import replace_in, words_of
from hessfig.rng import lay_out


def copy_of(asked: Asked, real: torch.dtype) -> nn.Module:
    """Return a copy of the user's network, cast to type `real` and made twice differentiable.

    A module with two names becomes two modules that share their parameters, because
    torch.func.functional_call does not restore the parameters of such a module. Raises
    UserError for a network that cannot be copied.
    """
    network = copied(asked.network, "the network")
    _split(network, {id(network)})
    replace_in(network)
    return cast_module(only_trainable(network) if asked.is_trainable else network, real)


def in_place_of(asked: Asked, real: torch.dtype) -> nn.Module:
    """Return a module that runs the user's network itself, with separate parameters of type `real`."""
    network = InPlace(asked.network, real, asked.loss)
    if asked.is_trainable:
        return only_trainable(network)
    return network


def cast_module(module: nn.Module, real: torch.dtype) -> nn.Module:
    """Cast a module to type `real`, complex tensors to the complex type of that precision; store in row-major order."""
    module._apply(partial(cast, real=real))
    return lay_out(module)


class Uncopied(UserError):
    """A module of a user cannot be copied."""


def copied(module: nn.Module, what: str) -> nn.Module:
    """Return a copy of a module of a user; attributes with a graph are results, and are copied as constants.

    Raises Uncopied for a module that cannot be copied.
    """
    computed = chain.from_iterable(results(dict(vars(one))) for one in module.modules())
    try:
        return copy.deepcopy(
            module, {id(one): one.detach().clone() for one in computed}
        )
    except Exception as error:
        raise Uncopied(
            f"{what} cannot be copied",
            got=words_of(error),
            allowed="a module that copy.deepcopy copies",
            remedy="convert it yourself (module.double()), without a module under two names",
        ) from error


def _split(module: nn.Module, seen: set[int]) -> None:
    for name, child in module._modules.items():
        if child is not None and id(child) in seen:
            module._modules[name] = _twin(child)
        elif child is not None:
            seen.add(id(child))
            _split(child, seen)


def _twin(module: nn.Module) -> nn.Module:
    """Return another module with the same parameters, buffers and attributes."""
    twin = object.__new__(type(module))
    twin.__dict__.update(module.__dict__)
    for kind in ("_parameters", "_buffers"):
        twin.__dict__[kind] = dict(module.__dict__[kind])
    children = module._modules.items()
    twin.__dict__["_modules"] = {
        name: None if child is None else _twin(child) for name, child in children
    }
    return twin


def computed_attributes(network: nn.Module) -> list[str]:
    """Return the names of attributes that were computed from parameters, and are not parameters themselves."""
    return [
        f"{path}.{name}".lstrip(".")
        for path, module in network.named_modules()
        for name, held in vars(module).items()
        if any(True for _ in results(held))
    ]


def results(value: Any) -> Iterator[Tensor]:
    """Yield the tensors with a graph, alone or in lists and dictionaries: they were computed from parameters."""
    if isinstance(value, Tensor) and value.grad_fn is not None:
        yield value
    elif isinstance(value, list | tuple | dict):
        yield from (
            one
            for part in (value.values() if isinstance(value, dict) else value)
            for one in results(part)
        )


def only_trainable(network: nn.Module) -> nn.Module:
    """Turn the parameters that do not require gradients into buffers, in place, and return the network.

    The remaining parameters are those of a training that freezes the others, such as
    LoRA. Raises UserError if no parameter remains.
    """
    if not any(parameter.requires_grad for parameter in network.parameters()):
        raise UserError(
            "weights='trainable': no parameter of the network requires a gradient",
            got="requires_grad=False everywhere",
            allowed="a network with parameters that are trained",
            remedy="leave weights out: every parameter is named then",
        )
    for module in network.modules():
        for name, parameter in list(module._parameters.items()):
            if parameter is not None and not parameter.requires_grad:
                del module._parameters[name]
                module.register_buffer(name, parameter.detach())
    return network
