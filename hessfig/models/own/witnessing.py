"""Compares the problem that is measured with the user's own function, by parameter, before it is used."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import cached_property
from math import inf, isfinite
from typing import Any

import torch
from torch import nn

from hessfig.curvature.batched import is_small
from hessfig.curvature.double_backward import FLOOR, differentiating, length, steps_of
from hessfig.curvature.problem import Objective, Witness
from hessfig.curvature.rounding import CAST, ROWS
from hessfig.curvature.samples import few_samples, first_samples
from hessfig.curvature.witness import (
    DIFFERENCES,
    Derivatives,
    Tensors,
    apart,
    derivatives,
    leaves_of,
    misses_values,
    refusal_by_values,
    refusal_of,
    terms_of,
)
from hessfig.errors import UserError, first_few, plain
from hessfig.models.own.border import Asked, any_function, open_request
from hessfig.models.own.copies import (
    Uncopied,
    computed_attributes,
    copy_of,
    in_place_of,
)
from hessfig.models.own.own_checks import Raised, shape_of
from hessfig.models.own.own_function import OwnFunction, Shares
from hessfig.models.own.own_network import Built, split_problem, whole_problem
from hessfig.models.own.preserved import preserved
from hessfig.models.own.weight_names import named_layout
from hessfig.rng import made_on

_READS_MORE = "the loss reads parameters or activations besides the network's outputs: H_o + H_f is not H"
_DIGITS = 100  # allowed rounding of an evaluation, relative to the effect of changing each weight in its last digits
_AWAY = ", one step away"  # in the names of derivatives at the second point
_NOT_COMPARED = "the measured function was not compared with the network itself, which cannot be run as given"
_NOT_SPLIT = "the outputs and the loss, taken apart, have other derivatives than the loss as it is called"


def witnessed(asked: Asked, dtype: str) -> Objective:
    """Return the problem that is measured in type `dtype`, after a comparison with the user's own function.

    The network is copied, or run in place if a copy computes something else. Raises
    UserError for batches, losses and names that do not fit, and if no problem
    reproduces the user's function.
    """
    # A copy may call modules of the original.
    kept = preserved(asked.network, asked.loss, numbers=False)
    with differentiating(), kept, made_on(asked.device):
        return replace(
            Witnessing(asked).measured(getattr(torch, dtype)).problem,
            memory=asked.memory,
        )


def factory_objective(returned: Any, *, dtype: str, source: str) -> Objective:
    """Return the result of a factory as a checked problem. Raises UserError for results of another form."""
    if hasattr(returned, "network") and hasattr(returned, "objective"):
        objective: Objective = returned.objective(dtype)
        return objective
    is_tuple = isinstance(returned, tuple) and len(returned) in (4, 5)
    if not is_tuple or not isinstance(returned[0], nn.Module):
        raise UserError(
            f"model.factory: {source} returned something other than a problem",
            got=shape_of(returned),
            allowed="(network, inputs, targets, loss), (network, inputs, targets, loss, weights) or a hessfig.Problem",
            remedy="return a torch.nn.Module, its inputs, the targets and a loss",
        )
    return witnessed(open_request(*returned), dtype)


@dataclass(frozen=True)
class Way:
    """A way to represent a user's function: the network to run, and whether it includes the loss."""

    words: str
    to_run: Callable[[Asked, torch.dtype], nn.Module]
    is_whole: bool

    def build(self, asked: Asked, real: torch.dtype) -> Built:
        """Return the problem. Raises UserError if it cannot be built."""
        build = whole_problem if self.is_whole else split_problem
        return build(asked, self.to_run(asked, real), real)


WAYS = (
    Way("a copy of the network", copy_of, is_whole=False),
    Way("the network itself, in place", in_place_of, is_whole=False),
    Way("network and loss of a copy in one", copy_of, is_whole=True),
    Way("network and loss in one, in place", in_place_of, is_whole=True),
)


