"""The outermost eigenvalues of an operator: two starts that must agree, and residuals that certify."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.lanczos import InUnits, LanczosRun, SymmetricOperator, advance

_ALIKE = 1e-4  # what unit vectors differ by is another direction from here on


class End(StrEnum):
    """Which end of the spectrum, algebraically."""

    largest = "largest"
    smallest = "smallest"

    def order(self, values: Float[Tensor, " j"]) -> Tensor:
        """Return the places of `values`, the outermost first."""
        return values.argsort(descending=self == End.largest, stable=True)


@dataclass(frozen=True)
class Extremes:
    """The k outermost eigenvalues, the outermost first, with orthonormal vectors.

    `residuals` are ||A v - value v||, of products made for it: within so much of each value there is an eigenvalue.
    `scale` is the largest eigenvalue in size that was seen; `converged`: all residuals and the disagreement of the two
    starts are below tolerance * scale. `products` counts all products that were spent, `rough_products` those of an
    operator of lower precision next to them.
    """

    values: Float[Tensor, " k"]
    residuals: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]
    scale: float
    converged: bool = False
    products: int = 0
    rough_products: int = 0


def nothing_found(dim: int) -> Extremes:
    """Return what is known before anything was found."""
    none = torch.zeros(0, dtype=torch.float64)
    return Extremes(none, none, torch.zeros(dim, 0, dtype=torch.float64), 0.0)


def certify(
    operator: SymmetricOperator, end: End, k: int, before: Extremes, runs: Sequence[LanczosRun], tolerance: float
) -> Extremes:
    """Return what was found before or by a run alone if nothing is to be added, else what all have found together.

    Nothing is to be added when the values of the runs (or those found before) are those of the space that all vectors
    span together. All residuals come from products made for them, and so do the sizes that `scale` is the largest of:
    the runs may have had an operator of lower precision, whose rounding must not pass for a size.
    """
    pieces = [before.vectors, *(outer(run, end, k) for run in runs), _longest(runs, end, k)]
    product = operator.matmat(torch.cat(pieces, dim=1))
    *images, image = product.split([piece.shape[1] for piece in pieces], dim=1)
    *bases, peak = pieces
    alone = [pairs(v, p, end, k) for v, p in zip(bases, images, strict=True) if v.numel()]
    together = pairs(torch.cat(bases, dim=1), torch.cat(images, dim=1), end, k)
    sizes = (peak * image).sum(dim=0).abs().tolist()
    scale = max([before.scale, *(pair.scale for pair in (together, *alone)), *sizes])
    claims = alone[:1] if before.vectors.numel() else alone
    agree = all(_agree(claim, together, tolerance * scale) for claim in claims)
    best = min(claims, key=lambda claim: float(claim.residuals.max())) if agree else together
    small = bool((best.residuals <= tolerance * scale).all())
    return replace(best, scale=scale, converged=agree and small)


def outer(run: LanczosRun, end: End, k: int) -> Float[Tensor, "n k"]:
    """Return the k outermost Ritz vectors of a run."""
    ritz = run.ritz()
    return run.vectors(ritz.coefficients[:, end.order(ritz.values)[:k]])


def pairs(vectors: Float[Tensor, "n p"], product: Float[Tensor, "n p"], end: End, k: int) -> Extremes:
    """Return the outermost Ritz pairs of the space that `vectors` span, whose products are given."""
    left, sizes, right = torch.linalg.svd(vectors, full_matrices=False)
    is_new = sizes > _ALIKE
    basis, image = left[:, is_new], product @ (right[is_new].T / sizes[is_new])
    values, coefficients = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
    order = end.order(values)[:k]
    chosen = coefficients[:, order]
    ritz_vectors = basis @ chosen
    residuals = (image @ chosen - ritz_vectors * values[order]).norm(dim=0)
    return Extremes(values[order], residuals, ritz_vectors, float(values.abs().max()))


def _longest(runs: Sequence[LanczosRun], end: End, k: int) -> Float[Tensor, "n p"]:
    """Return the Ritz vector of the largest value in size; none where it is among the k outermost of its run."""
    run = max(runs, key=lambda run: float(run.ritz().values.abs().max()))
    ritz = run.ritz()
    longest = int(ritz.values.abs().argmax())
    is_outer = longest in end.order(ritz.values)[:k].tolist()
    return run.vectors(ritz.coefficients[:, [] if is_outer else [longest]])


def _agree(first: Extremes, other: Extremes, allowed: float) -> bool:
    same = len(first.values) == len(other.values)
    return same and bool(((first.values - other.values).abs() <= allowed).all())


def unseen(
    runs: Sequence[LanczosRun], end: End, best: Extremes, allowed: float, least: float
) -> Float[Tensor, "n k"] | None:
    """Return vectors of values that lie beyond those found by more than `allowed`, in the space of all runs' bases.

    That is the block Krylov space of all starts: it may show what no run shows alone, at the price of no product.
    Directions whose squared length is below `least` in the bases side by side are their rounding, and left out.
    """
    pieces = [[run.against(other) for other in runs] for run in runs]
    gram, product = (torch.cat([torch.cat([two[i] for two in row], dim=1) for row in pieces]) for i in range(2))
    sizes, directions = torch.linalg.eigh((gram + gram.T) / 2)
    basis = directions[:, sizes > least] / sizes[sizes > least].sqrt()
    values, coefficients = torch.linalg.eigh(basis.T @ (product + product.T) @ basis / 2)
    order = end.order(values)[: len(best.values)]
    sign = 1 if end == End.largest else -1
    if not bool((sign * (values[order] - best.values[: len(order)]) > allowed).any()):
        return None
    parts = (basis @ coefficients[:, order]).split([run.length for run in runs])
    return torch.stack([run.vectors(part) for run, part in zip(runs, parts, strict=True)]).sum(dim=0)


STARTS = 2
BASIS_BYTES = 2**30  # of the vectors that the two runs keep
_FEWEST, _CHECK_EVERY, _RESTARTS = 20, 2, 30
_WARMTH = 3.0  # how much of a warm start is the vector given, the rest of it random
_SPARE = 0.5  # the share of the tolerance that a run may spend
_DOUBT = 4.0  # for the gap, which is one to a Ritz value that has not converged
_FAR = 30.0  # n times the squared cosine of a random vector with one of n eigenvectors is above it once in 2e7
_MISSED = 0.01  # the chance that one run has not seen a value that is farther out


@dataclass(frozen=True)
class Goal:
    """The `k` outermost values at one `end`, to `tolerance` times the largest in size, by runs of `steps` vectors.

    `strict`: every run is to reach the residuals, not only the one that is ahead. `fewest`: the steps of a run whose
    outermost Ritz vectors may be no single eigenvectors.
    """

    end: End
    k: int
    tolerance: float
    steps: int
    strict: bool = False
    fewest: int = 0


@dataclass(frozen=True, eq=False)
class _Claim:
    """The largest residual of a run's outermost Ritz pairs, how far their values may be off, and their scale."""

    residual: float
    off: float
    scale: float


