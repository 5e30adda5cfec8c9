"""Frobenius norms of blocks, column by column: by probes, dense or exact."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import torch
from jaxtyping import Float, Shaped
from torch import Generator, Tensor

from hessfig.config.enums import Draws, DType, Method
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.curvature.column import (
    MEMORY_BOUND,
    PROBES_AT_ONCE,
    SPLIT,
    Column,
    Products,
    Squares,
    cast_chunks,
    cast_probes,
    chunks,
    completed,
    lengths,
    multiplied,
    products_of,
    squared_norms,
    summands,
)
from hessfig.curvature.differences import ROUGHEST, DifferencedColumn
from hessfig.curvature.double_backward import differentiable_twice
from hessfig.curvature.problem import Objective, OtherNetwork, rademacher
from hessfig.curvature.rounding import deviation, norm, unit_of
from hessfig.measurements.exact_choice import expensive_blocks, is_turned
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    block_row,
    columns,
    exact,
)
from hessfig.measurements.settings_and_costs import is_cheap, is_few
from hessfig.models.routes import Engines
from hessfig.record import FROBENIUS
from hessfig.terms import Block, Part

if TYPE_CHECKING:
    from hessfig.curvature.curvlinops import ColumnOperator

COLUMNS_AT_ONCE = 64
Axes = tuple[Float[Tensor, "rows rows"], Float[Tensor, "cols cols"]]
Norms = dict[tuple[Block, Part], Estimate]


def frobenius(objective: Objective, request: Request) -> Measured:
    """Return one row per block and part: ||H_part(row, col)||_F."""
    model = request.model
    task = request.at.config.task
    settings = request.estimator
    expensive = expensive_blocks(
        model, task, settings, request.blocks, request.parts, request.dtype
    )
    estimator = Estimator(
        objective, model, settings, request.probe_counts, expensive, task
    )
    rows = []
    for layer, col, blocks in columns(request.blocks):
        if request.estimator.probes == Draws.published:
            norms = _by_published_probes(estimator, request, layer, col, blocks)
        else:
            norms = estimator.column_norms(
                layer, col, blocks, request.parts, generator=request.stream(layer, col)
            )
        rows += [
            block_row(FROBENIUS, request, *key, norm) for key, norm in norms.items()
        ]
    return Measured(rows)


@dataclass(frozen=True)
class ColumnRequest:
    """A request for one column: blocks, parts, and the generator of the probes."""

    layer: int
    col: str
    blocks: Sequence[Block]
    parts: Sequence[Part]
    generator: Generator

    @property
    def diagonal(self) -> Block:
        """The column's diagonal block."""
        return Block(self.layer, self.col, self.col)


