"""Quantities of pruning, quantisation and rounding: the exact loss with weights removed or rounded, in batches."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from math import nan

import torch
from jaxtyping import Float
from torch import Generator, Tensor
from torch.func import vmap

from hessfig.curvature.approximations.named import Material, SampleGradients
from hessfig.curvature.column import Column, entries_of, view_of
from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.problem import Objective, evaluating
from hessfig.errors import UserError
from hessfig.measurements.block_norms import dense_parts
from hessfig.measurements.eigenvalues import square_columns
from hessfig.measurements.quantity import (
    EXACT,
    Arrays,
    Estimate,
    Measured,
    Request,
    Row,
    state_row,
)
from hessfig.models.blocks import matrices_of
from hessfig.studies.removal import brain_surgeon
from hessfig.studies.removal.brain_surgeon import Vector
from hessfig.studies.removal.row_names import PRUNED_BY, Surrogate
from hessfig.terms import Approximation, Block, Matrix, Part
from hessfig.weights import Weight

# Limits of a batch of points at which the loss is evaluated: number, memory.
AT_ONCE = 64
BYTES = 2**28


class PerturbedBlock:
    """A diagonal block whose weights are changed: its vector of weights, the loss as their function, its matrices.

    Weights have the dtype of the network. Losses and matrices are returned in float64,
    in the order of the block.
    """

    def __init__(
        self, objective: Objective, request: Request, block: Block, column: Column
    ) -> None:
        self.problem = objective
        self.block = block
        self._column = column
        self.side = objective.layout.side(block.layer, str(block.col))
        self._samples = SampleGradients(objective, request.stream(0, "labels"))
        self._suffix = objective.suffix(self.side)
        self.weights = self.flat(
            {name: one.detach() for name, one in objective.network.named_parameters()}
        )

    def flat(self, by_parameter: dict[str, Tensor]) -> Vector:
        """Return the block's entries of tensors with the shapes of the parameters."""
        return entries_of(by_parameter, self.side)

    @cached_property
    def pieces(self) -> list[tuple[Weight, torch.Size, Tensor]]:
        """Each weight of the block with its shape and the positions of its entries in the block's vector."""
        pieces = []
        start = 0
        for weight in self.side:
            parameter = self.problem.network.get_parameter(weight.parameter)
            shape = view_of(parameter, weight).shape
            end = start + shape.numel()
            pieces.append((weight, shape, torch.arange(start, end)))
            start = end
        return pieces

    @property
    def matrices(self) -> list[tuple[Weight, torch.Size, Tensor]]:
        """The pieces with two axes, which excludes biases and gains."""
        return [piece for piece in self.pieces if len(piece[1]) == 2]

    @property
    def places(self) -> Tensor:
        """The positions of the entries of all matrices in the block's vector."""
        return torch.cat([places for _, _, places in self.matrices])

    def grids(self, bits: int) -> brain_surgeon.RowGrids:
        """Return the levels of the rows of all matrices."""
        weights = self.weights.double().cpu()
        matrices = [weights[places].view(shape) for _, shape, places in self.matrices]
        return brain_surgeon.RowGrids(matrices, bits)

    def losses(self, points: Float[Tensor, "k dim"]) -> Float[Tensor, " k"]:
        """Return the loss at each of the points: values of the block's weights, with all other weights unchanged."""
        chunk = max(1, min(AT_ONCE, BYTES // self._suffix.bytes_per_probe))
        with evaluating(self.problem.network):
            try:
                losses = vmap(self._loss, chunk_size=chunk)(points - self.weights)
            except RuntimeError:
                # Networks without support for vmap are evaluated point by point.
                steps = (points - self.weights).requires_grad_()
                losses = torch.stack([self._loss(step).detach() for step in steps])
        return losses.detach().double().cpu()

    @cached_property
    def before(self) -> float:
        """The loss at the weights as they are."""
        return float(self.losses(self.weights[None]))

    def rises(self, points: Float[Tensor, "k dim"]) -> Float[Tensor, " k"]:
        """Return by how much the loss at each of the points is above the loss at the weights as they are."""
        if len(points):
            return self.losses(points.to(self.weights)) - self.before
        return torch.empty(0)

    @property
    def slope(self) -> Vector:
        """The gradient of the loss with respect to the block's weights."""
        return self.flat(LossGradient(self.problem).gradient).double().cpu()

    def _loss(self, step: Vector) -> Tensor:
        moved = {f"network.{name}": value for name, value in self._moved(step).items()}
        terms = []
        for start, scalar in self._suffix.terms(Part.H):
            terms.append(scalar(self._suffix.at(moved, start)))
        return torch.stack(terms).sum()

    def _moved(self, step: Tensor) -> dict[str, Tensor]:
        """Return copies of the parameters that contain the block, moved by a step; nothing is changed in place."""
        moved: dict[str, Tensor] = {}
        for weight, _, places in self.pieces:
            values = moved.get(
                weight.parameter,
                self.problem.network.get_parameter(weight.parameter).detach(),
            )
            at = view_of(
                torch.arange(values.numel(), device=values.device).view_as(values),
                weight,
            ).flatten()
            flat = (
                torch.zeros_like(values)
                .flatten()
                .index_put((at,), step[places], accumulate=True)
            )
            moved[weight.parameter] = values + flat.view_as(values)
        return moved

    def surrogates(
        self, names: Collection[Surrogate]
    ) -> dict[Surrogate, Float[Tensor, "dim dim"]]:
        """Return the block's matrices with these names."""
        parts = dense_parts(self._column, [Part.H, Part.H_o])
        matrices = {
            Surrogate.hessian: parts[self.block, Part.H].double().cpu(),
            Surrogate.gauss_newton: parts[self.block, Part.H_o].double().cpu(),
        }
        outer = matrices[Surrogate.gauss_newton].diagonal()
        if Surrogate.empirical_fisher in names:
            rows = self._material(self.side, outer.shape).approximation(
                Approximation.empirical_fisher
            )
            matrices[Surrogate.empirical_fisher] = rows.matmat(
                torch.eye(len(outer), dtype=torch.float64)
            )
        matrices.update(self._of_maps(names, outer))
        return {name: (matrices[name] + matrices[name].T) / 2 for name in names}

    def _of_maps(
        self, names: Collection[Surrogate], outer: Tensor
    ) -> dict[Surrogate, Tensor]:
        """Return K-FAC and the matrix of inputs: blocks for linear maps, and a diagonal for all other weights.

        The diagonal is that of the Gauss-Newton matrix for K-FAC. It is 1 for the
        inputs, whose blocks are scaled to a mean diagonal of 1.
        """
        inputs = torch.eye(len(outer), dtype=torch.float64)
        for material, places in self._maps():
            seen = material.inputs.matmat(torch.eye(len(places), dtype=torch.float64))
            inputs[places[:, None], places] = seen / (
                float(seen.diagonal().mean()) or 1.0
            )
        matrices = {
            Surrogate.kfac: self.of_maps(Approximation.kfac, outer),
            Surrogate.inputs: inputs,
        }
        return {name: matrix for name, matrix in matrices.items() if name in names}

    def of_maps(
        self, name: Approximation, elsewhere: Vector
    ) -> Float[Tensor, "dim dim"]:
        """Return the approximation of every linear map's block, with the diagonal `elsewhere` for all other weights."""
        matrix = elsewhere.diag()
        for material, places in self._maps():
            eye = torch.eye(len(places), dtype=torch.float64)
            matrix[places[:, None], places] = material.approximation(name).matmat(eye)
        return matrix

    def _maps(self) -> Iterator[tuple[Material, Tensor]]:
        """Yield the data for approximations of each linear map's weight, with the positions of its entries."""
        for weight, shape, places in self.pieces:
            if len(shape) == 2 and self._samples.map_of([weight]):
                yield self._material([weight], shape), places

    def _material(self, weights: Collection[Weight], shape: torch.Size) -> Material:
        return Material(self._samples, list(weights), shape)


_FIELLER = 1.06  # the variance of Spearman's z is this over n - 3 (Fieller, Hartley and Pearson 1957)
_ROUNDINGS = 64  # rises below this multiple of the loss's rounding (saliencies: of the largest one's) rank as 0
# A head has some of their rows, and some columns of W_O.
_BY_ROWS = (Matrix.W_Q, Matrix.W_K, Matrix.W_V)
Groups = list[Tensor]


def pruning(objective: Objective, request: Request) -> Measured:
    """Return how well saliencies rank the weights of each diagonal block, and the loss along what they remove.

    For every weight the true rise of the loss with this weight alone at zero is
    computed, without approximation. NAME_correlation is Spearman's correlation of a
    saliency with it over all weights; NAME_row_correlation that over the rows of all
    matrices, each row at zero as a whole; NAME_compensated_correlation, of the OBS
    saliencies, that with the true rise after the other weights were moved as OBS moves
    them. NAME_loss is the loss with a share removed_share of the weights gone, in the
    order of the saliency (`index`: the place among the shares, 0 for no weight).
    head_increase is the true rise with a head gone, and NAME_head what the saliency
    says of it (`index`: heads of all layers, from 1 on). Errors of correlations are
    those of Fisher's z over weights, as if these were a sample. The arrays hold rises
    and saliencies of all weights.
    """
    rows: list[Row] = []
    arrays: Arrays = {}
    for block, column in square_columns(objective, request):
        pruned = _Pruned(PerturbedBlock(objective, request, block, column), request)
        rows += pruned.rows()
        place = f"{block.layer}_{block.col}"
        for name, values in pruned.of_weights().items():
            arrays[f"{place}_{name}"] = values.numpy()
        arrays[f"{place}_weights"] = [one.name for one in pruned.subject.side]
        arrays[f"{place}_sizes"] = [one.size for one in pruned.subject.side]
    return Measured(rows, arrays)


@dataclass
class _Saliency:
    """A saliency of single weights and of groups, and the weights after removing each share in its order."""

    single: Vector
    path: Float[Tensor, "shares dim"]
    inverse: Tensor | None = None
    weights: Tensor = field(default_factory=lambda: torch.empty(0))

    def of(self, group: Tensor) -> float:
        """Return the saliency of a group: the sum over its weights, or, with compensation, the joint saliency."""
        if self.inverse is None:
            return float(self.single[group].sum())
        return brain_surgeon.obs_of_group(self.weights, self.inverse, group)


class _Pruned:
    """The true rises of one block and all of its saliencies."""

    def __init__(self, subject: PerturbedBlock, request: Request) -> None:
        self.subject, self._request = subject, request
        self._weights = subject.weights.double().cpu()
        size = len(self._weights)
        shares = request.at.config.compression.shares
        self._counts = sorted({0, *(round(share * size) for share in shares)})
        self._rounding = _ROUNDINGS * torch.finfo(subject.weights.dtype).eps
        eye = torch.arange(size)
        self._rises = self._rise([one[None] for one in eye])
        self._rows: list[Tensor] = []
        for _, shape, places in subject.matrices:
            self._rows.extend(places.view(shape))
        self._heads = _heads(subject, request)
        self._saliencies = dict(self._all(request.stream(0, "random")))

    def rows(self) -> Iterator[Row]:
        """Yield all rows of the block."""
        yield from self._along(
            "removed_share", [count / len(self._weights) for count in self._counts]
        )
        of_rows = self._rise(self._rows)
        of_heads = self._rise(self._heads)
        yield from self._along("head_increase", of_heads.tolist(), first=1)
        for name, saliency in self._saliencies.items():
            yield self._correlation(f"{name}_correlation", saliency.single, self._rises)
            saliencies = torch.tensor(
                [saliency.of(row) for row in self._rows], dtype=torch.float64
            )
            yield self._correlation(f"{name}_row_correlation", saliencies, of_rows)
            if saliency.inverse is not None:
                moved = self.subject.rises(
                    brain_surgeon.compensated(self._weights, saliency.inverse)
                )
                yield self._correlation(
                    f"{name}_compensated_correlation", saliency.single, moved
                )
            yield from self._along(
                f"{name}_loss",
                self.subject.losses(saliency.path.to(self.subject.weights)).tolist(),
            )
            yield from self._along(
                f"{name}_head", [saliency.of(head) for head in self._heads], first=1
            )

    def of_weights(self) -> dict[str, Tensor]:
        """Return the true rise and every saliency of all weights."""
        return {
            "increase": self._rises,
            **{name: one.single for name, one in self._saliencies.items()},
        }

    def _rise(self, groups: Groups) -> Float[Tensor, " groups"]:
        """Return the true rise of the loss with each of the groups at zero."""
        return self.subject.rises(zeroed_each(groups, self._weights))

    def _all(self, generator: Generator) -> Iterator[tuple[str, _Saliency]]:
        weights = self._weights
        matrices = self.subject.surrogates(PRUNED_BY)
        curved = brain_surgeon.obd(weights, matrices[Surrogate.hessian].diagonal())
        yield (
            "random",
            self._additive(
                torch.rand(len(weights), generator=generator, dtype=torch.float64)
            ),
        )
        yield "magnitude", self._additive(weights.square())
        yield "taylor", self._additive(curved - self.subject.slope * weights)
        for name, matrix in matrices.items():
            yield (
                f"obd_{name}",
                self._additive(brain_surgeon.obd(weights, matrix.diagonal())),
            )
            inverse = brain_surgeon.damped_inverse(
                matrix, self._request.at.config.compression.damping
            )
            path = torch.stack(
                list(brain_surgeon.surgery(weights, inverse, self._counts))
            )
            yield (
                f"obs_{name}",
                _Saliency(brain_surgeon.obs(weights, inverse), path, inverse, weights),
            )

    def _additive(self, single: Tensor) -> _Saliency:
        return _Saliency(
            single,
            brain_surgeon.zeroed(
                self._weights, single.argsort(stable=True), self._counts
            ),
        )

    def _along(
        self, name: str, values: Sequence[float], *, first: int = 0
    ) -> Iterator[Row]:
        for place, value in enumerate(values, first):
            yield state_row(
                name, self._request, value, block=self.subject.block, index=place
            )

    def _correlation(self, name: str, one: Tensor, other: Tensor) -> Row:
        """Return Spearman's correlation of saliencies with rises; values that are rounding of 0 have equal ranks."""
        saliencies = _flushed(
            one, self._rounding * float(one.abs().max()) if len(one) else 0.0
        )
        correlation = correlated(
            saliencies, _flushed(other, self._rounding * abs(self.subject.before))
        )
        return state_row(name, self._request, correlation, block=self.subject.block)


def zeroed_each(groups: Groups, weights: Vector) -> Float[Tensor, "k dim"]:
    """Return one row per group: the weights with the entries of the group at zero."""
    points = weights.repeat(len(groups), 1)
    for row, group in zip(points, groups, strict=True):
        row[group] = 0.0
    return points


def correlated(one: Vector, other: Vector) -> Estimate:
    """Return Spearman's rank correlation with its standard error, converted from that of Fisher's z."""
    correlation = spearman(one, other)
    count = len(one)
    error = (1 - correlation**2) * (_FIELLER / (count - 3)) ** 0.5 if count > 3 else nan
    return Estimate(correlation, error, 0, EXACT)


def spearman(one: Vector, other: Vector) -> float:
    """Return Spearman's rank correlation, with mean ranks for ties; nan if one of the two is constant."""
    if len(one) > 1:
        return float(torch.corrcoef(torch.stack([_ranks(one), _ranks(other)]))[0, 1])
    return nan


def _flushed(values: Vector, least: float) -> Vector:
    """Return the values with 0 in place of those smaller than `least` in absolute value."""
    return torch.where(values.abs() < least, 0.0, values)


def _ranks(values: Vector) -> Vector:
    _, places, counts = values.unique(return_inverse=True, return_counts=True)
    return (counts.cumsum(0) - (counts - 1) / 2).double()[places]


def _heads(subject: PerturbedBlock, request: Request) -> Groups:
    """Return the entries of every head, layer by layer: rows of W_Q, W_K and W_V, columns of W_O.

    The result is empty for networks whose attention is unknown or shares keys among
    heads.
    """
    if (
        not {Matrix.W_O, *_BY_ROWS} <= {*matrices_of(request.model)}
        or request.model.n_kv_heads
    ):
        return []
    entries: dict[tuple[int, int], list[Tensor]] = {}
    for weight, shape, places in subject.matrices:
        if weight.name in (*_BY_ROWS, Matrix.W_O):
            along = places.view(shape)
            if weight.name == Matrix.W_O:
                along = along.T
            for head, cut in enumerate(along.chunk(request.model.n_heads)):
                entries.setdefault((weight.layer, head), []).append(cut.flatten())
    return [torch.cat(entries[key]) for key in sorted(entries)]


def quantisation(objective: Objective, request: Request) -> Measured:
    """Return the true rise of the loss with all matrices of a block rounded: NAME_increase, `index` the bits.

    Each row has its own levels (see RowGrids). Weights are rounded to the nearest
    level, or one after the other with the update of GPTQ for each surrogate of the
    curvature. Biases and gains are not rounded. Raises UserError for a block without a
    matrix.
    """
    subjects = _rounded("quantisation", objective, request)
    rows: list[Row] = []
    for subject in subjects:
        rows.extend(_of_block(subject, request))
    return Measured(rows)


def rounding(objective: Objective, request: Request) -> Measured:
    """Return the true rise of the loss with all matrices of a block rounded to the nearest levels, and its predictions.

    With delta the change of the n weights, g their gradient, H their block and F its
    empirical Fisher matrix, `index` the bits: `rounding_increase`, true;
    `hawq_prediction` tr(H) |delta|^2 / n (arXiv 1911.03852); `fisher_prediction` tr(F)
    |delta|^2 / n; `quadratic_prediction` delta^T H delta / 2; `taylor_prediction` g^T
    delta + delta^T H delta / 2. NAME_rank_correlation: Spearman's over the blocks of
    single weights, with the rise; none of fewer than four.
    """
    rows = list[Row]()
    values_of = dict[tuple[str, int], dict[str, float]]()
    for subject in _rounded("rounding", objective, request):
        for (name, bits), value in _predicted(subject, request).items():
            rows.append(
                state_row(name, request, value, block=subject.block, index=bits)
            )
            if len(subject.side) == 1:
                values_of.setdefault((name, bits), {})[str(subject.block)] = value
    for (name, bits), values in values_of.items():
        if name != RISE and len(values) > _FEWEST:
            sides = (
                torch.tensor([*one.values()], dtype=torch.float64)
                for one in (values, values_of[RISE, bits])
            )
            label = name.replace("prediction", "rank_correlation")
            rows.append(state_row(label, request, correlated(*sides), index=bits))
    return Measured(rows)


RISE, _FEWEST = "rounding_increase", 3


def _predicted(
    subject: PerturbedBlock, request: Request
) -> dict[tuple[str, int], float]:
    """Return the rise and its predictions by name and bits."""
    weights = subject.weights.double().cpu()
    places = subject.places
    surrogates = subject.surrogates([Surrogate.hessian, Surrogate.empirical_fisher])
    hessian, fisher = (surrogates[name][places[:, None], places] for name in surrogates)
    slope = subject.slope[places]
    numbers = dict[tuple[str, int], float]()
    for bits in request.at.config.compression.bits:
        step = subject.grids(bits)(weights[places]) - weights[places]
        moved = _placed(weights, places, (weights[places] + step)[None])
        mean = float(step.square().mean())
        bent = float(step @ hessian @ step) / 2
        values = {
            RISE: float(subject.rises(moved)),
            "hawq_prediction": float(hessian.trace()) * mean,
            "fisher_prediction": float(fisher.trace()) * mean,
            "quadratic_prediction": bent,
            "taylor_prediction": float(slope @ step) + bent,
        }
        numbers |= {(name, bits): value for name, value in values.items()}
    return numbers


def _rounded(
    name: str, objective: Objective, request: Request
) -> Iterator[PerturbedBlock]:
    """Yield every requested block. Raises UserError for a block without a matrix."""
    for block, column in square_columns(objective, request):
        subject = PerturbedBlock(objective, request, block, column)
        if not subject.matrices:
            raise UserError(
                f"quantities=[{name}]: block {block} has no matrix, and only matrices are rounded",
                got=", ".join(weight.name for weight in subject.side),
                allowed="weights with two axes, or groups with one of them",
                remedy="blocks=[all]",
            )
        yield subject


def _of_block(subject: PerturbedBlock, request: Request) -> Iterator[Row]:
    weights = subject.weights.double().cpu()
    bits = request.at.config.compression.bits
    places = subject.places
    square = (places[:, None], places)
    damping = request.at.config.compression.damping
    grids = [subject.grids(count) for count in bits]
    rounded = {"nearest": [grid(weights[places]) for grid in grids]}
    for surrogate, matrix in subject.surrogates(list(Surrogate)).items():
        inverse = brain_surgeon.damped_inverse(matrix[square], damping)
        rounded[f"gptq_{surrogate}"] = [
            brain_surgeon.gptq(weights[places], inverse, grid) for grid in grids
        ]
    for name, changed in rounded.items():
        rises = subject.rises(_placed(weights, places, torch.stack(changed)))
        for count, rise in zip(bits, rises.tolist(), strict=True):
            yield state_row(
                f"{name}_increase", request, rise, block=subject.block, index=count
            )


def _placed(weights: Tensor, places: Tensor, values: Tensor) -> Tensor:
    points = weights.repeat(len(values), 1)
    points[:, places] = values
    return points
