"""Checks the suggested names of weights by runs in which the outputs of maps are replaced."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from hessfig.models.naming.trial import CannotRun, NetworkTrial, Use
from hessfig.terms import Matrix

_ATTENTION = (Matrix.W_Q, Matrix.W_K, Matrix.W_V, Matrix.W_O)
_SIZE = 0.5  # size of the values that are inserted
_ROUNDING = 8  # changes below this factor times the precision of the type and the largest entry are rounding


@dataclass(frozen=True)
class MatrixPart:
    """A weight under its suggested name: a range of outputs of a map (for W_O and W_out, of inputs)."""

    role: str
    path: str
    axis: int
    columns: Tensor
    heads: tuple[Tensor, ...] = ()


@dataclass(frozen=True)
class Put:
    """Values that replace the outputs of a map: `factor` times the usual ones, the `same` at all positions, or others.

    Other values, or the negative ones if `turned`, are inserted at `rows` (positions)
    and `columns` (outputs) of the first use, or of every use.
    """

    factor: float = 1.0
    same: bool = False
    other: bool = False
    turned: bool = False
    rows: Sequence[int] | None = None
    columns: Tensor | None = None


@dataclass(frozen=True)
class Verdict:
    """Whether runs confirm the names of weights and of heads; `rows` describes the inputs of queries and keys."""

    is_used: bool = False
    heads: bool = False
    reason: str = ""
    rows: tuple[int, int, bool] = (0, 0, True)


ZERO = Put(factor=0)
OTHER = Put(other=True)


class _Runs:
    """Runs of the smallest part that contains given weights, and the inputs of the last of them."""

    def __init__(
        self,
        trial: NetworkTrial,
        parts: Sequence[MatrixPart],
        into: str,
        blank: Collection[str],
        *,
        once: bool,
    ) -> None:
        self.trial = trial
        self.blank = blank
        self.once = once
        self.parts = {part.role: part for part in parts}
        self.into = self.parts[into]
        self.replaced = defaultdict[str, list[MatrixPart]](list)
        for part in parts:
            if part.role != into:
                self.replaced[part.path].append(part)
        place = trial.owner([part.path for part in parts])
        if place is None:
            raise CannotRun("no module that is called contains them")
        self.place, self._uses = place, list[Use]()

    def entering(self, **puts: Put) -> Tensor:
        """Return the inputs of the last of the weights (rows, inputs). Raises CannotRun."""
        changes = {path: partial(self._values, puts) for path in self.replaced}
        self._uses, _ = self.trial.run(
            self.place, changes, [self.into.path, *changes], self.blank
        )
        inputs = []
        axes = set[int]()
        for one in self._uses:
            if one.path == self.into.path and one.given is not None:
                inputs.append(one.given)
                axes.add(one.axis)
        if axes != {self.into.axis}:
            raise CannotRun(f"{self.into.path} is not used as a map along its axis")
        return torch.cat(inputs[:1] if self.once else inputs)

    def given(self, name: str) -> Tensor:
        """Return the inputs of the map of a weight at its first use (rows, inputs)."""
        part = self.parts[name]
        below = [
            one
            for one in self._uses
            if one.path == part.path and one.start <= int(part.columns.min())
        ]
        used = min(below, key=lambda one: (-one.start, one.number), default=None)
        if used is None or used.given is None:
            raise CannotRun(f"{part.path} is not used")
        return used.given

    def _values(self, puts: dict[str, Put], use: Use, output: Tensor) -> Tensor:
        """Return the values (rows, outputs) that replace the outputs of a map."""
        parts = self.replaced[use.path]
        if any(part.axis != use.axis for part in parts):
            raise CannotRun(f"{use.path} is used along another axis")
        total = self.trial.parameters[use.path].shape[use.axis]
        usual, other = (_drawn(use, len(output), total, seed) for seed in (0, 1))
        for part in parts:
            put = puts.get(part.role, Put())
            block = usual[:, part.columns] * put.factor
            if put.same:
                usual[:, part.columns] = block[:1].expand_as(block)
            else:
                usual[:, part.columns] = block
            if put.other and not (self.once and use.number):
                rows = torch.tensor(
                    range(len(output)) if put.rows is None else put.rows, device="cpu"
                )
                columns = part.columns if put.columns is None else put.columns
                other = -usual if put.turned else other
                usual[rows[:, None], columns] = other[rows[:, None], columns]
        return usual[:, use.start : use.start + output.shape[1]]


def _drawn(use: Use, rows: int, total: int, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(
        2 * (sum(map(ord, use.path)) + use.number) + seed
    )
    return _SIZE * torch.randn(rows, total, generator=generator, device="cpu")


def attention(
    trial: NetworkTrial, parts: Sequence[MatrixPart], blank: Collection[str]
) -> Verdict:
    """Return whether queries, keys and values have these roles, in front of W_O, and whether heads match.

    If keys are zero, queries have no effect; if queries are zero, keys have no effect
    and values have one. Or: if values are equal at all positions, queries and keys have
    no effect. A query affects only its own position; keys and values affect others,
    too.
    """
    parts = [part for part in parts if part.role in (*_ATTENTION, "W_rel")]
    if sorted(part.role for part in parts if part.role != "W_rel") != sorted(
        _ATTENTION
    ):
        return Verdict(reason="not one each of W_Q, W_K, W_V and W_O in a module")
    try:
        runs = _Runs(trial, parts, Matrix.W_O, blank, once=True)
        usual = runs.entering()
        if not (_are_mixed(runs, usual) and _act_where_they_should(runs, usual)):
            return Verdict(
                reason="they do not act as queries, keys and values on what enters W_O"
            )
        if "W_rel" in runs.parts and alike(runs.entering(W_rel=OTHER), usual):
            return Verdict(reason="W_rel does not act on what enters W_O")
        asking = runs.given("W_Q")
        asked = runs.given("W_K")
        is_same = asking.shape == asked.shape and torch.equal(asking, asked)
        return Verdict(
            True, _heads_are_right(runs, usual), "", (len(asking), len(asked), is_same)
        )
    except CannotRun as error:
        return Verdict(reason=str(error))


def _are_mixed(runs: _Runs, usual: Tensor) -> bool:
    see = runs.entering
    if any(alike(see(**{name: OTHER}), usual) for name in ("W_Q", "W_K", "W_V")):
        return False
    no_keys = see(W_K=ZERO)
    no_queries = see(W_Q=ZERO)
    if alike(see(W_K=ZERO, W_Q=OTHER), no_keys) and alike(
        see(W_Q=ZERO, W_K=OTHER), no_queries
    ):
        return not alike(see(W_Q=ZERO, W_V=OTHER), no_queries)
    equal = Put(same=True)
    flat = see(W_V=equal)
    return alike(see(W_V=equal, W_Q=OTHER), flat) and alike(
        see(W_V=equal, W_K=OTHER), flat
    )


def _act_where_they_should(runs: _Runs, usual: Tensor) -> bool:
    def reach(name: str) -> list[int]:
        rows = len(runs.given(name))
        outputs = (
            runs.entering(**{name: Put(other=True, rows=[row])})
            for row in {0, rows // 2, rows - 1}
        )
        return [int((~_same_rows(output, usual)).sum()) for output in outputs]

    return max(reach("W_Q")) == 1 and max(reach("W_K")) > 1 and max(reach("W_V")) > 1


def _heads_are_right(runs: _Runs, usual: Tensor) -> bool:
    """Whether each head of W_Q affects its own head of W_O, and whether heads of W_K and W_V affect the same ones.

    Heads are negated first, because norms over all heads, which would couple them, do
    not change.
    """
    behind = runs.into.heads
    own = {name: runs.parts[name].heads for name in ("W_Q", "W_K", "W_V")}
    if not behind or not all(own.values()):
        return False
    shared = len(behind) // len(own["W_K"])
    for put in (Put(other=True, turned=True), OTHER):
        acted = {name: _numbers(runs, usual, name, put) for name in own}
        counts = [acted["W_K"].count(at) for at in range(1, len(own["W_K"]) + 1)]
        asked = acted["W_Q"] == list(range(1, len(behind) + 1))
        if asked and acted["W_K"] == acted["W_V"] and counts == [shared] * len(counts):
            return True
    return False


def _numbers(runs: _Runs, usual: Tensor, name: str, put: Put) -> list[int]:
    """Return, for every head of W_O, the number (from 1) of the head of this weight that affects it; 0 for none.

    Each run changes the heads whose number has a given bit.
    """
    heads = runs.parts[name].heads
    numbers = [0] * len(runs.into.heads)
    for bit in range(len(heads).bit_length()):
        columns = torch.cat([head for at, head in enumerate(heads, 1) if at >> bit & 1])
        changed = runs.entering(**{name: replace(put, columns=columns)})
        for at, head in enumerate(runs.into.heads):
            numbers[at] += 0 if alike(changed[:, head], usual[:, head]) else 1 << bit
    return numbers


def mlp(
    trial: NetworkTrial, parts: Sequence[MatrixPart], blank: Collection[str]
) -> Verdict:
    """Return whether W_in affects the inputs of W_out, linearly if there is a gate, which acts nonlinearly."""
    roles = sorted(part.role for part in parts)
    if roles not in (["W_in", "W_out"], ["W_gate", "W_in", "W_out"]):
        return Verdict(
            reason="not one each of W_in and W_out, and at most one W_gate, in a module"
        )
    try:
        runs = _Runs(trial, parts, Matrix.W_out, blank, once=False)
        usual = runs.entering()
        if len(runs.into.columns) != usual.shape[-1] or alike(
            runs.entering(W_in=OTHER), usual
        ):
            return Verdict(reason="W_in does not act on what enters W_out")
        if "W_gate" in roles and not (
            _is_affine(runs, usual, "W_in") and not _is_affine(runs, usual, "W_gate")
        ):
            return Verdict(reason="what enters W_out is not linear in W_in alone")
        return Verdict(is_used=True)
    except CannotRun as error:
        return Verdict(reason=str(error))


def _is_affine(runs: _Runs, usual: Tensor, name: str) -> bool:
    back, none, half = (
        runs.entering(**{name: Put(factor=factor)}) for factor in (-1, 0, 0.5)
    )
    return (
        alike(usual + back, 2 * none)
        and alike(usual + none, 2 * half)
        and not alike(usual, none)
    )


def router(
    trial: NetworkTrial, part: MatrixPart, beside: Collection[str], experts: int
) -> Verdict:
    """Return whether a map with one output per expert affects the result of the smallest part around it."""
    try:
        place = trial.owner([part.path, *beside])
        if place is None or experts not in (0, len(part.columns)):
            return Verdict(reason="no output for each expert")
        usual, changed = (
            trial.run(place, {part.path: partial(_chosen, seed)})[1][:1]
            for seed in (0, 1)
        )
        return Verdict(
            is_used=bool(usual) and not alike(usual[0], changed[0]),
            reason="it changes nothing",
        )
    except CannotRun as error:
        return Verdict(reason=str(error))


def _chosen(seed: int, use: Use, output: Tensor) -> Tensor:
    """Return outputs of a router that differ enough to select experts."""
    return 4 * _drawn(use, len(output), output.shape[1], seed)


def alike(first: Tensor, other: Tensor) -> bool:
    """Whether two results are equal up to rounding; results that are not finite are not."""
    return first.shape == other.shape and bool(_close(first, other).all())


def _same_rows(first: Tensor, other: Tensor) -> Tensor:
    if first.shape != other.shape:
        raise CannotRun("the number of positions changes with values")
    return _close(first, other).all(dim=-1)


def _close(first: Tensor, other: Tensor) -> Tensor:
    largest = torch.maximum(first.abs().max(), other.abs().max())
    return (first - other).abs() <= _ROUNDING * torch.finfo(first.dtype).eps * largest