class Estimator:
    """Frobenius norms of the blocks of `problem`, column by column.

    `allotted`: how many probes `auto` takes for a column of that name, instead of
    settings.num_probes. `expensive`: blocks that `auto` probes although they have an
    exact norm. `task`: the data, whose sizes say whether `auto` turns probes.
    """

    def __init__(
        self,
        objective: Objective,
        model: ModelConfig,
        settings: EstimatorConfig,
        allotted: Mapping[str, int] | None = None,
        expensive: Collection[Block] = (),
        task: TaskConfig | None = None,
    ) -> None:
        self.problem, self.model, self.settings = objective, model, settings
        self.expensive, self.task = expensive, task or TaskConfig()
        self.engines = Engines(objective, model, settings.products)
        self.allotted = allotted or {}
        self._takes_exact = (
            True  # until the exact engine finds that this is another network
        )

    def column_norms(
        self,
        layer: int,
        col: str,
        blocks: Sequence[Block],
        parts: Sequence[Part],
        *,
        generator: Generator,
    ) -> Norms:
        """Return ||H_part(block)||_F for every block of one column and every part."""
        ways: dict[Method, Callable[[ColumnRequest], Norms]] = {
            **{
                Method.auto: self.by_auto,
                Method.exact: self.by_exact,
                Method.dense: self.by_dense,
            },
            **{
                Method.hutchinson: self.by_probes,
                Method.aligned: self.by_probes,
                Method.xtrace: self.by_xtrace,
            },
        }
        return ways[self.settings.method](
            ColumnRequest(layer, col, blocks, parts, generator)
        )

    def column(self, asked: ColumnRequest) -> Column:
        """Return the operator of the column."""
        return self.engines.column(asked.layer, asked.col, asked.blocks)

    def by_probes(self, asked: ColumnRequest) -> Norms:
        """Return norms from plain probes, or from probes in the axes of the diagonal block of a weight matrix."""
        column, is_plain = self.column(asked), self.settings.method == Method.hutchinson
        is_aligned = not is_plain and len(column.shape) == 2
        return self._probed(
            asked, column, self.settings.num_probes, is_aligned=is_aligned
        )

    def by_dense(self, asked: ColumnRequest) -> Norms:
        """Return norms of dense blocks."""
        column = self.column(asked)
        return _as_norms(dense_norms(column, asked.parts), column)

    def by_xtrace(self, asked: ColumnRequest) -> Norms:
        """Return norms by XTrace of the squared block."""
        from hessfig.curvature.curvlinops import ColumnOperator

        (block,), count = asked.blocks, self.settings.num_probes
        column = ColumnOperator(self.problem, block.layer, block.col, [block.col])
        return {
            (block, part): _xtrace_norm(column, part, count, asked.generator)
            for part in asked.parts
        }

    def by_exact(self, asked: ColumnRequest) -> Norms:
        """Return norms from the exact engine."""
        rows = [block.row for block in asked.blocks]
        norms = self.engines.exact.column(asked.layer, asked.col, rows, asked.parts)
        keys = product(asked.blocks, asked.parts)
        return {
            (block, part): exact(norms[block.row, part], Method.exact)
            for block, part in keys
        }

    def by_auto(self, asked: ColumnRequest) -> Norms:
        """Compute exact norms where they are cheaper than probes; the other rows of the column share their probes."""
        norms: Norms = {}
        for cheap, alike in self._by_cheap_parts(asked).items():
            if cheap:
                norms |= self._exact_if_same(replace(asked, blocks=alike, parts=cheap))
            probed = [part for part in asked.parts if (alike[0], part) not in norms]
            if probed:
                norms |= self._auto_probed(replace(asked, blocks=alike, parts=probed))
        return {key: norms[key] for key in product(asked.blocks, asked.parts)}

    def _exact_if_same(self, asked: ColumnRequest) -> Norms:
        try:
            return self.by_exact(asked)
        except OtherNetwork as error:
            self._takes_exact = False
            warnings.warn(f"{error}; auto probes it", RuntimeWarning, stacklevel=2)
            return {}

    def _auto_probed(self, asked: ColumnRequest) -> Norms:
        column = self.column(asked)
        count = self.allotted.get(str(asked.col), self.settings.num_probes)
        if column.dim <= count or is_few(self.problem.layout, asked.layer, asked.col):
            dense = _as_norms(dense_norms(column, asked.parts), column)
            return {
                key: replace(norm, by=Method.dense.value) for key, norm in dense.items()
            }
        is_aligned = (
            asked.diagonal in asked.blocks
            and len(column.shape) == 2
            and self._is_turned(asked, column)
        )
        return self._probed(asked, column, count, is_aligned=is_aligned)

    def _is_turned(self, asked: ColumnRequest, column: Column) -> bool:
        dtype = DType.float32 if column.dtype == torch.float32 else DType.float64
        return is_turned(
            self.model, self.task, self.settings, asked.diagonal, column.dim, dtype
        )

    def _probed(
        self, asked: ColumnRequest, column: Column, count: int, *, is_aligned: bool
    ) -> Norms:
        if is_aligned:
            return _as_norms(
                aligned(
                    column,
                    asked.diagonal,
                    asked.parts,
                    count,
                    generator=asked.generator,
                ),
                column,
            )
        return _as_norms(
            hutchinson(column, asked.parts, count, generator=asked.generator), column
        )

    def _by_cheap_parts(
        self, asked: ColumnRequest
    ) -> dict[tuple[Part, ...], list[Block]]:
        """Group the blocks by the parts whose exact norm is cheap."""
        groups: dict[tuple[Part, ...], list[Block]] = {}
        for block in asked.blocks:
            cheap = tuple(part for part in asked.parts if self._is_cheap(block, part))
            groups.setdefault(cheap, []).append(block)
        return groups

    def _is_cheap(self, block: Block, part: Part) -> bool:
        return self._takes_exact and is_cheap(self.model, block, part, self.expensive)


