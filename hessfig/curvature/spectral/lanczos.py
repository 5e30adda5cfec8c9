"""Symmetric operators and the Lanczos recurrence, in float64, with full reorthogonalisation."""

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.column import SPLIT, Column, multiplied
from hessfig.curvature.rounding import SYMMETRY, norm, unit_of
from hessfig.rng import stream
from hessfig.terms import Part

_BESIDE = 1e-6  # a part that is smaller than this, relative to the other parts, is rounding


class NotFinite(ArithmeticError):
    """A product is not finite: the network overflows, and its eigenvalues cannot be computed."""


@runtime_checkable
class SymmetricOperator(Protocol):
    """A symmetric matrix that is given by its products."""

    dim: int
    rounding: float
    products: int

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V as float64."""

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError if `asymmetry` exceeds rounding, relative to the `size` of products."""


class Square:
    """One part A of a diagonal block, with products in float64 on the CPU: the operator of the spectral methods.

    Parameters
    ----------
    column : Column
        The column that contains the block, under the key `row`.
    row, part
        The key of the block in the column's products.

    Attributes
    ----------
    dim, products : int
        Number of entries of a vector, and number of products so far.
    rounding : float
        Relative rounding error of the type of the products.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator, Square
    >>> from hessfig.terms import Part
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> square = Square(ColumnOperator(problem, 0, "weight", ["weight"]), "weight", Part.H)
    >>> tuple(square.matmat(torch.ones(6, 2).double()).shape), square.products
    ((6, 2), 2)
    """

    def __init__(self, column: Column, row: Hashable, part: Part) -> None:
        self.column, self.row, self.part = column, row, part
        self.dim, self.products = column.dim, 0
        self.rounding = 100 * torch.finfo(column.dtype).eps

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V as float64, on the CPU. Raises NotFinite for products that are not finite."""
        self.products += vectors.shape[1]
        product = multiplied(self.column, vectors, [self.part])[self.row, self.part].to(vectors)
        if not bool(product.isfinite().all()):
            raise NotFinite(f"products of {self.part} are not finite")
        return product

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError if `asymmetry` exceeds rounding, relative to the `size` of products.

        A part that vanishes up to rounding (H_f of a linear map by automatic differentiation) is compared with the
        other parts, because rounding errors are not symmetric.
        """
        allowed = SYMMETRY.of(self.column.dtype)
        if asymmetry <= allowed * size or asymmetry <= allowed * _BESIDE * self._size_of_parts:
            return
        raise ArithmeticError(
            f"the products of {self.part} are not those of a symmetric operator: u.Av differs from v.Au by "
            f"{asymmetry / size:.2g} of their size"
        )

    @cached_property
    def _size_of_parts(self) -> float:
        """The larger norm of the products of H_o and H_f with a random unit vector."""
        vector = torch.randn(self.dim, 1, dtype=torch.float64, generator=stream(0, "size of parts"))
        products = self.column.split_matmat((vector / vector.norm()).to(self.column.dtype), parts=SPLIT)
        return max(norm(products[self.row, part]) for part in SPLIT)


class InUnits:
    """An operator divided by `unit`: 1, or a power of two if squares of its products would under- or overflow."""

    def __init__(self, operator: SymmetricOperator) -> None:
        self._operator, self.unit = operator, 0.0
        self.dim, self.rounding = operator.dim, operator.rounding

    products = property(lambda self: self._operator.products)

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V / unit; the first product that is not 0 determines the unit."""
        product = self._operator.matmat(vectors)
        if not self.unit and bool(product.any()):
            self.unit = unit_of(product)
        return product if self.unit in (0.0, 1.0) else product / self.unit

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Check the symmetry of the operator, in its own units."""
        unit = self.unit or 1.0
        self._operator.check_symmetric(asymmetry * unit, size * unit)


_FEWER = 0.5  # a vector whose norm falls below this share is orthogonalised once more


@dataclass(frozen=True)
class Ritz:
    """Ascending eigenvalues of the projection of a run, its eigenvectors, and the residual norm of each Ritz pair."""

    values: Float[Tensor, " j"]
    coefficients: Float[Tensor, "j j"]
    residuals: Float[Tensor, " j"]


