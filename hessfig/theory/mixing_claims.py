"""The theorem of mixing weights: exponents by powers of the scores, and statements on them and their exceptions."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.errors import UserError, first_few
from hessfig.terms import AT_OUTPUTS, PARTS, Matrix, Part
from hessfig.theory import autodiff
from hessfig.theory.attention_formulas import AttentionPoint
from hessfig.theory.autodiff import VANISHES, ScaledNetwork, Weights, exponent, with_sum
from hessfig.theory.statement import (
    Check,
    Dims,
    Values,
    attention_point,
    named,
    normal,
    prefixed,
)

_SCORED = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK)
Exponents = dict[tuple[Part, Matrix, Matrix], float]


@dataclass(frozen=True)
class Surroundings:
    """The parts of a network around the mixing weights, by their powers of sigma.

    Parameters
    ----------
    values, scores : float
        q and p of the theorem: values ~ sigma^q, scores ~ sigma^p.
    bend : bool
        Whether scores are not linear in W_Q and W_K, as for normalised queries and keys.
    first, second : float
        Powers of the first and second derivative of the outputs with respect to the mixed
        values, infinite for zero derivatives.
    gradient : float
        Power of the loss gradient.
    """

    values: float = 1.0
    scores: float = 2.0
    bend: bool = False
    first: float = 0.0
    second: float = math.inf
    gradient: float = 0.0


PLAIN = Surroundings()


def mixing_exponents(
    degrees: Iterable[float],
    around: Surroundings = PLAIN,
    *,
    single: bool = False,
    non_polynomial: Iterable[float] = (),
) -> Exponents:
    """Return the exponent of every block of H_o, H_f and H; blocks that vanish identically are left out.

    The weights are W_V, W_Q and W_K, or W_V and W_QK where a `single` matrix makes the scores.

    Let row i of the mixing weights be a function of row i of the scores S, and a sum of terms
    A_n with A_n(t S) = t^n A_n(S) for t > 0. `degrees` are those of the terms that are
    polynomials (on pieces, as ReLU is) and not zero, `non_polynomial` those of all others, such
    as 0 of s^2 / sum of s^2, 1 of s^2 / |row| and 1.5 of |s|^1.5. With scores ~ sigma^p and
    values ~ sigma^q, the mixed values F = A X W_V have

        dF/dW_V ~ sigma^(q + p m),   m the lowest degree;         d2F/dW_V2 = 0
        dF/dW_Q, dF/dW_K, d2F/dW_Q dW_K, d2F/dW_V dW_Q ~ sigma^(q + p m'),   m' the lowest of a term not constant
        d2F/dW_Q2, d2F/dW_K2 ~ sigma^(q + p m''),   m'' the lowest of a term not linear (m', where scores bend in W_Q)

    for all tokens, weights and gradients except for a null set. docs/studies/constant-term.md
    has the proof, its conditions and its exceptions. Counting monomials
    (hessfig.predictions.network_series) gives the same numbers. Raises UserError for a
    polynomial whose degree is not a nonnegative integer.

    Examples
    --------
    Softmax near equal scores has every degree (eq. 5). Without its constant, the block of W_V
    grows with sigma^6 instead of sigma^2:

    >>> values, queries = (Part.H, V, V), (Part.H, Q, Q)
    >>> softmax, odd = mixing_exponents([0, 1, 2, 3]), mixing_exponents([1, 3])
    >>> softmax[values], softmax[queries], odd[values], odd[queries]
    (2.0, 5.0, 6.0, 6.0)
    """
    terms = _terms(degrees, non_polynomial)
    if single:
        matrices: tuple[Matrix, ...] = (Matrix.W_V, Matrix.W_QK)
    else:
        matrices = (Matrix.W_V, Matrix.W_Q, Matrix.W_K)
    exponents: Exponents = {}
    for row, col in combinations_with_replacement(matrices, 2):
        first = _power(terms, around, row)
        second = _power(terms, around, col)
        both = _power(terms, around, row, col)
        outer = 2 * around.first + first + second
        bent = around.second + first + second
        functional = around.gradient + min(around.first + both, bent)
        exponents[Part.H_o, row, col] = outer
        exponents[Part.H_f, row, col] = functional
        exponents[Part.H, row, col] = min(outer, functional)
    return {key: power for key, power in exponents.items() if power < math.inf}


def _terms(
    degrees: Iterable[float], non_polynomial: Iterable[float]
) -> list[tuple[float, float]]:
    """Return the degree of each term, and the order of its highest nonzero derivative with respect to the scores."""
    polynomials = list(degrees)
    strange = [n for n in polynomials if n < 0 or n != int(n)]
    if strange:
        raise UserError(
            "mixing_exponents: degrees of terms that are polynomials in the scores",
            got=first_few([f"{n:g}" for n in strange]),
            allowed="whole numbers from 0 on",
            remedy=f"non_polynomial={strange} for terms that are homogeneous without being polynomials",
        )
    terms = [(n, n) for n in polynomials]
    terms.extend((n, math.inf) for n in non_polynomial)
    return terms


def _power(
    terms: Iterable[tuple[float, float]], around: Surroundings, *by: Matrix
) -> float:
    """Return the power of the derivative of F with respect to one or two weights, from the lowest remaining degree.

    A term of degree n has q + p n whatever is derived, as weights carry no sigma. A derivative
    by W_V leaves every term, one by scored weights those of degree 1 and more, and a second by
    the same one those of degree 2 and more.
    """
    if by == (Matrix.W_V, Matrix.W_V):
        return math.inf
    scored = [matrix for matrix in by if matrix in _SCORED]
    least = min(len(scored), 1)
    if len(scored) > 1 and scored[0] == scored[1] and not around.bend:
        least = 2
    remaining = [n for n, highest in terms if highest >= least]
    return around.values + around.scores * min(remaining, default=math.inf)


Q = Matrix.W_Q
K = Matrix.W_K
V = Matrix.W_V
QK = Matrix.W_QK
SMALL = 1e-5
TINY = 1e-7
Coefficients = Mapping[int, float]
_SOFTMAX = (0, 1, 2, 3)


def polynomial_mixing(
    scores: Float[Tensor, "L L"], coefficients: Coefficients
) -> Float[Tensor, "L L"]:
    """Return c_0 + c_1 s + c_2 s^2 + ..., entry by entry, with the coefficients by their powers."""
    mixed = torch.zeros_like(scores)
    for n, c in coefficients.items():
        mixed = mixed + c * scores**n
    return mixed


@dataclass(frozen=True)
class HomogeneousTerm:
    """A term of the mixing weights of a `degree` in the scores that is not a polynomial of them, a row at a time."""

    degree: float
    weights: Callable[[Float[Tensor, "L L"]], Float[Tensor, "L L"]]


@dataclass(frozen=True)
class MixingCase:
    """Mixing weights of certain powers (None: softmax), possibly with another term, and their surroundings."""

    name: str
    powers: Sequence[int] | None
    around: Surroundings = PLAIN
    single: bool = False
    zero_targets: bool = False
    further: HomogeneousTerm | None = None

    def network(
        self, X: Tensor, weights: Weights, coefficients: Coefficients, bent: Tensor
    ) -> Tensor:
        """Return the outputs: of the mixed values F themselves, of F + (F B)^2, or of norm(X + F)."""
        values = X if self.around.values else _unit(X)
        scores = self.scores(values, weights)
        if self.powers is None:
            mixed = torch.softmax(scores, -1)
        else:
            mixed = polynomial_mixing(scores, coefficients)
        if self.further is not None:
            mixed = mixed + self.further.weights(scores)
        F = mixed @ values @ weights[V]
        if self.around.first < 0:
            return _unit(X + F)
        if math.isinf(self.around.second):
            return F
        return F + (F @ bent).square()

    def exponents(self) -> Exponents:
        """Return the exponents of the theorem."""
        powers = _SOFTMAX if self.powers is None else self.powers
        others = () if self.further is None else (self.further.degree,)
        return mixing_exponents(
            powers, self.around, single=self.single, non_polynomial=others
        )

    def scores(self, X: Tensor, weights: Weights) -> Tensor:
        """Return the scores of the tokens in this case."""
        if self.single:
            return X @ weights[QK] @ X.T
        if not self.around.bend:
            return autodiff.scores(X, weights)
        queries = _unit(X @ weights[Q])
        keys = _unit(X @ weights[K])
        return queries @ keys.T


def _unit(rows: Tensor) -> Tensor:
    return rows / rows.norm(dim=-1, keepdim=True)


_POWERS = ((0, 1, 2, 3), (0, 1, 3), (1, 2, 3), (1,), (0, 1), (0, 2, 3), (0, 3), (2,))
_NORM_AFTER = Surroundings(first=-1.0, second=-2.0)


def _cases() -> Iterator[MixingCase]:
    for powers in _POWERS:
        yield MixingCase(f"powers {powers}", powers)
    yield MixingCase("softmax", None)
    for powers in ((0, 1, 2), (0, 1, 3)):
        yield MixingCase(f"powers {powers}, one W_QK", powers, single=True)
    for powers, gradient in (((0, 1, 2), 1.0), ((1, 2), 3.0)):
        yield MixingCase(
            f"powers {powers}, zero targets",
            powers,
            Surroundings(gradient=gradient),
            zero_targets=True,
        )
    bend = Surroundings(second=0.0)
    for powers in _POWERS[:3]:
        yield MixingCase(f"powers {powers}, a bend after", powers, bend)
    for powers in _POWERS[:3]:
        yield MixingCase(f"powers {powers}, a norm after", powers, _NORM_AFTER)
    unit = Surroundings(scores=0.0, bend=True)
    for unit_powers in ((0, 1, 3), (1, 2, 3), None):
        name = f"powers {unit_powers}, unit queries and keys"
        yield MixingCase(name, unit_powers, unit)
    before = Surroundings(values=0.0, scores=0.0)
    yield MixingCase("powers (0, 1, 2), a norm before", (0, 1, 2), before)


CASES = list(_cases())


@dataclass(frozen=True)
class DrawnMixing:
    """A case with tokens, targets, weights and the coefficients of its powers."""

    case: MixingCase
    net: ScaledNetwork[Matrix]

    def exponents(self) -> Values:
        """Return the exponents of all blocks between two scales, by automatic differentiation."""
        low = self._norms(SMALL)
        high = self._norms(2 * SMALL)
        return {name: exponent(norm, high[name]) for name, norm in low.items()}

    def _norms(self, sigma: float) -> Values:
        parts = {part: self.net.blocks(part, sigma) for part in AT_OUTPUTS}
        blocks = prefixed(f"{self.case.name}:", named(with_sum(parts)))
        return {name: torch.linalg.matrix_norm(block) for name, block in blocks.items()}

    def predicted(self) -> Values:
        """Return the exponents of the theorem."""
        powers = dict.fromkeys([(part, V, V) for part in PARTS], VANISHES)
        powers |= self.case.exponents()
        values = {}
        for (part, row, col), power in powers.items():
            name = f"{self.case.name}: {part}({row}, {col})"
            values[name] = torch.tensor(power, dtype=torch.float64)
        return values


def _coefficients(
    powers: Sequence[int] | None, generator: torch.Generator
) -> dict[int, float]:
    """Draw a coefficient for every power, with absolute value from 1/2 to 3/2 and a random sign."""
    uniform = torch.rand(2, 4, generator=generator, dtype=torch.float64)
    sizes = 0.5 + uniform[0]
    drawn = sizes * torch.sign(uniform[1] - 0.5)
    return {n: float(drawn[n]) for n in powers or ()}


def draw_mixing(
    case: MixingCase, dims: Dims, generator: torch.Generator
) -> DrawnMixing:
    """Draw tokens, targets, weights and coefficients for a case."""
    point = attention_point(dims, generator)
    if case.single:
        weights: Mapping[Matrix, Tensor] = {
            V: point.weights[V],
            QK: normal(dims.d_V, dims.d_V, generator=generator),
        }
    else:
        weights = point.weights
    coefficients = _coefficients(case.powers, generator)
    bent = normal(dims.d_V, dims.d_V, generator=generator)

    def network(X: Tensor, weights: Weights) -> Tensor:
        return case.network(X, weights, coefficients, bent)

    Y = point.Y * (not case.zero_targets)
    return DrawnMixing(case, ScaledNetwork(point.X, Y, weights, network))


def _draw_cases(dims: Dims, generator: torch.Generator) -> list[DrawnMixing]:
    return [draw_mixing(case, dims, generator) for case in CASES]


def joined(draws: list[Values]) -> Values:
    """Return the values of several draws together; their names differ."""
    values: dict[str, Tensor] = {}
    for one in draws:
        values |= one
    return values


@dataclass(frozen=True)
class LeadingTerms:
    """The leading terms of mixing weights and of their derivatives by the scores, at tokens of scale one.

    `zeroth` is A_m; `first` and `second` are derivatives by scores of A_m', `twice` is
    the second one of A_m''.
    """

    zeroth: Float[Tensor, "L L"]
    first: Float[Tensor, "L L L"]
    second: Float[Tensor, "L L L L"]
    twice: Float[Tensor, "L L L L"]


def softmax_terms(L: int) -> LeadingTerms:
    """Return the terms of softmax: weights 1/L, and covariance and third cumulant of a uniform choice of keys."""
    identity = torch.eye(L, dtype=torch.float64)
    rows = torch.ones(L, dtype=torch.float64)
    covariance = (identity - 1 / L) / L
    three = torch.einsum("jl,jm->jlm", identity, identity)
    pairs = identity[:, :, None] + identity[:, None] + identity[None]
    cumulant = (three - pairs / L + 2 / L**2) / L
    return LeadingTerms(
        zeroth=torch.full_like(identity, 1 / L),
        first=torch.einsum("i,jl->ijl", rows, covariance),
        second=identity.new_zeros(L, L, L, L),
        twice=torch.einsum("i,jlm->ijlm", rows, cumulant),
    )


def polynomial_terms(
    scores: Float[Tensor, "L L"], coefficients: Coefficients
) -> LeadingTerms:
    """Return the terms of a polynomial, each of whose weights is a function of its own score."""
    identity = torch.eye(len(scores), dtype=torch.float64)

    def lowest(least: int) -> int:
        return min((n for n in coefficients if n >= least), default=0)

    def slope(n: int, order: int) -> Tensor:
        factor = coefficients.get(n, 0.0) * math.perm(n, order)
        return factor * scores ** max(n - order, 0)

    def bend(n: int) -> Tensor:
        return torch.einsum("ij,jl,jm->ijlm", slope(n, 2), identity, identity)

    first = slope(lowest(1), 1)
    return LeadingTerms(
        zeroth=slope(lowest(0), 0),
        first=torch.einsum("ij,jl->ijl", first, identity),
        second=bend(lowest(1)),
        twice=bend(lowest(2)),
    )


def leading_blocks(
    point: AttentionPoint, terms: LeadingTerms
) -> dict[tuple[Part, Matrix, Matrix], Tensor]:
    """Return the limits, as sigma -> 0, of the blocks of H_o and H_f of a bare layer over their powers of sigma.

    The loss is the square loss of residual `point.Y`, kept at every sigma. With x_i the
    tokens, q_i, k_i, v_i the queries and keys over d_K^(1/4) each and the values, and g
    the loss gradient: H_o is 2 / (L d_V) times products of Jacobians, and H_f(Q, Q) =
    sum_i x_i x_i^T (x) sum_jlm A''_ijlm (g_i . v_j) k_l k_m^T, the others alike.
    """
    X = point.X
    W = point.weights
    width = W[V].shape[1]
    root = math.sqrt(W[Q].shape[1])
    q = X @ W[Q] / root
    k = X @ W[K] / root
    v = X @ W[V]
    c = 2 / X.numel()
    unit = torch.eye(width, dtype=X.dtype)
    J = {
        V: torch.einsum("ir,ab->iarb", terms.zeroth @ X, unit),
        Q: torch.einsum("ir,ijl,lc,ja->iarc", X, terms.first, k, v),
        K: torch.einsum("ic,ijl,lr,ja->iarc", q, terms.first, X, v),
    }
    jacobians = {name: one.reshape(X.numel(), -1) for name, one in J.items()}
    g = c * point.Y
    pull = torch.einsum("ia,ja->ij", g, v)
    first = torch.einsum("ijl,ij->ijl", terms.first, pull)
    second = torch.einsum("ijlm,ij->ijlm", terms.second, pull)
    twice = torch.einsum("ijlm,ij->ijlm", terms.twice, pull)
    shares = torch.eye(k.shape[1], dtype=X.dtype) / root
    scores_twice = torch.einsum("ir,lR,ijl,cC->rcRC", X, X, first, shares)
    bends = torch.einsum("ir,lc,mR,iC,ijlm->rcRC", X, k, X, q, second)
    functional = {
        (Q, Q): torch.einsum("ir,iR,ijlm,lc,mC->rcRC", X, X, twice, k, k),
        (K, K): torch.einsum("ic,iC,ijlm,lr,mR->rcRC", q, q, twice, X, X),
        (Q, K): scores_twice + bends,
        (V, Q): torch.einsum("ib,jr,ijl,iR,lC->rbRC", g, X, terms.first, X, k),
        (V, K): torch.einsum("ib,jr,ijl,lR,iC->rbRC", g, X, terms.first, X, q),
    }
    blocks = {}
    for a, b in combinations_with_replacement((V, Q, K), 2):
        blocks[Part.H_o, a, b] = c * jacobians[a].T @ jacobians[b]
    for (a, b), block in functional.items():
        blocks[Part.H_f, a, b] = block.reshape(W[a].numel(), W[b].numel())
    return blocks


@dataclass(frozen=True)
class DrawnTerms:
    """One bare layer, its mixing weights by name, and the powers that these have."""

    point: AttentionPoint
    mixings: Mapping[str, Coefficients | None]

    def blocks(self) -> Values:
        """Return the blocks at a tiny sigma over their powers of it, by automatic differentiation."""
        blocks = {}
        for name, coefficients in self.mixings.items():
            case = MixingCase("", None if coefficients is None else tuple(coefficients))
            net = _network(self.point, case, coefficients or {})
            dense = {part: net.blocks(part, TINY) for part in AT_OUTPUTS}
            for (part, row, col), power in self._exponents(coefficients).items():
                block = dense[part][row, col]
                blocks[f"{name}: {part}({row}, {col})"] = block / TINY**power
        return blocks

    def leading(self) -> Values:
        """Return the limits of the blocks by the formulas."""
        limits = {}
        for name, coefficients in self.mixings.items():
            scores = autodiff.scores(self.point.X, self.point.weights)
            if coefficients is None:
                terms = softmax_terms(len(scores))
            else:
                terms = polynomial_terms(scores, coefficients)
            blocks = leading_blocks(self.point, terms)
            for part, row, col in self._exponents(coefficients):
                limits[f"{name}: {part}({row}, {col})"] = blocks[part, row, col]
        return limits

    def _exponents(
        self, coefficients: Coefficients | None
    ) -> dict[tuple[Part, Matrix, Matrix], float]:
        powers = mixing_exponents(_SOFTMAX if coefficients is None else coefficients)
        return {key: power for key, power in powers.items() if key[0] != Part.H}


def _network(
    point: AttentionPoint, case: MixingCase, coefficients: Coefficients
) -> ScaledNetwork[Matrix]:
    """Return a bare layer whose residual is the targets of the point, at every sigma."""

    def network(X: Tensor, weights: Weights) -> Tensor:
        return case.network(X, weights, coefficients, X.new_zeros(()))

    return ScaledNetwork(
        point.X, point.Y, point.weights, network, at_fixed_residual=True
    )


def _draw_terms(dims: Dims, generator: torch.Generator) -> DrawnTerms:
    mixings: dict[str, Coefficients | None] = {}
    for powers in _POWERS:
        mixings[f"powers {powers}"] = _coefficients(powers, generator)
    mixings["softmax"] = None
    return DrawnTerms(attention_point(dims, generator), mixings)


def _draw_cancelling(
    dims: Dims, generator: torch.Generator
) -> dict[str, ScaledNetwork[Matrix]]:
    """Draw layers at the exceptions: tokens of mean zero, equal tokens, residuals orthogonal to all values."""
    point = attention_point(dims, generator)
    last = torch.zeros(dims.d_V, dtype=torch.float64)
    last[-1] = 1
    apart = {**point.weights, V: point.weights[V] * (1 - last)}
    X = point.X
    drawn = {
        "mean zero": replace(point, X=X - X.mean(0)),
        "equal": replace(point, X=X[:1].repeat(len(X), 1)),
        "apart": replace(point, Y=point.Y * last, weights=apart),
    }
    softmax = MixingCase("softmax", None)
    powers = MixingCase("powers", (0, 1, 2))
    coefficients = _coefficients(powers.powers, generator)
    nets = {}
    for case in (softmax, powers):
        for name, moved in drawn.items():
            nets[f"{case.name}, {name}"] = _network(moved, case, coefficients)
    return nets


def _cancelling_exponents(nets: dict[str, ScaledNetwork[Matrix]]) -> Values:
    """Return the measured exponents; blocks of rounding errors only count as vanishing."""
    exponents = {}
    for name, net in nets.items():
        low = named({part: net.norms(part, 1e-2) for part in AT_OUTPUTS})
        high = named({part: net.norms(part, 2e-2) for part in AT_OUTPUTS})
        rounding = 1e-15 * max(low.values())
        for block, norm in low.items():
            exponents[f"{name}: {block}"] = exponent(norm, high[block], rounding)
    return exponents


def _cancelling_predictions(nets: dict[str, ScaledNetwork[Matrix]]) -> Values:
    """Return the theorem's exponents that remain at each exception."""
    usual = mixing_exponents(_SOFTMAX)
    centred = {(Part.H_o, V, col): 6.0 for col in (V, Q, K)}
    scored = [key for key in usual if key[1:] != (V, V)]
    alike = dict.fromkeys(scored, VANISHES)
    apart = {
        (Part.H_f, Q, Q): VANISHES,
        (Part.H_f, Q, K): VANISHES,
        (Part.H_f, K, K): VANISHES,
    }
    changes = {
        "softmax, mean zero": centred,
        "softmax, equal": alike,
        "softmax, apart": apart,
        "powers, mean zero": centred,
        "powers, apart": apart,
    }
    exponents = {}
    for name in nets:
        left = usual | changes.get(name, {})
        for (part, row, col), power in left.items():
            if part != Part.H:
                block = f"{name}: {part}({row}, {col})"
                exponents[block] = torch.tensor(power, dtype=torch.float64)
    return exponents


STATEMENTS = {
    "mixing-exponents": Check(
        _draw_cases,
        lambda drawn: joined([one.exponents() for one in drawn]),
        lambda drawn: joined([one.predicted() for one in drawn]),
        numbers={"sigma": SMALL, "twice": 2 * SMALL},
    ),
    "mixing-constants": Check(
        _draw_terms, DrawnTerms.blocks, DrawnTerms.leading, numbers={"sigma": TINY}
    ),
    "mixing-cancels": Check(
        _draw_cancelling, _cancelling_exponents, _cancelling_predictions
    ),
}
