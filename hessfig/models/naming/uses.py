"""Uses of parameters in a run: which maps and tables read them, and values put in place of what these maps return."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

Change = Callable[["Use", Tensor], Tensor]


@dataclass(frozen=True)
class Use:
    """The use of a parameter by an operation: outputs `start` and on, along `axis` of the parameter.

    `number` counts the uses of these outputs in the run. `given` is what the operation is given beside it: vectors as
    (rows, inputs), indices or pictures as they are. None where it is not kept.
    """

    path: str
    kind: str
    axis: int
    start: int
    number: int
    given: Tensor | None = None


# Of an operation: where its input and its weight stand, and the weight's axis of outputs.
_PLACES = {
    **dict.fromkeys(("mm", "bmm", "_grouped_mm"), (0, 1, -1)),
    **dict.fromkeys(("addmm", "baddbmm"), (1, 2, -1)),
    **{"linear": (0, 1, 0), "embedding": (1, 0, -1), "convolution": (0, 1, 0)},
}
_VECTORS = ("mm", "bmm", "_grouped_mm", "addmm", "baddbmm", "linear")


class Watch(TorchDispatchMode):
    """While it is on, uses of `parameters` are listed; what those in `changes` return is replaced.

    `kept` are the parameters whose inputs are kept. A bias in `blank` that is added on its own is taken for zero.
    """

    def __init__(
        self,
        parameters: Mapping[str, Tensor],
        kept: Collection[str] = (),
        changes: Mapping[str, Change] | None = None,
        blank: Collection[str] = (),
    ) -> None:
        super().__init__()
        self._held = defaultdict[int, list[tuple[str, Tensor]]](list)
        for path, one in parameters.items():
            self._held[one.untyped_storage().data_ptr()].append((path, one))
        self._kept, self._changes, self._blank = kept, changes or {}, blank
        self._numbers = Counter[tuple[str, int]]()
        self.uses: list[Use] = []
        self.added: set[str] = set()  # matrices that are added to something

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Run one operation, and note what it uses."""
        del types
        kind = func.overloadpacket.__name__
        if self._blank and kind in ("add", "add_"):
            args = tuple(torch.zeros_like(one) if self._path(one) in self._blank else one for one in args)
        if kind in ("add", "add_"):
            self.added |= {path for path in map(self._path, args) if path is not None}
        found = func(*args, **(kwargs or {}))
        use = self._use(kind, args) if kind in _PLACES else None
        return found if use is None else self._seen(use, found)

    def _seen(self, use: Use, found: Tensor) -> Tensor:
        self.uses.append(use)
        change = self._changes.get(use.path)
        if change is None:
            return found
        rows = found.reshape(-1, found.shape[-1])
        return change(use, rows).to(found).reshape(found.shape)

    def _use(self, kind: str, args: Any) -> Use | None:
        source, place, axis = _PLACES[kind]
        given, weight = args[source], args[place]
        path = self._path(weight)
        if path is None:
            return None
        (parameter,) = [one for name, one in self._held[weight.untyped_storage().data_ptr()] if name == path]
        lies = _lies(parameter, weight, axis)
        if lies is None:
            return None
        number = self._numbers[path, lies[1]]
        self._numbers[path, lies[1]] += 1
        use = Use(path, kind, *lies, number)
        if kind not in _VECTORS:
            return replace(use, given=given.clone())
        return replace(use, given=given.reshape(-1, given.shape[-1]).clone()) if path in self._kept else use

    def _path(self, one: Any) -> str | None:
        """Return the parameter that a tensor is a view of."""
        if not isinstance(one, Tensor) or one.layout is not torch.strided:
            return None
        at = one.storage_offset()
        held = self._held.get(one.untyped_storage().data_ptr(), [])
        inside = [
            (whole.storage_offset(), path) for path, whole in held if 0 <= at - whole.storage_offset() < _extent(whole)
        ]
        return max(inside)[1] if inside else None


def _extent(one: Tensor) -> int:
    """Return how far the entries of a tensor lie apart in what holds them."""
    return 1 + sum((length - 1) * step for length, step in zip(one.shape, one.stride(), strict=True))


def _lies(parameter: Tensor, view: Tensor, at: int) -> tuple[int, int] | None:
    """Return the axis of a parameter that an axis of its view runs along, and where it begins there.

    None where that cannot be told.
    """
    stride, length = view.stride(at), view.shape[at]
    axes = [axis for axis, step in enumerate(parameter.stride()) if step == stride and parameter.shape[axis] >= length]
    whole = [axis for axis in axes if parameter.shape[axis] == length]
    if len(whole or axes) != 1 or not (whole or parameter.is_contiguous()):
        return None
    (axis,) = whole or axes
    if whole:
        return axis, 0
    offset = view.storage_offset() - parameter.storage_offset()
    return axis, int(offset // stride % parameter.shape[axis])


def axes_in(uses: Iterable[Use]) -> dict[str, int]:
    """Return the axis of outputs by parameter, where all of its uses agree."""
    seen = defaultdict[str, set[int]](set)
    for use in uses:
        seen[use.path].add(use.axis)
    return {path: next(iter(axes)) for path, axes in seen.items() if len(axes) == 1}
