"""Quantity pruning: what saliencies of weights say, and what the loss does when the weights go."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from math import nan

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.brain_surgeon import compensated, damped_inverse, obd, obs, obs_of_group, surgery, zeroed
from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.problem import Objective
from hessfig.measurements.compression.surrogates import Subject
from hessfig.measurements.eigenvalues import square_columns
from hessfig.measurements.quantity import Arrays, Estimate, Measured, Request, Row
from hessfig.measurements.training_dynamics import EXACT, state_row
from hessfig.models.blocks import matrices_of
from hessfig.terms import PRUNED_BY, Matrix, Surrogate

_FIELLER = 1.06  # the variance of Spearman's z is this over n - 3 (Fieller, Hartley and Pearson 1957)
_ROUNDINGS = 64  # rises below so many roundings of the loss, and saliencies of the largest, rank as 0
_BY_ROWS = (Matrix.W_Q, Matrix.W_K, Matrix.W_V)  # a head is some of their rows, and columns of W_O
Groups = list[Tensor]


def pruning(problem: Objective, request: Request) -> Measured:
    """Return how well saliencies rank the weights of each diagonal block, and the loss along what they remove.

    For every weight the true rise of the loss with this weight alone at zero is computed, without approximation.
    NAME_correlation is Spearman's correlation of a saliency with it over all weights; NAME_row_correlation that over
    the rows of all matrices, each row at zero as a whole; NAME_compensated_correlation, of the OBS saliencies, that
    with the true rise after the other weights were moved as OBS moves them. NAME_loss is the loss with a share
    removed_share of the weights gone, in the order of the saliency (`index`: the place among the shares, 0 for no
    weight). head_increase is the true rise with a head gone, and NAME_head what the saliency says of it (`index`: heads
    of all layers, from 1 on). Errors of correlations are those of Fisher's z over weights, as if these were a sample.
    The arrays hold rises and saliencies of all weights.
    """
    rows: list[Row] = []
    arrays: Arrays = {}
    for block, column in square_columns(problem, request):
        found = _Pruned(Subject(problem, request, block, column), request)
        rows += found.rows()
        place = f"{block.layer}_{block.col}"
        arrays |= {f"{place}_{name}": values.numpy() for name, values in found.of_weights().items()}
        arrays[f"{place}_weights"] = [one.name for one in found.subject.side]
        arrays[f"{place}_sizes"] = [one.size for one in found.subject.side]
    return Measured(rows, arrays)


@dataclass
class _Saliency:
    """A saliency of weights: of single ones, of groups, and the weights at each share that it removes."""

    single: Float[Tensor, " dim"]
    path: Float[Tensor, "shares dim"]
    inverse: Tensor | None = None
    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    def of(self, group: Tensor) -> float:
        """Return the saliency of a group: the sum, or with compensation the joint one."""
        if self.inverse is None:
            return float(self.single[group].sum())
        return obs_of_group(self.weights, self.inverse, group)


class _Pruned:
    """One block: its true rises, and every saliency."""

    def __init__(self, subject: Subject, request: Request) -> None:
        self.subject, self._request = subject, request
        self._weights = subject.weights.double().cpu()
        size = len(self._weights)
        shares = request.at.config.compression.shares
        self._counts = sorted({0, *(round(share * size) for share in shares)})
        self._before = float(subject.losses(subject.weights[None]))
        self._rounding = _ROUNDINGS * torch.finfo(subject.weights.dtype).eps
        eye = torch.arange(size)
        self._rises = self._rise(zeroed_each([one[None] for one in eye], self._weights))
        self._rows = [row for _, shape, places in subject.matrices for row in places.view(shape)]
        self._heads = _heads(subject, request)
        self._saliencies = dict(self._all(request.stream(0, "random")))

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the block."""
        yield from self._along("removed_share", [count / len(self._weights) for count in self._counts])
        of_rows, of_heads = (self._rise(zeroed_each(one, self._weights)) for one in (self._rows, self._heads))
        yield from self._along("head_increase", of_heads.tolist(), first=1)
        for name, one in self._saliencies.items():
            yield self._correlation(f"{name}_correlation", one.single, self._rises)
            saliencies = torch.tensor([one.of(row) for row in self._rows], dtype=torch.float64)
            yield self._correlation(f"{name}_row_correlation", saliencies, of_rows)
            if one.inverse is not None:
                moved = self._rise(compensated(self._weights, one.inverse))
                yield self._correlation(f"{name}_compensated_correlation", one.single, moved)
            yield from self._along(f"{name}_loss", self.subject.losses(one.path.to(self.subject.weights)).tolist())
            yield from self._along(f"{name}_head", [one.of(head) for head in self._heads], first=1)

    def of_weights(self) -> dict[str, Tensor]:
        """Return the true rise and every saliency of all weights."""
        return {"increase": self._rises, **{name: one.single for name, one in self._saliencies.items()}}

    def _rise(self, points: Float[Tensor, "k dim"]) -> Float[Tensor, " k"]:
        return self.subject.losses(points.to(self.subject.weights)) - self._before if len(points) else torch.empty(0)

    def _all(self, generator: Generator) -> Iterator[tuple[str, _Saliency]]:
        weights, found = self._weights, self.subject.surrogates(PRUNED_BY)
        slope = self.subject.flat(LossGradient(self.subject.problem).gradient).double().cpu()
        curved = obd(weights, found[Surrogate.hessian].diagonal())
        yield "random", self._additive(torch.rand(len(weights), generator=generator, dtype=torch.float64))
        yield "magnitude", self._additive(weights.square())
        yield "taylor", self._additive(curved - slope * weights)
        for name, matrix in found.items():
            yield f"obd_{name}", self._additive(obd(weights, matrix.diagonal()))
            inverse = damped_inverse(matrix, self._request.at.config.compression.damping)
            path = torch.stack(list(surgery(weights, inverse, self._counts)))
            yield f"obs_{name}", _Saliency(obs(weights, inverse), path, inverse, weights)

    def _additive(self, single: Tensor) -> _Saliency:
        return _Saliency(single, zeroed(self._weights, single.argsort(stable=True), self._counts))

    def _along(self, name: str, values: Sequence[float], *, first: int = 0) -> Iterator[Row]:
        for place, value in enumerate(values, first):
            yield state_row(name, self._request, value, block=self.subject.block, index=place)

    def _correlation(self, name: str, one: Tensor, other: Tensor) -> Row:
        """Return Spearman's correlation of saliencies with rises; what is rounding of 0 (as of b_K) has equal ranks."""
        saliencies = _flushed(one, self._rounding * float(one.abs().max()) if len(one) else 0.0)
        found, count = spearman(saliencies, _flushed(other, self._rounding * abs(self._before))), len(one)
        error = (1 - found**2) * (_FIELLER / (count - 3)) ** 0.5 if count > 3 else nan
        return state_row(name, self._request, Estimate(found, error, 0, EXACT), block=self.subject.block)


