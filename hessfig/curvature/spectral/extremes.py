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
    r"""The k outermost eigenvalues, the outermost first, with orthonormal vectors.

    For a symmetric A and a unit vector v with the residual r = A v - theta v, some eigenvalue
    lies within |r| of theta: in the eigenvectors of A,

    .. math:: |r|^2 = \sum_i (\lambda_i - \theta)^2 (q_i^\top v)^2
              \ge \min_i (\lambda_i - \theta)^2.

    That it is the outermost one does not follow from residuals; this is what two starts are
    for.

    Attributes
    ----------
    values, residuals : tensors (k,)
        theta, and ||A v - theta v|| from separate products.
    vectors : tensor (n, k)
    scale : float
        The largest absolute eigenvalue seen.
    converged : bool
        Whether all residuals, and the difference between the two starts, are below
        tolerance * scale.
    products, rough_products : int
        The products in full precision, and those of an operator of lower precision.
    """

    values: Float[Tensor, " k"]
    residuals: Float[Tensor, " k"]
    vectors: Float[Tensor, "n k"]
    scale: float
    converged: bool = False
    products: int = 0
    rough_products: int = 0


def nothing_found(operator: SymmetricOperator) -> Extremes:
    """Return the result before the first run: no eigenvalues, orthogonal to everything."""
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

    Parameters
    ----------
    operator : SymmetricOperator
        In full precision.
    end, k, tolerance
        Which values are sought, and to which share of the scale.
    before : Extremes
        What was locked before: the runs are orthogonal to its vectors.
    runs : sequence of LanczosRun
        Those of all starts; runs on long vectors are sorted (LanczosRun.sort).
    """
    if is_short(runs[0].basis):
        return _certify_short(operator, end, k, before, runs, tolerance)
    return _certify_long(operator, end, k, before, runs, tolerance)


def _certify_short(
    operator: SymmetricOperator,
    end: End,
    k: int,
    before: Extremes,
    runs: Sequence[LanczosRun],
    tolerance: float,
) -> Extremes:
    """Multiply the vectors of all runs, those of `before`, and the longest one in one call.

    The longest Ritz value in size, at whichever end it is, gives `scale` as a Rayleigh
    quotient |v^T A v| of a separate product.
    """
    bases = [before.vectors, *(outer(run, end, k) for run in runs)]
    peak = _longest(runs, end, k)
    pieces = [*bases, peak]
    product = operator.matmat(torch.cat(pieces, dim=1))
    *images, image = product.split([piece.shape[1] for piece in pieces], dim=1)
    alone = []
    for vectors, products in zip(bases, images, strict=True):
        if vectors.numel():
            alone.append(pairs(vectors, products, end, k))
    together = pairs(torch.cat(bases, dim=1), torch.cat(images, dim=1), end, k)
    sizes = (peak * image).sum(dim=0).abs().tolist()
    return _judged(before, alone, together, sizes, tolerance)


def _certify_long(
    operator: SymmetricOperator,
    end: End,
    k: int,
    before: Extremes,
    runs: Sequence[LanczosRun],
    tolerance: float,
) -> Extremes:
    """Turn the bases of the runs into Ritz vectors, the outermost first, so that none of them is copied.

    Products are taken one vector at a time: those of the k outermost Ritz vectors of each
    run, of `before`, and of the longest Ritz value, for the scale. All inner products are
    Gram matrices of these few vectors and their images (`Span`).
    """
    for run in runs:
        run.sort(end.order)
    sizes = [abs(float(dots(v, _image(operator, v)))) for v in _peaks(runs, k)]
    rows = list(before.vectors.T)
    counts = [len(rows)]
    for run in runs:
        outermost = list(run.basis[: min(k, run.length)])
        rows += outermost
        counts.append(len(outermost))
    images = [_image(operator, row) for row in rows]
    span = Span(rows, images, *grams(rows, images))
    places = torch.arange(len(rows), device="cpu")
    alone = []
    for of_run in places.split(counts):
        if len(of_run):
            alone.append(span.pairs(of_run, end, k))
    together = span.pairs(places, end, k)
    best = _judged(before, alone, together, sizes, tolerance)
    return replace(best, vectors=combined(rows, best.vectors))


def _image(
    operator: SymmetricOperator, vector: Float[Tensor, " n"]
) -> Float[Tensor, " n"]:
    """Return A v."""
    return operator.matmat(vector[:, None])[:, 0]


def _peaks(runs: Sequence[LanczosRun], k: int) -> list[Float[Tensor, " n"]]:
    """Return the Ritz vector of the largest absolute value of sorted runs; none if it is among the k outermost."""
    run = max(runs, key=lambda run: float(run.projection.diagonal().abs().max()))
    place = int(run.projection.diagonal()[: run.length].abs().argmax())
    if place < k:
        return []
    return [run.basis[place]]


@dataclass(frozen=True)
class Span:
    """A space spanned by long vectors, the rows of V, with their products P, V V^T and V P^T."""

    rows: Rows
    images: Rows
    gram: Float[Tensor, "p p"]
    product: Float[Tensor, "p p"]

    def pairs(self, places: Tensor, end: End, k: int) -> Extremes:
        """Return the outermost Ritz pairs of some of the rows; as `vectors`, the coefficients of all rows (p, k).

        Gram matrices hold squared lengths: directions of singular values up to _ALIKE have
        eigenvalues up to _ALIKE^2 there.
        """
        gram = self.gram[places][:, places]
        product = self.product[places][:, places]
        values, basis, coefficients = _in_span(gram, product, _ALIKE**2)
        order = end.order(values)[:k]
        size = (len(self.rows), len(order))
        weights = torch.zeros(size, dtype=torch.float64, device="cpu")
        weights[places] = basis @ coefficients[:, order]
        off = residuals(self.rows, self.images, weights, values[order])
        return Extremes(values[order], off, weights, float(values.abs().max()))


def _in_span(
    gram: Tensor, product: Tensor, least: float
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Return Ritz values, an orthonormal basis of the span, and coefficients in it, from G = V V^T and V P^T.

    With G = U diag(s) U^T, the columns of W = U s^(-1/2) are the coefficients of an
    orthonormal basis in the rows of V,

    .. math:: (V^\top W)^\top V^\top W = W^\top G W = I, \qquad
              (V^\top W)^\top A \, V^\top W = W^\top (V P^\top) W,

    with P = V A, the products. The Ritz values are the eigenvalues of the last matrix,
    symmetrised. Directions with s <= `least` are left out: division by the root of a small
    s amplifies rounding.
    """
    sizes, directions = torch.linalg.eigh((gram + gram.T) / 2)
    basis = directions[:, sizes > least] / sizes[sizes > least].sqrt()
    projection = basis.T @ (product + product.T) @ basis / 2
    values, coefficients = torch.linalg.eigh(projection)
    return values, basis, coefficients