def _by_published_probes(
    estimator: Estimator,
    request: Request,
    layer: int,
    col: str,
    blocks: Sequence[Block],
) -> Norms:
    """Return norms from the published probes: each part has its own."""
    from hessfig.states.published import signs

    column = estimator.engines.column(layer, col, blocks)
    at = request.at
    norms = Norms()
    assert at.sigma is not None, "published states are along sigma"
    for part in request.parts:
        probes = signs(
            at.config,
            column.shape,
            sigma=at.sigma,
            seed=at.seed,
            layer=layer,
            col=col,
            part=part,
        )
        norms |= _as_norms(_estimates(column, [part], probes.to(column.dtype)), column)
    return norms


def dense_blocks(
    column: Column, parts: Sequence[Part] = SPLIT
) -> dict[tuple[Hashable, Part], Float[Tensor, "n dim"]]:
    """Return `parts` of every row of `column` by multiplying with the identity, chunk by chunk."""
    return multiplied(
        column, torch.eye(column.dim, dtype=column.dtype), parts, COLUMNS_AT_ONCE
    )


def dense_parts(
    column: Column, parts: Sequence[Part]
) -> dict[tuple[Hashable, Part], Float[Tensor, "n dim"]]:
    """Return `parts` of every row of `column` as matrices, H as the sum of two others (see `summands`)."""
    return completed(dense_blocks(column, products_of(column, parts)), parts)


def dense_norms(
    column: Column, parts: Sequence[Part]
) -> dict[tuple[Hashable, Part], Estimate]:
    """Return the exact ||.||_F of every row and part of `column`."""
    return {
        key: Estimate(norm(block), 0.0, 0)
        for key, block in dense_parts(column, parts).items()
    }


def hutchinson(
    column: Column, parts: Sequence[Part], num_probes: int, *, generator: Generator
) -> dict[tuple[Hashable, Part], Estimate]:
    """Estimate ||.||_F of every row and part of `column` from `num_probes` shared Rademacher probes."""
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=torch.int8)
    return _estimates(column, parts, probes)


def _estimates(
    column: Column, parts: Sequence[Part], probes: Shaped[Tensor, "dim k"]
) -> dict[tuple[Hashable, Part], Estimate]:
    samples = [
        squared_norms(column, parts, chunk) for chunk in cast_chunks(probes, column)
    ]
    return {key: _estimated([sample[key] for sample in samples]) for key in samples[0]}


