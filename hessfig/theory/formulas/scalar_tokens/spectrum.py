"""The scalar-token model of the talk: f(x) = w_V A x, A = softmax(s x x^T), s = w_Q . w_K / sqrt(d_K), x in
R^L.

Its (2 d_K + 1)-dimensional Hessian under |f - y|^2/L has a closed-form spectrum. With m = A x and its
derivatives m', m'' in s, d = w_V m - y, N = |w_Q|^2 + |w_K|^2, p, n = |w_Q +- w_K|/sqrt(2):

    a = (2/L) sum m^2,                                b = (2 w_V/(L sqrt(d_K))) sum d m',
    e = (2/(L sqrt(d_K))) sum (d m' + w_V m m'),      k = (2/(L d_K)) sum (w_V^2 m'^2 + w_V d m'').

Bulk: +b and -b, d_K - 1 times each. Outliers: the eigenvalues of [[a, e p, e n], [e p, k p^2 + b, k p n], [e
n, k p n, k n^2 - b]]. The same holds for any scalar map m(s): linear attention, the linear MLP w_V s x, and
attention with sinks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class Response:
    """What the tokens answer to the score scale s: m(s), m'(s), m''(s), one number per token."""

    value: Float[Tensor, " L"]
    first: Float[Tensor, " L"]
    second: Float[Tensor, " L"]


def attention_response(
    x: Float[Tensor, " L"],
    s: Tensor | float,
    *,
    values: Float[Tensor, " L"] | None = None,
    score_bias: Float[Tensor, " L"] | None = None,
) -> Response:
    """m = A v, m'_i = x_i Cov_{A_i}(x, v), m''_i = x_i^2 E_{A_i}[(x - mean)^2 (v - mean)].

    `values` v defaults to x; `score_bias` is added to the score of each token as a key.
    """
    v = x if values is None else values
    bias = torch.zeros_like(x) if score_bias is None else score_bias
    A = torch.softmax(s * torch.outer(x, x) + bias, dim=1)
    x_c, v_c = x - (A @ x)[:, None], v - (A @ v)[:, None]
    return Response(A @ v, x * (A * x_c * v_c).sum(1), x.square() * (A * x_c.square() * v_c).sum(1))


def linear_attention_response(x: Float[Tensor, " L"], s: Tensor | float) -> Response:
    """m = s x |x|^2: the softmax taken out."""
    slope = x * x.square().sum()
    return Response(s * slope, slope, torch.zeros_like(x))


def linear_mlp_response(x: Float[Tensor, " L"], s: Tensor | float) -> Response:
    """m = s x: three linear layers, the first two meeting in s."""
    return Response(s * x, x, torch.zeros_like(x))


@dataclass(frozen=True)
class ScalarHessian:
    """The five numbers that fix the spectrum: a, b, e, k and the geometry p, n of w_Q and w_K."""

    a: float
    b: float
    e: float
    k: float
    p: float
    n: float
    d_K: int

    @property
    def outliers(self) -> Float[Tensor, 3]:
        """Ascending eigenvalues of the 3 x 3 matrix."""
        a, b, e, k, p, n = self.a, self.b, self.e, self.k, self.p, self.n
        rows = [[a, e * p, e * n], [e * p, k * p**2 + b, k * p * n], [e * n, k * p * n, k * n**2 - b]]
        return torch.linalg.eigvalsh(torch.tensor(rows, dtype=torch.float64))

    @property
    def eigenvalues(self) -> Float[Tensor, " n"]:
        """All 2 d_K + 1 eigenvalues, ascending."""
        bulk = torch.tensor([self.b, -self.b], dtype=torch.float64).repeat_interleave(self.d_K - 1)
        return torch.cat([bulk, self.outliers]).sort().values

    @property
    def condition_number(self) -> float:
        """Largest over smallest absolute eigenvalue."""
        size = self.eigenvalues.abs()
        return float(size.max() / size.min())

    @property
    def condition_growth(self) -> float:
        """Limit of condition_number / N^2 as N grows at fixed w_Q . w_K: |k (a k - e^2)| / |b (a b + 2
        w_Q.w_K (a k - e^2))|.

        The outliers tend to k N, (a k - e^2)/k and det/((a k - e^2) N), and det = -b (a b + (p^2 - n^2)(a k
        - e^2)) stays.
        """
        minor = self.a * self.k - self.e**2
        return abs(self.k * minor / (self.b * (self.a * self.b + (self.p**2 - self.n**2) * minor)))


def scalar_hessian(
    response: Response,
    y: Float[Tensor, " L"],
    w_V: float,
    w_Q: Float[Tensor, " d_K"],
    w_K: Float[Tensor, " d_K"],
) -> ScalarHessian:
    """The full Hessian of |w_V m - y|^2/L in (w_V, w_Q, w_K)."""
    return _assemble(response, w_V * response.value - y, w_V, w_Q, w_K)


def scalar_outer_product(
    response: Response, w_V: float, w_Q: Float[Tensor, " d_K"], w_K: Float[Tensor, " d_K"]
) -> ScalarHessian:
    """H_o: the same formulas with the residual d set to zero."""
    return _assemble(response, torch.zeros_like(response.value), w_V, w_Q, w_K)


def outer_product_top(point: ScalarHessian) -> float:
    """Top eigenvalue of H_o: (a + k N + sqrt((a + k N)^2 - 4 (a k - e^2) N))/2, `point` from
    `scalar_outer_product`.
    """
    N = point.p**2 + point.n**2
    trace, minor = point.a + point.k * N, (point.a * point.k - point.e**2) * N
    return (trace + math.sqrt(trace**2 - 4 * minor)) / 2


def score_scale(w_Q: Float[Tensor, " d_K"], w_K: Float[Tensor, " d_K"]) -> Tensor:
    """s = w_Q . w_K / sqrt(d_K)."""
    return w_Q @ w_K / math.sqrt(len(w_Q))


def _assemble(response: Response, d: Tensor, w_V: float, w_Q: Tensor, w_K: Tensor) -> ScalarHessian:
    m, m1, m2 = response.value, response.first, response.second
    per_token, root = 2 / len(m), math.sqrt(len(w_Q))
    return ScalarHessian(
        a=per_token * float(m @ m),
        b=per_token / root * w_V * float(d @ m1),
        e=per_token / root * float((d + w_V * m) @ m1),
        k=per_token / len(w_Q) * w_V * float(w_V * m1 @ m1 + d @ m2),
        p=float(torch.linalg.vector_norm(w_Q + w_K)) / math.sqrt(2),
        n=float(torch.linalg.vector_norm(w_Q - w_K)) / math.sqrt(2),
        d_K=len(w_Q),
    )
