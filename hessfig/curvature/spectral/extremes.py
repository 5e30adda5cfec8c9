"""The outermost eigenvalues of an operator by Lanczos runs from two starts, which must agree, and by residuals."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.lanczos import (
    InUnits,
    LanczosRun,
    SymmetricOperator,
    advance,
)
from hessfig.curvature.spectral.vectors import (
    Rows,
    combined,
    dots,
    drawn,
    grams,
    is_short,
    length,
    residuals,
)

_ALIKE = 1e-4  # unit vectors that differ by more than this span another direction


class End(StrEnum):
    """An end of the spectrum, in algebraic order."""

    largest = "largest"
    smallest = "smallest"

    def order(self, values: Float[Tensor, " j"]) -> Tensor:
        """Return the indices that sort `values`, the outermost first."""
        return values.argsort(descending=self == End.largest, stable=True)


@dataclass(frozen=True)
class Extremes:
    """The k outermost eigenvalues, the outermost first, with orthonormal vectors.

    `residuals` are ||A v - value v||, from separate products: an eigenvalue lies within
    the residual of each value. `scale` is the largest absolute eigenvalue seen.
    `converged` is true if all residuals, and the difference between the two starts, are
    below tolerance * scale. `products` counts the products in full precision, and
    `rough_products` those of an operator of lower precision.
    """

    values: Float[Tensor, " k"]
    residuals: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]
    scale: float
    converged: bool = False
    products: int = 0
    rough_products: int = 0


def nothing_found(operator: SymmetricOperator) -> Extremes:
    """Return the result before the first run: no eigenvalues."""
    none = torch.zeros(0, dtype=torch.float64, device="cpu")
    return Extremes(none, none, operator.like.new_zeros(operator.dim, 0), 0.0)


def certify(
    operator: SymmetricOperator,
    end: End,
    k: int,
    before: Extremes,
    runs: Sequence[LanczosRun],
    tolerance: float,
) -> Extremes:
    """Return the eigenvalues of a single run (or those of `before`) if all agree, else those of all vectors together.

    Vectors are multiplied together, or one at a time if they are long. The runs agree
    if their values (or those of `before`) are the Ritz values of the space that all
    vectors span. All residuals, and the values that enter `scale`, come from separate
    products: the runs may have used an operator of lower precision, whose rounding must
    not enter `scale`.
    """
    judge = _certify_short if is_short(runs[0].basis) else _certify_long
    return judge(operator, end, k, before, runs, tolerance)


def _certify_short(
    operator: SymmetricOperator,
    end: End,
    k: int,
    before: Extremes,
    runs: Sequence[LanczosRun],
    tolerance: float,
) -> Extremes:
    pieces = [
        before.vectors,
        *(outer(run, end, k) for run in runs),
        _longest(runs, end, k),
    ]
    product = operator.matmat(torch.cat(pieces, dim=1))
    *images, image = product.split([piece.shape[1] for piece in pieces], dim=1)
    *bases, peak = pieces
    alone = [
        pairs(v, p, end, k) for v, p in zip(bases, images, strict=True) if v.numel()
    ]
    together = pairs(torch.cat(bases, dim=1), torch.cat(images, dim=1), end, k)
    return _judged(
        before, alone, together, (peak * image).sum(dim=0).abs().tolist(), tolerance
    )


def _certify_long(
    operator: SymmetricOperator,
    end: End,
    k: int,
    before: Extremes,
    runs: Sequence[LanczosRun],
    tolerance: float,
) -> Extremes:
    """Turn the bases of the runs into Ritz vectors, the outermost first, so that none of them is copied."""
    for run in runs:
        run.sort(end.order)
    pieces = [
        list(before.vectors.T),
        *(list(run.basis[: min(k, run.length)]) for run in runs),
    ]
    rows = [row for piece in pieces for row in piece]
    sizes = [abs(float(dots(peak, _image(operator, peak)))) for peak in _peaks(runs, k)]
    images = [_image(operator, row) for row in rows]
    span = Span(rows, images, *grams(rows, images))
    places = torch.arange(len(rows), device="cpu")
    alone = [
        span.pairs(at, end, k)
        for at in places.split([len(piece) for piece in pieces])
        if len(at)
    ]
    best = _judged(before, alone, span.pairs(places, end, k), sizes, tolerance)
    return replace(best, vectors=combined(rows, best.vectors))


def _image(
    operator: SymmetricOperator, vector: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    return operator.matmat(vector[:, None])[:, 0]


def _peaks(runs: Sequence[LanczosRun], k: int) -> list[Float[Tensor, " n"]]:
    """Return the Ritz vector of the largest absolute value of sorted runs; none if it is among the k outermost."""
    run = max(runs, key=lambda run: float(run.projection.diagonal().abs().max()))
    place = int(run.projection.diagonal()[: run.length].abs().argmax())
    return [run.basis[place]] if place >= k else []


@dataclass(frozen=True)
class Span:
    """A space spanned by long vectors, the rows of V, with their products P, V V^T and V P^T."""

    rows: Rows
    images: Rows
    gram: Float[Tensor, "p p"]
    product: Float[Tensor, "p p"]

    def pairs(self, places: Tensor, end: End, k: int) -> Extremes:
        """Return the outermost Ritz pairs of some of the rows; as `vectors`, the coefficients of all rows (p, k)."""
        gram, product = (one[places][:, places] for one in (self.gram, self.product))
        values, basis, coefficients = _in_span(gram, product, _ALIKE**2)
        order = end.order(values)[:k]
        weights = torch.zeros(
            len(self.rows), len(order), dtype=torch.float64, device="cpu"
        )
        weights[places] = basis @ coefficients[:, order]
        off = residuals(self.rows, self.images, weights, values[order])
        return Extremes(values[order], off, weights, float(values.abs().max()))


def _in_span(
    gram: Tensor, product: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return Ritz values, an orthonormal basis of the span, and coefficients in it, from V V^T and V P^T."""
    sizes, directions = torch.linalg.eigh((gram + gram.T) / 2)
    basis = directions[:, sizes > least] / sizes[sizes > least].sqrt()
    values, coefficients = torch.linalg.eigh(
        basis.T @ (product + product.T) @ basis / 2
    )
    return values, basis, coefficients