class LanczosRun:
    """One Lanczos run of at most `size` vectors from `start`, orthogonal to the columns of `locked`.

    `vector` is the next vector to multiply, or None if the run has ended. `steps` counts all products, including those
    before restarts. With a generator `fresh`, a run that breaks down continues from a random vector until its basis
    spans the whole space. After j steps A Q = Q T + r e_j^T, with an orthonormal basis Q (n, j) and the projection
    T = Q^T A Q, whose eigenvalues are the Ritz values.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator, LanczosRun, Square
    >>> from hessfig.terms import Part
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> square = Square(ColumnOperator(problem, 0, "weight", ["weight"]), "weight", Part.H)
    >>> run = LanczosRun(torch.ones(6).double(), 2)
    >>> while run.vector is not None and run.length < run.size:
    ...     run.absorb(square.matmat(run.vector[:, None])[:, 0], square)
    >>> len(run.ritz().values) == run.length
    True
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
        # Rows that are never written take no physical memory.
        self.basis = torch.empty(self.size, len(start), dtype=torch.float64)
        self.projection = torch.zeros(self.size, self.size, dtype=torch.float64)
        self.length, self.steps, self.reach = 0, 0, 0.0
        self._locked, self._fresh = locked, fresh
        self._link: Tensor = torch.zeros(0, dtype=torch.float64)  # q_new . A q_i, known from before
        self.vector: Tensor | None = None
        self._begin(start)

    @property
    def is_full(self) -> bool:
        """Whether the basis has its maximal number of vectors without spanning the space."""
        return self.length == self.size < self.dim

    def absorb(self, product: Float[Tensor, " n"], operator: SymmetricOperator) -> None:
        """Add `vector`, whose product is given, to the basis, and compute the next vector.

        Raises ArithmeticError if the products are not those of a symmetric operator.
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
        self.length, self.steps = j + 1, self.steps + 1
        self._go_on(rest, operator.rounding)

    def ritz(self) -> Ritz:
        """Return the Ritz values and vectors, with the residual of each pair."""
        j = self.length
        values, coefficients = torch.linalg.eigh(self.projection[:j, :j])
        return Ritz(values, coefficients, (self._link @ coefficients).abs())

    def vectors(self, coefficients: Float[Tensor, "j k"]) -> Float[Tensor, "n k"]:
        """Return the vectors with the given coefficients in the basis."""
        return self.basis[: self.length].T @ coefficients

    def against(self, other: "LanczosRun") -> tuple[Float[Tensor, "i j"], Float[Tensor, "i j"]]:
        """Return Q^T R and Q^T A R for the bases Q of this run and R of the other, from products made before."""
        own = self.basis[: self.length]
        shared = own @ other.basis[: other.length].T
        product = shared @ other.projection[: other.length, : other.length]
        if other.vector is not None:
            product = product + torch.outer(own @ other.vector, other._link)
        return shared, product

    def restart(self, keep: Sequence[int]) -> None:
        """Restart with the Ritz vectors `keep` as the basis, followed by the next vector (thick restart)."""
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
        """Return a unit vector, orthogonalised again against `locked`, since normalising amplifies rounding."""
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
        """Return the component of `product` orthogonal to the basis (with its new vector), and its coefficients inside.

        The product is orthogonalised against the last two vectors, then against all, and again if its norm fell much.
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
            inside, overlaps = self._inside(rest, j + 1)
            rest, coefficients = rest - inside, coefficients + overlaps
            if float(rest.norm()) > _FEWER * before:
                break
        return rest, coefficients

    def _inside(self, vector: Tensor, count: int | None = None) -> tuple[Tensor, Tensor]:
        basis = self.basis[: self.length if count is None else count]
        overlaps = basis @ vector
        return basis.T @ overlaps, overlaps

    def _unlocked(self, vector: Tensor) -> Tensor:
        if self._locked is None or not self._locked.shape[1]:
            return vector
        for _ in range(2):
            vector = vector - self._locked @ (self._locked.T @ vector)
        return vector


def advance(runs: Sequence[LanczosRun], operator: SymmetricOperator) -> bool:
    """Advance every unfinished run by one step, with all products in one call; return whether any run advanced."""
    going = [(run, run.vector) for run in runs if run.vector is not None and run.length < run.size]
    if not going:
        return False
    products = operator.matmat(torch.stack([vector for _, vector in going], dim=1))
    for (run, _), product in zip(going, products.T.contiguous(), strict=True):
        run.absorb(product, operator)
    return True


_BREAKDOWN = 1e-8  # relative to a product: a smaller component outside the basis is rounding


def largest_ritz(product: Callable[[Tensor], Tensor], start: Float[Tensor, " n"], products: int) -> float:
    """Return the largest Ritz value of a symmetric operator after `products` products.

    Computed in the type and on the device of `start`. Trainings use it to estimate their curvature, so its bits are
    part of the trajectory; this is why it is not a LanczosRun, which computes in float64 on the CPU.
    """
    basis = (start / start.norm())[None]
    images: list[Tensor] = []
    for _ in range(min(products, len(start))):
        images.append(product(basis[-1]))
        rest = images[-1] - basis.T @ (basis @ images[-1])
        rest = rest - basis.T @ (basis @ rest)
        if float(rest.norm()) <= _BREAKDOWN * float(images[-1].norm()):
            break
        basis = torch.cat([basis, (rest / rest.norm())[None]])
    small = (basis[: len(images)] @ torch.stack(images).T).double()
    return float(torch.linalg.eigvalsh((small + small.T) / 2)[-1])