@dataclass(frozen=True)
class _Own:
    """Derivatives of the user's function at the weights, and at a point one step away, `place`."""

    here: Derivatives
    beside: Derivatives
    place: Tensors

    @classmethod
    def of(cls, own: OwnFunction, shares: Shares, order: int) -> _Own:
        """Return the derivatives of a function of the user."""
        return cls(own.derivatives(shares, order), *own.beside(shares, order))


@dataclass(frozen=True)
class _Comparison:
    """The user's function, the derivatives of a problem at the weights, and their differences."""

    own: _Own
    here: Derivatives
    off: Mapping[str, float]


class Witnessing:
    """The request of a user, and the user's own function, with which every problem is compared."""

    def __init__(self, asked: Asked) -> None:
        self.asked = asked
        self.own = OwnFunction(asked)
        self.route = WAYS[0]
        self.few: OwnFunction | None = (
            None  # the samples whose derivatives were compared, unless all were
        )

    def measured(self, real: torch.dtype) -> Built:
        """Return the first problem of WAYS that reproduces the user's function.

        Raises UserError if none does; the remedy ends with the form of a problem that
        takes any function.
        """
        # A wrong name of a weight is another matter.
        named_layout(self.asked.network, self.asked.weights)
        try:
            return self._measured(real)
        except UserError as error:
            remedy = f"{error.remedy}; or {any_function(self.asked)}"
            raise type(error)(
                error.what, got=error.got, allowed=error.allowed, remedy=remedy
            ) from error

    def _measured(self, real: torch.dtype) -> Built:
        refusals = list[UserError]()
        others = dict[str, str]()
        for self.route in WAYS:
            try:
                with preserved(self.asked.network, self.asked.loss):
                    built = self.route.build(self.asked, real)
            except UserError as error:
                refusals.append(error)
                is_of_copy = isinstance(error, Raised) and self._runs
                if not isinstance(error, Uncopied) and not is_of_copy:
                    raise  # the error is about the user's input
                continue
            witness = self._witness(built)
            if isinstance(witness, Witness):
                return replace(built, problem=replace(built.problem, witness=witness))
            others[self.route.words] = witness
        if others:
            raise _other_function(self.asked.network, others, self.own.dtype)
        raise refusals[0]

    def holds(self, built: Built, order: int) -> bool:
        """Whether a problem still equals the user's function at its present weights, up to derivatives of `order`."""
        if built.problem.witness and built.problem.witness.not_taken:
            return True  # nothing can be compared
        own = _Own.of(self.own, built.shares, order)
        return self._is_same(built, self._compared(built.problem, own))

    def _compared(self, objective: Objective, own: _Own) -> _Comparison:
        """Return the user's function and a problem side by side."""
        leaves = leaves_of(objective, self.own.parameters)
        vectors = self.own.directions.like(leaves)[: len(own.here.products)]
        order = 2 if vectors else int(bool(own.here.slopes))
        here = derivatives(terms_of(objective, leaves), leaves, vectors, order)
        moved = _at(own.place, leaves)
        beside = derivatives(terms_of(objective, moved), moved, (), min(order, 1))
        ratio = self.own.directions.ratio
        off = apart(own.here, here, ratio)
        for name, one in apart(own.beside, beside, ratio).items():
            off[f"{name}{_AWAY}"] = one
        return _Comparison(own, here, off)

    def _witness(self, built: Built) -> Witness | str:
        """Return the comparison of a problem with the user's function: a witness, or the difference in words."""
        self.few = None
        few = self._of_few(built)
        if few is not None:
            return few
        try:
            if not self.route.is_whole and self._reads_more:
                return _READS_MORE
            own = _Own.of(self.own, built.shares, 2)
        except (Exception, SystemExit) as error:
            # An exception of the user's code is the reason.
            why = plain(f"{type(error).__name__}: {error}", most=300)
            warnings.warn(f"{_NOT_COMPARED} ({why})", RuntimeWarning, stacklevel=4)
            return Witness(self.route.words, not_taken=why)
        try:
            seen = self._compared(built.problem, own)
        except Exception as error:  # of the user's code, which ran in its own type
            if isinstance(error, MemoryError | torch.OutOfMemoryError):
                raise
            return plain(f"{type(error).__name__}: {error}", most=300)
        if not self._is_same(built, seen):
            name = max(seen.off, key=lambda one: seen.off[one])
            return f"{name}: off by {seen.off[name]:.2g}"
        no_split = _NOT_SPLIT * self.route.is_whole
        if no_split and self._reads_more:
            no_split = _READS_MORE
        off, here = seen.off, seen.here
        del own, seen  # as large as several networks
        refusal = self._refusal(built.problem, here, self.own, built.shares)
        return Witness(
            self.route.words,
            off,
            no_split=no_split,
            refusal=refusal,
            has_gradient=refusal is None or refusal.remedy == DIFFERENCES,
            constants=frozenset(here.slopes) - here.reached,
            size=self.own.directions.size_of_terms(here),
        )

    def _of_few(self, built: Built) -> Witness | None:
        """Return the comparison of a large network on its first samples, and by the values of all batches.

        None if something differs or cannot be evaluated; then all samples are compared,
        which decides.
        """
        problem = replace(built.problem, memory=self.asked.memory)
        if self.route.is_whole or is_small(problem.network) or 0 not in built.shares:
            return None
        count = few_samples(problem)
        if not count:
            return None
        with suppress(Exception):  # a function that takes all samples alone
            own = self.own.first(count)
            objective = first_samples(problem, count)
            if own.reads_more() or own.depends_on_batch():
                return None
            whole = {0: 1.0}
            seen = self._compared(objective, _Own.of(own, whole, 2))
            off = {**seen.off, **self._apart_in_value(built, seen, objective)}
            most = max(map(ROWS.of, (problem.dtype, self.own.dtype)))
            if not _is_usual(seen.here) or max(off.values()) > most:
                return None
            here = seen.here
            del seen  # as large as several networks
            if not self._refusal(objective, here, own, whole):
                self.few = own
                size = self.own.directions.size_of_terms(here)
                return Witness(self.route.words, off, size=size)
        return None

    def _apart_in_value(
        self, built: Built, seen: _Comparison, first: Objective
    ) -> dict[str, float]:
        """Return the relative differences of the losses of all batches, at the weights and a step away.

        Infinite if all batches take an operation that the `first` samples, whose
        derivatives are compared, do not.

        A hook that reads a parameter reads the user's own also in a copy, with an equal
        value at the weights alone. For rounding, see witness.apart.
        """
        leaves = leaves_of(built.problem, self.own.parameters)
        off = dict[str, float]()
        moved = _at(seen.own.place, leaves)
        least = FLOOR * self.own.directions.ratio * length(seen.here.slopes.values())
        for name, at in {
            "value, all samples": leaves,
            f"value, all samples{_AWAY}": moved,
        }.items():
            mine, operations = _run(built.problem, at)
            values = self.own.values(beside=at is moved)
            own = sum(share * values[batch] for batch, share in built.shares.items())
            size = max(abs(mine), abs(own), least)
            apart = abs(mine - own) / size if size else 0.0
            has_more = operations - _run(first, at)[1]
            off[name] = apart if isfinite(apart) and not has_more else inf
        return off

    def _is_same(self, built: Built, seen: _Comparison) -> bool:
        """Whether a problem differs from the user's function by rounding alone.

        If rounding of the measured type does not explain the difference, the same
        problem in the type of the network decides, because it has the same rounding
        errors as the user's function.
        """
        real, own = built.problem.dtype, self.own.dtype
        most = max(map(ROWS.of, (real, own, seen.own.here.value.dtype)))
        if max(seen.off.values()) <= most:
            return True
        if real == own or seen.off["value"] > CAST.of(own):
            return self._is_rounding(built.problem, seen)
        alike = self.route.build(self.asked, own)
        return max(self._compared(alike.problem, seen.own).off.values()) <= ROWS.of(own)

    def _is_rounding(self, objective: Objective, seen: _Comparison) -> bool:
        """Whether changing the weights in their last digits changes derivatives by as much as the difference.

        If a softmax or tanh saturates, derivatives have few accurate digits.
        """
        eps = torch.finfo(objective.dtype).eps
        rows = ROWS.of(objective.dtype)
        leaves = leaves_of(objective, self.own.parameters)
        signs = self.own.directions.like(leaves)[0]
        shaken = {
            name: (one.detach() * (1 + 4 * eps * signs[name])).requires_grad_()
            for name, one in leaves.items()
        }
        vectors = self.own.directions.like(leaves)[: len(seen.here.products)]
        after = derivatives(
            terms_of(objective, shaken), shaken, vectors, 2 if vectors else 1
        )
        moved = apart(seen.here, after, self.own.directions.ratio)
        allowed = {name: max(rows, _DIGITS * one) for name, one in moved.items()}
        return all(
            one <= allowed.get(name.removesuffix(_AWAY), rows)
            for name, one in seen.off.items()
        )

    def _refusal(
        self, objective: Objective, here: Derivatives, own: OwnFunction, shares: Shares
    ) -> UserError | None:
        """Return an error if second derivatives by autograd are not those of the function, or the gradient is lost.

        One that explains the change of the loss is right. One that does not stops at
        detached values, or is lost: it is not that of the user's program, where compiled
        functions are compiled.
        """
        vectors = self.own.directions.like(here.slopes)
        refusal = refusal_of(objective, here, vectors)
        if refusal is not None:
            return refusal
        # Nothing has been compiled otherwise.
        is_odd = "torch._dynamo" in sys.modules and misses_values(objective, vectors[0])
        if is_odd and (lost := own.lost(shares)):
            return UserError(
                "the gradient of this network is another one in Python than compiled",
                got=f"parameters {first_few(lost)}",
                allowed="functions that compute the same, compiled or not",
                remedy="elementary operations in place of operators that compile what they are given",
            )
        return refusal_by_values(objective, here, vectors[0])

    @cached_property
    def _runs(self) -> bool:
        """Whether the user's own function runs as it was given."""
        try:
            return bool(self.own.values())
        except (Exception, SystemExit):  # the error of its copy gives the reason
            return False

    @cached_property
    def _reads_more(self) -> bool:
        return self.own.reads_more()


