"""Quantity `along`: blocks of H, H_o and H_f times named directions, split by weight and layer."""

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from hessfig.config.enums import NamedDirection
from hessfig.curvature.column import Column, entries_of, multiplied, view_of
from hessfig.curvature.gradients import LossGradient, above_rounding
from hessfig.curvature.problem import Objective
from hessfig.curvature.rounding import norm, unit_of
from hessfig.curvature.spectral.extremes import End
from hessfig.curvature.spectral.lanczos import NotFinite, Square
from hessfig.measurements.approximations import layers_of_entries
from hessfig.measurements.eigenvalues import extremes_of, square_columns
from hessfig.measurements.quantity import (
    Measured,
    Request,
    Row,
    block_row,
    exact,
    state_row,
    state_rows,
)
from hessfig.measurements.stability import Named, update_of
from hessfig.terms import Block, Optimiser, Part
from hessfig.weights import Weight

_LEAST_VALUE = 1e-3  # share of the largest singular value below which values are left out of exponents
_FEWEST = 3  # smallest number of points of an exponent
_BY = "products"
Numbers = dict[str, float]
Vector = Float[Tensor, " n"]


class StateDirections:
    """The named directions of a state, restricted to the weights of a block; float64, on the CPU."""

    def __init__(self, objective: Objective, request: Request) -> None:
        self._problem, self._request = objective, request
        settings = request.at.config.directions
        self.headings = settings.named
        self.rules = settings.rules or [request.at.config.training.optimiser]

    @cached_property
    def gradient(self) -> Named:
        """The gradient of the loss on the measuring batch, by parameter."""
        return LossGradient(self._problem).gradient

    @cached_property
    def _signs(self) -> Named:
        reliable = above_rounding(self._problem)
        return {
            name: slope.sign() * reliable[name] for name, slope in self.gradient.items()
        }

    @cached_property
    def _updates(self) -> dict[Optimiser, Named]:
        at = self._request.at
        return {
            rule: update_of(self._problem, at, rule, at.config.directions.gradients)
            for rule in self.rules
        }

    def of(self, block: Block, column: Column) -> Iterator[tuple[str, Vector, bool]]:
        """Yield name, direction and whether its search converged, for all but the singular directions."""
        for heading in self.headings:
            if heading in list(End):
                vector, is_found = self._eigenvector(End(heading.value), block, column)
                yield f"{heading}_direction", vector, is_found
            elif heading == NamedDirection.update:
                for rule, one in self._updates.items():
                    yield f"{rule}_update", self.entries(one, block), True
            elif heading != NamedDirection.singular:
                yield f"{heading}_direction", self._plain(heading, block), True

    def entries(self, named: Named, block: Block) -> Vector:
        """Return the entries of a block's weights in tensors that are given by parameter."""
        side = self._problem.layout.side(block.layer, block.col)
        return entries_of(named, side).detach().double().cpu()

    def singular(
        self, block: Block
    ) -> tuple[Float[Tensor, " k"], Float[Tensor, "n k"]] | None:
        """Return singular values of the gradient of a block of one matrix, and u_k v_k^T as columns; None for others.

        A tensor with more axes (the kernels of a convolution) is a matrix with one row
        per entry of the first axis.
        """
        side = self._problem.layout.side(block.layer, block.col)
        if NamedDirection.singular not in self.headings or len(side) > 1:
            return None
        gradient = view_of(self.gradient[side[0].parameter], side[0])
        if gradient.ndim < 2:
            return None
        matrix = gradient.flatten(1).double().cpu()
        if not bool(matrix.isfinite().all()):
            return None
        left, values, right = torch.linalg.svd(matrix, full_matrices=False)
        return values, torch.einsum("ik,kj->ijk", left, right).flatten(0, 1)

    def _plain(self, heading: NamedDirection, block: Block) -> Vector:
        if heading == NamedDirection.random:
            dim = self._problem.layout.size(block.layer, block.col)
            generator = self._stream(block)
            return torch.randn(dim, dtype=torch.float64, generator=generator)
        if heading == NamedDirection.sign:
            return self.entries(self._signs, block)
        return self.entries(self.gradient, block)

    def _eigenvector(
        self, end: End, block: Block, column: Column
    ) -> tuple[Vector, bool]:
        square = Square(column, block, Part.H)
        try:
            extremes = extremes_of(
                square, end, self._request.spectrum, self._stream(block)
            )
        except NotFinite:
            return torch.full((square.dim,), torch.nan, dtype=torch.float64), False
        return extremes.vectors[:, 0].double().cpu(), extremes.converged

    def _stream(self, block: Block) -> torch.Generator:
        return self._request.stream(block.layer, block.col)