def _judged(
    before: Extremes,
    alone: Sequence[Extremes],
    together: Extremes,
    sizes: Sequence[float],
    tolerance: float,
) -> Extremes:
    scale = max([before.scale, *(pair.scale for pair in (together, *alone)), *sizes])
    claims = alone[:1] if before.vectors.numel() else alone
    agree = all(_agree(claim, together, tolerance * scale) for claim in claims)
    if agree:
        best = min(claims, key=lambda claim: float(claim.residuals.max()))
    else:
        best = together
    small = bool((best.residuals <= tolerance * scale).all())
    return replace(best, scale=scale, converged=agree and small)


def outer(run: LanczosRun, end: End, k: int) -> Float[Tensor, "n k"]:
    """Return the k outermost Ritz vectors of a run."""
    ritz = run.ritz()
    return run.vectors(ritz.coefficients[:, end.order(ritz.values)[:k]])


def pairs(
    vectors: Float[Tensor, "n p"], product: Float[Tensor, "n p"], end: End, k: int
) -> Extremes:
    """Return the outermost Ritz pairs of the space spanned by `vectors`, with the products of the vectors given."""
    left, sizes, right = torch.linalg.svd(vectors, full_matrices=False)
    is_new = sizes > _ALIKE
    basis, image = left[:, is_new], product @ (right[is_new].T / sizes[is_new])
    values, coefficients = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
    order = end.order(values)[:k]
    chosen = coefficients[:, order]
    ritz_vectors = basis @ chosen
    off = (image @ chosen - ritz_vectors * values[order]).norm(dim=0)
    return Extremes(
        values[order].cpu(), off.cpu(), ritz_vectors, float(values.abs().max())
    )


def _longest(runs: Sequence[LanczosRun], end: End, k: int) -> Float[Tensor, "n p"]:
    """Return the Ritz vector of the largest absolute value; none if it is among the k outermost of its run."""
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
    """Return Ritz vectors whose values lie outside those of `best` by more than `allowed`; None if there are none.

    The vectors are sought in the span of the bases of all runs, the block Krylov space
    of all starts. It may contain eigenvectors that no single run shows, and costs no
    product. Directions whose squared length in the joined bases is below `least` are
    rounding and are left out.
    """
    pieces = [[run.against(other) for other in runs] for run in runs]
    gram, product = (
        torch.cat([torch.cat([two[i] for two in row], dim=1) for row in pieces])
        for i in range(2)
    )
    values, basis, coefficients = _in_span(gram, product, least)
    order = end.order(values)[: len(best.values)]
    sign = 1 if end == End.largest else -1
    if not bool((sign * (values[order] - best.values[: len(order)]) > allowed).any()):
        return None
    parts = (basis @ coefficients[:, order]).split([run.length for run in runs])
    return torch.stack(
        [run.vectors(part) for run, part in zip(runs, parts, strict=True)]
    ).sum(dim=0)