def _at(place: Tensors, leaves: Tensors) -> Tensors:
    """Return leaves at another place."""
    return {name: place[name].to(one).requires_grad_() for name, one in leaves.items()}


def _run(objective: Objective, at: Tensors) -> tuple[float, set[str]]:
    """Return the loss at parameters, and the names of the operations in its graph."""
    loss = 0.0
    operations = set[str]()
    with torch.enable_grad():
        for term in terms_of(objective, at):
            value = term()
            loss += float(value.detach())
            operations.update(steps_of([value]))
    return loss, operations


def _is_usual(here: Derivatives) -> bool:
    """Whether derivatives are finite and reach every parameter, so that a comparison says something of each."""
    tensors = (here.slopes, *here.products)
    entries = [one for some in tensors for one in some.values()]
    if not here.products or not min(length(one.values()) for one in tensors):
        return False
    if not all(bool(one.isfinite().all()) for one in (here.value, *entries)):
        return False
    return all(
        any(bool(some[name].any()) for some in tensors if name in some)
        for name in here.slopes
    )


def _other_function(
    network: nn.Module, tried: Mapping[str, str], real: torch.dtype
) -> UserError:
    computed = [
        f"{name} is computed from parameters, and is not a parameter itself"
        for name in computed_attributes(network)
    ]
    differences = [f"{words}: {why}" for words, why in tried.items()]
    return UserError(
        "what would be measured is not the user's function: copy and network in place have other derivatives",
        got=plain("; ".join([*differences, *computed[:3]]), most=700),
        allowed="a network that reads its parameters and buffers as attributes of its modules, whenever it is called",
        remedy="read self.NAME in forward(), not a tensor computed from parameters beforehand; or, if it computes in "
        f"{str(real).removeprefix('torch.')} whatever it is given, dtype={str(real).removeprefix('torch.')!r}",
    )
