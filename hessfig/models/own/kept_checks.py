"""What was checked for a problem of a user, kept while the user's function is the same."""

from __future__ import annotations

import time
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from hessfig.curvature.double_backward import FLOOR, differentiating, length
from hessfig.curvature.problem import Objective
from hessfig.curvature.witness import Derivatives
from hessfig.models.identity import identity
from hessfig.models.own.border import Asked
from hessfig.models.own.computed import Asked as AskedFunction
from hessfig.models.own.computed import Computing
from hessfig.models.own.own_function import OwnFunction
from hessfig.models.own.preserved import preserved
from hessfig.models.own.witnessing import Witnessing
from hessfig.rng import kept_draws, made_on

_DIGITS = 100  # allowed rounding of value and gradient, in units of the last place
# A larger copy of a network is kept only while an operator holds it, too.
MOST_BYTES = 2**30


@dataclass(frozen=True)
class Request:
    """What is asked of a problem: its arguments, what opens them, the type of products and where they are computed."""

    network: Any
    arguments: Mapping[str, Any]
    opened: Callable[[], Asked | AskedFunction]
    dtype: str
    place: torch.device | None = None

    def preserved(self) -> AbstractContextManager[None]:
        """Return a context after which lists and dictionaries that hooks and losses fill are as before."""
        function = self.arguments["compute_loss"] or self.arguments["loss"]
        return preserved(self.network, function, numbers=False)

    def fingerprint(self) -> str:
        """Return a hash of all that the function is made of, as far as Python shows it, and of settings of torch."""
        given = {name: _contents(one) for name, one in self.arguments.items()}
        states = [*_settings(), self.dtype, str(self.place), *_states(self.network)]
        return identity(self.network, given, repr(states))


class Checking:
    """The checks of a request, and value and gradient of its function."""

    def __init__(self, request: Request) -> None:
        asked = request.opened()
        checks = Witnessing(asked) if isinstance(asked, Asked) else Computing(asked)
        if isinstance(asked, Asked):
            function = asked.loss
        else:
            function = asked.compute_loss
        # A copy may call modules of the original.
        kept = preserved(asked.network, function, numbers=False)
        with differentiating(), kept, made_on(asked.device):
            built = checks.measured(getattr(torch, request.dtype))
        self._checks = checks if isinstance(checks, Witnessing) else None
        self.shares, self._witness = built.shares, built.problem.witness
        self.size = self._witness.size if self._witness else 0.0
        problem = replace(built.problem, memory=asked.memory)
        if request.place is None:
            self.objective = problem
        else:
            self.objective = problem.on(request.place)

    @property
    def says_something(self) -> bool:
        """Whether the problem was compared with the user's function, and has second derivatives."""
        witness = self._witness
        return witness is not None and not witness.not_taken and witness.refusal is None

    def functions(self) -> tuple[OwnFunction | None, OwnFunction | None]:
        """Return the user's own function and its first samples, without what is as large as the network.

        The latter are None unless they were enough to compare derivatives; both are None
        for a compute_loss, which every call opens anew.
        """
        if self._checks is None:
            return None, None
        few = self._checks.few
        return self._checks.own.to_keep(), few and few.to_keep()


class KeptChecks:
    """The last objective of a problem, which is returned again while the user's function is the same.

    It is the same if its fingerprint is, and if value and gradient of the user's
    function are those of the first time. Every call computes these once, since they
    show what no fingerprint sees: files, or compiled code.
    """

    def __init__(self) -> None:
        self._last: _Kept | None = None

    def objective(self, request: Request) -> Objective:
        """Return the checked problem of a request: the last one or a new one.

        Raises UserError for what does not fit.
        """
        last = self._last
        self._last = None
        found = last.objective(request) if last is not None else None
        if found is not None:
            self._last = last
            return found
        del last  # as large as the network
        with request.preserved():
            return self._checked(request)

    def made(self, objective: Objective, products: str) -> dict[Any, Any]:
        """Return what operators of the kept objective made, for later ones with the same products; else nothing."""
        # Another thread may take the last one away meanwhile.
        last = self._last
        if last is None or not last.holds(objective):
            return {}
        return last.made.setdefault(products, {})

    def _checked(self, request: Request) -> Objective:
        """Return the problem of a request, checked anew, and keep it if that takes less time than the checks."""
        started = time.perf_counter()
        checking = Checking(request)
        checked = time.perf_counter()
        if checking.says_something:
            fingerprint = request.fingerprint()
            # Of large data, it may cost more than the checks.
            if time.perf_counter() - checked < checked - started:
                self._last = _Kept(checking, fingerprint, request)
        return checking.objective


