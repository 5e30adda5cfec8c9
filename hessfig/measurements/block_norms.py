r"""Frobenius norms of blocks, column by column: by probes, dense or exact.

For a block A = H_part(row, col) and vectors v with E[v v^T] = I,

.. math:: \mathbb{E} \, |A v|^2 = \operatorname{tr}\big(A^T A \, \mathbb{E}[v v^T]\big) = \|A\|_F^2,

so one product per probe gives a sample of the squared norm of every block and part of a
column (`hutchinson`). Turned probes have the same mean with a smaller variance
(`aligned`), XTrace takes more from its products (`by_xtrace`), and dense blocks and exact
formulas have no error.
"""

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
    COLUMNS_AT_ONCE,
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

Axes = tuple[Float[Tensor, "rows rows"], Float[Tensor, "cols cols"]]
Norms = dict[tuple[Block, Part], Estimate]


def frobenius(objective: Objective, request: Request) -> Measured:
    """Return one row per block and part: ||H_part(row, col)||_F.

    Blocks of one column share their probes, whose stream depends on the state, the layer and
    the column, but not on blocks or parts. Published probes differ by part.
    """
    model = request.model
    task = request.at.config.task
    settings = request.estimator
    parts = request.parts
    expensive = expensive_blocks(
        model, task, settings, request.blocks, parts, request.dtype
    )
    estimator = Estimator(
        objective, model, settings, request.probe_counts, expensive, task
    )
    rows = []
    for layer, col, blocks in columns(request.blocks):
        if settings.probes == Draws.published:
            norms = _by_published_probes(estimator, request, layer, col, blocks)
        else:
            generator = request.stream(layer, col)
            norms = estimator.column_norms(
                layer, col, blocks, parts, generator=generator
            )
        for (block, part), estimate in norms.items():
            rows.append(block_row(FROBENIUS, request, block, part, estimate))
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
    """Frobenius norms of the blocks of `objective`, column by column.

    Parameters
    ----------
    objective : Objective
    model : ModelConfig
        For engines that know its kind.
    settings : EstimatorConfig
    allotted : dict, optional
        How many probes `auto` takes for a column of that name, instead of
        settings.num_probes.
    expensive : collection of Block
        Blocks that `auto` probes although they have an exact norm.
    task : TaskConfig, optional
        The data, whose sizes say whether `auto` turns probes.
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
        self.problem = objective
        self.model = model
        self.settings = settings
        self.expensive = expensive
        self.task = task or TaskConfig()
        self.allotted = allotted or {}
        self.engines = Engines(objective, model, settings.products)
        # Until the exact engine finds that this is another network.
        self._takes_exact = True

    def column_norms(
        self,
        layer: int,
        col: str,
        blocks: Sequence[Block],
        parts: Sequence[Part],
        *,
        generator: Generator,
    ) -> Norms:
        """Return ||H_part(block)||_F for every block of one column and every part.

        Parameters
        ----------
        layer, col
            The column.
        blocks : sequence of Block
            With this `col`.
        parts : sequence of Part
        generator : Generator
            Of the probes.

        Returns
        -------
        dict
            An Estimate for each (block, part).
        """
        ways: dict[Method, Callable[[ColumnRequest], Norms]] = {
            Method.auto: self.by_auto,
            Method.exact: self.by_exact,
            Method.dense: self.by_dense,
            Method.hutchinson: self.by_probes,
            Method.aligned: self.by_probes,
            Method.xtrace: self.by_xtrace,
        }
        request = ColumnRequest(layer, col, blocks, parts, generator)
        return ways[self.settings.method](request)

    def column(self, request: ColumnRequest) -> Column:
        """Return the operator of the column."""
        return self.engines.column(request.layer, request.col, request.blocks)

    def by_probes(self, request: ColumnRequest) -> Norms:
        """Return norms from plain probes, or from probes in the axes of the diagonal block of a weight matrix.

        `aligned` needs a matrix: biases, gains and groups have plain probes.
        """
        column = self.column(request)
        is_matrix = len(column.shape) == 2
        is_aligned = self.settings.method == Method.aligned and is_matrix
        count = self.settings.num_probes
        return _probed(request, column, count, is_aligned=is_aligned)

    def by_dense(self, request: ColumnRequest) -> Norms:
        """Return norms of dense blocks, ||A||_F^2 = sum of A_ij^2: one product per entry of the column's weight."""
        column = self.column(request)
        return _as_norms(dense_norms(column, request.parts), column)

    def by_xtrace(self, request: ColumnRequest) -> Norms:
        """Return norms by XTrace of the squared block, ||A||_F^2 = tr A^2 for a symmetric A.

        XTrace (Epperly, Tropp and Webber, 2024) takes the exact trace on the span of half its
        products and estimates the rest, with every test vector left out of the span in turn.
        Each of the `num_probes` products is with A A, two of A.
        """
        from hessfig.curvature.curvlinops import ColumnOperator

        (block,) = request.blocks
        count = self.settings.num_probes
        column = ColumnOperator(self.problem, block.layer, block.col, [block.col])
        norms: Norms = {}
        for part in request.parts:
            norms[block, part] = _xtrace_norm(column, part, count, request.generator)
        return norms

    def by_exact(self, request: ColumnRequest) -> Norms:
        """Return norms from the exact engine: closed forms without products, in float64."""
        layer = request.layer
        col = request.col
        parts = request.parts
        rows = [block.row for block in request.blocks]
        values = self.engines.exact.column(layer, col, rows, parts)
        norms: Norms = {}
        for block in request.blocks:
            for part in parts:
                norms[block, part] = exact(values[block.row, part], Method.exact)
        return norms

    def by_auto(self, request: ColumnRequest) -> Norms:
        """Compute exact norms where they are cheaper than probes; the other rows of the column share their probes.

        Blocks with the same cheap parts are taken together. The result is in the order of the
        blocks and parts of the request, whichever way each number was found.
        """
        norms: Norms = {}
        for cheap, blocks in self._by_cheap_parts(request).items():
            if cheap:
                norms |= self._exact_if_same(
                    replace(request, blocks=blocks, parts=cheap)
                )
            # Also those that the exact engine has just refused.
            probed = [part for part in request.parts if (blocks[0], part) not in norms]
            if probed:
                norms |= self._auto_probed(
                    replace(request, blocks=blocks, parts=probed)
                )
        return {key: norms[key] for key in product(request.blocks, request.parts)}

    def _exact_if_same(self, request: ColumnRequest) -> Norms:
        """Return exact norms; none, with a warning, of a network that the exact engine does not describe."""
        try:
            return self.by_exact(request)
        except OtherNetwork as error:
            self._takes_exact = False
            warnings.warn(f"{error}; auto probes it", RuntimeWarning, stacklevel=2)
            return {}

    def _auto_probed(self, request: ColumnRequest) -> Norms:
        """Return dense norms of short columns, and of longer ones those by probes, aligned where that pays.

        A column of no more entries than probes is dense at the cost of its probes. One of few
        entries is dense as well: K probes see little of a block with a few directions, and their
        standard error may be far too small.
        """
        column = self.column(request)
        count = self.allotted.get(str(request.col), self.settings.num_probes)
        is_short = is_few(self.problem.layout, request.layer, request.col)
        # As many probes as entries cost what the whole block costs.
        if column.dim <= count or is_short:
            dense = _as_norms(dense_norms(column, request.parts), column)
            by = Method.dense.value
            return {key: replace(norm, by=by) for key, norm in dense.items()}
        has_axes = request.diagonal in request.blocks and len(column.shape) == 2
        is_aligned = has_axes and self._is_turned(request, column)
        return _probed(request, column, count, is_aligned=is_aligned)

    def _is_turned(self, request: ColumnRequest, column: Column) -> bool:
        """Whether turning the probes into the axes of the diagonal block is worth its time."""
        dtype = DType.float64
        if column.dtype == torch.float32:
            dtype = DType.float32
        return is_turned(
            self.model, self.task, self.settings, request.diagonal, column.dim, dtype
        )

    def _by_cheap_parts(
        self, request: ColumnRequest
    ) -> dict[tuple[Part, ...], list[Block]]:
        """Group the blocks by the parts whose exact norm is cheap."""
        groups: dict[tuple[Part, ...], list[Block]] = {}
        for block in request.blocks:
            cheap = []
            for part in request.parts:
                if self._takes_exact and is_cheap(
                    self.model, block, part, self.expensive
                ):
                    cheap.append(part)
            groups.setdefault(tuple(cheap), []).append(block)
        return groups