STARTS = 2
BASIS_BYTES = 2**30  # limit for the vectors of the two runs
LONG_BYTES = 2**27  # the same for long vectors, if it is more than LONG_VECTORS
LONG_VECTORS = 12  # the bases of both runs, and the next vector of each
_FEWEST, _CHECK_EVERY, _RESTARTS, _LONG_RESTARTS = 20, 2, 30, 100
_WARMTH = (
    3.0  # length of the given vector in a warm start, relative to the random vector
)
_SPARE = 0.5  # share of the tolerance that is allowed for the residual of a run
_DOUBT = (
    4.0  # safety factor of the gap, which is to a Ritz value that has not converged
)
_FAR = 30.0  # n times the squared cosine of a random vector with one of n eigenvectors is above it once in 2e7
_MISSED = 0.01  # probability that one run has missed a value that is farther out


@dataclass(frozen=True)
class Goal:
    """The `k` outermost values at one `end`, to `tolerance` times the largest one in size, by runs of `steps` vectors.

    With `strict`, every run has to reach the residuals, not only the fastest one.
    `fewest` is the minimum number of steps of a run whose outermost Ritz vectors may be
    mixtures of eigenvectors. `starts` is the number of runs.
    """

    end: End
    k: int
    tolerance: float
    steps: int
    strict: bool = False
    fewest: int = 0
    starts: int = STARTS


@dataclass(frozen=True, eq=False)
class _Claim:
    """The largest residual of the outermost Ritz pairs of a run, the possible error of their values, and the scale."""

    residual: float
    off: float
    scale: float


def starts_of(
    goal: Goal, operator: SymmetricOperator, generator: Generator, warm: Tensor | None
) -> list[Tensor]:
    """Return a start vector for each run: random, or near `warm`."""
    return [_start(operator, generator, warm) for _ in range(goal.starts)]


