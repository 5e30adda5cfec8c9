"""Symmetric operators and the Lanczos recurrence with full reorthogonalisation, on the device of the products."""

import math
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.column import SPLIT, Column
from hessfig.curvature.differences import multiplied_with_errors
from hessfig.curvature.gradients import LossGradient
from hessfig.curvature.rounding import SYMMETRY, norm, unit_of
from hessfig.curvature.spectral.vectors import (
    divided,
    dots,
    drawn,
    is_short,
    length,
    rotate,
    without,
)
from hessfig.rng import stream
from hessfig.terms import Part

# A part that is smaller than this, relative to the other parts, is rounding.
_BESIDE = 1e-6


class NotFinite(ArithmeticError):
    """A product is not finite: the network overflows, and its eigenvalues cannot be computed."""


@runtime_checkable
class SymmetricOperator(Protocol):
    """A symmetric matrix that is given by its products.

    `like` is an empty tensor of the type and on the device of the vectors of
    recurrences.
    """

    dim: int
    like: Tensor
    rounding: float
    products: int

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V in the type and on the device of V, as a new tensor."""

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError if `asymmetry` exceeds rounding, relative to the `size` of products."""


class Square:
    """One part A of a diagonal block: the operator of the spectral methods.

    The block of one weight or group with itself is square and symmetric, by the symmetry of
    second derivatives.

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
        Relative rounding error of the type of the products: 100 eps.
    like : tensor, (0,)
        Type and device of the vectors of recurrences (see problem.recurrence_like).
    last_errors : tensor, (k,), or None
        Norms of the errors of the last products, if these are by differences of
        gradients.

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
        self.column = column
        self.row = row
        self.part = part
        self.dim = column.dim
        self.products = 0
        self.like = column.like
        self.rounding = 100 * torch.finfo(column.dtype).eps
        self.last_errors: Tensor | None = None
        # Of all products with unit vectors so far.
        self._squared_errors = 0.0

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V in the type and on the device of V. Raises NotFinite for products that are not finite."""
        self.products += vectors.shape[1]
        products, errors = multiplied_with_errors(self.column, vectors, [self.part])
        product = products[self.row, self.part].to(vectors)
        if errors:
            self.last_errors = errors[self.row, self.part]
            lengths = vectors.double().norm(dim=0).cpu()
            relative = self.last_errors / lengths
            self._squared_errors += float(relative.square().sum())
        # The norm may overflow.
        if not math.isfinite(product.norm()) and not bool(product.isfinite().all()):
            raise NotFinite(f"products of {self.part} are not finite")
        return product

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        r"""Raise ArithmeticError if `asymmetry` exceeds rounding, relative to the `size` of products.

        A part that vanishes up to rounding (H_f of a linear map by automatic
        differentiation) is compared with the other parts, because rounding errors are
        not symmetric. Products by differences may be as asymmetric as their errors e: for unit
        vectors u and v,

        .. math:: |u^\top A v - v^\top A u| \le |e_{A v}| + |e_{A u}|,

        and the root of the sum of all squared errors so far, twice, bounds a norm of such
        differences.

        A whole block may vanish up to rounding, such as that of a bias that the next
        norm removes, or of the biases of keys under a softmax. Its rounding comes from
        terms that cancel, whose size is that of the Hessian in all parameters, so that it
        may be as asymmetric as 100 eps of a product with that.

        Parameters
        ----------
        asymmetry : float
            A norm of differences between u^T A v and v^T A u.
        size : float
            The largest norm of a product.
        """
        allowed = SYMMETRY.of(self.column.dtype)
        bound = max(allowed * size, 2 * self._squared_errors**0.5)
        if asymmetry <= bound or asymmetry <= allowed * _BESIDE * self._size_of_parts:
            return
        if asymmetry <= self.rounding * self._size_of_whole:
            return
        raise ArithmeticError(
            f"the products of {self.part} are not those of a symmetric operator: u.Av differs from v.Au by "
            f"{asymmetry / size:.2g} of their size"
        )

    @cached_property
    def _size_of_parts(self) -> float:
        """The larger norm of the products of H_o and H_f with a random unit vector, for two products, computed once."""
        generator = stream(0, "size of parts")
        vector = torch.randn(
            self.dim, 1, dtype=torch.float64, generator=generator, device="cpu"
        )
        unit = (vector / vector.norm()).to(self.column.dtype)
        products = self.column.split_matmat(unit, parts=SPLIT)
        return max(norm(products[self.row, part]) for part in SPLIT)

    @cached_property
    def _size_of_whole(self) -> float:
        """The norm of the product of H in all parameters with a random unit vector.

        0 for products by differences, whose errors are known, and for a column that does
        not know its network, such as one with weight decay, which does not vanish.
        """
        objective = getattr(self.column, "objective", None)
        if self.last_errors is not None or objective is None:
            return 0.0
        slope = LossGradient(objective)
        generator = stream(0, "size of the whole")
        vector = torch.randn(
            len(slope.flat), dtype=torch.float64, generator=generator, device="cpu"
        )
        unit = (vector / vector.norm()).to(slope.flat)
        return norm(slope.product(unit))


