r"""Attention over scalar tokens: spectra in closed form, and attention sinks.

Tokens x in R^L, weights w_V (a number), w_Q and w_K in R^{d_K}. They enter through w_V and
s = w_Q . w_K / sqrt(d_K) alone,

.. math:: \ell = \frac{1}{L} |w_V \, m(s) - y|^2,

with m(s) the mixed tokens. With d = w_V m - y and derivatives m', m'' in s, the Hessian in
(w_V, w_Q, w_K) follows from the numbers

.. math:: a = \frac{2}{L} \sum m^2, \quad
          b = \frac{2 w_V}{L \sqrt{d_K}} \sum d \, m', \quad
          e = \frac{2}{L \sqrt{d_K}} \sum (d + w_V m) \, m', \quad
          k = \frac{2 w_V}{L d_K} \sum (w_V m'^2 + d \, m'').

b is dl/ds / sqrt(d_K), and multiplies [[0, I], [I, 0]], the Hessian of w_Q . w_K, whose
eigenvalues are +1 and -1, d_K times each. The other terms act on w_V and on the gradient
(w_K, w_Q) of w_Q . w_K, which has one direction in each of the two eigenspaces: (w_Q +
w_K) / sqrt(2) with the length p, and (w_Q - w_K) / sqrt(2) with the length n. So +b and -b
remain d_K - 1 times each, and three eigenvalues are those of a 3 x 3 matrix.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Part
from hessfig.theory.autodiff import dense_hessian, square_loss
from hessfig.theory.statement import normal

PerToken = Float[Tensor, " L"]
PerWidth = Float[Tensor, " d_K"]


@dataclass(frozen=True)
class Response:
    """What the tokens answer to the score scale s: m(s), m'(s), m''(s), one number per token."""

    value: PerToken
    first: PerToken
    second: PerToken


def attention_response(
    x: PerToken,
    s: Tensor | float,
    *,
    values: PerToken | None = None,
    score_bias: PerToken | float = 0.0,
) -> Response:
    """m = A v, m'_i = x_i Cov_{A_i}(x, v), m''_i = x_i^2 E_{A_i}[(x - mean)^2 (v - mean)].

    The scores of query i are s x_i x_j, so that d/ds is x_i times a derivative of a cumulant.
    `values` v defaults to x; `score_bias` is added to the score of each token as a key.

    Examples
    --------
    Two tokens 1 and -1 at s = 0 are mixed to 0, and both answer with their variance 1, times x_i:

    >>> tokens = torch.tensor([1.0, -1.0], dtype=torch.float64)
    >>> response = attention_response(tokens, 0.0)
    >>> response.value.tolist(), response.first.tolist(), response.second.tolist()
    ([0.0, 0.0], [1.0, -1.0], [0.0, 0.0])
    """
    v = x
    if values is not None:
        v = values
    A = torch.softmax(s * torch.outer(x, x) + score_bias, dim=1)
    x_c = x - (A @ x)[:, None]
    v_c = v - (A @ v)[:, None]
    covariance = (A * x_c * v_c).sum(1)
    cumulant = (A * x_c.square() * v_c).sum(1)
    first = x * covariance
    second = x.square() * cumulant
    return Response(A @ v, first, second)


def linear_attention_response(x: PerToken, s: Tensor | float) -> Response:
    """m = s x |x|^2: the softmax taken out."""
    slope = x * x.square().sum()
    return Response(s * slope, slope, torch.zeros_like(x))


def linear_mlp_response(x: PerToken, s: Tensor | float) -> Response:
    """m = s x: three linear layers, the first two meeting in s."""
    return Response(s * x, x, torch.zeros_like(x))


