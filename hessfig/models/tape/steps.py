"""Steps of the tape: sums, activations, norms and attention, with first and second derivatives."""

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
    """y = x1 + x2 (a skip connection)."""

    def __init__(
        self, inputs: tuple[str, ...], output: str, left: Tensor, right: Tensor
    ) -> None:
        self.inputs, self.output, self.value = inputs, output, left + right

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        return plus(dxs[0], dxs[1])

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return [dy_bar if need else None for need in needed]


Derivatives = Callable[[Tensor], tuple[Tensor, Tensor | None]]


class Activate(Step):
    """An activation, entry by entry; `curvature` (phi'') is None when it is piecewise linear."""

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
    return (z > 0).to(z.dtype), None


def _gelu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    density = torch.exp(-z.square() / 2) / math.sqrt(2 * math.pi)
    return torch.special.ndtr(z) + z * density, (2 - z.square()) * density


def _linear(z: Tensor) -> tuple[Tensor, Tensor | None]:
    return torch.ones_like(z[..., :1]), None


def _silu(z: Tensor) -> tuple[Tensor, Tensor | None]:
    share = torch.sigmoid(z)
    slope = share * (1 - share)
    return share + z * slope, slope * (2 + z * (1 - 2 * share))


def of_sigmoid(z: Tensor) -> tuple[Tensor, Tensor | None]:
    """Return the derivatives of the sigmoid."""
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
    """y = w n + b with n = C x / s and s^2 = |C x|^2 / d + eps; C is the centring matrix, for RMSNorm the identity."""

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
        """Return w dn + dw n + db with dn = (C - n n^T / d) dx / s."""
        dw, db = self.perturbed.get(WEIGHT), self.perturbed.get(BIAS)
        dy = None if dxs[0] is None else self.weight * self._project(dxs[0])
        dy = dy if dw is None else plus(dy, dw * self.n)
        if db is None:
            return dy
        return plus(dy, db.expand(*self.n.shape[:2], *db.shape))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return the Jacobian times w dybar + dw ybar, plus the tangent of the Jacobian times w ybar."""
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
        """Return the tangent of wbar, n dybar + ybar dn, or of bbar, dybar, summed over batch and positions."""
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
        """Apply the second derivative contracted with r = w ybar (theory.md, ln2).

        Lambda = (3 (r.n) n n^T / d - (r.n) C - n (C r)^T - (C r) n^T) / (d s^2).
        """
        (centred_r, rn), d = self._centred, dx.shape[-1]
        ndx = (self.n * dx).sum(-1, keepdim=True)
        along_n = 3 * rn * ndx / d - (centred_r * dx).sum(-1, keepdim=True)
        return (along_n * self.n - rn * self._centre(dx) - ndx * centred_r) / (
            d * self.s.square()
        )

    def _project(self, rows: Tensor) -> Tensor:
        return (
            self._centre(rows) - self.n * (self.n * rows).mean(-1, keepdim=True)
        ) / self.s

    def _centre(self, rows: Tensor) -> Tensor:
        if self.is_centred:
            return rows - rows.mean(-1, keepdim=True)
        return rows


class Mixing(Step):
    """Attention with inputs q, k, v, which have concatenated heads; `allowed` is the mask of keys by query.

    Scores are T = q k^T / c, or cap tanh(T / cap), plus `bias` (heads, queries,
    length). The pattern is that of these scores, the `weights`, minus the constant
    `centre`. Tangents of scores and pattern have the type of `weights`.
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
        self.inputs, self.output, self.heads, self.scale = inputs, output, heads, scale
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
        self.pattern = self.weights if centre is None else self.weights - centre
        self.value = self._merge((self.pattern @ self.v).unsqueeze(3)).squeeze(2)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return dm = dA v + A dv with dA = a'(dq k^T / c + q dk^T / c)."""
        dq, dk, dv = self._split_all(dxs)
        dpattern = self._dpattern(self._dscore(dq, dk))
        dm = None if dpattern is None else _rows_times(dpattern, self.v)
        return self._merged(
            dm if dv is None else plus(dm, _times_rows(self.pattern, dv))
        )

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        pulled = self.pull_back_scores(dy_bar, dxs, needed)
        if dxs is None:
            return pulled
        return list(map(plus, pulled, self.bilinear(dxs, needed)))

    def bilinear(self, dxs: Sequence[Tangent], needed: Sequence[bool]) -> list[Tangent]:
        """Return the terms of the second derivative of T = q k^T / c: Tbar dk / c in dqbar, Tbar^T dq / c in dkbar.

        T are the scores. These terms are all of H_fT, the functional part of the split
        at the scores (Remark D.1).
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
        """Return the result of `pull_back` without `bilinear`, for H_oT: scores count as linear in q and k."""
        dm_bar = None if dy_bar is None else self._split(dy_bar)
        dq, dk, dv = (None, None, None) if dxs is None else self._split_all(dxs)
        dscore = self._dscore(dq, dk)
        dpattern = self._dpattern(dscore)
        dv_bar = self._value_cotangent(dm_bar, dpattern) if needed[2] else None
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
        """Return A^T dmbar + dA^T mbar."""
        dv_bar = None if dm_bar is None else _times_rows(self.pattern.mT, dm_bar)
        if dpattern is None:
            return dv_bar
        return plus(dv_bar, _rows_times(_swapped(dpattern), self._m_bar))

    def _score_cotangent(
        self, dm_bar: Tangent, dpattern: Tangent, dv: Tangent
    ) -> Tangent:
        """Return a'(dAbar) + a''[ds](Abar) with dAbar = dmbar v^T + mbar dv^T (Lemma C.1 for a'')."""
        dpattern_bar = None if dm_bar is None else _rows_times(dm_bar, self.v.mT)
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
        """Return the tangent of Tbar from that of the capped scores' cotangent Sbar: s' dSbar + s'' dT Sbar."""
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
        if dscore_bar is None:
            return None
        return _rows_times(dscore_bar, other) / self.scale

    @cached_property
    def _m_bar(self) -> Float[Tensor, "batch heads queries d_head"]:
        return self._split(self.y_bar).squeeze(3)

    @cached_property
    def _pattern_bar(self) -> Float[Tensor, "batch heads queries 1 length"]:
        return (self._m_bar @ self.v.mT).unsqueeze(3)

    @cached_property
    def score_gradient(self) -> Float[Tensor, "batch heads queries length"]:
        """dl/dT of the scores T = q k^T / c, 0 for masked keys."""
        gradient = self._through_pattern(self._pattern_bar)
        return (
            gradient
            if self._cap_derivatives is None
            else self._cap_derivatives[0] * gradient
        ).squeeze(3)

    def _dscore(self, dq: Tangent, dk: Tangent) -> Tangent:
        """Return dT = dq k^T / c + q dk^T / c."""
        dscore = None if dq is None else _rows_times(dq, self.k.mT) / self.scale
        if dk is not None:
            dscore = plus(dscore, _swapped(_rows_times(dk, self.q.mT)) / self.scale)
        return dscore

    def _dpattern(self, dscore: Tangent) -> Tangent:
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
    """Return the derivatives of cap tanh(T / cap), with a further axis for tangents."""
    share = torch.tanh(scores / cap).unsqueeze(3)
    return 1 - share.square(), -2 / cap * share * (1 - share.square())


def mixing_of(tape: Tape, layer: int) -> Mixing:
    """Return the attention of a layer."""
    step = next(node for node in tape.nodes if node.output == f"m{layer}")
    assert isinstance(step, Mixing)
    return step


def _rows_times(
    rows: Float[Tensor, "b h i k n"], matrix: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b h i k m"]:
    """Multiply every row (i, k) by the matrix of its batch and head, in the matrix's type."""
    return (rows.flatten(2, 3).to(matrix.dtype) @ matrix).unflatten(2, rows.shape[2:4])


def _times_rows(
    matrix: Float[Tensor, "b h i j"], rows: Float[Tensor, "b h j k n"]
) -> Float[Tensor, "b h i k n"]:
    """Return sum_j matrix_ij rows_j for every position i."""
    return (matrix @ rows.flatten(3)).unflatten(3, rows.shape[3:])


def _swapped(rows: Float[Tensor, "b h i k j"]) -> Float[Tensor, "b h j k i"]:
    return rows.transpose(2, 4)
