"""Two Lanczos runs after the same outermost eigenvalues, advanced in the same products until both can be judged.

The run that is ahead goes on until its residuals are small. The other is there to agree in the values, and these are
far better than its vectors: with residuals r_1, ..., r_k and a gap g to the next Ritz value, the k values are off by no
more than (r_1^2 + ... + r_k^2) / g once g is known (B. N. Parlett, The Symmetric Eigenvalue Problem, chapter 11).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.lanczos import Run, advance
from hessfig.curvature.spectral.operator import Operator
from hessfig.curvature.spectral.verdict import End

STARTS = 2
BASIS_BYTES = 2**30  # of the vectors that the two runs keep
_FEWEST, _CHECK_EVERY, _RESTARTS = 20, 2, 30
_WARMTH = 3.0  # how much of a warm start is the vector given, the rest of it random
_SPARE = 0.5  # the share of the tolerance that a run may spend
_DOUBT = 4.0  # for the gap, which is one to a Ritz value that has not converged


@dataclass(frozen=True)
class Goal:
    """The `k` outermost values at one `end`, to `tolerance` times the largest in size, by runs of `steps` vectors.

    `strict`: every run is to reach the residuals, not only the one that is ahead.
    """

    end: End
    k: int
    tolerance: float
    steps: int
    strict: bool = False


@dataclass(frozen=True, eq=False)
class _Claim:
    """The largest residual of a run's outermost Ritz pairs, how far their values may be off, and their scale."""

    residual: float
    off: float
    scale: float


def starts_of(dim: int, generator: Generator, warm: Tensor | None) -> list[Tensor]:
    """Return a start for each run: random, or near `warm`."""
    return [_start(dim, generator, warm) for _ in range(STARTS)]


def begin(
    goal: Goal, starts: Sequence[Tensor], generator: Generator, locked: Float[Tensor, "n p"]
) -> list[Run]:
    """Return runs from `starts`, orthogonal to `locked`, that have not taken a step.

    A space of at most twice `goal.steps` dimensions is spanned without a restart: that costs fewer products, and beside
    a cluster (the zeros of a block without full rank) restarts may not end.
    """
    steps = len(locked) if len(locked) <= 2 * goal.steps else goal.steps
    size = min(steps, BASIS_BYTES // (8 * STARTS * len(locked)))
    size = max(size, 2 * goal.k + 2, min(_FEWEST, goal.steps))
    return [Run(start, size, locked=locked, fresh=generator) for start in starts]


def pursue(runs: Sequence[Run], operator: Operator, goal: Goal) -> None:
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


def unfinished(runs: Sequence[Run], goal: Goal) -> list[Run]:
    """Return the runs that have not found what is asked of them."""
    claims = [_claim(run, goal) for run in runs]
    ahead = min(claims, key=lambda claim: claim.residual)
    allowed = _SPARE * goal.tolerance * max(claim.scale for claim in claims)
    return [
        run
        for run, claim in zip(runs, claims, strict=True)
        if (claim.residual if goal.strict or claim is ahead else claim.off) > allowed
    ]


def _claim(run: Run, goal: Goal) -> _Claim:
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


def _kept(run: Run, goal: Goal) -> list[int]:
    """Return which Ritz vectors a run goes on with: the outermost, and some more for speed."""
    kept = min(goal.k + (run.size - goal.k) // 3 + 1, run.size - 1)
    return [int(index) for index in goal.end.order(run.ritz().values)[:kept]]