def starts_of(dim: int, generator: Generator, warm: Tensor | None) -> list[Tensor]:
    """Return a start for each run: random, or near `warm`."""
    return [_start(dim, generator, warm) for _ in range(STARTS)]


def begin(goal: Goal, starts: Sequence[Tensor], generator: Generator, locked: Float[Tensor, "n p"]) -> list[LanczosRun]:
    """Return runs from `starts`, orthogonal to `locked`, that have not taken a step.

    A space of at most twice `goal.steps` dimensions is spanned without a restart: that costs fewer products, and beside
    a cluster (the zeros of a block without full rank) restarts may not end.
    """
    steps = len(locked) if len(locked) <= 2 * goal.steps else goal.steps
    size = min(steps, BASIS_BYTES // (8 * STARTS * len(locked)))
    size = max(size, 2 * goal.k + 2, min(_FEWEST, goal.steps))
    return [LanczosRun(start, size, locked=locked, fresh=generator) for start in starts]


def run_until_converged(runs: Sequence[LanczosRun], operator: SymmetricOperator, goal: Goal) -> None:
    """Advance runs until none is to go on, or their restarts are spent."""
    going, taken, restarts = unfinished(runs, goal), 0, 0
    while advance(going, operator):
        taken += 1
        if taken % _CHECK_EVERY and not any(run.is_full for run in going):
            continue
        going = unfinished(runs, goal)
        for run in going:
            if run.is_full and restarts < STARTS * _RESTARTS:
                run.restart(_kept(run, goal))
                restarts += 1


def unfinished(runs: Sequence[LanczosRun], goal: Goal) -> list[LanczosRun]:
    """Return the runs that have not found what is asked of them."""
    claims = [_claim(run, goal) for run in runs]
    ahead = min(claims, key=lambda claim: claim.residual)
    allowed = _SPARE * goal.tolerance * max(claim.scale for claim in claims)
    return [
        run
        for run, claim in zip(runs, claims, strict=True)
        if (claim.residual if goal.strict or claim is ahead else claim.off) > allowed or _is_too_soon(run, goal)
    ]


def fewest_steps(dim: int, tolerance: float, steps: int) -> int:
    """Return the steps after which Lanczos has seen a value that lies by tolerance * scale beyond what it found.

    A start is random, so its part along that eigenvector is small and has to grow. By Kuczynski and Wozniakowski (1992,
    Theorem 4.1) the chance that it is not seen is below 1.648 sqrt(n) exp(-(2 k - 1) sqrt(tolerance / 2)) after k
    steps; for tight tolerances k would be too large, and is `steps`.
    """
    chances = math.log(1.648 * dim**0.5 / _MISSED)
    return min(steps, math.ceil((chances / (tolerance / 2) ** 0.5 + 1) / 2))


def _is_too_soon(run: LanczosRun, goal: Goal) -> bool:
    """Whether the outermost Ritz vectors lie so much along the start that they are none of its single eigenvectors.

    They then stand for a cluster, such as the zeros of a block with few large eigenvalues: the start itself is nearly
    one of its vectors, with a small residual, before anything farther out can have been seen.
    """
    if run.vector is None or run.steps >= min(goal.fewest, run.size):
        return False
    ritz = run.ritz()
    along = ritz.coefficients[0, goal.end.order(ritz.values)[: goal.k]].square()
    is_invariant = not bool(ritz.residuals.any())
    return not is_invariant and bool((along * run.dim > _FAR).any())


def _claim(run: LanczosRun, goal: Goal) -> _Claim:
    if run.vector is None:
        return _Claim(0.0, 0.0, 0.0)
    if run.length < goal.k:
        return _Claim(torch.inf, torch.inf, 0.0)
    ritz = run.ritz()
    order = goal.end.order(ritz.values)
    residuals, values = ritz.residuals[order[: goal.k]], ritz.values[order]
    largest, scale = float(residuals.max()), float(values.abs().max())
    gap = float((values[goal.k - 1] - values[goal.k]).abs()) if run.length > goal.k else 0.0
    off = _DOUBT * float(residuals.square().sum()) / gap if gap > 0.0 else torch.inf
    return _Claim(largest, min(largest, off), scale)


def _start(dim: int, generator: Generator, warm: Tensor | None) -> Tensor:
    drawn = torch.randn(dim, dtype=torch.float64, generator=generator)
    drawn = drawn / drawn.norm()
    if warm is None or not float(warm.norm()) > 0.0:
        return drawn
    return drawn + _WARMTH * warm.to(drawn) / warm.norm().to(drawn)


def _kept(run: LanczosRun, goal: Goal) -> list[int]:
    """Return which Ritz vectors a run goes on with: the outermost, and some more for speed."""
    kept = min(goal.k + (run.size - goal.k) // 3 + 1, run.size - 1)
    return [int(index) for index in goal.end.order(run.ritz().values)[:kept]]


_ROUNDS = 8
_WARMED = 10  # the fewest steps from a vector that was an eigenvector a moment ago
_LEAST_RESIDUAL = 2e-7  # the least relative residual asked of runs over float32: below it is their rounding


def extremes(
    operator: SymmetricOperator,
    end: End,
    *,
    k: int = 1,
    tolerance: float = 1e-6,
    steps: int = 100,
    generator: Generator,
    warm: Float[Tensor, " n"] | None = None,
    low_precision: SymmetricOperator | None = None,
) -> Extremes:
    """Return the k outermost eigenvalues at one `end`, to a residual of `tolerance` times the largest in size.

    Lanczos with full re-orthogonalisation, restarted from Ritz vectors after `steps` vectors (never where twice as many
    span the space, earlier where two bases would exceed BASIS_BYTES). Runs whose vectors are no single eigenvectors
    take `fewest_steps` before their residuals count. `warm`, an approximate eigenvector such as the last state's,
    shortens both runs: each starts from it and a random vector of its own. `low_precision` has the same operator's
    products in float32. Raises NotFinite, and ArithmeticError for an operator that is not symmetric.

    Returns
    -------
    Extremes
        values (k,), vectors (n, k) with ||A v - value v|| = residuals (k,), and whether they have converged.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator, Square, dense_matrix, extremes
    >>> from hessfig.terms import Part
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> square = Square(ColumnOperator(problem, 0, "weight", ["weight"]), "weight", Part.H)
    >>> from hessfig.curvature.spectral.extremes import End
    >>> found = extremes(square, End.largest, generator=torch.Generator().manual_seed(0))
    >>> truth = torch.linalg.eigvalsh(torch.from_numpy(dense_matrix(square)))[-1]
    >>> found.converged, bool((found.values[0] - truth).abs() < 1e-6 * found.scale)
    (True, True)
    """
    operator = InUnits(operator)
    fewest = fewest_steps(operator.dim, tolerance, steps if warm is None else min(steps, _WARMED))
    goal, before = Goal(end, k, tolerance, steps, fewest=fewest), operator.products
    starts: Sequence[Tensor] = starts_of(operator.dim, generator, warm)
    best, spent = nothing_found(operator.dim), 0
    if low_precision is not None:
        best, starts, spent = _in_low_precision(operator, low_precision, goal, starts, generator)
    if not best.converged:
        seen = replace(goal, fewest=0) if spent and best.vectors.numel() else goal
        best = _in_full_precision(operator, seen, starts, generator)
    best = replace(best, products=operator.products - before, rough_products=spent)
    return best if operator.unit in (0.0, 1.0) else _times(best, operator.unit)


def _times(best: Extremes, unit: float) -> Extremes:
    return replace(best, values=best.values * unit, residuals=best.residuals * unit, scale=best.scale * unit)


def _in_full_precision(
    operator: SymmetricOperator, goal: Goal, starts: Sequence[Tensor], generator: Generator
) -> Extremes:
    """Return what runs find in full precision from `starts`; where they disagree, also in its complement.

    What is locked is never improved again, so runs that disagree reach their residuals, every one, before it is.
    """
    none = nothing_found(operator.dim)
    runs = begin(goal, starts, generator, none.vectors)
    best = _converged(operator, goal, none, runs)
    if best.converged and (more := _unseen(runs, goal, best, operator)) is not None:
        runs = begin(goal, starts_of(operator.dim, generator, more.sum(dim=1)), generator, none.vectors)
        best = _converged(operator, goal, none, runs)
    if best.converged or unfinished(runs, goal):
        return best
    best, goal = none, replace(goal, strict=True)
    for _ in range(_ROUNDS):
        best = _converged(operator, goal, best, runs)
        if best.converged or unfinished(runs, goal) or best.vectors.shape[1] == operator.dim:
            break
        runs = begin(goal, starts_of(operator.dim, generator, None), generator, best.vectors)
    return best


def _converged(operator: SymmetricOperator, goal: Goal, before: Extremes, runs: Sequence[LanczosRun]) -> Extremes:
    run_until_converged(runs, operator, goal)
    return certify(operator, goal.end, goal.k, before, runs, goal.tolerance)


def _unseen(runs: Sequence[LanczosRun], goal: Goal, best: Extremes, operator: SymmetricOperator) -> Tensor | None:
    return unseen(runs, goal.end, best, goal.tolerance * best.scale, operator.rounding / goal.tolerance)


def _in_low_precision(
    operator: SymmetricOperator,
    low_precision: SymmetricOperator,
    goal: Goal,
    starts: Sequence[Tensor],
    generator: Generator,
) -> tuple[Extremes, Sequence[Tensor], int]:
    """Return what runs find with products in float32, certified by `operator`, their vectors, and the products spent.

    A network that float32 cannot hold (it overflows, or rounding leaves nothing of the symmetry) is no error: its runs
    have their `starts` still before them.
    """
    before, none = low_precision.products, nothing_found(operator.dim)
    runs = begin(goal, starts, generator, none.vectors)
    try:
        run_until_converged(runs, low_precision, replace(goal, tolerance=max(goal.tolerance, _LEAST_RESIDUAL)))
    except ArithmeticError:
        return none, starts, low_precision.products - before
    best = certify(operator, goal.end, goal.k, none, runs, goal.tolerance)
    if best.converged and (more := _unseen(runs, goal, best, low_precision)) is not None:
        starts = starts_of(operator.dim, generator, more.sum(dim=1))
        return replace(best, converged=False), starts, low_precision.products - before
    warm = [outer(run, goal.end, goal.k).sum(dim=1) for run in runs]
    return best, warm, low_precision.products - before