def zeroed_each(groups: Groups, weights: Float[Tensor, " dim"]) -> Float[Tensor, "k dim"]:
    """Return the weights with one group of entries at zero, a row for every group."""
    found = weights.repeat(len(groups), 1)
    for row, group in zip(found, groups, strict=True):
        row[group] = 0.0
    return found


def spearman(one: Float[Tensor, " n"], other: Float[Tensor, " n"]) -> float:
    """Return Spearman's rank correlation, ties sharing the mean of their ranks; nan where one does not change."""
    return float(torch.corrcoef(torch.stack([_ranks(one), _ranks(other)]))[0, 1]) if len(one) > 1 else nan


def _flushed(values: Float[Tensor, " n"], least: float) -> Float[Tensor, " n"]:
    """Return values with 0 in place of those that are smaller than `least` in size."""
    return torch.where(values.abs() < least, 0.0, values)


def _ranks(values: Float[Tensor, " n"]) -> Float[Tensor, " n"]:
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[places]


def _heads(subject: Subject, request: Request) -> Groups:
    """Return the entries of every head, layer by layer: rows of W_Q, W_K and W_V, columns of W_O.

    None for networks whose attention is not known, or shares keys among heads.
    """
    if not {Matrix.W_O, *_BY_ROWS} <= {*matrices_of(request.model)} or request.model.n_kv_heads:
        return []
    found: dict[tuple[int, int], list[Tensor]] = {}
    for weight, shape, places in subject.matrices:
        if weight.name in (*_BY_ROWS, Matrix.W_O):
            cuts = (places.view(shape).T if weight.name == Matrix.W_O else places.view(shape)).chunk(
                request.model.n_heads
            )
            for head, cut in enumerate(cuts):
                found.setdefault((weight.layer, head), []).append(cut.flatten())
    return [torch.cat(found[key]) for key in sorted(found)]
