"""Lanczos runs, advanced together: full re-orthogonalisation, exact breakdown, restarts from Ritz vectors.

A run keeps an orthonormal basis q_1, q_2, ... and the projection T of the operator on it. Full re-orthogonalisation
costs memory and bandwidth, not products, and products are what is dear here. A vector whose new part is no more than
rounding means that the basis spans an invariant subspace: T is then exact, and the run ends, or goes on from a fresh
random vector where a start that lacks some eigenvectors must not decide (G. H. Golub and C. F. Van Loan, Matrix
Computations, section 10.1; K. Wu and H. Simon, SIAM J. Matrix Anal. Appl. 22 (2000) 602, for the restart).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.operator import Operator

_FEWER = 0.5  # a vector that loses more than this to the basis is orthogonalised once more


@dataclass(frozen=True)
class Ritz:
    """Eigenvalues of a run's projection, ascending, its eigenvectors, and the residual norm of each Ritz pair."""

    values: Float[Tensor, " j"]
    coefficients: Float[Tensor, "j j"]
    residuals: Float[Tensor, " j"]


class Run:
    """One Lanczos run of at most `size` vectors from `start`, within the complement of the columns of `locked`.

    `vector` is what is to be multiplied next; None when the run has ended. With `fresh`, a generator, a run that breaks
    down goes on from a random vector until its basis spans the whole space.
    """

    def __init__(
        self,
        start: Float[Tensor, " n"],
        size: int,
        *,
        locked: Float[Tensor, "n p"] | None = None,
        fresh: Generator | None = None,
    ) -> None:
        self.dim = len(start) - (0 if locked is None else locked.shape[1])
        self.size = min(size, self.dim)
        # Memory that no vector fills is never touched, and costs nothing.
        self.basis = torch.empty(self.size, len(start), dtype=torch.float64)
        self.projection = torch.zeros(self.size, self.size, dtype=torch.float64)
        self.length, self.reach = 0, 0.0
        self._locked, self._fresh = locked, fresh
        self._link: Tensor = torch.zeros(0, dtype=torch.float64)  # q_new . A q_i, known from before
        self.vector: Tensor | None = None
        self._begin(start)

    @property
    def is_full(self) -> bool:
        """Whether the basis has all its vectors, and more could be had."""
        return self.length == self.size < self.dim

    def absorb(self, product: Float[Tensor, " n"], operator: Operator) -> None:
        """Add `vector`, whose product is given, to the basis; find the next one.

        Raises ArithmeticError when the products are not those of a symmetric operator.
        """
        assert self.vector is not None
        j, known = self.length, self._link
        self.basis[j] = self.vector
        rest = self._unlocked(product)
        self.reach = max(self.reach, float(rest.norm()))
        rest, coefficients = self._orthogonal(rest, known)
        operator.check_symmetric(float((coefficients[:j] - known).norm()), self.reach)
        self.projection[:j, j] = self.projection[j, :j] = known
        self.projection[j, j] = coefficients[j]
        self.length = j + 1
        self._go_on(rest, operator.rounding)

    def ritz(self) -> Ritz:
        """Return the Ritz values, and how far each Ritz vector is from an eigenvector."""
        j = self.length
        values, coefficients = torch.linalg.eigh(self.projection[:j, :j])
        return Ritz(values, coefficients, (self._link @ coefficients).abs())

    def vectors(self, coefficients: Float[Tensor, "j k"]) -> Float[Tensor, "n k"]:
        """Return the vectors with these coefficients in the basis."""
        return self.basis[: self.length].T @ coefficients

    def restart(self, keep: Sequence[int]) -> None:
        """Go on with some of the Ritz vectors alone as the basis, and the vector that was next (thick restart)."""
        ritz, count = self.ritz(), len(keep)
        kept = ritz.coefficients[:, list(keep)]
        self.basis[:count] = self.vectors(kept).T
        self.projection.zero_()
        self.projection[range(count), range(count)] = ritz.values[list(keep)]
        self._link = self._link @ kept
        self.length = count

    def _begin(self, start: Tensor) -> None:
        rest = self._unlocked(start)
        if float(rest.norm()) > 0.0:
            self.vector = rest / rest.norm()
        elif self._fresh is not None:
            self._renew()

    def _go_on(self, rest: Tensor, rounding: float) -> None:
        size = float(rest.norm())
        self._link, self.vector = torch.zeros(self.length, dtype=torch.float64), None
        if self.length == self.dim:
            return
        if size > rounding * self.reach:
            self._link[-1], self.vector = size, self._unit(rest / size)
        elif self._fresh is not None:  # an invariant subspace
            self._renew()

    def _unit(self, vector: Tensor) -> Tensor:
        """Return a unit vector without what rounding has left in it of `locked`: much, where it was short before."""
        if self._locked is None:
            return vector
        vector = self._unlocked(vector)
        return vector / vector.norm()

    def _renew(self) -> None:
        """Take a random vector outside the basis."""
        draw = torch.randn(self.basis.shape[1], dtype=torch.float64, generator=self._fresh)
        for _ in range(2):
            draw = self._unlocked(draw)
            draw = draw - self._inside(draw)[0]
            draw = draw / draw.norm()
        self.vector = draw

    def _orthogonal(self, product: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the part of `product` outside the basis (its new vector included), and all coefficients inside.

        First along the last two vectors, where nearly all of it is; then along all; then again if that took much.
        """
        j = self.length
        coefficients = torch.zeros(j + 1, dtype=torch.float64)
        coefficients[j] = self.basis[j] @ product
        rest = product - coefficients[j] * self.basis[j]
        if j:
            coefficients[j - 1] = known[-1]
            rest = rest - known[-1] * self.basis[j - 1]
        for _ in range(3):
            before = float(rest.norm())
            inside, found = self._inside(rest, j + 1)
            rest, coefficients = rest - inside, coefficients + found
            if float(rest.norm()) > _FEWER * before:
                break
        return rest, coefficients

    def _inside(self, vector: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
        basis = self.basis[: self.length if count is None else count]
        found = basis @ vector
        return basis.T @ found, found

    def _unlocked(self, vector: Tensor) -> Tensor:
        if self._locked is None:
            return vector
        for _ in range(2):
            vector = vector - self._locked @ (self._locked.T @ vector)
        return vector


def advance(runs: Sequence[Run], operator: Operator) -> bool:
    """Take one step of every run that goes on, their products in one call; return whether there was any."""
    going = [(run, run.vector) for run in runs if run.vector is not None and run.length < run.size]
    if not going:
        return False
    products = operator.matmat(torch.stack([vector for _, vector in going], dim=1))
    for (run, _), product in zip(going, products.T.contiguous(), strict=True):
        run.absorb(product, operator)
    return True