def _judged(
    before: Extremes,
    alone: Sequence[Extremes],
    together: Extremes,
    sizes: Sequence[float],
    tolerance: float,
) -> Extremes:
    """Return the claim with the smallest residuals if all claims agree with all vectors together, else these.

    A claim is the result of one run, or what was locked `before`: then it is the only one,
    since the runs in its complement must find nothing farther out. Claims agree if their
    values are those of the joint space up to tolerance * scale. A run that has missed an
    eigenvalue farther out disagrees with the space that contains the other run's. `sizes`
    are absolute values that were seen elsewhere in the spectrum, for the scale.
    """
    of_runs = [claim.scale for claim in alone]
    scale = max(before.scale, together.scale, *sizes, *of_runs)
    claims = alone[:1] if before.vectors.numel() else alone
    agree = all(_agree(claim, together, tolerance * scale) for claim in claims)
    best = together
    if agree:
        best = min(claims, key=lambda claim: float(claim.residuals.max()))
    small = bool((best.residuals <= tolerance * scale).all())
    return replace(best, scale=scale, converged=agree and small)


def outer(run: LanczosRun, end: End, k: int) -> Float[Tensor, "n k"]:
    """Return the k outermost Ritz vectors of a run.

    With eigenvectors S of T, they are Q S[:, :k], orthonormal as Q is.
    """
    ritz = run.ritz()
    return run.vectors(ritz.coefficients[:, end.order(ritz.values)[:k]])


