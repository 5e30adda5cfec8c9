r"""Leading monomials: the lowest power of a small parameter in a quantity, and in its derivatives by two weights.

A quantity u(A, B) is described by one monomial for its value and one for each
derivative, up to the second, with respect to the two weights of a Hessian block:

.. math:: u \sim \sigma^{e}, \qquad \frac{\partial u}{\partial A} \sim \sigma^{e_A}, \qquad
          \frac{\partial^2 u}{\partial A \, \partial B} \sim \sigma^{e_{AB}}.

Sums keep the lower power and products add powers (min-plus arithmetic), Leibniz' rule
gives the derivatives of products and the chain rule those of functions. A missing
derivative vanishes identically. The small parameter is sigma, or 1/sigma if sigma
grows.

The result is right where leading terms do not cancel. They do not for generic weights;
where they do by structure, as a single key's weight of 1 or a difference of equal
weights, the function's degrees say so (`network_series.mixing`).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from itertools import product
from typing import NamedTuple


class Derivative(NamedTuple):
    """How many times a quantity is derived by the row's weight, and by the column's."""

    row: int
    col: int

    @property
    def order(self) -> int:
        """The number of derivatives."""
        return self.row + self.col

    def of(self, other: Derivative) -> Derivative:
        """Return the derivative of a derivative: their orders add."""
        return Derivative(self.row + other.row, self.col + other.col)


VALUE = Derivative(0, 0)
ROW = Derivative(1, 0)
COL = Derivative(0, 1)
_HIGHEST = 2  # order of the derivatives of a Hessian


class NoPower(Exception):
    """Raised if no power of the small parameter dominates; the message gives the reason."""


@dataclass(frozen=True)
class Monomial:
    """A power of the small parameter and its factors in words.

    Products add powers and join factors; `x ** k` is the k-fold product.

    Examples
    --------
    >>> score = Monomial(1.0, ("x",)) * Monomial(0.0, ("W_Q",)) * Monomial(1.0, ("x",))
    >>> score.power, str(score), str(score**2)
    (2.0, 'W_Q x^2', 'W_Q^2 x^4')
    """

    power: float = 0.0
    factors: tuple[str, ...] = ()

    def __mul__(self, other: Monomial) -> Monomial:
        return Monomial(self.power + other.power, (*self.factors, *other.factors))

    def __pow__(self, exponent: int) -> Monomial:
        return Monomial(self.power * exponent, self.factors * exponent)

    def __str__(self) -> str:
        words = []
        for name, count in sorted(Counter(self.factors).items()):
            words.append(f"{name}^{count}" if count > 1 else name)
        return " ".join(words) or "1"

    def rank(self) -> tuple[float, int, tuple[str, ...]]:
        """Return the sort key of monomials: lowest power first, then fewest factors."""
        return self.power, len(self.factors), self.factors


class Growth(StrEnum):
    """Behaviour of a function at growing arguments.

    A polynomial goes with its highest degree, a function of degree 0 keeps its size, and one
    that saturates approaches constants faster than any power, so that none is predicted.
    """

    polynomial = "polynomial"
    degree_0 = "degree 0"
    saturates = "saturates"


@dataclass(frozen=True)
class Function:
    """A function, described by the degrees of its Taylor series at 0 as far as two derivatives need them.

    Each term is a polynomial; functions such as |s|^1.5 and s^2 / |row| have no such
    series.

    Parameters
    ----------
    name : str
    degrees : tuple of int, optional
        Degrees with a coefficient that is not zero. Without them the function is of degree
        0 at small arguments as well.
    growth : Growth
        A function of degree 0, such as a vector over its length, keeps its size at
        arguments of every size, and its k-th derivative goes with their k-th negative
        power. One that saturates has no power there.
    finite : bool
        Whether there are no other degrees. A function of several pieces, such as ReLU,
        counts as the polynomial of a piece.
    """

    name: str
    degrees: tuple[int, ...] | None = None
    growth: Growth = Growth.saturates
    finite: bool = False

    def derivative(self, at: Monomial, order: int) -> Monomial | None:
        """Return the leading monomial of a derivative at an argument; None where it vanishes identically.

        The k-th derivative of sum_d c_d u^d has the degrees d - k: the lowest dominates at a
        small argument, the highest at a growing one. Raises NoPower for a function that
        saturates, at an argument that grows.

        Examples
        --------
        The second derivative of u^2 + u^3 at u = sigma is of order one, the first ~ u:

        >>> polynomial = Function("p", (2, 3), Growth.polynomial, finite=True)
        >>> u = Monomial(1.0, ("sigma",))
        >>> polynomial.derivative(u, 1).power, polynomial.derivative(u, 2).power
        (1.0, 0.0)

        A vector over its length, of a vector ~ sigma: derivatives ~ 1 / sigma and 1 / sigma^2.

        >>> length = Function("unit", growth=Growth.degree_0)
        >>> [length.derivative(u, order).power for order in (0, 1, 2)]
        [0.0, -1.0, -2.0]
        """
        left = [degree - order for degree in self.degrees or () if degree >= order]
        if self.degrees is not None and (at.power > 0 or self.finite) and not left:
            return None
        if at.power > 0 and left:
            return at ** min(left)
        if self.finite and (at.power == 0 or self.growth == Growth.polynomial):
            return at ** max(left)
        if at.power < 0 and self.growth == Growth.saturates:
            raise NoPower(f"{self.name} saturates where its argument ({at}) grows")
        name = self.name + "'" * order
        if order and at.power:
            name += f" / ({at})" + "^2" * (order == _HIGHEST)
        return Monomial(-order * at.power + 0.0, (name,))


@dataclass(frozen=True)
class CountedQuantity:
    """The leading monomial of a quantity and of each of its derivatives that does not vanish identically.

    `table` maps (0, 0), the value, and the derivatives (1, 0), (0, 1), (1, 1), (2, 0), (0,
    2) to their monomials.
    """

    table: dict[Derivative, Monomial]

    @classmethod
    def constant(cls, name: str = "", power: float = 0.0) -> CountedQuantity:
        """Return a quantity that depends on no weight, such as the input (power 1)."""
        factors = (name,) if name else ()
        return cls({VALUE: Monomial(power, factors)})

    @classmethod
    def weight(
        cls, name: str, *, row: bool, col: bool, value: Monomial
    ) -> CountedQuantity:
        """Return a weight whose entries scale like `value`; its derivative, in brackets, is of order one."""
        one = Monomial(0.0, (f"[{name}]",))
        table = {VALUE: value}
        if row:
            table[ROW] = one
        if col:
            table[COL] = one
        return cls(table)

    def __add__(self, other: CountedQuantity) -> CountedQuantity:
        """Add two quantities: each derivative keeps the lower power."""
        return _lowest([*self.table.items(), *other.table.items()])

    def __mul__(self, other: CountedQuantity) -> CountedQuantity:
        """Multiply two quantities; derivatives follow Leibniz' rule, (u v)_ab = sum u_s v_(ab - s).

        Examples
        --------
        >>> weight = CountedQuantity.weight("W", row=True, col=False, value=Monomial(0.0, ("W",)))
        >>> product = CountedQuantity.constant("x", power=1.0) * weight
        >>> str(product.derivative(0, 0)), str(product.derivative(1, 0))
        ('W x', '[W] x')
        """
        terms = []
        for key, left in self.table.items():
            for inner, right in other.table.items():
                both = key.of(inner)
                if both.order <= _HIGHEST:
                    terms.append((both, left * right))
        return _lowest(terms)

    def through(self, function: Function) -> CountedQuantity:
        """Return the function of the quantity, by the chain rule: f'' u_a u_b + f' u_ab.

        Examples
        --------
        A weight through ReLU, whose second derivative vanishes on each piece, and through a
        square:

        >>> weight = CountedQuantity.weight("W", row=True, col=False, value=Monomial(0.0, ("W",)))
        >>> relu = Function("relu", (1,), Growth.polynomial, finite=True)
        >>> square = Function("square", (2,), Growth.polynomial, finite=True)
        >>> weight.through(relu).derivative(2, 0), weight.through(square).derivative(2, 0).power
        (None, 0.0)
        """
        if VALUE not in self.table:
            return self
        argument = self.table[VALUE]
        value = function.derivative(argument, 0)
        first = function.derivative(argument, 1)
        second = function.derivative(argument, 2)
        inner = {key: u for key, u in self.table.items() if key != VALUE}
        terms = []
        if value:
            terms.append((VALUE, value))
        if first:
            for key, u in inner.items():
                terms.append((key, first * u))
        if second:
            singles = [(key, u) for key, u in inner.items() if key.order == 1]
            for (a, u_a), (b, u_b) in product(singles, singles):
                terms.append((a.of(b), second * u_a * u_b))
        return _lowest(terms)

    def derivative(self, row: int, col: int) -> Monomial | None:
        """Return the leading monomial of a derivative, or None where it vanishes identically."""
        return self.table.get(Derivative(row, col))


def _lowest(terms: Iterable[tuple[Derivative, Monomial]]) -> CountedQuantity:
    """Return the dominant term of every derivative: the lowest power, and of equal ones that of the fewest factors."""
    table: dict[Derivative, Monomial] = {}
    for key, monomial in terms:
        if key not in table or monomial.rank() < table[key].rank():
            table[key] = monomial
    return CountedQuantity(table)