@dataclass(frozen=True)
class ScalarHessian:
    """The five numbers that fix the spectrum: a, b, e, k and the geometry p, n of w_Q and w_K.

    Their formulas are those of the module.
    """

    a: float
    b: float
    e: float
    k: float
    p: float
    n: float
    d_K: int

    @property
    def outliers(self) -> Float[Tensor, "3"]:
        r"""Ascending eigenvalues of the 3 x 3 matrix.

        .. math:: \begin{pmatrix} a & e p & e n \\ e p & k p^2 + b & k p n \\ e n & k p n & k n^2 - b \end{pmatrix}

        in the basis of w_V and the directions of (w_Q + w_K) and (w_Q - w_K).
        """
        a = self.a
        b = self.b
        e = self.e
        k = self.k
        p = self.p
        n = self.n
        rows = [
            [a, e * p, e * n],
            [e * p, k * p**2 + b, k * p * n],
            [e * n, k * p * n, k * n**2 - b],
        ]
        return torch.linalg.eigvalsh(torch.tensor(rows, dtype=torch.float64))

    @property
    def eigenvalues(self) -> Float[Tensor, " n"]:
        """All 2 d_K + 1 eigenvalues, ascending."""
        pair = torch.tensor([self.b, -self.b], dtype=torch.float64)
        bulk = pair.repeat_interleave(self.d_K - 1)
        return torch.cat([bulk, self.outliers]).sort().values

    @property
    def condition_number(self) -> float:
        """Largest over smallest absolute eigenvalue."""
        size = self.eigenvalues.abs()
        return float(size.max() / size.min())

    @property
    def condition_growth(self) -> float:
        r"""Limit of condition_number / N^2 as N = p^2 + n^2 grows at fixed w_Q . w_K.

        .. math:: \frac{|k \, (a k - e^2)|}{|b \, (a b + (p^2 - n^2) (a k - e^2))|}, \qquad
                  p^2 - n^2 = 2 \, w_Q \cdot w_K

        The outliers tend to k N, (a k - e^2)/k and det/((a k - e^2) N), and det = -b (a b + (p^2 -
        n^2)(a k - e^2)) stays.
        """
        minor = self.a * self.k - self.e**2
        overlap = self.p**2 - self.n**2
        rest = self.a * self.b + overlap * minor
        return abs(self.k * minor / (self.b * rest))


def scalar_outer_product(
    response: Response, w_V: float, w_Q: PerWidth, w_K: PerWidth
) -> ScalarHessian:
    """H_o: the same formulas with the residual d set to zero."""
    return _assemble(response, torch.zeros_like(response.value), w_V, w_Q, w_K)


def score_scale(w_Q: PerWidth, w_K: PerWidth) -> Tensor:
    """s = w_Q . w_K / sqrt(d_K)."""
    return w_Q @ w_K / math.sqrt(len(w_Q))


def _assemble(
    response: Response, d: Tensor, w_V: float, w_Q: Tensor, w_K: Tensor
) -> ScalarHessian:
    m = response.value
    m1 = response.first
    m2 = response.second
    per_token = 2 / len(m)
    root = math.sqrt(len(w_Q))
    return ScalarHessian(
        a=per_token * float(m @ m),
        b=per_token / root * w_V * float(d @ m1),
        e=per_token / root * float((d + w_V * m) @ m1),
        k=per_token / len(w_Q) * w_V * float(w_V * m1 @ m1 + d @ m2),
        p=float((w_Q + w_K).norm()) / math.sqrt(2),
        n=float((w_Q - w_K).norm()) / math.sqrt(2),
        d_K=len(w_Q),
    )


Mixing = Callable[[Tensor], Tensor]

RESPONSES: dict[str, Callable[[Tensor, Tensor], Response]] = {
    "attention": attention_response,
    "linear attention": linear_attention_response,
    "linear MLP": linear_mlp_response,
}
"""m, m', m'' in closed form."""

MIXINGS: dict[str, Callable[[Tensor], Mixing]] = {
    "attention": lambda x: lambda s: torch.softmax(s * torch.outer(x, x), 1) @ x,
    "linear attention": lambda x: lambda s: s * torch.outer(x, x) @ x,
    "linear MLP": lambda x: lambda s: s * x,
}
"""The same maps written plainly, for automatic differentiation."""


@dataclass(frozen=True)
class ScalarProblem:
    """Tokens x, targets y and the weights w_V, w_Q, w_K of the scalar-token model."""

    x: PerToken
    y: PerToken
    w_V: float
    w_Q: PerWidth
    w_K: PerWidth

    @property
    def s(self) -> Tensor:
        """The score scale w_Q . w_K / sqrt(d_K)."""
        return score_scale(self.w_Q, self.w_K)

    def response(self, model: str) -> Response:
        """m, m', m'' of one of `RESPONSES`."""
        return RESPONSES[model](self.x, self.s)

    def hessian(self, response: Response) -> ScalarHessian:
        """The full Hessian of |w_V m - y|^2/L in (w_V, w_Q, w_K), for any response of the tokens to s."""
        residual = self.w_V * response.value - self.y
        return _assemble(response, residual, self.w_V, self.w_Q, self.w_K)

    def unbalanced(self, factor: float) -> ScalarProblem:
        """The same network with w_Q times and w_K over `factor`: s stays, |w_Q|^2 + |w_K|^2 grows."""
        return replace(self, w_Q=factor * self.w_Q, w_K=self.w_K / factor)

    def at_critical_point(self, response: Response, noise: PerToken) -> ScalarProblem:
        """The problem with targets moved so that the residual, `noise` less m and m', leaves no gradient.

        dl/dw_V is proportional to d . m and dl/ds to d . m'.
        """
        span = torch.stack([response.value, response.first], 1)
        residual = noise - span @ torch.linalg.pinv(span) @ noise
        return replace(self, y=self.w_V * response.value - residual)


