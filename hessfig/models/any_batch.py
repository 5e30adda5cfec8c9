"""Batches of any kind (dictionaries, several inputs, loaders) and networks of several outputs, as one tensor each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.errors import UserError, plain
from hessfig.models.in_place import in_its_place
from hessfig.models.kept_batches import kept
from hessfig.models.own_checks import check_tensor, oddity, shape_of
from hessfig.rng import row_major

LABELS = "labels"
_ALLOWED = (
    "tensors; dictionaries with tensors by argument; (inputs, targets) pairs; lists, DataLoaders or iterables of these"
)


@dataclass
class Given:
    """One batch as the network takes it: network(*arguments, **words), and its targets; `size` counts its samples.

    `labelled`: the targets are the entry `labels` of a dictionary, whose meaning is the network's matter.
    """

    arguments: tuple[Any, ...]
    words: dict[str, Any]
    targets: Any
    size: int
    labelled: bool = False

    def rows(self, rows: Tensor) -> Given:
        """Return the samples at `rows`; what has no axis over samples is handed on as it is."""

        def chosen(one: Tensor) -> Tensor:
            return one[rows] if one.ndim > 0 and len(one) == self.size else one.clone()

        return replace(self.mapped(chosen), size=len(rows))

    def mapped(self, function: Callable[[Tensor], Tensor]) -> Given:
        """Return the batch with every tensor replaced by its image."""

        def image(thing: Any) -> Any:
            return function(thing) if isinstance(thing, Tensor) else thing

        words = {name: image(thing) for name, thing in self.words.items()}
        return replace(self, arguments=tuple(map(image, self.arguments)), words=words, targets=image(self.targets))

    @property
    def tensors(self) -> list[tuple[str, Tensor]]:
        """Every tensor of the batch with a name."""
        named = [*((f"input {n}", one) for n, one in enumerate(self.arguments)), *self.words.items()]
        return [(name, one) for name, one in [*named, ("targets", self.targets)] if isinstance(one, Tensor)]

    def __str__(self) -> str:
        named = (f"{name}: {shape_of(thing)}" for name, thing in self.words.items())
        return plain(", ".join([*map(shape_of, self.arguments), *named]), most=300)


def is_plain(inputs: Any, targets: Any) -> bool:
    """Whether inputs and targets are tensors or lists of them, or nothing that this module knows."""
    if targets is None or isinstance(targets, str) or isinstance(inputs, Mapping):
        return False
    if isinstance(inputs, tuple) and isinstance(targets, Tensor):
        return len(inputs) == 1
    listed = isinstance(inputs, list) and any(isinstance(one, tuple | Mapping) for one in inputs)
    return not listed


def read_batches(inputs: Any, targets: Any, real: torch.dtype) -> list[Given]:
    """Return batches as the network takes them, with floating-point numbers of type `real`.

    `targets` may be None (they are the second of a pair, or `labels` of a dictionary), the name of an entry, a tensor,
    or a list with one for every batch. Raises UserError for anything else.
    """
    pairs = list(_paired(inputs, targets))
    if not pairs:
        raise _unknown("there is no batch", inputs, targets)
    found = [_given(one, goal, inputs, targets) for one, goal in pairs]
    for one in found:
        for name, tensor in one.tensors:
            if oddity(tensor):
                check_tensor(name, tensor)
    return [replace(one, targets=labels(one.targets)).mapped(partial(typed, real=real)) for one in found]


def _paired(inputs: Any, targets: Any) -> Iterator[tuple[Any, Any]]:
    """Yield (inputs, targets) of every batch."""
    named = targets is None or isinstance(targets, str)
    if isinstance(inputs, Mapping | Tensor) or (isinstance(inputs, tuple) and isinstance(targets, Tensor)):
        yield inputs, targets
    elif isinstance(inputs, tuple) and named and len(inputs) == 2 and not isinstance(inputs[0], Mapping | list):
        yield inputs
    elif isinstance(inputs, Iterable) and not isinstance(inputs, str | bytes):
        every = list(kept(inputs))
        goals = [targets] * len(every) if named else list(kept(targets, "targets"))
        if len(goals) != len(every):
            raise _unknown(f"{len(every)} batches and {len(goals)} targets", inputs, targets)
        for one, goal in zip(every, goals, strict=True):
            is_pair = named and isinstance(one, tuple | list) and len(one) == 2
            yield tuple(one) if is_pair else (one, goal)
    else:
        raise _unknown("inputs and targets are of another kind", inputs, targets)


def _given(one: Any, goal: Any, inputs: Any, targets: Any) -> Given:
    words: dict[str, Any] = dict(one) if isinstance(one, Mapping) else {}
    arguments = () if words else tuple(one) if isinstance(one, tuple | list) else (one,)
    labelled = goal is None or goal == LABELS if not isinstance(goal, Tensor) else False
    if goal is None or isinstance(goal, str):
        key = goal or LABELS
        if key not in words:
            raise _unknown(f"the batch has no entry {plain(key)!r}, and no targets are given", inputs, targets)
        goal = words.pop(key)
    sized = [thing for thing in (*arguments, *words.values()) if isinstance(thing, Tensor) and thing.ndim]
    if not sized or not len(sized[0]) or not isinstance(goal, Tensor):
        raise _unknown("a batch without a tensor whose first axis runs over samples", inputs, targets)
    return Given(arguments, words, goal, len(sized[0]), labelled)


def typed(tensor: Tensor, real: torch.dtype) -> Tensor:
    """Return a copy of a tensor of a batch in row-major order, its floating-point numbers of type `real`."""
    return row_major(tensor.detach().to(real if tensor.is_floating_point() else tensor.dtype, copy=True))


def labels(targets: Tensor) -> Tensor:
    """Return targets with class numbers of int64, as torch wants them."""
    return targets.long() if targets.dtype in (torch.int8, torch.int16, torch.int32) else targets


def _unknown(what: str, inputs: Any, targets: Any) -> UserError:
    return UserError(
        f"the batch cannot be read: {what}",
        got=f"{shape_of(inputs)} and {shape_of(targets)}",
        allowed=_ALLOWED,
        remedy="for example hessfig.Problem(network, {'input_ids': ids, 'labels': ids}), or targets='NAME' of an entry",
    )


class Shell(nn.Module):
    """A module around a network, with its parameters, buffers and modules under the same names."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        for held in ("_parameters", "_buffers", "_modules"):
            self.__dict__[held] = network.__dict__[held]
        self.training, self._inside = network.training, (network,)  # in a tuple: no module of this one


