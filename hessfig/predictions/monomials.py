"""Leading monomials: the lowest power of a small parameter in a quantity, and in its derivatives by two weights.

A quantity is described by one monomial for its value and one for each derivative, up to
the second, with respect to the two weights of a Hessian block. Sums keep the lower
power (min-plus), products follow Leibniz' rule, functions the chain rule. A missing
derivative vanishes identically. The small parameter is sigma, or 1/sigma if sigma
grows.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

Derivative = tuple[int, int]
VALUE: Derivative = (0, 0)
ROW: Derivative = (1, 0)
COL: Derivative = (0, 1)
_HIGHEST = 2


class NoPower(Exception):
    """Raised if no power of the small parameter dominates; the message gives the reason."""


@dataclass(frozen=True)
class Monomial:
    """A power of the small parameter and its factors in words."""

    power: float = 0.0
    factors: tuple[str, ...] = ()

    def __mul__(self, other: Monomial) -> Monomial:
        return Monomial(self.power + other.power, (*self.factors, *other.factors))

    def __pow__(self, exponent: int) -> Monomial:
        return Monomial(self.power * exponent, self.factors * exponent)

    def __str__(self) -> str:
        counted = Counter(self.factors).items()
        return (
            " ".join(
                f"{name}^{count}" if count > 1 else name
                for name, count in sorted(counted)
            )
            or "1"
        )

    def rank(self) -> tuple[float, int, tuple[str, ...]]:
        """Return the sort key of monomials: lowest power first, then fewest factors."""
        return self.power, len(self.factors), self.factors


class Growth(StrEnum):
    """Behaviour of a function at growing arguments."""

    polynomial = "polynomial"
    degree_0 = "degree 0"
    saturates = "saturates"


@dataclass(frozen=True)
class Function:
    """A function, described by the degrees of its Taylor series at 0 as far as two derivatives need them.

    Each term is a polynomial; functions such as |s|^1.5 and s^2 / |row| have no such
    series. A `finite` function has no other degrees; one of several pieces, such as
    ReLU, counts as the polynomial of a piece. A function of degree 0, such as a vector
    over its length, keeps its size at arguments of every size, and its k-th derivative
    goes with their k-th negative power; without `degrees` it does so at small arguments
    as well.
    """

    name: str
    degrees: tuple[int, ...] | None = None
    growth: Growth = Growth.saturates
    finite: bool = False

    def derivative(self, at: Monomial, order: int) -> Monomial | None:
        """Return the leading monomial of a derivative at an argument; None where it vanishes identically.

        Raises NoPower for a function that saturates, at an argument that grows.
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
        below = f" / ({at})" + "^2" * (order == _HIGHEST) if order and at.power else ""
        return Monomial(-order * at.power + 0.0, (self.name + "'" * order + below,))


@dataclass(frozen=True)
class CountedQuantity:
    """The leading monomial of a quantity and of each of its derivatives that does not vanish identically."""

    table: dict[Derivative, Monomial]

    @classmethod
    def constant(cls, name: str = "", power: float = 0.0) -> CountedQuantity:
        """Return a quantity that depends on no weight, such as the input (power 1)."""
        return cls({VALUE: Monomial(power, (name,) if name else ())})

    @classmethod
    def weight(
        cls, name: str, *, row: bool, col: bool, value: Monomial
    ) -> CountedQuantity:
        """Return a weight whose entries scale like `value`; its derivative, in brackets, is of order one."""
        marked = {ROW: row, COL: col}
        return cls(
            {VALUE: value}
            | {
                key: Monomial(0.0, (f"[{name}]",))
                for key, is_one in marked.items()
                if is_one
            }
        )

    def __add__(self, other: CountedQuantity) -> CountedQuantity:
        return _lowest([*self.table.items(), *other.table.items()])

    def __mul__(self, other: CountedQuantity) -> CountedQuantity:
        """Multiply two quantities; derivatives follow Leibniz' rule."""
        pairs = product(self.table.items(), other.table.items())
        shared = [
            ((a + c, b + d), left * right) for ((a, b), left), ((c, d), right) in pairs
        ]
        return _lowest(
            [(key, monomial) for key, monomial in shared if sum(key) <= _HIGHEST]
        )

    def through(self, function: Function) -> CountedQuantity:
        """Return the function of the quantity, by the chain rule: f'' u_a u_b + f' u_ab."""
        if VALUE not in self.table:
            return self
        value, first, second = (
            function.derivative(self.table[VALUE], order)
            for order in range(_HIGHEST + 1)
        )
        terms = [(VALUE, value)] if value else []
        terms += [
            (key, first * inner)
            for key, inner in self.table.items()
            if first and key != VALUE
        ]
        singles = [(key, inner) for key, inner in self.table.items() if sum(key) == 1]
        pairs = product(singles, singles)
        terms += [
            ((a + c, b + d), second * left * right)
            for ((a, b), left), ((c, d), right) in pairs
            if second
        ]
        return _lowest(terms)

    def derivative(self, row: int, col: int) -> Monomial | None:
        """Return the leading monomial of a derivative, or None."""
        return self.table.get((row, col))


def _lowest(terms: list[tuple[Derivative, Monomial]]) -> CountedQuantity:
    """Return the dominant term of every derivative."""
    table: dict[Derivative, Monomial] = {}
    for key, monomial in terms:
        if key not in table or monomial.rank() < table[key].rank():
            table[key] = monomial
    return CountedQuantity(table)