def aligned(
    column: Column,
    block: Hashable,
    parts: Sequence[Part],
    num_probes: int,
    *,
    generator: Generator,
) -> dict[tuple[Hashable, Part], Estimate]:
    """Estimate ||.||_F of every row and part with `num_probes` products, two thirds in the axes of `block`.

    `block` is the column's diagonal block and must be among its rows.

    With Rademacher v the variance of ||A v||^2 comes from the off-diagonal entries of
    A^2 alone, and a block of the Hessian of an m x n weight is close to a sum of few
    Kronecker products G x P. The first third of the probes is plain; the left and right
    singular vectors L, R of their products, read as m x n matrices, estimate the
    eigenvectors of G and P, and every further probe is L Z R^T with Z Rademacher. E[v
    v^T] = I whatever L and R are, so every ||A v||^2 is an unbiased sample of
    ||A||_F^2, and all are averaged alike (axes as in EKFAC, George et al. 2018).
    """
    first = max(1, min(PROBES_AT_ONCE, num_probes // 3))
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=torch.int8)
    sketches = column.split_matmat(
        cast_probes(probes[:, :first], column),
        tuple(dict.fromkeys([*SPLIT, *summands(parts)])),
    )
    axes = [
        axis.to(column.like.device) for axis in _axes(sketches, block, column.shape)
    ]
    turned = (
        _turn(some, axes, column)
        for some in probes[:, first:].split(_turned_at_once(column.dim), dim=1)
    )
    rest = [
        squared_norms(column, parts, chunk)
        for some in turned
        for chunk in chunks(some, column, PROBES_AT_ONCE)
    ]
    samples = [lengths(sketches, parts), *rest]
    return {key: _estimated([sample[key] for sample in samples]) for key in samples[0]}


def _estimated(samples: Sequence[Squares]) -> Estimate:
    squares = Squares.joined(samples)
    norm = root_of_mean(squares.values)
    return replace(
        norm, value=norm.value * squares.unit, error=norm.error * squares.unit
    )


def root_of_mean(squared_norms: Float[Tensor, " num_probes"]) -> Estimate:
    """Estimate ||A||_F from ||A v_k||^2 of independent probes with E[v v^T] = I (Hutchinson).

    E ||A v||^2 = ||A||_F^2, so frob = sqrt(m) with m the mean. Its standard error is
    that of m taken through the square root to first order (delta method): std / sqrt(K)
    / (2 sqrt(m)). NaN for a single probe.
    """
    count, mean = len(squared_norms), squared_norms.mean()
    frob = mean.sqrt().item()
    if frob == 0.0:
        return Estimate(0.0, 0.0, count)
    spread = deviation(squared_norms) if count > 1 else float("nan")
    return Estimate(frob, spread / count**0.5 / (2 * frob), count)


def _axes(sketches: Products, block: Hashable, shape: torch.Size) -> Axes:
    """Return the left and right singular vectors of the sketches, H_o's and H_f's weighing the same.

    Sketches that are not finite have none: the coordinate axes stand in, and the norm
    comes out not finite.
    """
    split = [
        sketches[block, part].double().T.unflatten(1, shape)
        for part in (Part.H_o, Part.H_f)
    ]
    sizes = [images.new_tensor(_size_of(images)) for images in split]
    scaled = torch.cat(
        [images / size for images, size in zip(split, sizes, strict=True)]
    )
    if not scaled.isfinite().all():
        return torch.eye(shape[0], dtype=torch.float64), torch.eye(
            shape[1], dtype=torch.float64
        )
    left = torch.einsum("kij,klj->il", scaled, scaled)
    right = torch.einsum("kij,kil->jl", scaled, scaled)
    return torch.linalg.eigh(left.cpu())[1], torch.linalg.eigh(right.cpu())[1]


def _size_of(images: Tensor) -> float:
    """Return the norm, which is at least 1e-38 if its squares are in range."""
    size, plain = norm(images), float(images.norm())
    return max(size, torch.finfo(torch.float32).tiny) if plain**2 else size or 1.0


def _turned_at_once(dim: int) -> int:
    """Return how many probes are turned together: all, unless they would exceed MEMORY_BOUND in float64."""
    return max(1, MEMORY_BOUND // (8 * dim))


def _turn(
    probes: Shaped[Tensor, "dim k"], axes: Sequence[Tensor], column: Column
) -> Float[Tensor, "dim k"]:
    left, right = axes
    signs = probes.to(left.device).double().T.unflatten(1, (len(left), len(right)))
    return (left @ signs @ right.T).flatten(1).T.to(column.dtype)


def _as_norms(
    estimates: Mapping[tuple[Hashable, Part], Estimate], column: Column
) -> Norms:
    norms = {
        (block, part): norm
        for (block, part), norm in estimates.items()
        if isinstance(block, Block)
    }
    if not isinstance(column, DifferencedColumn):
        return norms
    return {
        key: differenced(norm, column.relative_error(*key))
        for key, norm in norms.items()
    }


def differenced(norm: Estimate, off: float) -> Estimate:
    """Return a norm with the relative error `off` of its products added to its error.

    Beyond ROUGHEST it is rough: a kink crossed by the step, or rounding as large as the
    products. A norm of zero has no error then, because the effect of rounding is not
    known.
    """
    error = math.hypot(norm.error, off * norm.value)
    return replace(
        norm, error=error if norm.value else math.nan, is_unreliable=not off <= ROUGHEST
    )


def _xtrace_norm(
    column: ColumnOperator, part: Part, num_probes: int, generator: Generator
) -> Estimate:
    """Take the root of XTrace's estimate of ||A||_F^2; curvlinops gives no error with it (NaN)."""
    from hessfig.curvature.curvlinops import xtrace_squared_frobenius

    operator = column.square_operator(part)
    sketch = torch.ones(column.dim, 1, dtype=column.dtype)
    with differentiable_twice():
        image = operator @ sketch
        if not image.any():
            return Estimate(0.0, 0.0, 0)
        unit = unit_of(image)
        scaled = operator if unit == 1.0 else (1 / unit) * operator
        squared = xtrace_squared_frobenius(scaled, num_probes, generator=generator)
    return Estimate(max(squared, 0.0) ** 0.5 * unit, float("nan"), num_probes)