class KeptInputs(Shell):
    """A network that is given copies of its inputs, for it changes them."""

    def forward(self, inputs: Tensor) -> Any:
        """Return what the network returns."""
        return self._inside[0](inputs.clone())


class Rows(Shell):
    """A network as a function of which samples of stored batches it is given: row numbers in, one tensor out.

    Inputs are (samples, 2): number of the batch, number of the sample in it. `read` makes the tensor of what the
    network returns and of the targets.
    """

    def __init__(self, network: nn.Module, given: list[Given], read: Callable[[Any, Any], Tensor]) -> None:
        super().__init__(network)
        self.given, self._read = given, read

    @property
    def inputs(self) -> list[Tensor]:
        """The rows of every batch."""
        numbers = [torch.arange(one.size) for one in self.given]
        return [torch.stack([torch.full_like(rows, at), rows], dim=1) for at, rows in enumerate(numbers)]

    def forward(self, rows: Tensor) -> Tensor:
        """Return the outputs for some samples of one batch."""
        one = self.given[int(rows[0, 0]) if len(self.given) > 1 else 0].rows(rows[:, 1])
        with in_its_place(self._inside[0]):
            return self._read(self._inside[0](*one.arguments, **one.words), one.targets)

    def train(self, mode: bool = True) -> Rows:
        """Set the mode of the network too, which is no module of this one."""
        self._inside[0].training = mode
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Rows:
        super()._apply(fn, recurse)
        self.given = [one.mapped(fn) for one in self.given]
        return self


def only_trainable(network: nn.Module) -> nn.Module:
    """Turn the parameters that require no gradient into buffers, in place, and return the network.

    What is left are the weights of a training that holds others fixed: adapters such as LoRA. Raises UserError where
    nothing is left.
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