def along(objective: Objective, request: Request) -> Measured:
    """Return curvatures along named directions d, restricted to each block: exact products, no probes.

    By part A of the block: `curvature` d.Ad / |d|^2, `product` |Ad| / |d|, `cosine`
    d.Ad / (|d| |Ad|). For a block of several weights a, b, with C_ab = d_a.A_ab d_b /
    |d|^2, the curvature is `within_weights` sum_a C_aa plus `across_weights`;
    `within_layers` is the sum over a, b of one layer (a weight outside of the layers is
    one by itself). Without a part: `slope` g.d / |d|, `length` |d|. For a block of one
    matrix, with its gradient sum_k s_k u_k v_k^T, the same of u_k v_k^T (`index` k),
    s_k as `singular_direction_value`, and exponents over k with s_k at least a
    thousandth of s_1 and h_k = the curvature > 0: `curvature_exponent` of h_k in s_k,
    `singular_decay` of 1 / s_k in k, `curvature_decay` of 1 / h_k in k;
    `curvature_positive`: the share of these k with h_k > 0. Numbers of a vector 0 are
    NaN.
    """
    named = StateDirections(objective, request)
    rows = list[Row]()
    for block, column in square_columns(objective, request):
        side = objective.layout.side(block.layer, block.col)
        slope = named.entries(named.gradient, block)
        for name, vector, is_found in named.of(block, column):
            unit = unit_of(vector)
            vector = vector / unit
            rows += _facts(name, request, block, slope, vector, unit)
            for part, numbers in _split(
                objective, column, block, request, side, vector
            ).items():
                rows += _rows(
                    name, request, block, part, numbers, is_unreliable=not is_found
                )
        rows += _singular(named, column, block, request)
    return Measured(rows)


def _facts(
    name: str,
    request: Request,
    block: Block,
    slope: Vector,
    vector: Vector,
    unit: float,
) -> list[Row]:
    length = float(vector.norm())
    per_length = math.nan
    if length:
        per_length = float(slope @ vector) / length
    facts = {f"{name}_slope": per_length, f"{name}_length": length * unit}
    return state_rows(request, facts, block=block)


def _rows(
    name: str,
    request: Request,
    block: Block,
    part: Part,
    numbers: Numbers,
    *,
    index: int | None = None,
    is_unreliable: bool = False,
) -> list[Row]:
    rows = []
    for number, value in numbers.items():
        estimate = exact(value, _BY, is_unreliable=is_unreliable)
        key = f"{name}_{number}"
        rows.append(block_row(key, request, block, part, estimate, index=index))
    return rows


def _split(
    objective: Objective,
    column: Column,
    block: Block,
    request: Request,
    side: tuple[Weight, ...],
    vector: Vector,
) -> dict[Part, Numbers]:
    """Return the numbers of a direction by part. They take one product per piece of the block (`_pieces`)."""
    names, places = _pieces(objective, side)
    pieces = torch.zeros(len(vector), len(names), dtype=torch.float64)
    for number, rows in enumerate(places):
        pieces[rows, number] = vector[rows]
    products = _multiplied(column, block, request, pieces)
    squared = float(vector.square().sum())
    by_part = {}
    for part, product in products.items():
        if squared:
            shares = pieces.T @ product / squared
        else:
            shares = torch.full((len(names),) * 2, math.nan)
        whole = _whole(float(shares.sum()), product.sum(dim=1), squared)
        by_part[part] = whole | _within(shares, names)
    return by_part