def begin(
    goal: Goal,
    starts: Sequence[Tensor],
    generator: Generator,
    locked: Float[Tensor, "n p"],
) -> list[LanczosRun]:
    """Return new runs from `starts`, orthogonal to `locked`.

    A space of at most twice `goal.steps` dimensions is spanned without a restart. This
    takes fewer products, and next to a cluster (the zeros of a block without full rank)
    restarts may not converge. For long vectors see `long_sizes`.
    """
    if not is_short(starts):
        sizes, _ = long_sizes(goal, len(locked))
        pairs = zip(starts, sizes, strict=False)
        return [
            LanczosRun(start, size, locked=locked, fresh=generator)
            for start, size in pairs
        ]
    steps = len(locked) if len(locked) <= 2 * goal.steps else goal.steps
    size = min(steps, BASIS_BYTES // (8 * STARTS * len(locked)))
    size = max(size, 2 * goal.k + 2, min(_FEWEST, goal.steps))
    return [LanczosRun(start, size, locked=locked, fresh=generator) for start in starts]


def long_sizes(goal: Goal, dim: int) -> tuple[list[int], int]:
    """Return the number of vectors of each of the two runs, and how many vectors of the first run remain.

    Runs on long vectors take turns. The second one begins when the first one has
    converged and keeps a few Ritz vectors.
    """
    most = max(LONG_VECTORS - STARTS, 3 * goal.k + 4, LONG_BYTES // (4 * dim))
    first = min(goal.steps, most)
    remaining = max(goal.k + 2, most - goal.steps)
    return [first, min(goal.steps, most - remaining)], remaining


def run_until_converged(
    runs: Sequence[LanczosRun], operator: SymmetricOperator, goal: Goal
) -> None:
    """Advance runs until all have finished, or until their restarts are used up; runs on long vectors take turns."""
    if not is_short(runs[0].basis):
        return _take_turns(runs, operator, goal)
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
    return None


def _take_turns(
    runs: Sequence[LanczosRun], operator: SymmetricOperator, goal: Goal
) -> None:
    _, remaining = long_sizes(goal, runs[0].dim)
    for count, run in enumerate(runs, 1):
        restarts = 0
        while run in unfinished(runs[:count], goal) and restarts <= _LONG_RESTARTS:
            if run.is_full:
                run.restart(_kept(run, goal))
                restarts += 1
            advance([run], operator)
        if count < len(runs):
            run.close(remaining, goal.end.order)


def unfinished(runs: Sequence[LanczosRun], goal: Goal) -> list[LanczosRun]:
    """Return the runs that have not reached the goal."""
    claims = [_claim(run, goal) for run in runs]
    ahead = min(claims, key=lambda claim: claim.residual)
    allowed = _SPARE * goal.tolerance * max(claim.scale for claim in claims)
    return [
        run
        for run, claim in zip(runs, claims, strict=True)
        if (claim.residual if goal.strict or claim is ahead else claim.off) > allowed
        or _is_too_soon(run, goal)
    ]


def fewest_steps(dim: int, tolerance: float, steps: int) -> int:
    """Return the number of steps after which Lanczos would have seen a value farther out by tolerance * scale.

    The start is random, so its component along that eigenvector is small and has to
    grow. By Kuczynski and Wozniakowski (1992, Theorem 4.1), the probability of missing
    the value after k steps is below 1.648 sqrt(n) exp(-(2 k - 1) sqrt(tolerance / 2)).
    For tight tolerances k would be too large; `steps` is used instead.
    """
    chances = math.log(1.648 * dim**0.5 / _MISSED)
    return min(steps, math.ceil((chances / (tolerance / 2) ** 0.5 + 1) / 2))


def _is_too_soon(run: LanczosRun, goal: Goal) -> bool:
    """Whether the outermost Ritz vectors lie so close to the start that they cannot be single eigenvectors.

    They then represent a cluster, such as the zeros of a block with few large
    eigenvalues. The start itself is nearly a vector of the cluster, with a small
    residual, before eigenvalues farther out can appear.
    """
    if (
        run.vector is None
        or run.is_restarted
        or run.steps >= min(goal.fewest, run.size)
    ):
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
    if run.length > goal.k:
        gap = float((values[goal.k - 1] - values[goal.k]).abs())
    else:
        gap = 0.0
    off = _DOUBT * float(residuals.square().sum()) / gap if gap > 0.0 else torch.inf
    return _Claim(largest, min(largest, off), scale)


def _start(
    operator: SymmetricOperator, generator: Generator, warm: Tensor | None
) -> Tensor:
    start = drawn(operator.like, operator.dim, generator)
    start = start / length(start)
    if warm is None or not length(warm) > 0.0:
        return start
    return start + _WARMTH * warm.to(start) / length(warm)


def _kept(run: LanczosRun, goal: Goal) -> list[int]:
    """Return the Ritz vectors that a restart keeps: the outermost, and some more for speed."""
    kept = min(goal.k + (run.size - goal.k) // 3 + 1, run.size - 1)
    return [int(index) for index in goal.end.order(run.ritz().values)[:kept]]


_ROUNDS = 8
_WARMED = 10  # the fewest steps from a warm start
_LEAST_RESIDUAL = 2e-7  # the smallest relative residual required of runs in float32; rounding is below it


def extremes(
    operator: SymmetricOperator,
    end: End,
    *,
    k: int = 1,
    tolerance: float = 1e-6,
    steps: int = 100,
    starts: int = STARTS,
    generator: Generator,
    warm: Float[Tensor, " n"] | None = None,
    low_precision: SymmetricOperator | None = None,
) -> Extremes:
    """Return the k outermost eigenvalues at one `end`, with residuals of `tolerance` times the largest absolute value.

    Vectors have the type and device of `operator.like`. Lanczos with full
    reorthogonalisation, restarted from Ritz vectors after `steps` vectors (never if
    twice as many span the space, and earlier if two bases would exceed BASIS_BYTES;
    vectors in float32 are LONG_VECTORS, or as many as take LONG_BYTES). A run whose
    Ritz vectors may be mixtures of eigenvectors takes at least `fewest_steps` steps.
    `warm` is an approximate eigenvector, such as that of the last state; it shortens
    both runs, each of which starts from it plus a random vector. With `starts` 1 there
    is a single run: half the products, and nothing shows an eigenvalue that its start
    is nearly orthogonal to. `low_precision` is the same operator with products in
    float32. Raises NotFinite for products that are not finite, and ArithmeticError for
    an operator that is not symmetric.

    Returns
    -------
    Extremes
        values (k,), vectors (n, k), residuals ||A v - value v|| (k,), and whether they
        have converged.

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
    fewest = fewest_steps(
        operator.dim, tolerance, steps if warm is None else min(steps, _WARMED)
    )
    goal = Goal(end, k, tolerance, steps, fewest=fewest, starts=starts)
    before = operator.products
    first = starts_of(goal, operator, generator, warm)
    best, spent = nothing_found(operator), 0
    if low_precision is not None:
        best, first, spent = _in_low_precision(
            operator, low_precision, goal, first, generator
        )
    if not best.converged:
        seen = replace(goal, fewest=0) if spent and best.vectors.numel() else goal
        best = _in_full_precision(operator, seen, first, generator)
    best = replace(best, products=operator.products - before, rough_products=spent)
    return best if operator.unit in (0.0, 1.0) else _times(best, operator.unit)


def _times(best: Extremes, unit: float) -> Extremes:
    return replace(
        best,
        values=best.values * unit,
        residuals=best.residuals * unit,
        scale=best.scale * unit,
    )


def _in_full_precision(
    operator: SymmetricOperator, goal: Goal, starts: list[Tensor], generator: Generator
) -> Extremes:
    """Return the result of runs in full precision from `starts`; if they disagree, search the complement as well.

    Locked vectors are never improved, so all runs that disagree reach their residuals
    before vectors are locked.
    """
    none = nothing_found(operator)
    runs = begin(goal, starts, generator, none.vectors)
    starts.clear()  # frees their memory
    best = _converged(operator, goal, none, runs)
    if best.converged and (more := _unseen(runs, goal, best, operator)) is not None:
        runs = begin(
            goal,
            starts_of(goal, operator, generator, more.sum(dim=1)),
            generator,
            none.vectors,
        )
        best = _converged(operator, goal, none, runs)
    if best.converged or unfinished(runs, goal):
        return best
    best, goal = none, replace(goal, strict=True)
    for _ in range(_ROUNDS):
        best = _converged(operator, goal, best, runs)
        if (
            best.converged
            or unfinished(runs, goal)
            or best.vectors.shape[1] == operator.dim
        ):
            break
        runs = begin(
            goal, starts_of(goal, operator, generator, None), generator, best.vectors
        )
    return best


def _converged(
    operator: SymmetricOperator,
    goal: Goal,
    before: Extremes,
    runs: Sequence[LanczosRun],
) -> Extremes:
    run_until_converged(runs, operator, goal)
    return certify(operator, goal.end, goal.k, before, runs, goal.tolerance)


def _unseen(
    runs: Sequence[LanczosRun], goal: Goal, best: Extremes, operator: SymmetricOperator
) -> Tensor | None:
    return unseen(
        runs,
        goal.end,
        best,
        goal.tolerance * best.scale,
        operator.rounding / goal.tolerance,
    )


def _in_low_precision(
    operator: SymmetricOperator,
    low_precision: SymmetricOperator,
    goal: Goal,
    starts: list[Tensor],
    generator: Generator,
) -> tuple[Extremes, list[Tensor], int]:
    """Return the result of runs in float32, certified by `operator`, starts for further runs, and the products used.

    A network that overflows in float32, or whose products lose their symmetry to
    rounding, is not an error: the runs in full precision then begin from `starts`.
    """
    before, none = low_precision.products, nothing_found(operator)
    runs = begin(goal, starts, generator, none.vectors)
    try:
        run_until_converged(
            runs,
            low_precision,
            replace(goal, tolerance=max(goal.tolerance, _LEAST_RESIDUAL)),
        )
    except ArithmeticError:
        return none, starts, low_precision.products - before
    best = certify(operator, goal.end, goal.k, none, runs, goal.tolerance)
    if (
        best.converged
        and (more := _unseen(runs, goal, best, low_precision)) is not None
    ):
        starts = starts_of(goal, operator, generator, more.sum(dim=1))
        return replace(best, converged=False), starts, low_precision.products - before
    warm = [outer(run, goal.end, goal.k).sum(dim=1) for run in runs]
    return best, warm, low_precision.products - before