def _probed(
    request: ColumnRequest, column: Column, count: int, *, is_aligned: bool
) -> Norms:
    """Return norms by `count` probes, plain or in the axes of the diagonal block."""
    parts, generator = request.parts, request.generator
    if is_aligned:
        block = request.diagonal
        estimates = aligned(column, block, parts, count, generator=generator)
    else:
        estimates = hutchinson(column, parts, count, generator=generator)
    return _as_norms(estimates, column)


def _by_published_probes(
    estimator: Estimator,
    request: Request,
    layer: int,
    col: str,
    blocks: Sequence[Block],
) -> Norms:
    """Return norms from the published probes: each part has its own.

    H, H_o and H_f then have independent errors, and H is not the sum of the others.
    """
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
    """Return `parts` of every row of `column` by multiplying with the identity, chunk by chunk.

    Column j of A is A e_j: `dim` products, which are exact up to rounding.
    """
    identity = torch.eye(column.dim, dtype=column.dtype)
    return multiplied(column, identity, parts, COLUMNS_AT_ONCE)


def dense_parts(
    column: Column, parts: Sequence[Part]
) -> dict[tuple[Hashable, Part], Float[Tensor, "n dim"]]:
    """Return `parts` of every row of `column` as matrices, H as the sum of two others (see `summands`)."""
    return completed(dense_blocks(column, products_of(column, parts)), parts)


