"""Steps of the tape: sums, activations, norms and attention, with first and second derivatives.

Each class states y = F(x), and implements dy = F_x dx (`push`) and d(xbar) = F_x^T
d(ybar) + (dF_x)^T ybar (`pull_back`); see hessfig.models.tape.tape. Values are (batch,
length, width), tangents (batch, length, k, width).
"""

import math
from collections.abc import Callable, Sequence
from functools import cached_property

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn

from hessfig.config.enums import MLP, Attention
from hessfig.models.components import PATTERNS, RMSNorm
from hessfig.models.tape.component_steps import along_pattern, second_of_pattern
from hessfig.models.tape.tape import BIAS, WEIGHT, Probes, Step, Tangent, Tape, plus


class Sum(Step):
    """y = x1 + x2 (a skip connection): dy = dx1 + dx2, and each cotangent is that of the sum."""

    def __init__(
        self, inputs: tuple[str, ...], output: str, left: Tensor, right: Tensor
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.value = left + right

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return plus(dxs[0], dxs[1])

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return [dy_bar if need else None for need in needed]


Derivatives = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class Activate(Step):
    r"""y = phi(z), entry by entry.

    .. math:: dy = \phi'(z) \, dz, \qquad d\bar z = \phi'(z) \, d\bar y + \phi''(z) \, \bar y \, dz

    `curvature` (phi'') is None when phi is piecewise linear: such an activation adds
    nothing to H_f. At a kink the derivative is that of torch, 0 for ReLU.

    Parameters
    ----------
    inputs, output : names
    z : (batch, length, width)
    act : callable
        phi.
    derivatives : callable
        From z to phi' and phi'' (`DERIVATIVES`).

    Examples
    --------
    y = sigmoid(z) at z = log 3, where y = 3/4, y' = 3/16 and y'' = -3/32; with ybar = 2, the
    push of 1 and its pull-back with nothing from above:

    >>> z = torch.tensor([[[3.0]]], dtype=torch.float64).log()
    >>> step = Activate(("z",), "y", z, torch.sigmoid, of_sigmoid)
    >>> step.cotangent, dz = torch.full((1, 1, 1), 2.0), torch.ones(1, 1, 1, 1)
    >>> round(step.push([dz]).item(), 6), round(step.pull_back(None, [dz], [True])[0].item(), 6)
    (0.1875, -0.1875)
    """

    def __init__(
        self,
        inputs: tuple[str, ...],
        output: str,
        z: Tensor,
        act: Callable[[Tensor], Tensor],
        derivatives: Derivatives,
    ) -> None:
        self.inputs, self.output, self.value = inputs, output, act(z)
        slope, self.curvature = derivatives(z)
        self.slope = slope.unsqueeze(2)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        if dxs[0] is None:
            return None
        return self.slope * dxs[0]

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return phi' dybar + phi'' ybar dz."""
        first = None if dy_bar is None else self.slope * dy_bar
        if (
            dxs is None
            or dxs[0] is None
            or self.curvature is None
            or self.cotangent is None
        ):
            return [first]
        return [plus(first, (self.curvature * self.cotangent).unsqueeze(2) * dxs[0])]


def _relu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return phi' = 1 for z > 0, else 0, and no second derivative."""
    return (z > 0).to(z.dtype), None


def _gelu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the derivatives of z P(z), with P and p the normal distribution and its density.

    phi' = P + z p and, since p' = -z p, phi'' = (2 - z^2) p. (GELU by erf, without the tanh
    approximation.)
    """
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(z) + z * density, (2 - z.square()) * density


def _linear(z: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return phi' = 1 as one column, and no second derivative."""
    return torch.ones_like(z[..., :1]), None


def _silu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the derivatives of z s with the sigmoid s, s' = s (1 - s).

    phi' = s + z s' and phi'' = 2 s' + z s'' = s' (2 + z (1 - 2 s)).
    """
    share = torch.sigmoid(z)
    slope = share * (1 - share)
    return share + z * slope, slope * (2 + z * (1 - 2 * share))


def of_sigmoid(z: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the derivatives of the sigmoid s: s (1 - s) and s (1 - s) (1 - 2 s).

    Examples
    --------
    At 0 the sigmoid is 1/2 with slope 1/4, and has a point of inflection:

    >>> slope, curvature = of_sigmoid(torch.zeros(1))
    >>> slope.item(), curvature.item()
    (0.25, 0.0)
    """
    share = torch.sigmoid(z)
    return share * (1 - share), share * (1 - share) * (1 - 2 * share)


# phi'(z), with one column if it is constant, and phi''(z), None if it vanishes.
DERIVATIVES: dict[MLP, Derivatives] = {
    MLP.relu: _relu,
    MLP.gelu: _gelu,
    MLP.linear: _linear,
    MLP.silu: _silu,
    MLP.swiglu: _silu,
    MLP.geglu: _gelu,
}


class Normalise(Step):
    r"""y = w n + b with n = C x / s and s^2 = |C x|^2 / d + eps; C is the centring matrix, for RMSNorm the identity.

    With the symmetric Jacobian P = (C - n n^T / d) / s of x -> n and r = w ybar,

    .. math:: dy = w \, P dx + dw \, n + db, \qquad
              d\bar x = P (w \, d\bar y + dw \, \bar y) + \Lambda \, dx,

    where Lambda = d(P r)/dx at fixed r (`_second_order`). (Statements ln1 and ln2 of
    `hessfig verify`.)

    Examples
    --------
    The norm does not change when x is scaled, as far as eps is small: P x = 0.

    >>> x = torch.tensor([[[1.0, -2.0, 4.0]]], dtype=torch.float64)
    >>> norm = Normalise(("x",), "y", x, nn.LayerNorm(3, eps=1e-12, dtype=torch.float64))
    >>> bool(norm.push([x.unsqueeze(2)]).abs().max() < 1e-11)
    True
    """

    def __init__(
        self,
        inputs: tuple[str, ...],
        output: str,
        x: Tensor,
        norm: nn.LayerNorm | RMSNorm,
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.value = norm(x)
        self.weight = norm.weight
        self.parameters = dict[str, Tensor](norm.named_parameters())
        self.perturbed = dict[str, Probes]()
        self.is_centred = isinstance(norm, nn.LayerNorm)
        centred = self._centre(x)
        self.s = (
            (centred.square().mean(-1, keepdim=True) + norm.eps).sqrt().unsqueeze(2)
        )
        self.n = centred.unsqueeze(2) / self.s

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return w dn + dw n + db with dn = P dx = (C - n n^T / d) dx / s."""
        dw = self.perturbed.get(WEIGHT)
        db = self.perturbed.get(BIAS)
        dy = None if dxs[0] is None else self.weight * self._project(dxs[0])
        dy = dy if dw is None else plus(dy, dw * self.n)
        if db is None:
            return dy
        return plus(dy, db.expand(*self.n.shape[:2], *db.shape))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return P (w dybar + dw ybar), plus the tangent Lambda dx of the Jacobian applied to w ybar."""
        dn_bar = None if dy_bar is None else self.weight * dy_bar
        dw = self.perturbed.get(WEIGHT)
        if dxs is not None and dw is not None:
            dn_bar = plus(dn_bar, dw * self.y_bar)
        first = None if dn_bar is None else self._project(dn_bar)
        return [
            first
            if dxs is None or dxs[0] is None
            else plus(first, self._second_order(dxs[0]))
        ]

    def weight_product(
        self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None
    ) -> Probes | None:
        """Return the tangent of wbar, n dybar + ybar dn, or of bbar, dybar, summed over batch and positions.

        With dn = P dx; wbar = n ybar and bbar = ybar.
        """
        if name == BIAS:
            if dy_bar is None:
                return None
            return dy_bar.sum(dim=(0, 1))
        product = None if dy_bar is None else self.n * dy_bar
        if dxs is not None and dxs[0] is not None:
            product = plus(product, self.y_bar * self._project(dxs[0]))
        if product is None:
            return None
        return product.sum(dim=(0, 1))

    @cached_property
    def _centred(
        self,
    ) -> tuple[Float[Tensor, "batch length 1 d"], Float[Tensor, "batch length 1 1"]]:
        """C r and r.n of r = w ybar."""
        r = self.weight * self.y_bar
        return self._centre(r), (r * self.n).sum(-1, keepdim=True)

    def _second_order(
        self, dx: Float[Tensor, "batch length k d"]
    ) -> Float[Tensor, "batch length k d"]:
        r"""Return Lambda dx, the second derivative contracted with r = w ybar (theory: ln2).

        .. math:: \Lambda = \frac{1}{d s^2} \left( \frac{3 (r \cdot n) n n^T}{d}
                  - (r \cdot n) C - n (C r)^T - (C r) n^T \right)

        Differentiate P r = (C r - n (n . r) / d) / s with dn = P dx and ds = n . dx / d. Lambda
        is symmetric, as the Hessian of <r, n(x)> is. No d x d matrix is formed: 3 inner
        products per row.
        """
        (centred_r, rn), d = self._centred, dx.shape[-1]
        ndx = (self.n * dx).sum(-1, keepdim=True)
        along_n = 3 * rn * ndx / d - (centred_r * dx).sum(-1, keepdim=True)
        return (along_n * self.n - rn * self._centre(dx) - ndx * centred_r) / (
            d * self.s.square()
        )

    def _project(self, rows: Tensor) -> Tensor:
        """Return P rows = (C rows - n (n . rows) / d) / s."""
        return (
            self._centre(rows) - self.n * (self.n * rows).mean(-1, keepdim=True)
        ) / self.s

    def _centre(self, rows: Tensor) -> Tensor:
        """Return C rows: rows minus their mean for LayerNorm, the rows themselves for RMSNorm."""
        if self.is_centred:
            return rows - rows.mean(-1, keepdim=True)
        return rows


class Mixing(Step):
    r"""Attention with inputs q, k, v, which have concatenated heads; `allowed` is the mask of keys by query.

    In each head,

    .. math:: T = \frac{q k^T}{c}, \qquad S = T \;\text{ or }\; \text{cap} \tanh\frac{T}{\text{cap}}, \qquad
              A = a(S + \text{bias}) - \text{centre}, \qquad m = A v,

    with a the mixing function of each row (softmax and others, `component_steps`), `bias`
    of (heads, queries, length) and a constant `centre`. `weights` are a(S + bias), and the
    `pattern` is A. Tangents of scores and pattern have the type of `weights`.

    Forward: dT = (dq k^T + q dk^T) / c, dA = a'[s' dT], dm = dA v + A dv. Backward, with
    the recorded mbar: Abar = mbar v^T, Sbar = a'[Abar], Tbar = s' Sbar, and

    .. math:: \bar q = \bar T k / c, \qquad \bar k = \bar T^T q / c, \qquad \bar v = A^T \bar m.

    Their tangents are products of a tangent and a recorded factor in both orders. Two terms
    are second derivatives of the scores T themselves, Tbar dk / c and Tbar^T dq / c; they
    form H_fT (`bilinear`), the rest forms H_oT (`pull_back_scores`).

    Parameters
    ----------
    values : three tensors (batch, queries or length, heads d_head)
        q at the queries; k and v at all positions.
    heads : int
    scale : float
        c.
    kind : Attention
    allowed : (queries, length)
    bias : (heads, queries, length) or 0
    cap : float or None
        Soft cap of the scores.
    centre : (queries, length) or None

    Examples
    --------
    One query and two keys with equal scores, so that A = (1/2, 1/2) and m = (v_1 + v_2) / 2.
    A change dq = 1 raises the second score by 1: dA = (-1/4, 1/4), and dm = (v_2 - v_1) / 4.

    >>> q, k, v = torch.zeros(1, 1, 1), torch.tensor([[[0.0], [1.0]]]), torch.tensor([[[2.0], [6.0]]])
    >>> step = Mixing(
    ...     ("q", "k", "v"), "m", q, k, v, heads=1, scale=1.0,
    ...     kind=Attention.softmax, allowed=torch.ones(1, 2, dtype=torch.bool),
    ... )
    >>> step.value.item(), step.push([torch.ones(1, 1, 1, 1), None, None]).item()
    (4.0, 1.0)
    """

    sharp = ("weights", "_pattern_bar", "_cap_derivatives")

    def __init__(
        self,
        inputs: tuple[str, ...],
        output: str,
        *values: Tensor,
        heads: int,
        scale: float,
        kind: Attention,
        allowed: Bool[Tensor, "queries length"],
        bias: Tensor | float = 0.0,
        cap: float | None = None,
        centre: Float[Tensor, "queries length"] | None = None,
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.heads = heads
        self.scale = scale
        self.kind = kind
        self.is_linear = kind == Attention.linear
        self.allowed = allowed
        self.q, self.k, self.v = (
            self._split(rows.unsqueeze(2)).squeeze(3) for rows in values
        )
        scores = self.q @ self.k.mT / scale
        self._cap_derivatives = None if cap is None else _capped(scores, cap)
        scores = scores if cap is None else cap * torch.tanh(scores / cap)
        # Derivatives of the pattern, in the type of the evaluation, are those of a_ij
        # without the centre.
        self.weights = PATTERNS[kind](
            scores if isinstance(bias, float) else scores + bias, ~allowed
        )
        if centre is None:
            self.pattern = self.weights
        else:
            self.pattern = self.weights - centre
        self.value = self._merge((self.pattern @ self.v).unsqueeze(3)).squeeze(2)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return dm = dA v + A dv with dA = a'(dq k^T / c + q dk^T / c).

        Products by head: 2 L^2 d_head k operations each, for L positions and k probes.
        """
        dq, dk, dv = self._split_all(dxs)
        dpattern = self._dpattern(self._dscore(dq, dk))
        dm = None if dpattern is None else _rows_times(dpattern, self.v)
        return self._merged(
            dm if dv is None else plus(dm, _times_rows(self.pattern, dv))
        )

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return the tangents of qbar, kbar and vbar: `pull_back_scores` plus `bilinear`."""
        pulled = self.pull_back_scores(dy_bar, dxs, needed)
        if dxs is None:
            return pulled
        return list(map(plus, pulled, self.bilinear(dxs, needed)))

    def bilinear(self, dxs: Sequence[Tangent], needed: Sequence[bool]) -> list[Tangent]:
        """Return the terms of the second derivative of T = q k^T / c: Tbar dk / c in dqbar, Tbar^T dq / c in dkbar.

        T are the scores. These terms are all of H_fT, the functional part of the split at the
        scores (Remark D.1).
        """
        dq, dk, _ = self._split_all(dxs)
        if needed[0] and dk is not None:
            to_query = _times_rows(self.score_gradient, dk) / self.scale
        else:
            to_query = None
        if needed[1] and dq is not None:
            to_key = _times_rows(self.score_gradient.mT, dq) / self.scale
        else:
            to_key = None
        return [self._merged(to_query), self._merged(to_key), None]

    def pull_back_scores(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return the result of `pull_back` without `bilinear`, for H_oT: scores count as linear in q and k.

        d(qbar) = d(Tbar) k / c, d(kbar) = d(Tbar)^T q / c, and d(vbar) = A^T dmbar + dA^T mbar.
        """
        dm_bar = None if dy_bar is None else self._split(dy_bar)
        dq, dk, dv = (None, None, None) if dxs is None else self._split_all(dxs)
        dscore = self._dscore(dq, dk)
        dpattern = self._dpattern(dscore)
        if needed[2]:
            dv_bar = self._value_cotangent(dm_bar, dpattern)
        else:
            dv_bar = None
        if not (needed[0] or needed[1]):
            return [None, None, self._merged(dv_bar)]
        dscore_bar = self._through_cap(
            self._score_cotangent(dm_bar, dpattern, dv), dscore
        )
        flipped = None if dscore_bar is None else _swapped(dscore_bar)
        dq_bar = self._first_order(dscore_bar, self.k) if needed[0] else None
        dk_bar = self._first_order(flipped, self.q) if needed[1] else None
        return [self._merged(rows) for rows in (dq_bar, dk_bar, dv_bar)]

    def _value_cotangent(self, dm_bar: Tangent, dpattern: Tangent) -> Tangent:
        """Return d(vbar) = A^T dmbar + dA^T mbar."""
        if dm_bar is None:
            dv_bar = None
        else:
            dv_bar = _times_rows(self.pattern.mT, dm_bar)
        if dpattern is None:
            return dv_bar
        return plus(dv_bar, _rows_times(_swapped(dpattern), self._m_bar))

    def _score_cotangent(
        self, dm_bar: Tangent, dpattern: Tangent, dv: Tangent
    ) -> Tangent:
        """Return d(Sbar) = a'[dAbar] + a''[dS, Abar] with dAbar = dmbar v^T + mbar dv^T (Lemma C.1 for a'').

        It differentiates Sbar = a'[Abar] with Abar = mbar v^T; a' is symmetric.
        """
        if dm_bar is None:
            dpattern_bar = None
        else:
            dpattern_bar = _rows_times(dm_bar, self.v.mT)
        if dv is not None:
            dpattern_bar = plus(dpattern_bar, _swapped(_rows_times(dv, self._m_bar.mT)))
        if dpattern_bar is None:
            dscore_bar = None
        else:
            dscore_bar = self._through_pattern(dpattern_bar)
        if dpattern is None:
            return dscore_bar
        second = second_of_pattern(
            self.kind, self.weights.unsqueeze(3), self._pattern_bar, dpattern
        )
        return plus(dscore_bar, second)

    def _through_cap(self, dscore_bar: Tangent, dscore: Tangent) -> Tangent:
        """Return d(Tbar) from the tangent of Sbar: s' dSbar + s'' dT Sbar; without a cap they are the same.

        It differentiates Tbar = s'(T) Sbar, entry by entry.
        """
        if self._cap_derivatives is None:
            return dscore_bar
        slope, curvature = self._cap_derivatives
        first = None if dscore_bar is None else slope * dscore_bar
        if dscore is None:
            return first
        return plus(
            first, curvature * self._through_pattern(self._pattern_bar) * dscore
        )

    def _first_order(self, dscore_bar: Tangent, other: Tensor) -> Tangent:
        """Return dTbar other / c."""
        if dscore_bar is None:
            return None
        return _rows_times(dscore_bar, other) / self.scale

    @cached_property
    def _m_bar(self) -> Float[Tensor, "batch heads queries d_head"]:
        """The recorded cotangent mbar, by head."""
        return self._split(self.y_bar).squeeze(3)

    @cached_property
    def _pattern_bar(self) -> Float[Tensor, "batch heads queries 1 length"]:
        """Abar = mbar v^T, with the further axis of tangents."""
        return (self._m_bar @ self.v.mT).unsqueeze(3)

    @cached_property
    def score_gradient(self) -> Float[Tensor, "batch heads queries length"]:
        """Tbar = dl/dT of the scores T = q k^T / c, 0 for masked keys."""
        gradient = self._through_pattern(self._pattern_bar)
        return (
            gradient
            if self._cap_derivatives is None
            else self._cap_derivatives[0] * gradient
        ).squeeze(3)

    def _dscore(self, dq: Tangent, dk: Tangent) -> Tangent:
        """Return dT = dq k^T / c + q dk^T / c."""
        if dq is None:
            dscore = None
        else:
            dscore = _rows_times(dq, self.k.mT) / self.scale
        if dk is not None:
            dscore = plus(dscore, _swapped(_rows_times(dk, self.q.mT)) / self.scale)
        return dscore

    def _dpattern(self, dscore: Tangent) -> Tangent:
        """Return dA = a'[s' dT]; the centre is constant."""
        if dscore is None:
            return None
        return self._through_pattern(
            dscore
            if self._cap_derivatives is None
            else self._cap_derivatives[0] * dscore
        )

    def _through_pattern(
        self, rows: Float[Tensor, "batch heads queries k length"]
    ) -> Tensor:
        """Apply the (symmetric) Jacobian of scores -> pattern."""
        return along_pattern(
            self.kind, self.weights.unsqueeze(3), self.allowed.unsqueeze(1), rows
        )

    def _split_all(self, dxs: Sequence[Tangent]) -> list[Tangent]:
        return [None if dx is None else self._split(dx) for dx in dxs]

    def _split(
        self, rows: Float[Tensor, "batch length k inner"]
    ) -> Float[Tensor, "batch heads length k d_head"]:
        """Cut the last axis into heads, and put them next to the batch."""
        return rows.unflatten(-1, (self.heads, -1)).movedim(3, 1)

    def _merge(
        self, rows: Float[Tensor, "batch heads length k d_head"]
    ) -> Float[Tensor, "batch length k inner"]:
        return rows.movedim(1, 3).flatten(3)

    def _merged(self, rows: Tangent) -> Tangent:
        if rows is None:
            return None
        return self._merge(rows)


def _capped(scores: Tensor, cap: float) -> tuple[Tensor, Tensor]:
    """Return the derivatives of cap tanh(T / cap), with a further axis for tangents.

    With t = tanh(T / cap): s' = 1 - t^2 and s'' = -(2 / cap) t (1 - t^2).
    """
    share = torch.tanh(scores / cap).unsqueeze(3)
    return 1 - share.square(), -2 / cap * share * (1 - share.square())


def mixing_of(tape: Tape, layer: int) -> Mixing:
    """Return the attention of a layer, the step whose output is the mixed values."""
    step = next(node for node in tape.nodes if node.output == f"m{layer}")
    assert isinstance(step, Mixing)
    return step


def _rows_times(
    rows: Float[Tensor, "b h i k n"], matrix: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b h i k m"]:
    """Multiply every row (i, k) by the matrix of its batch and head, in the matrix's type.

    Casting here is where tangents of the pattern, in float64, return to the type of the
    products.
    """
    return (rows.flatten(2, 3).to(matrix.dtype) @ matrix).unflatten(2, rows.shape[2:4])


def _times_rows(
    matrix: Float[Tensor, "b h i j"], rows: Float[Tensor, "b h j k n"]
) -> Float[Tensor, "b h i k n"]:
    """Return sum_j matrix_ij rows_j for every position i."""
    return (matrix @ rows.flatten(3)).unflatten(3, rows.shape[3:])


def _swapped(rows: Float[Tensor, "b h i k j"]) -> Float[Tensor, "b h j k i"]:
    """Exchange queries and keys: the transpose of the scores, probe by probe."""
    return rows.transpose(2, 4)