def pairs(
    vectors: Float[Tensor, "n p"], product: Float[Tensor, "n p"], end: End, k: int
) -> Extremes:
    """Return the outermost Ritz pairs of the space spanned by `vectors`, with the products of the vectors given.

    With V = L diag(s) R^T, the columns of L are an orthonormal basis of the space and
    A L = (A V) R diag(1 / s). Ritz pairs are eigenpairs of L^T A L. Directions with
    s <= _ALIKE are those of vectors that agree.

    Examples
    --------
    The space of the first two unit vectors, for A = diag(1, 2, 3):

    >>> import torch
    >>> vectors = torch.eye(3, 2).double()
    >>> image = torch.tensor([1.0, 2.0, 3.0]).double()[:, None] * vectors
    >>> found = pairs(vectors, image, End.largest, k=1)
    >>> [round(float(number), 9) for number in (found.values, found.residuals)]
    [2.0, 0.0]
    """
    left, sizes, right = torch.linalg.svd(vectors, full_matrices=False)
    is_new = sizes > _ALIKE
    basis = left[:, is_new]
    image = product @ (right[is_new].T / sizes[is_new])
    values, coefficients = torch.linalg.eigh((basis.T @ image + image.T @ basis) / 2)
    order = end.order(values)[:k]
    chosen = coefficients[:, order]
    ritz_vectors = basis @ chosen
    off = (image @ chosen - ritz_vectors * values[order]).norm(dim=0)
    scale = float(values.abs().max())
    return Extremes(values[order].cpu(), off.cpu(), ritz_vectors, scale)


def _longest(runs: Sequence[LanczosRun], end: End, k: int) -> Float[Tensor, "n p"]:
    """Return the Ritz vector of the largest absolute value; none if it is among the k outermost of its run."""
    run = max(runs, key=lambda run: float(run.ritz().values.abs().max()))
    ritz = run.ritz()
    longest = int(ritz.values.abs().argmax())
    outermost = end.order(ritz.values)[:k].tolist()
    chosen = [] if longest in outermost else [longest]
    return run.vectors(ritz.coefficients[:, chosen])


def _agree(first: Extremes, other: Extremes, allowed: float) -> bool:
    """Whether two results have the same values, up to `allowed`."""
    if len(first.values) != len(other.values):
        return False
    return bool(((first.values - other.values).abs() <= allowed).all())


def unseen(
    runs: Sequence[LanczosRun], end: End, best: Extremes, allowed: float, least: float
) -> Float[Tensor, "n k"] | None:
    """Return Ritz vectors whose values lie outside those of `best` by more than `allowed`; None if there are none.

    The vectors are sought in the span of the bases Q_r of all runs, the block Krylov
    space of all starts, from the blocks Q_r^T Q_s and Q_r^T A Q_s. It may contain
    eigenvectors that no single run shows, and costs no product. Directions whose
    squared length in the joined bases is below `least` are rounding and are left out.

    Ritz values of a larger space are farther out, by Cauchy's interlacing theorem: those of
    all runs together are at least as far out as those of each.
    """
    grams_by_run = []
    products_by_run = []
    for run in runs:
        blocks = [run.against(other) for other in runs]
        grams_by_run.append(torch.cat([block[0] for block in blocks], dim=1))
        products_by_run.append(torch.cat([block[1] for block in blocks], dim=1))
    gram = torch.cat(grams_by_run)
    product = torch.cat(products_by_run)
    values, basis, coefficients = _in_span(gram, product, least)
    order = end.order(values)[: len(best.values)]
    farther = values[order] - best.values[: len(order)]
    if end == End.smallest:
        farther = -farther
    if not bool((farther > allowed).any()):
        return None
    parts = (basis @ coefficients[:, order]).split([run.length for run in runs])
    vectors = []
    for run, part in zip(runs, parts, strict=True):
        vectors.append(run.vectors(part))
    return torch.stack(vectors).sum(dim=0)