def dense_norms(
    column: Column, parts: Sequence[Part]
) -> dict[tuple[Hashable, Part], Estimate]:
    """Return the exact ||.||_F of every row and part of `column`, from all entries."""
    norms = {}
    for key, matrix in dense_parts(column, parts).items():
        norms[key] = Estimate(norm(matrix), 0.0, 0)
    return norms


def hutchinson(
    column: Column, parts: Sequence[Part], num_probes: int, *, generator: Generator
) -> dict[tuple[Hashable, Part], Estimate]:
    r"""Estimate ||.||_F of every row and part of `column` from `num_probes` shared Rademacher probes.

    For v with independent entries +1 or -1, E[v v^T] = I, and therefore E |A v|^2 =
    ||A||_F^2: the estimate of the square is unbiased. With B = A^T A,

    .. math:: |A v|^2 = \operatorname{tr} B + \sum_{i \ne j} B_{ij} v_i v_j, \qquad
              \operatorname{Var} |A v|^2 = 2 \sum_{i \ne j} B_{ij}^2,

    since v_i^2 = 1 and the v_i v_j of different pairs are uncorrelated: columns of A that are
    orthogonal give no error at all. One product per probe serves all rows and parts of the
    column, so that their errors are correlated (see `root_of_mean`).

    Parameters
    ----------
    column : Column
        Operator from the space of `col`, of `dim` entries, to every row.
    parts : sequence of Part
    num_probes : int
    generator : Generator
        The first probes are the same whatever their number.

    Returns
    -------
    dict
        An Estimate for each row and part.

    References
    ----------
    Hutchinson, 1989 (see `hessfig.curvature.problem.rademacher`).

    Examples
    --------
    Inputs along the axes make H of a linear map diagonal, so that one probe is exact:

    >>> import hessfig
    >>> from hessfig.curvature import ColumnOperator
    >>> inputs, targets = torch.diag(torch.tensor([1.0, 3.0])), torch.zeros(2, 1)
    >>> problem = hessfig.Problem(torch.nn.Linear(2, 1, bias=False), inputs, targets, "mse")
    >>> column = ColumnOperator(problem.objective("float64"), 0, "weight", ["weight"])
    >>> one = hutchinson(column, [Part.H], 1, generator=Generator().manual_seed(0))
    >>> round(one["weight", Part.H].value ** 2, 6)
    82.0
    """
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=torch.int8)
    return _estimates(column, parts, probes)


def _estimates(
    column: Column, parts: Sequence[Part], probes: Shaped[Tensor, "dim k"]
) -> dict[tuple[Hashable, Part], Estimate]:
    """Return the norms that given probes estimate, chunk by chunk as memory allows."""
    samples = []
    for chunk in cast_chunks(probes, column):
        samples.append(squared_norms(column, parts, chunk))
    return _averaged(samples)