def draw_scalar_problem(
    L: int, d_K: int, generator: torch.Generator, *, w_V: float | None = None
) -> ScalarProblem:
    """Standard normal tokens, targets and weights."""
    x = normal(L, generator=generator)
    y = normal(L, generator=generator)
    w_Q = normal(d_K, generator=generator)
    w_K = normal(d_K, generator=generator)
    drawn = normal(1, generator=generator)
    if w_V is None:
        w_V = float(drawn)
    return ScalarProblem(x, y, w_V, w_Q, w_K)


def spectrum(
    problem: ScalarProblem, mixing: Mixing, part: Part = Part.H
) -> Float[Tensor, " n"]:
    """Ascending eigenvalues of the Hessian of |w_V mixing(s) - y|^2/L in (w_V, w_Q, w_K), by automatic
    differentiation.
    """

    def network(weights: Mapping[str, Tensor]) -> Tensor:
        return weights["w_V"] * mixing(score_scale(weights["w_Q"], weights["w_K"]))

    w_V = torch.tensor([problem.w_V], dtype=problem.x.dtype)
    weights = {"w_V": w_V, "w_Q": problem.w_Q, "w_K": problem.w_K}
    dense = dense_hessian(network, square_loss(problem.y), weights, part)
    return torch.linalg.eigvalsh(dense)


def condition_number(problem: ScalarProblem) -> Tensor:
    """Largest over smallest absolute eigenvalue for softmax attention, by automatic differentiation."""
    size = spectrum(problem, MIXINGS["attention"](problem.x)).abs()
    return size.max() / size.min()


def outer_product_gap(problem: ScalarProblem, response: Response) -> float:
    """Relative error of the top eigenvalue of H_o (the GGN) as a proxy for that of H."""
    top = float(problem.hessian(response).eigenvalues.max())
    return abs(top_of_outer_product(problem, response) - top) / top


def top_of_outer_product(problem: ScalarProblem, response: Response) -> float:
    """The top eigenvalue of H_o in closed form: (a + k N + sqrt((a + k N)^2 - 4 (a k - e^2) N))/2.

    At d = 0, b = 0 and the 3 x 3 matrix has rank two: a block of w_V and the direction (p, n) of
    length sqrt(N), with trace a + k N and determinant (a k - e^2) N.
    """
    point = scalar_outer_product(response, problem.w_V, problem.w_Q, problem.w_K)
    N = point.p**2 + point.n**2
    trace = point.a + point.k * N
    minor = (point.a * point.k - point.e**2) * N
    return (trace + math.sqrt(trace**2 - 4 * minor)) / 2


class AttentionSink(StrEnum):
    """Where the bias of the first token enters."""

    input = "input"
    score = "score"
    value = "value"


@dataclass(frozen=True)
class SinkEffect:
    """Size of the bulk |b|, and of the three outliers, largest first."""

    bulk: float
    outliers: Float[Tensor, "3"]


def sink_inputs(
    sink: AttentionSink, x: PerToken, beta: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens, values and score biases with a sink of size beta at the first token."""
    bias = torch.zeros_like(x)
    bias[0] = beta
    if sink == AttentionSink.input:
        return x + bias, x + bias, torch.zeros_like(x)
    if sink == AttentionSink.score:
        return x, x, bias
    return x, x + bias, bias


def sink_response(
    sink: AttentionSink, x: PerToken, s: Tensor | float, beta: float
) -> Response:
    """m, m', m'' of softmax attention with the sink, in closed form."""
    tokens, values, score_bias = sink_inputs(sink, x, beta)
    return attention_response(tokens, s, values=values, score_bias=score_bias)


def sink_mixing(sink: AttentionSink, x: PerToken, beta: float) -> Mixing:
    """The same map s -> m written plainly, for automatic differentiation."""
    tokens, values, bias = sink_inputs(sink, x, beta)
    return lambda s: torch.softmax(s * torch.outer(tokens, tokens) + bias, 1) @ values


def sink_effect(problem: ScalarProblem, sink: AttentionSink, beta: float) -> SinkEffect:
    """The spectrum's bulk and outliers under a sink."""
    response = sink_response(sink, problem.x, problem.s, beta)
    hessian = problem.hessian(response)
    sizes = hessian.outliers.abs().sort(descending=True).values
    return SinkEffect(abs(hessian.b), sizes)


def median_effect(
    problems: list[ScalarProblem], sink: AttentionSink, beta: float
) -> SinkEffect:
    """Medians over problems."""
    effects = [sink_effect(problem, sink, beta) for problem in problems]
    outliers = torch.stack([effect.outliers for effect in effects])
    bulks = [effect.bulk for effect in effects]
    bulk = torch.tensor(bulks, dtype=torch.float64).median()
    return SinkEffect(float(bulk), outliers.median(0).values)