STARTS = 2
# Bytes of the vectors of the two runs, and of long vectors, if these are more than
# LONG_VECTORS: the bases of both runs, and the next vector of each.
BASIS_BYTES = 2**30
LONG_BYTES = 2**27
LONG_VECTORS = 12
_FEWEST = 20  # vectors of a basis, whatever memory says
_CHECK_EVERY = 2  # steps between two looks at the Ritz values
_RESTARTS, _LONG_RESTARTS = 30, 100  # of a run, after which it has not converged
# Length of the given vector in a warm start, relative to the random vector.
_WARMTH = 3.0
# Share of the tolerance that is allowed for the residual of a run.
_SPARE = 0.5
# Safety factor of the gap, which is to a Ritz value that has not converged.
_DOUBT = 4.0
# n times the squared cosine of a random vector with one of n eigenvectors is above it
# once in 2e7.
_FAR = 30.0
# Probability that one run has missed a value that is farther out.
_MISSED = 0.01


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

    A space of n <= 2 `goal.steps` dimensions is spanned without a restart. This takes fewer
    products, and next to a cluster (the zeros of a block without full rank) restarts may not
    converge. Otherwise a run has `goal.steps` vectors, or as many as BASIS_BYTES hold in
    float64 for both runs, but at least 2 k + 2 and _FEWEST. For long vectors see
    `long_sizes`.
    """
    dim = len(locked)
    if is_short(starts):
        steps = dim if dim <= 2 * goal.steps else goal.steps
        size = min(steps, BASIS_BYTES // (8 * STARTS * dim))
        size = max(size, 2 * goal.k + 2, min(_FEWEST, goal.steps))
        sizes = [size] * len(starts)
    else:
        sizes, _ = long_sizes(goal, dim)
    runs = []
    for start, size in zip(starts, sizes, strict=False):
        runs.append(LanczosRun(start, size, locked=locked, fresh=generator))
    return runs


def long_sizes(goal: Goal, dim: int) -> tuple[list[int], int]:
    r"""Return the number of vectors of each of the two runs, and how many vectors of the first run remain.

    With at most M vectors in memory, and the steps s of the goal,

    .. math:: M = \max\bigl(10, \; 3 k + 4, \; \lfloor 2^{27} / (4 n) \rfloor\bigr), \qquad
              m_1 = \min(s, M), \qquad r = \max(k + 2, M - s), \qquad
              m_2 = \min(s, M - r).

    Runs on long vectors take turns. The second one begins when the first one has converged
    and keeps r Ritz vectors. 10 is LONG_VECTORS less the next vector of each run.

    Examples
    --------
    >>> from hessfig.curvature.spectral.extremes import End, Goal, long_sizes
    >>> long_sizes(Goal(End.largest, k=1, tolerance=1e-6, steps=100), 10**7)
    ([10, 7], 3)
    """
    most = max(LONG_VECTORS - STARTS, 3 * goal.k + 4, LONG_BYTES // (4 * dim))
    first = min(goal.steps, most)
    remaining = max(goal.k + 2, most - goal.steps)
    return [first, min(goal.steps, most - remaining)], remaining


def run_until_converged(
    runs: Sequence[LanczosRun], operator: SymmetricOperator, goal: Goal
) -> None:
    """Advance runs until all have finished, or until their restarts are used up; runs on long vectors take turns.

    Runs on short vectors advance together, one product call for all. Ritz values are
    looked at every _CHECK_EVERY steps: the decomposition of T takes O(j^3) operations.
    """
    if not is_short(runs[0].basis):
        _take_turns(runs, operator, goal)
        return
    going = unfinished(runs, goal)
    taken = 0
    restarts = 0
    while advance(going, operator):
        taken += 1
        # A look at the Ritz values costs as much as some products.
        if taken % _CHECK_EVERY and not any(run.is_full for run in going):
            continue
        going = unfinished(runs, goal)
        for run in going:
            if run.is_full and restarts < STARTS * _RESTARTS:
                run.restart(_kept(run, goal))
                restarts += 1


def _take_turns(
    runs: Sequence[LanczosRun], operator: SymmetricOperator, goal: Goal
) -> None:
    """Advance one run after the other; one that is done keeps a few Ritz vectors, which frees memory for the next."""
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
    """Return the runs that have not reached the goal.

    The run that is ahead has to reach the residuals, the others only their values (with
    goal.strict, all the residuals): the vectors of one run are enough. Half of the tolerance
    is allowed (_SPARE), so that the separate products of `certify` stay below it.
    """
    claims = [_claim(run, goal) for run in runs]
    ahead = min(claims, key=lambda claim: claim.residual)
    allowed = _SPARE * goal.tolerance * max(claim.scale for claim in claims)
    going = []
    for run, claim in zip(runs, claims, strict=True):
        off = claim.off
        if goal.strict or claim is ahead:
            off = claim.residual
        if off > allowed or _is_too_soon(run, goal):
            going.append(run)
    return going


def fewest_steps(dim: int, tolerance: float, steps: int) -> int:
    r"""Return the number of steps after which Lanczos would have seen a value farther out by tolerance * scale.

    The start is random, so its component along that eigenvector is small and has to
    grow. For a positive definite matrix of dimension n and a random start, the largest Ritz
    value after k steps is below (1 - eps) times the largest eigenvalue with a probability of
    at most

    .. math:: 1.648 \, \sqrt{n} \, e^{-(2 k - 1) \sqrt{\epsilon}}.

    Lanczos does not see shifts, A + scale I has eigenvalues between 0 and 2 scale, and an
    error of tolerance * scale is eps = tolerance / 2 of the largest. The result is the k
    for which the probability is _MISSED. For tight tolerances k would be too large;
    `steps` is used instead.

    References
    ----------
    J. Kuczynski and H. Wozniakowski (1992), Estimating the largest eigenvalue by the power
    and Lanczos algorithms with a random start, SIAM Journal on Matrix Analysis and
    Applications 13, Theorem 4.1.

    Examples
    --------
    >>> from hessfig.curvature.spectral.extremes import fewest_steps
    >>> [fewest_steps(10**4, tolerance, 1000) for tolerance in (1e-2, 1e-4, 1e-6)]
    [70, 688, 1000]
    """
    chances = math.log(1.648 * dim**0.5 / _MISSED)
    return min(steps, math.ceil((chances / (tolerance / 2) ** 0.5 + 1) / 2))


def _is_too_soon(run: LanczosRun, goal: Goal) -> bool:
    """Whether the outermost Ritz vectors lie so close to the start that they cannot be single eigenvectors.

    The squared cosine of a random start with one of n eigenvectors is about chi^2 / n with
    one degree of freedom, and exceeds _FAR / n once in 2e7. A Ritz vector that is closer
    mixes many eigenvectors: it represents a cluster, such as the zeros of a block with few
    large eigenvalues. The start itself is nearly a vector of the cluster, with a small
    residual, before eigenvalues farther out can appear.
    """
    has_ended = run.vector is None or run.is_restarted
    if has_ended or run.steps >= min(goal.fewest, run.size):
        return False
    ritz = run.ritz()
    if not bool(ritz.residuals.any()):  # an invariant subspace
        return False
    outermost = goal.end.order(ritz.values)[: goal.k]
    # The squared cosines of the Ritz vectors with the start, the first vector.
    along = ritz.coefficients[0, outermost].square()
    return bool((along * run.dim > _FAR).any())


def _claim(run: LanczosRun, goal: Goal) -> _Claim:
    r"""Return how far the outermost Ritz pairs of a run are from eigenpairs.

    The error of a Ritz value is at most its residual r, and at most r^2 / gap, with the
    gap to the rest of the spectrum. The values as a whole are taken to be off by

    .. math:: \min\Bigl(\max_i r_i, \; 4 \sum_{i \le k} r_i^2 \Big/
              |\theta_k - \theta_{k+1}|\Bigr),

    where the gap is that to the next Ritz value, which has not converged itself: hence the
    factor (_DOUBT). The residuals are those of the recurrence, |r| |s_j| (LanczosRun.ritz).

    References
    ----------
    B. N. Parlett (1998), The symmetric eigenvalue problem, SIAM, for both bounds.
    """
    if run.vector is None:
        return _Claim(0.0, 0.0, 0.0)
    k = goal.k
    if run.length < k:
        return _Claim(torch.inf, torch.inf, 0.0)
    ritz = run.ritz()
    order = goal.end.order(ritz.values)
    residuals = ritz.residuals[order[:k]]
    values = ritz.values[order]
    largest = float(residuals.max())
    scale = float(values.abs().max())
    gap = 0.0
    if run.length > k:
        gap = float((values[k - 1] - values[k]).abs())
    off = torch.inf
    if gap > 0.0:
        off = _DOUBT * float(residuals.square().sum()) / gap
    return _Claim(largest, min(largest, off), scale)


def _start(
    operator: SymmetricOperator, generator: Generator, warm: Tensor | None
) -> Tensor:
    """Return a random unit vector, near `warm` if that is given.

    start + 3 warm: the squared cosine with `warm` is about 9 / 10, and the random part lets
    the run see eigenvectors that `warm` is orthogonal to.
    """
    start = drawn(operator.like, operator.dim, generator)
    start = start / length(start)
    if warm is None or not length(warm) > 0.0:
        return start
    return start + _WARMTH * warm.to(start) / length(warm)


def _kept(run: LanczosRun, goal: Goal) -> list[int]:
    """Return the Ritz vectors that a restart keeps: the outermost, and some more for speed.

    k + (m - k) / 3 + 1 of m vectors, so that two thirds of the basis beyond k are new before
    the next restart. Values that are kept next to the k wanted ones widen the gap that
    governs convergence.
    """
    kept = min(goal.k + (run.size - goal.k) // 3 + 1, run.size - 1)
    return goal.end.order(run.ritz().values)[:kept].tolist()


_ROUNDS = 8  # of runs in the complement of what was found before
_WARMED = 10  # the fewest steps from a warm start
# The smallest relative residual required of runs in float32; rounding is below it.
_LEAST_RESIDUAL = 2e-7


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
    best = nothing_found(operator)
    spent = 0
    if low_precision is not None:
        best, first, spent = _in_low_precision(
            operator, low_precision, goal, first, generator
        )
    if not best.converged:
        seen = replace(goal, fewest=0) if spent and best.vectors.numel() else goal
        best = _in_full_precision(operator, seen, first, generator)
    best = replace(best, products=operator.products - before, rough_products=spent)
    unit = operator.unit or 1.0
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

    1. Two runs from different starts. If they agree, the span of both bases is searched
       for values farther out (`unseen`); if there are any, both start again near them.
    2. If they disagree, the vectors that were found are locked, and runs in their
       complement search for values farther out, at most _ROUNDS times. With the locked
       vectors L, A L = L Theta up to their residuals, A maps the complement into itself up to
       these, so that its eigenvalues there are the others.

    Locked vectors are never improved, so all runs that disagree reach their residuals before
    vectors are locked.
    """
    none = nothing_found(operator)
    runs = begin(goal, starts, generator, none.vectors)
    starts.clear()  # frees their memory
    best = _converged(operator, goal, none, runs)
    if best.converged:
        more = _unseen(runs, goal, best, operator)
        if more is not None:
            near = starts_of(goal, operator, generator, more.sum(dim=1))
            runs = begin(goal, near, generator, none.vectors)
            best = _converged(operator, goal, none, runs)
    if best.converged or unfinished(runs, goal):
        return best
    best = none
    goal = replace(goal, strict=True)
    for _ in range(_ROUNDS):
        best = _converged(operator, goal, best, runs)
        if best.converged or unfinished(runs, goal):
            break
        if best.vectors.shape[1] == operator.dim:
            break
        random = starts_of(goal, operator, generator, None)
        runs = begin(goal, random, generator, best.vectors)
    return best


