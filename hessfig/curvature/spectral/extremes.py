"""The outermost eigenvalues of a symmetric operator, from two seeded starts that must agree.

A residual certifies *an* eigenvalue, never that it is the largest, and a Krylov space holds one vector of every
eigenspace however large it is. So two runs from independent starts, advanced in the same products, must find the same
values, and so must the space that both span together (it holds two vectors of an eigenspace). Where they differ, what
was found is locked and two new starts look for more in its complement.

Where the same operator can be had in lower precision, the runs go there first. What they find is judged by products in
full precision all the same; where that is not good enough, each run goes on in full precision from what it has found.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.lanczos import Run
from hessfig.curvature.spectral.operator import Operator
from hessfig.curvature.spectral.pursuit import Goal, begin, pursue, starts_of, unfinished
from hessfig.curvature.spectral.verdict import End, Extremes, judged, nothing, outer

__all__ = ["End", "Extremes", "extremes"]

_ROUNDS = 8
_ROUGHEST = 2e-7  # the least relative residual asked of runs over float32: below it is their rounding


def extremes(
    operator: Operator,
    end: End,
    *,
    k: int = 1,
    tolerance: float = 1e-6,
    steps: int = 100,
    generator: Generator,
    warm: Float[Tensor, " n"] | None = None,
    rough: Operator | None = None,
) -> Extremes:
    """Return the k outermost eigenvalues at one `end`, to a residual of `tolerance` times the largest in size.

    Lanczos with full re-orthogonalisation, restarted from Ritz vectors after `steps` vectors (never where twice as many
    span the space, earlier where two bases would exceed BASIS_BYTES). `warm`, an approximate eigenvector such as the
    last state's, shortens both runs: each starts from it and a random vector of its own. `rough` has the same
    operator's products in float32. Raises NotFinite, and ArithmeticError for an operator that is not symmetric.
    """
    goal, before = Goal(end, k, tolerance, steps), operator.products
    starts: Sequence[Tensor] = starts_of(operator.dim, generator, warm)
    found, spent = nothing(operator.dim), 0
    if rough is not None:
        found, starts, spent = _roughly(operator, rough, goal, starts, generator)
    if not found.converged:
        found = _finely(operator, goal, starts, generator)
    return replace(found, products=operator.products - before, rough_products=spent)


def _finely(operator: Operator, goal: Goal, starts: Sequence[Tensor], generator: Generator) -> Extremes:
    """Return what runs find in full precision from `starts`; where they disagree, also in its complement.

    What is locked is never improved again, so runs that disagree reach their residuals, every one, before it is.
    """
    none = nothing(operator.dim)
    runs = begin(goal, starts, generator, none.vectors)
    found = _pursued(operator, goal, none, runs)
    if found.converged or unfinished(runs, goal):
        return found
    found, goal = none, replace(goal, strict=True)
    for _ in range(_ROUNDS):
        found = _pursued(operator, goal, found, runs)
        if found.converged or unfinished(runs, goal) or found.vectors.shape[1] == operator.dim:
            break
        runs = begin(goal, starts_of(operator.dim, generator, None), generator, found.vectors)
    return found


def _pursued(operator: Operator, goal: Goal, before: Extremes, runs: Sequence[Run]) -> Extremes:
    pursue(runs, operator, goal)
    return judged(operator, goal.end, goal.k, before, runs, goal.tolerance)


def _roughly(
    operator: Operator, rough: Operator, goal: Goal, starts: Sequence[Tensor], generator: Generator
) -> tuple[Extremes, Sequence[Tensor], int]:
    """Return what runs find with products in float32, judged by `operator`, their vectors, and the products spent.

    A network that float32 cannot hold (it overflows, or rounding leaves nothing of the symmetry) is no error: its runs
    have their `starts` still before them.
    """
    before, none = rough.products, nothing(operator.dim)
    runs = begin(goal, starts, generator, none.vectors)
    try:
        pursue(runs, rough, replace(goal, tolerance=max(goal.tolerance, _ROUGHEST)))
    except ArithmeticError:
        return none, starts, rough.products - before
    found = judged(operator, goal.end, goal.k, none, runs, goal.tolerance)
    warm = [outer(run, goal.end, goal.k).sum(dim=1) for run in runs]
    return found, warm, rough.products - before