class InUnits:
    """An operator divided by `unit`: 1, or a power of two if squares of its products would under- or overflow.

    Ritz values and residuals of A / unit are those of A over unit, and their vectors are the
    same; the division is exact.
    """

    def __init__(self, operator: SymmetricOperator) -> None:
        self._operator = operator
        self.unit = 0.0
        self.dim = operator.dim
        self.rounding = operator.rounding
        self.like = operator.like

    products = property(lambda self: self._operator.products)

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V / unit; the first product that is not 0 determines the unit."""
        product = self._operator.matmat(vectors)
        if not self.unit and bool(product.any()):
            self.unit = unit_of(product)
        if self.unit in (0.0, 1.0):
            return product
        return product.div_(self.unit)

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
    r"""One Lanczos run of at most `size` vectors from `start`, orthogonal to the columns of `locked`.

    After j steps, with an orthonormal basis Q (n, j), the next vector q and the projection
    T = Q^T A Q, whose eigenvalues are the Ritz values,

    .. math:: A Q = Q T + q \, b^\top, \qquad b_i = q^\top A q_i.

    In an unbroken run b is |r| e_j, with the rest r of the last product, and T is
    tridiagonal; after a restart from Ritz vectors (`restart`) b is full once, and T has a
    row and a column of its entries. For a Ritz pair Q s, T s = theta s, the residual
    is known without a product:

    .. math:: |A Q s - \theta Q s| = |q \, b^\top s| = |b^\top s|.

    Every product is orthogonalised against the whole basis: in finite precision the
    three-term recurrence alone loses orthogonality as soon as a Ritz value converges, and
    finds it again and again. A step takes one product and about 4 n j operations per pass.

    Vectors have the type and device of `start`; inner products are accumulated in float64,
    and the projection is float64 on the CPU. With a generator `fresh`, a run that breaks
    down continues from a random vector until its basis spans the whole space.

    Parameters
    ----------
    start : tensor (n,)
        Of any length; its component along `locked` is removed.
    size : int
        The most vectors of the basis; at most the dimension of the complement of `locked`.
    locked : tensor (n, p), optional
        Orthonormal columns: the run is that of P A P, P = I - L L^T, since every vector is
        orthogonalised against them.
    fresh : Generator, optional
        Draws further starts after a breakdown.

    Attributes
    ----------
    vector : tensor (n,), or None
        The next vector to multiply; None if the run has ended.
    length, steps : int
        The vectors of the basis, and all products, including those before restarts.
    projection : tensor (size, size)
        T in its first `length` rows and columns.
    reach : float
        The largest norm of a product.

    References
    ----------
    C. Lanczos (1950), An iteration method for the solution of the eigenvalue problem of
    linear differential and integral operators, Journal of Research of the National Bureau
    of Standards 45. K. Wu and H. Simon (2000), Thick-restart Lanczos method for large
    symmetric eigenvalue problems, SIAM Journal on Matrix Analysis and Applications 22.

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
        self.dim = len(start)
        if locked is not None:
            self.dim -= locked.shape[1]
        self.size = min(size, self.dim)
        self.projection = _zeros(self.size, self.size)
        self.length = 0
        self.steps = 0
        self.reach = 0.0  # the largest norm of a product
        self.is_restarted = False
        self.vector: Tensor | None = None
        self._like = start.new_empty(0)
        self._entries = len(start)
        self._locked = locked
        self._fresh = fresh
        # Q_new . A q_i, known from before.
        self._link = _zeros(0)
        self._begin(start)

    @cached_property
    def basis(self) -> Float[Tensor, "size n"]:
        """The vectors, as rows. On the CPU, rows that are never written take no physical memory."""
        return self._like.new_empty(self.size, self._entries)

    @property
    def is_full(self) -> bool:
        """Whether the basis has its maximal number of vectors without spanning the space."""
        return self.length == self.size < self.dim

    def absorb(self, product: Float[Tensor, " n"], operator: SymmetricOperator) -> None:
        r"""Add `vector`, whose product is given, to the basis, and compute the next vector.

        With q_j = `vector`, the new column of T has the overlaps b_i = q_j . A q_i, which are
        known from the products A q_i, and q_j . A q_j. The rest

        .. math:: r = A q_j - \sum_{i \le j} q_i (q_i^\top A q_j)

        is the next vector, normalised. The overlaps q_i . A q_j that the orthogonalisation
        measures are those of the transposed entries: |q_i . A q_j - b_i| over all i is the
        asymmetry that is checked. A product in float32 is overwritten.

        Raises
        ------
        ArithmeticError
            If the products are not those of a symmetric operator.
        """
        assert self.vector is not None
        j = self.length
        known = self._link
        self.basis[j] = self.vector
        rest = self._unlocked(product)
        self.reach = max(self.reach, length(rest))
        rest, coefficients = self._orthogonal(rest, known)
        asymmetry = float((coefficients[:j] - known).norm())
        operator.check_symmetric(asymmetry, self.reach)
        self.projection[:j, j] = known
        self.projection[j, :j] = known
        self.projection[j, j] = coefficients[j]
        self.length = j + 1
        self.steps += 1
        self._go_on(rest, operator.rounding)

    def ritz(self) -> Ritz:
        """Return the Ritz values and vectors, with the residual |b^T s| of each pair; it costs no product."""
        j = self.length
        values, coefficients = torch.linalg.eigh(self.projection[:j, :j])
        return Ritz(values, coefficients, (self._link @ coefficients).abs())

    def vectors(self, coefficients: Float[Tensor, "j k"]) -> Float[Tensor, "n k"]:
        """Return the vectors with the given coefficients in the basis."""
        return self.basis[: self.length].T @ coefficients.to(self.basis)

    def against(
        self, other: "LanczosRun"
    ) -> tuple[Float[Tensor, "i j"], Float[Tensor, "i j"]]:
        r"""Return Q^T R and Q^T A R for the bases Q of this run and R of the other, from products made before.

        With A R = R T_R + q_R b_R^T of the other run,

        .. math:: Q^\top A R = (Q^\top R) \, T_R + (Q^\top q_R) \, b_R^\top.
        """
        own = self.basis[: self.length]
        shared = dots(own, other.basis[: other.length].T)
        product = shared @ other.projection[: other.length, : other.length]
        if other.vector is not None:
            product = product + torch.outer(dots(own, other.vector), other._link)
        return shared, product

    def restart(self, keep: Sequence[int]) -> None:
        r"""Restart with the Ritz vectors `keep` as the basis, followed by the next vector (thick restart).

        With their coefficients S, T S = S Theta, multiplying A Q = Q T + q b^T by S from the
        right gives

        .. math:: A (Q S) = (Q S) \, \Theta + q \, (S^\top b)^\top:

        again a relation of this form, with a diagonal T and the overlaps S^T b. No product is
        taken, and none is lost.
        """
        ritz = self.ritz()
        count = len(keep)
        kept = ritz.coefficients[:, list(keep)]
        if is_short(self.basis):
            self.basis[:count] = self.vectors(kept).T
        else:
            rotate(self.basis, kept)
        self.projection.zero_()
        self.projection[range(count), range(count)] = ritz.values[list(keep)]
        self._link = self._link @ kept
        self.length = count
        self.is_restarted = True

    def sort(self, order: Callable[[Tensor], Tensor]) -> None:
        """Replace the basis by all Ritz vectors, sorted by `order` of their values; the space remains the same."""
        self.restart(order(self.ritz().values).tolist())

    def close(self, rows: int, order: Callable[[Tensor], Tensor]) -> None:
        """End the run with its first `rows` Ritz vectors, sorted by `order` of their values, as basis."""
        self.restart(order(self.ritz().values)[:rows].tolist())
        self.size = self.length
        self.basis = self.basis[: self.length].clone()
        self.projection = self.projection[: self.length, : self.length]
        self._link = self._link[: self.length]

    def _begin(self, start: Tensor) -> None:
        """Take the start, without its component along `locked`, as the first vector."""
        rest = self._unlocked(start)
        size = length(rest)
        if size > 0.0:
            self.vector = rest / size
        elif self._fresh is not None:
            self._renew()

    def _go_on(self, rest: Tensor, rounding: float) -> None:
        """Take the normalised rest of a product as the next vector; a random one if the rest is rounding.

        |r| <= rounding * reach means that A maps the space into itself up to rounding: Ritz
        values are eigenvalues, and the start has no component along the others. b is |r| e_j for
        the normalised rest, and zero for a random vector.
        """
        size = length(rest)
        self._link = _zeros(self.length)
        self.vector = None
        if self.length == self.dim:
            return
        if size > rounding * self.reach:
            self._link[-1] = size
            self.vector = self._unit(divided(rest, size))
        elif self._fresh is not None:  # an invariant subspace
            self._renew()

    def _unit(self, vector: Tensor) -> Tensor:
        """Return a unit vector, orthogonalised again against `locked`, since normalising amplifies rounding."""
        if self._locked is None:
            return vector
        vector = self._unlocked(vector)
        return divided(vector, length(vector))

    def _renew(self) -> None:
        """Take a random vector outside the basis."""
        assert self._fresh is not None
        draw = drawn(self._like, self._entries, self._fresh)
        basis = self.basis[: self.length]
        for _ in range(2):
            draw = self._unlocked(draw)
            draw = without(draw, basis, dots(basis, draw))
            draw = draw / length(draw)
        self.vector = draw

    def _orthogonal(self, product: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return the component of `product` orthogonal to the basis (with its new vector), and its coefficients inside.

        The product is orthogonalised against the last two vectors, then against all, and again
        if its norm fell below _FEWER of what it was: one step of Gram-Schmidt leaves components
        of the size eps |before| along the basis, which are large relative to a short rest.
        Twice is nearly always enough, three times the limit. Coefficients of all passes are
        added.

        References
        ----------
        J. W. Daniel, W. B. Gragg, L. Kaufman and G. W. Stewart (1976), Reorthogonalization and
        stable algorithms for updating the Gram-Schmidt QR factorization, Mathematics of
        Computation 30.
        """
        j = self.length
        coefficients = _zeros(j + 1)
        coefficients[j] = dots(self.basis[j], product)
        rest = without(product, self.basis[j], coefficients[j])
        if j:
            coefficients[j - 1] = known[-1]
            rest = without(rest, self.basis[j - 1], known[-1])
        basis = self.basis[: j + 1]
        for _ in range(3):
            before = length(rest)
            overlaps = dots(basis, rest)
            rest = without(rest, basis, overlaps)
            coefficients = coefficients + overlaps
            if length(rest) > _FEWER * before:
                break
        return rest, coefficients

    def _unlocked(self, vector: Tensor) -> Tensor:
        """Return the component orthogonal to `locked`, by Gram-Schmidt twice."""
        if self._locked is None or not self._locked.shape[1]:
            return vector
        for _ in range(2):
            vector = without(vector, self._locked.T, dots(self._locked.T, vector))
        return vector


def advance(runs: Sequence[LanczosRun], operator: SymmetricOperator) -> bool:
    """Advance every unfinished run by one step, with all products in one call; return whether any run advanced.

    A v for several v together costs less than one by one where products share evaluations
    (batched backward passes).
    """
    going = []
    vectors = []
    for run in runs:
        if run.vector is not None and run.length < run.size:
            going.append(run)
            vectors.append(run.vector)
    if not going:
        return False
    if len(vectors) == 1:
        together = vectors[0][:, None]  # no copy of a long vector
    else:
        together = torch.stack(vectors, dim=1)
    products = operator.matmat(together)
    for run, product in zip(going, products.T.contiguous(), strict=True):
        run.absorb(product, operator)
    return True


def _zeros(*size: int) -> Tensor:
    """Return zeros in float64 on the CPU, as projections are."""
    return torch.zeros(size, dtype=torch.float64, device="cpu")


# Relative to a product: a smaller component outside the basis is rounding.
_BREAKDOWN = 1e-8


def largest_ritz(
    product: Callable[[Tensor], Tensor], start: Float[Tensor, " n"], products: int
) -> float:
    """Return the largest Ritz value of a symmetric operator after `products` products.

    With the basis Q of span(v, A v, A^2 v, ...), v = `start`, the largest eigenvalue of
    Q^T A Q, symmetrised: a lower bound of the largest eigenvalue, up to rounding. The basis
    is orthogonalised twice against all its vectors.

    Computed in the type and on the device of `start`. Trainings use it to estimate
    their curvature, so its bits are part of the trajectory; this is why it is not a
    LanczosRun, whose sums are in float64.

    Examples
    --------
    As many products as the space has dimensions give the largest eigenvalue:

    >>> import torch
    >>> diagonal = torch.tensor([1.0, 2.0, 4.0])
    >>> [round(largest_ritz(lambda v: diagonal * v, torch.ones(3), n), 4) for n in (1, 2, 3)]
    [2.3333, 3.8412, 4.0]
    """
    basis = (start / start.norm())[None]
    images: list[Tensor] = []
    for _ in range(min(products, len(start))):
        image = product(basis[-1])
        images.append(image)
        rest = image - basis.T @ (basis @ image)
        # Once more: the first time leaves rounding along the basis.
        rest = rest - basis.T @ (basis @ rest)
        if float(rest.norm()) <= _BREAKDOWN * float(image.norm()):
            break
        basis = torch.cat([basis, (rest / rest.norm())[None]])
    small = (basis[: len(images)] @ torch.stack(images).T).double()
    return float(torch.linalg.eigvalsh((small + small.T) / 2)[-1])