class _Kept:
    """An objective, with the fingerprint and the sizes that its function had when it was checked."""

    def __init__(self, checking: Checking, fingerprint: str, request: Request) -> None:
        objective = checking.objective
        is_large = size_of(objective) > MOST_BYTES
        self._held, self._seen = None if is_large else objective, weakref.ref(objective)
        self._fingerprint = fingerprint
        self._whole, self._few = checking.functions()
        self._shares, self._size = checking.shares, checking.size
        self._versions = versions_of(objective)
        self._sizes = self._sizes_now(request)
        # What operators made, by their kind of products.
        self.made = dict[str, dict[Any, Any]]()

    def holds(self, objective: Objective) -> bool:
        """Whether this is the objective, and it is kept between operators."""
        return self._held is objective

    def objective(self, request: Request) -> Objective | None:
        """Return the objective, if a request is for the same function; None if not."""
        found = self._seen()
        if (
            found is None
            or versions_of(found) != self._versions
            or request.fingerprint() != self._fingerprint
        ):
            return None
        try:
            now = self._sizes_now(request)
        except Exception:
            # Whatever the user's function raises: the checks of a new objective say it.
            return None
        if now.are_those_of(self._sizes):
            return found
        return None

    def _sizes_now(self, request: Request) -> Sizes:
        """Return value and gradient of the user's own function, as it is now; an OwnFunction preserves what it runs."""
        if self._whole is None:
            return self._of_function(request)
        with differentiating(), kept_draws(), made_on(self._whole.asked.device):
            if self._few is None:
                return Sizes.of(self._whole.derivatives(self._shares, 1), self._size)
            # a gradient of all samples may take more memory than is allowed
            values, here = self._whole.values_and_gradient(self._few)
            return Sizes.of(here, self._size, values)

    def _of_function(self, request: Request) -> Sizes:
        with request.preserved():
            asked = request.opened()
            assert isinstance(asked, AskedFunction)
            with differentiating(), made_on(asked.device):
                here = Computing(asked).gradient(getattr(torch, request.dtype))
                return Sizes.of(here, self._size)


@dataclass(frozen=True)
class Sizes:
    """Value and gradient in a few numbers: for every parameter the length of its gradient g, and <g, r>.

    r rises evenly from 0.5, up to 1 for the longest gradient, so that entries that change
    places are seen. `size` is that of the value's terms.
    """

    values: Tensor
    lengths: Tensor
    ramps: Tensor
    size: float
    digits: float

    @classmethod
    def of(cls, here: Derivatives, size: float, more: Sequence[float] = ()) -> Sizes:
        """Return those of derivatives, with `more` values."""
        slopes = [one.double().flatten() for one in here.slopes.values()]
        longest = max(slopes, key=len)
        # Of a shorter gradient, its beginning.
        ramp = torch.linspace(
            0.5, 1, len(longest), dtype=longest.dtype, device=longest.device
        )
        ramps = [float(one @ ramp[: len(one)]) for one in slopes]
        numbers = ([float(here.value), *more], [length([one]) for one in slopes], ramps)
        digits = _DIGITS * torch.finfo(here.value.dtype).eps
        values, lengths, along = (
            torch.tensor(some, dtype=torch.float64) for some in numbers
        )
        return cls(values, lengths, along, size, digits)

    def are_those_of(self, other: Sizes) -> bool:
        """Whether two differ by rounding alone, relative to the terms of the values and to the gradient."""
        of_values = self.values.abs().clamp(min=self.size)
        of_slopes = torch.maximum(self.lengths, FLOOR * self.lengths.max())
        pairs = (
            (self.values, other.values, of_values),
            (self.lengths, other.lengths, of_slopes),
            (self.ramps, other.ramps, of_slopes),
        )
        return all(
            bool(((mine - theirs).abs() <= self.digits * sizes).all())
            for mine, theirs, sizes in pairs
        )


def _settings() -> list[Any]:
    """Return the settings of torch that may change numbers."""
    cudnn, mkldnn = torch.backends.cudnn, torch.backends.mkldnn
    return [
        str(torch.get_default_dtype()),
        str(torch.get_default_device()),
        torch.are_deterministic_algorithms_enabled(),
        torch.get_num_threads(),
        cudnn.enabled,
        cudnn.deterministic,
        cudnn.benchmark,
        mkldnn.enabled,
        torch.backends.mha.get_fastpath_enabled(),
    ]


def _states(network: nn.Module) -> Iterator[Any]:
    """Yield what belongs to modules and tensors of a network besides what `identity` hashes."""
    for path, module in network.named_modules():
        flags = [
            sorted(value)
            for name, value in vars(module).items()
            if name.endswith(("_with_kwargs", "_called"))
        ]
        yield path, module.training, flags
        for name, one in (*module._parameters.items(), *module._buffers.items()):
            if one is not None:
                yield (
                    name,
                    id(one),
                    str(one.device),
                    str(one.layout),
                    one.requires_grad,
                    bool(one._backward_hooks),
                )


def _contents(thing: Any) -> Any:
    """Return batches with their mappings as dictionaries, whose entries `identity` hashes."""
    if isinstance(thing, Mapping):
        return {name: _contents(one) for name, one in thing.items()}
    if type(thing) in (list, tuple):
        return type(thing)(map(_contents, thing))
    return thing


def size_of(objective: Objective) -> int:
    """Return the bytes of the parameters and buffers of a network."""
    return sum(one.numel() * one.element_size() for one in _tensors(objective))


def versions_of(objective: Objective) -> list[int]:
    """Return the versions of the tensors of a network, which count changes in place."""
    return [one._version for one in _tensors(objective)]


def _tensors(objective: Objective) -> list[Tensor]:
    network = objective.network
    return [*network.parameters(), *network.buffers()]