def aligned(
    column: Column,
    block: Hashable,
    parts: Sequence[Part],
    num_probes: int,
    *,
    generator: Generator,
) -> dict[tuple[Hashable, Part], Estimate]:
    r"""Estimate ||.||_F of every row and part with `num_probes` products, two thirds in the axes of `block`.

    `block` is the column's diagonal block and must be among its rows.

    With Rademacher v the variance of |A v|^2 comes from the off-diagonal entries of A^2
    alone (`hutchinson`), and a block of the Hessian of an m x n weight is close to a sum of
    few Kronecker products G (x) P. In the eigenvectors of G and P such a block is diagonal.
    The first third of the probes is plain; the left and right singular vectors L, R of their
    products, read as m x n matrices, estimate these eigenvectors, and every further probe is
    L Z R^T with Z Rademacher. As a vector it is (L (x) R) z, so

    .. math:: \mathbb{E}[v v^T] = (L \otimes R) \, \mathbb{E}[z z^T] \, (L \otimes R)^T = I

    for orthogonal L, R whatever they are, as z is independent of the first products. Every
    |A v|^2 is an unbiased sample of ||A||_F^2, and all are averaged alike (axes as in EKFAC,
    George et al. 2018). The first part has at most `PROBES_AT_ONCE` probes.

    Parameters
    ----------
    column : Column
        Of a weight matrix: `column.shape` is (m, n).
    block : key of a row
    parts, num_probes, generator
        As those of `hutchinson`.

    Examples
    --------
    Correlated inputs of a linear map with a squared loss: H is exactly G (x) I.

    >>> import hessfig
    >>> from hessfig.curvature import ColumnOperator
    >>> inputs, targets = torch.tensor([[2.0, 1.0, 0.0], [1.0, 2.0, 1.0]]), torch.zeros(2, 8)
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 8, bias=False), inputs, targets, "mse")
    >>> column = ColumnOperator(problem.objective("float64"), 0, "weight", ["weight"])
    >>> plain = hutchinson(column, [Part.H], 30, generator=Generator().manual_seed(0))
    >>> turned = aligned(column, "weight", [Part.H], 30, generator=Generator().manual_seed(0))
    >>> turned["weight", Part.H].error < plain["weight", Part.H].error / 2
    True
    """
    first = max(1, min(PROBES_AT_ONCE, num_probes // 3))
    probes = rademacher(column.dim, num_probes, generator=generator, dtype=torch.int8)
    plain, others = probes[:, :first], probes[:, first:]
    # H_o and H_f give the axes, whatever parts are asked for.
    needed = tuple(dict.fromkeys([*SPLIT, *summands(parts)]))
    sketches = column.split_matmat(cast_probes(plain, column), needed)
    left, right = _axes(sketches, block, column.shape)
    axes = left.to(column.like.device), right.to(column.like.device)
    samples = [lengths(sketches, parts)]
    for some in others.split(_turned_at_once(column.dim), dim=1):
        for chunk in chunks(_turned(some, axes, column), column, PROBES_AT_ONCE):
            samples.append(squared_norms(column, parts, chunk))
    return _averaged(samples)


def _averaged(
    samples: Sequence[Mapping[tuple[Hashable, Part], Squares]],
) -> dict[tuple[Hashable, Part], Estimate]:
    """Return the norm of every row and part from the squared lengths of all chunks of probes."""
    estimates = {}
    for key in samples[0]:
        estimates[key] = _estimated([sample[key] for sample in samples])
    return estimates


def _estimated(samples: Sequence[Squares]) -> Estimate:
    """Return the root of the mean of squared lengths, in the unit that they are measured in.

    Lengths are (A v / unit)^2, so that squares of tiny products do not underflow.
    """
    squares = Squares.joined(samples)
    norm = root_of_mean(squares.values)
    value, error = norm.value * squares.unit, norm.error * squares.unit
    return replace(norm, value=value, error=error)


def root_of_mean(squared_norms: Float[Tensor, " num_probes"]) -> Estimate:
    r"""Estimate ||A||_F from |A v_k|^2 of K independent probes with E[v v^T] = I (Hutchinson).

    With m the mean of the samples and s their standard deviation,

    .. math:: \|A\|_F \approx \sqrt{m}, \qquad \text{error} = \frac{s / \sqrt{K}}{2 \sqrt{m}}:

    the standard error of m, taken through the square root to first order (delta method).
    The mean of the root is below the norm by about error^2 / (2 norm). The error is NaN for a
    single probe, and 0 where all samples are 0.

    Examples
    --------
    Squared lengths of mean 9, whose standard error is 2.8868 = 0.4811 * 2 * 3:

    >>> import torch
    >>> estimate = root_of_mean(torch.tensor([4.0, 4.0, 14.0, 14.0]))
    >>> round(estimate.value, 4), round(estimate.error, 4), estimate.num_probes
    (3.0, 0.4811, 4)
    """
    count = len(squared_norms)
    frob = squared_norms.mean().sqrt().item()
    if frob == 0.0:
        return Estimate(0.0, 0.0, count)
    spread = deviation(squared_norms) if count > 1 else float("nan")
    return Estimate(frob, spread / count**0.5 / (2 * frob), count)


def _axes(sketches: Products, block: Hashable, shape: torch.Size) -> Axes:
    """Return the eigenvectors of sum_k X_k X_k^T and of sum_k X_k^T X_k over the sketches X_k, read as matrices.

    If A = G (x) P, a probe Z has the product G Z P, so that X X^T has the mean G^2 tr(P^2)
    and the eigenvectors of G; X^T X has those of P.

    The sketches of H_o and those of H_f are divided by their size, and weigh the same.
    Sketches that are not finite have none: the coordinate axes stand in, and the norm comes
    out not finite.
    """
    scaled = []
    for part in (Part.H_o, Part.H_f):
        images = sketches[block, part].double().T.unflatten(1, shape)
        scaled.append(images / images.new_tensor(_size_of(images)))
    # X_k, the k-th sketch as an m x n matrix.
    images = torch.cat(scaled)
    if not images.isfinite().all():
        rows, cols = shape
        return torch.eye(rows, dtype=torch.float64), torch.eye(
            cols, dtype=torch.float64
        )
    left = torch.einsum("kij,klj->il", images, images)
    right = torch.einsum("kij,kil->jl", images, images)
    return torch.linalg.eigh(left.cpu())[1], torch.linalg.eigh(right.cpu())[1]


def _size_of(images: Tensor) -> float:
    """Return the norm, which is at least 1e-38 if its squares are in range.

    A norm of 0 counts as 1, so that sketches of zero are not divided by it.
    """
    size = norm(images)
    if float(images.norm()) ** 2:
        return max(size, torch.finfo(torch.float32).tiny)
    return size or 1.0


def _turned_at_once(dim: int) -> int:
    """Return how many probes are turned together: all, unless they would exceed MEMORY_BOUND in float64.

    Examples
    --------
    >>> _turned_at_once(2**17)
    1024
    """
    return max(1, MEMORY_BOUND // (8 * dim))


def _turned(
    probes: Shaped[Tensor, "dim k"], axes: Axes, column: Column
) -> Float[Tensor, "dim k"]:
    """Return L Z R^T for every probe Z, read as an m x n matrix; 2 m n (m + n) operations each."""
    left, right = axes
    signs = probes.to(left.device).double().T.unflatten(1, (len(left), len(right)))
    return (left @ signs @ right.T).flatten(1).T.to(column.dtype)


def _as_norms(
    estimates: Mapping[tuple[Hashable, Part], Estimate], column: Column
) -> Norms:
    """Return the estimates of blocks, with the errors of products by differences added.

    Rows that are not blocks, which an operator may have besides, are left out.
    """
    norms: Norms = {}
    for (block, part), estimate in estimates.items():
        if not isinstance(block, Block):
            continue
        if isinstance(column, DifferencedColumn):
            off = column.relative_error(block, part)
            of_zero = math.nan if estimate.value else column.error_of_zero(block, part)
            norms[block, part] = differenced(estimate, off, of_zero)
        else:
            norms[block, part] = estimate
    return norms


def differenced(norm: Estimate, off: float, of_zero: float = math.nan) -> Estimate:
    """Return a norm with the relative error `off` of its products added to its error.

    The two are independent, so their squares add.

    Beyond ROUGHEST it is rough: a kink crossed by the step, or rounding as large as the
    products. A norm of zero has the error `of_zero`; without one the effect of rounding
    is not known, and it is rough.

    Examples
    --------
    >>> norm = differenced(Estimate(value=2.0, error=0.3, num_probes=20), off=0.2)
    >>> round(norm.error, 4)
    0.5
    """
    if not norm.value:
        return replace(norm, error=of_zero, is_unreliable=math.isnan(of_zero))
    error = math.hypot(norm.error, off * norm.value)
    return replace(norm, error=error, is_unreliable=not off <= ROUGHEST)


def _xtrace_norm(
    column: ColumnOperator, part: Part, num_probes: int, generator: Generator
) -> Estimate:
    """Take the root of XTrace's estimate of ||A||_F^2; curvlinops gives no error with it (NaN).

    A is divided by the unit of A 1 before it is squared, so that A A does not under- or
    overflow; an estimate below 0 counts as 0.
    """
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
