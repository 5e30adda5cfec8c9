"""Batches of any type, which only a user's own function reads: their tensors are found and cast, nothing else."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Iterable, Mapping
from dataclasses import is_dataclass
from typing import Any

import numpy
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.data import Dataset

from hessfig.errors import UserError, first_few
from hessfig.models.own.batches import keep_batches
from hessfig.models.own.own_checks import REMEDIES, shape_of, words_of

Image = Callable[[Tensor], Tensor]


def opaque_batches(given: Any) -> list[Any]:
    """Return the batches of a user as a list: one batch, or several.

    A list, a data set, a DataLoader, an iterator or any other iterable holds several
    batches, and is read once. A tensor, an array, a tuple, a dictionary, a dataclass
    and an object with a method `to` are one batch each.
    """
    is_indexed = isinstance(given, Dataset) and hasattr(given, "__len__")
    if is_indexed:
        several = map(given.__getitem__, range(len(given)))
    else:
        several = given
    if _is_one(several):
        batches = given
    else:
        batches = keep_batches(several, "batches", mapped)
    if isinstance(batches, list):
        return batches
    return [batches]


def _is_one(given: Any) -> bool:
    is_object = hasattr(given, "to") or (
        is_dataclass(given) and not isinstance(given, type)
    )
    return isinstance(given, Mapping) or is_object or not isinstance(given, Iterable)


def warn_of_lengths(given: Any, batch_weights: Any) -> None:
    """Warn if a list of tensors of unequal lengths was perhaps meant as one batch: of documents, for example.

    It is read as one batch per tensor, and a function that loops over documents may
    accept a tensor, too. Weights of batches say that batches are meant.
    """
    if batch_weights is not None or not isinstance(given, list):
        return
    lengths = [_length(batch) for batch in given]
    if None in lengths or len(set(lengths)) < 2:
        return
    kind = type(given[0]).__name__
    count = len(given)
    shown = first_few([str(length) for length in lengths])
    warnings.warn(
        f"compute_loss: a list of {count} items ({kind}) of lengths {shown} is read as {count} batches of one item, "
        "all of equal weight. For one batch with all of them write [batch] in place of batch; for weights by "
        "length batch_weights=len, and for equal ones batch_weights=lambda batch: 1",
        RuntimeWarning,
        stacklevel=4,
    )


def _length(batch: Any) -> int | None:
    """Return the length of the first axis of a tensor, an array, a text or a list of numbers; None for others."""
    is_array = isinstance(batch, Tensor | numpy.ndarray) and batch.ndim > 0
    is_list = isinstance(batch, list) and all(
        isinstance(one, int | float) for one in batch
    )
    if is_array or is_list or isinstance(batch, str):
        return len(batch)
    return None


class _Imaged(TorchFunctionMode):
    """Makes copy.deepcopy take the image of every tensor in place of its copy."""

    def __init__(self, image: Image) -> None:
        super().__init__()
        self._image = image

    def __torch_function__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        if function is not Tensor.__deepcopy__:
            return function(*args, **(kwargs or {}))
        tensor, memo = args
        if id(tensor) not in memo:
            memo[id(tensor)] = self._image(tensor)
        return memo[id(tensor)]


def twin(tensor: Tensor) -> Tensor:
    """Return a copy of a tensor that requires a gradient if the tensor does."""
    return tensor.detach().clone().requires_grad_(tensor.requires_grad)


def mapped(batch: Any, image: Image = twin, network: nn.Module | None = None) -> Any:
    """Return a copy of a batch in which every tensor is replaced by its image.

    Tensors are found wherever copy.deepcopy goes: in dictionaries, tuples, lists,
    dataclasses and other objects. A `network` inside the batch remains itself. Raises
    UserError for a batch that cannot be copied.

    Examples
    --------
    >>> import torch
    >>> from hessfig.models.own.opaque import mapped
    >>> mapped({"x": torch.ones(2), "words": ["a", (torch.zeros(1),)]}, torch.neg)
    {'x': tensor([-1., -1.]), 'words': ['a', (tensor([-0.]),)]}
    """
    if network is None:
        kept = []
    else:
        kept = [*network.modules(), *network.parameters(), *network.buffers()]
    try:
        with _Imaged(image):
            return copy.deepcopy(batch, {id(one): one for one in kept})
    except UserError:
        raise
    except Exception as error:
        raise UserError(
            "batches: a batch cannot be copied",
            got=f"{shape_of(batch)}: {words_of(error)}",
            allowed="tensors, and objects with tensors inside that copy.deepcopy copies",
            remedy="leave files, locks and modules out of the batch; compute_loss may read them as variables",
        ) from error


def _check_constant(tensor: Tensor) -> None:
    """Raise UserError for a tensor without numbers, or computed from parameters, whose changes it would not follow."""
    if tensor.is_meta:
        raise UserError(
            "batches: a tensor of a batch is on the device meta",
            got=shape_of(tensor),
            allowed="tensors with numbers",
            remedy=REMEDIES["meta"],
        )
    if tensor.grad_fn is None:
        return
    raise UserError(
        "batches: a tensor of a batch has a graph, so that it was computed beforehand",
        got=f"{shape_of(tensor)}, from {tensor.grad_fn.name()}",
        allowed="tensors without a graph",
        remedy="compute it inside compute_loss; or .detach() it, if it is a constant",
    )


def cast_to(like: Tensor, *, is_data: bool = False) -> Image:
    """Return the image of tensors on the device of another one, real and complex ones in its precision.

    The image raises UserError for data that was computed from parameters.
    """

    def image(tensor: Tensor) -> Tensor:
        if is_data:
            _check_constant(tensor)
        real = like.dtype
        if tensor.is_floating_point():
            kind = real
        elif tensor.is_complex():
            kind = real.to_complex()
        else:
            kind = tensor.dtype
        moved = tensor.detach().to(like.device, kind, copy=True)
        return moved.requires_grad_(tensor.requires_grad)

    return image
