"""The theorem of mixing weights: exponents of an attention layer's blocks from the powers of its scores.

Let the mixing weights be A = A_0 + A_1 + ..., each A_n homogeneous of degree n in the scores S, and let n run over the
degrees with A_n not zero. With scores ~ sigma^p and values ~ sigma^q around them, the mixed values F = A X W_V have

    dF/dW_V ~ sigma^(q + p m),   m the lowest degree;         d2F/dW_V2 = 0
    dF/dW_Q, dF/dW_K, d2F/dW_Q dW_K, d2F/dW_V dW_Q ~ sigma^(q + p m'),   m' the lowest degree from 1 on
    d2F/dW_Q2, d2F/dW_K2 ~ sigma^(q + p m''),   m'' the lowest degree from 2 on (from 1, where scores bend in W_Q)

for all tokens, weights and gradients but a null set. docs/heterogeneity.md has the proof and its exceptions; the rule
that counts monomials (network_series) is the other way to the same numbers.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import combinations_with_replacement

from hessfig.terms import Matrix, Part

_SCORED = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK)
Exponents = dict[tuple[Part, Matrix, Matrix], float]


@dataclass(frozen=True)
class Surroundings:
    """What lies around the mixing weights, by powers of sigma.

    `values` and `scores` are q and p of the theorem; `bend` is true where scores are not linear in W_Q and W_K, as
    those of normalised queries and keys. `first` and `second` are the powers of the outputs' first and second
    derivative by the mixed values, infinite for one that vanishes; `gradient` is that of the loss by the outputs.
    """

    values: float = 1.0
    scores: float = 2.0
    bend: bool = False
    first: float = 0.0
    second: float = math.inf
    gradient: float = 0.0


PLAIN = Surroundings()


def mixing_exponents(degrees: Iterable[int], around: Surroundings = PLAIN, *, single: bool = False) -> Exponents:
    """Return the exponent of every block of H_o, H_f and H; blocks that vanish identically are left out.

    The weights are W_V, W_Q and W_K, or W_V and W_QK where a `single` matrix makes the scores.
    """
    matrices = (Matrix.W_V, Matrix.W_QK) if single else (Matrix.W_V, Matrix.W_Q, Matrix.W_K)
    found: Exponents = {}
    for row, col in combinations_with_replacement(matrices, 2):
        one, other, both = (_power(degrees, around, *by) for by in ((row,), (col,), (row, col)))
        outer = 2 * around.first + one + other
        functional = around.gradient + min(around.first + both, around.second + one + other)
        found |= {(Part.H_o, row, col): outer, (Part.H_f, row, col): functional}
        found[Part.H, row, col] = min(outer, functional)
    return {key: power for key, power in found.items() if power < math.inf}


def _power(degrees: Iterable[int], around: Surroundings, *by: Matrix) -> float:
    """Return the power of the derivative of F by one or two weights: that of the lowest degree it leaves."""
    if by == (Matrix.W_V, Matrix.W_V):
        return math.inf
    scored = [matrix for matrix in by if matrix in _SCORED]
    is_twice = len(scored) > 1 and scored[0] == scored[1] and not around.bend
    least = 2 if is_twice else min(len(scored), 1)
    return around.values + around.scores * min((n for n in degrees if n >= least), default=math.inf)