class _Piece(NamedTuple):
    """Where entries of a block belong: the number of their weight, and their layer (0: outside the layers)."""

    weight: int
    layer: int


def _pieces(
    objective: Objective, side: tuple[Weight, ...]
) -> tuple[list[_Piece], list[Int[Tensor, " n"]]]:
    """Return the pieces of a block, one per weight and layer in it, and the places of their entries.

    A parameter of a network of one's own may hold the weights of several layers.
    """
    names = []
    places = []
    start = 0
    for number, weight in enumerate(side):
        layers = layers_of_entries(objective, weight)
        for layer in layers.unique().tolist():
            names.append(_Piece(number, layer))
            places.append(start + (layers == layer).nonzero().flatten())
        start += weight.size
    return names, places


def _multiplied(
    column: Column, block: Block, request: Request, vectors: Float[Tensor, "n k"]
) -> dict[Part, Tensor]:
    """Return the products A V of every part A, in float64 on the CPU."""
    products = multiplied(column, vectors, request.parts)
    return {part: products[block, part].double().cpu() for part in request.parts}


def _whole(curvature: float, product: Vector, squared: float) -> Numbers:
    size = norm(product) / squared**0.5 if squared else math.nan
    cosine = curvature / size if size else math.nan
    return {"curvature": curvature, "product": size, "cosine": cosine}


def _within(shares: Float[Tensor, "p p"], pieces: Sequence[_Piece]) -> Numbers:
    """Return the curvature within weights and layers and across them; an empty dictionary for a single weight."""
    weights = [piece.weight for piece in pieces]
    if len(set(weights)) == 1:
        return {}
    total = float(shares.sum())
    others = shares - shares.diag().diag()
    within = float(shares.trace() + others[_alike(weights)].sum())
    numbers = {"within_weights": within, "across_weights": total - within}
    if any(piece.layer for piece in pieces):
        layers = [piece.layer or f"weight {piece.weight}" for piece in pieces]
        within = float(shares[_alike(layers)].sum())
        numbers |= {"within_layers": within, "across_layers": total - within}
    return numbers


def _alike(groups: Sequence[object]) -> Bool[Tensor, "p p"]:
    """Return which pairs are of the same group."""
    return torch.tensor([[one == other for other in groups] for one in groups])


def _singular(
    named: StateDirections, column: Column, block: Block, request: Request
) -> Iterator[Row]:
    """Yield the rows of the singular directions of the gradient of a block, and their exponents."""
    pair = named.singular(block)
    if pair is None:
        return
    values, vectors = pair
    name = "singular_direction"
    places = range(1, len(values) + 1)
    for k, value in zip(places, values.tolist(), strict=True):
        yield state_row(f"{name}_value", request, value, block=block, index=k)
    at = torch.arange(1, len(values) + 1).double()
    yield state_row(
        "singular_decay", request, -_slope(at, values, _counts(values)), block=block
    )
    for part, products in _multiplied(column, block, request, vectors).items():
        heights = (vectors * products).sum(dim=0)
        for k, height, product in zip(
            places, heights.tolist(), products.T, strict=True
        ):
            yield from _rows(
                name, request, block, part, _whole(height, product, 1.0), index=k
            )
        counts = _counts(values)
        fits = {
            "exponent": _slope(values, heights, counts),
            "decay": -_slope(at, heights, counts),
            "positive": float((heights[counts] > 0).double().mean()),
        }
        yield from _rows("curvature", request, block, part, fits)


def _counts(values: Vector) -> Bool[Tensor, " n"]:
    """Return which singular values are used in exponents."""
    return (values > 0) & (values >= _LEAST_VALUE * values[0])


def _slope(x: Vector, y: Vector, counts: Bool[Tensor, " n"]) -> float:
    """Return the slope of log y on log x by least squares, where both count and y > 0; NaN of too few points."""
    kept = counts & (y > 0)
    if int(kept.sum()) < _FEWEST:
        return math.nan
    at = x[kept].log()
    to = y[kept].log()
    at = at - at.mean()
    return float(at @ to / at.square().sum())