def _converged(
    operator: SymmetricOperator,
    goal: Goal,
    before: Extremes,
    runs: Sequence[LanczosRun],
) -> Extremes:
    """Advance the runs as far as they go, and certify what they found."""
    run_until_converged(runs, operator, goal)
    return certify(operator, goal.end, goal.k, before, runs, goal.tolerance)


def _unseen(
    runs: Sequence[LanczosRun], goal: Goal, best: Extremes, operator: SymmetricOperator
) -> Tensor | None:
    """Return vectors outside of `best` by more than the tolerance, beyond the rounding of the operator.

    A direction of squared length s in the joined bases has products with the relative error
    rounding / s: it says something about values to the tolerance if s is above rounding /
    tolerance, the `least` of `unseen`.
    """
    allowed = goal.tolerance * best.scale
    least = operator.rounding / goal.tolerance
    return unseen(runs, goal.end, best, allowed, least)


def _in_low_precision(
    operator: SymmetricOperator,
    low_precision: SymmetricOperator,
    goal: Goal,
    starts: list[Tensor],
    generator: Generator,
) -> tuple[Extremes, list[Tensor], int]:
    """Return the result of runs in float32, certified by `operator`, starts for further runs, and the products used.

    Vectors from products with the relative error u of float32 are eigenvectors up to u
    scale / gap, and their Rayleigh quotients in full precision are off by the square of
    that, so that few further products are needed. A network that overflows in float32, or
    whose products lose their symmetry to rounding, is not an error: the runs in full
    precision then begin from `starts`.
    """
    before = low_precision.products
    none = nothing_found(operator)
    runs = begin(goal, starts, generator, none.vectors)
    rough = replace(goal, tolerance=max(goal.tolerance, _LEAST_RESIDUAL))
    try:
        run_until_converged(runs, low_precision, rough)
    except ArithmeticError:
        return none, starts, low_precision.products - before
    spent = low_precision.products - before
    best = certify(operator, goal.end, goal.k, none, runs, goal.tolerance)
    if best.converged:
        more = _unseen(runs, goal, best, low_precision)
        if more is not None:
            near = starts_of(goal, operator, generator, more.sum(dim=1))
            return replace(best, converged=False), near, spent
    warm = [outer(run, goal.end, goal.k).sum(dim=1) for run in runs]
    return best, warm, spent
