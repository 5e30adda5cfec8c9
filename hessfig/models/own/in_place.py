"""Runs a user's network in place with other tensors as parameters, for networks that a copy does not reproduce."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager as Context
from contextlib import ExitStack, contextmanager, nullcontext
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_map_only

from hessfig.curvature.problem import cast
from hessfig.models.own.own_checks import differentiable
from hessfig.models.own.preserved import preserved
from hessfig.rng import TURN

# Networks whose tensors have been replaced already, for calls within calls.
_RUNNING = set[int]()


class InPlace(nn.Module):
    """A user's network, run as it is: it has parameters and buffers of its own, of the same names, in a type `real`.

    While it runs, the user's modules hold these in place of their own, and code that
    kept one of the user's parameters (a closure, a list) gets them too. Afterwards
    network, loss and random generators are as they were. `beside` are further things
    that a run may change: the loss.
    """

    def __init__(self, network: nn.Module, real: torch.dtype, *beside: Any) -> None:
        super().__init__()
        self._inside = (network,)  # in a tuple: not a module of this one
        self._beside = beside
        self._modes = {
            path: module.training for path, module in network.named_modules()
        }
        _mirror(network, self, real, {})

    def forward(self, *arguments: Any, **words: Any) -> Any:
        """Return what the user's network returns."""
        with self.installed():
            return self._inside[0](*arguments, **words)

    @property
    def run_in_place(self) -> nn.Module:
        """The user's own network."""
        return self._inside[0]

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Put the tensors into the user's network, also for code that runs after it: a loss that reads them."""
        network = self._inside[0]
        with TURN, ExitStack() as stack:
            if id(network) not in _RUNNING:
                _RUNNING.add(id(network))
                stack.callback(_RUNNING.discard, id(network))
                stack.enter_context(preserved(network, *self._beside, numbers=False))
                stack.enter_context(differentiable(network))
                stack.enter_context(_Strays(self._put()))
            yield

    def _put(self) -> dict[int, Tensor]:
        """Put tensors and modes into the network; `preserved` puts its own back. Return what stands for each tensor."""
        network = self._inside[0]
        tensors = self._tensors()
        instead = dict[int, Tensor]()
        for path, module in network.named_modules():
            module.training = self._modes.get(path, module.training)
            for held, name, tensor in held_by(module):
                instead[id(tensor)] = held[name] = tensors[
                    f"{path}.{name}" if path else name
                ]
        own = {*network.modules()}
        real = next(one.dtype for one in self.parameters() if one.is_floating_point())
        losses = [one for one in self._beside if isinstance(one, nn.Module)]
        for module in chain.from_iterable(one.modules() for one in losses):
            if module in own:
                continue
            for held, name, tensor in held_by(module):
                if id(tensor) not in instead:
                    instead[id(tensor)] = cast(tensor, real)
                held[name] = instead[id(tensor)]
        return instead

    def _tensors(self) -> dict[str, Tensor]:
        """Return parameters and buffers by name; a run may change buffers: it gets copies."""
        tensors = dict[str, Tensor](self.named_parameters(remove_duplicate=False))
        for name, one in self.named_buffers(remove_duplicate=False):
            tensors[name] = one.clone()
        return tensors

    def __deepcopy__(self, memo: dict[int, Any]) -> InPlace:
        """Return another one with tensors of its own, which runs the same network."""
        for one in (*self._inside, *self._beside):
            memo[id(one)] = one
        twin = object.__new__(type(self))
        memo[id(self)] = twin
        twin.__dict__.update(copy.deepcopy(self.__dict__, memo))
        return twin


def in_its_place(network: nn.Module) -> Context[None]:
    """Return a context in which the user's network holds the tensors it runs with, for code that reads parameters."""
    if isinstance(network, InPlace):
        return network.installed()
    return nullcontext()


def _mirror(
    theirs: nn.Module, ours: Any, real: torch.dtype, mirrored: dict[int, Any]
) -> None:
    """Give `ours` the parameters and buffers of `theirs`, with the same names and the same sharing."""
    for name, parameter in theirs._parameters.items():
        if parameter is not None and id(parameter) not in mirrored:
            mirrored[id(parameter)] = nn.Parameter(
                cast(parameter, real), requires_grad=parameter.requires_grad
            )
        if parameter is None:
            ours._parameters[name] = None
        else:
            ours._parameters[name] = mirrored[id(parameter)]
    for name, tensor in theirs._buffers.items():
        if tensor is not None:
            ours._buffers[name] = mirrored.setdefault(id(tensor), cast(tensor, real))
    for name, child in theirs._modules.items():
        if child is not None:
            ours._modules[name] = nn.Module()
            _mirror(child, ours._modules[name], real, mirrored)


def held_by(module: nn.Module) -> Iterator[tuple[dict[str, Any], str, Tensor]]:
    """Yield every parameter and buffer of a module: the dictionary that contains it, its name, and the tensor."""
    for tensors in (module._parameters, module._buffers):
        for name, one in list(tensors.items()):
            if one is not None:
                yield tensors, name, one


class _Strays(TorchFunctionMode):
    """Makes code that kept a reference to a tensor of the network use its replacement."""

    def __init__(self, instead: Mapping[int, Tensor]) -> None:
        super().__init__()
        self._instead = instead

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        args, kwargs = tree_map_only(
            Tensor, lambda one: self._instead.get(id(one), one), (args, kwargs or {})
        )
        return function(*args, **kwargs)
