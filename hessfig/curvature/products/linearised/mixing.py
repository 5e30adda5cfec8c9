"""Self-attention as one step: m = a(q k^T / c) v per head (eq. 1), a the row softmax or the bare masked scores."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property

from jaxtyping import Bool, Float
from torch import Tensor

from hessfig.curvature.products.linearised.node import Tangent, plus
from hessfig.models.transformer.sinks import with_sink


class Mixing:
    """Inputs q, k, v with heads side by side; `allowed` says which keys a query sees.

    `sink` is added to the scores of the first key. Tangents of scores and pattern are in the type of `weights`.
    """

    sharp = ("weights", "_pattern_bar")

    def __init__(
        self,
        inputs: tuple[str, ...],
        output: str,
        values: Sequence[Tensor],
        *,
        heads: int,
        scale: float,
        is_linear: bool,
        allowed: Bool[Tensor, "queries length"],
        sink: float = 0.0,
    ) -> None:
        self.inputs, self.output, self.heads, self.scale = inputs, output, heads, scale
        self.is_linear, self.allowed = is_linear, allowed
        self.q, self.k, self.v = (self._split(rows.unsqueeze(2)).squeeze(3) for rows in values)
        self.pattern = self._pattern(with_sink(self.q @ self.k.mT / scale, sink))
        self.weights = self.pattern  # a_ij again, in the type it was evaluated in
        self.value = self._merge((self.pattern @ self.v).unsqueeze(3)).squeeze(2)
        self.cotangent: Tensor | None = None

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return dm = dA v + A dv with dA = a'(dq k^T / c + q dk^T / c)."""
        dq, dk, dv = self._split_all(dxs)
        dpattern = self._dpattern(dq, dk)
        dm = None if dpattern is None else _rows_times(dpattern, self.v)
        return self._merged(dm if dv is None else plus(dm, _times_rows(self.pattern, dv)))

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        dm_bar = None if dy_bar is None else self._split(dy_bar)
        dq, dk, dv = (None, None, None) if dxs is None else self._split_all(dxs)
        dpattern = self._dpattern(dq, dk)
        dv_bar = self._value_cotangent(dm_bar, dpattern) if needed[2] else None
        if not (needed[0] or needed[1]):
            return [None, None, self._merged(dv_bar)]
        dscore_bar = self._score_cotangent(dm_bar, dpattern, dv)
        flipped = None if dscore_bar is None else _swapped(dscore_bar)
        dq_bar = self._first_order(dscore_bar, self.k) if needed[0] else None
        dk_bar = self._first_order(flipped, self.q) if needed[1] else None
        if needed[0] and dk is not None:
            dq_bar = plus(dq_bar, _times_rows(self._score_bar, dk) / self.scale)
        if needed[1] and dq is not None:
            dk_bar = plus(dk_bar, _times_rows(self._score_bar.mT, dq) / self.scale)
        return [self._merged(rows) for rows in (dq_bar, dk_bar, dv_bar)]

    def _value_cotangent(self, dm_bar: Tangent, dpattern: Tangent) -> Tangent:
        """Return A^T dmbar + dA^T mbar."""
        dv_bar = None if dm_bar is None else _times_rows(self.pattern.mT, dm_bar)
        return dv_bar if dpattern is None else plus(dv_bar, _rows_times(_swapped(dpattern), self._m_bar))

    def _score_cotangent(self, dm_bar: Tangent, dpattern: Tangent, dv: Tangent) -> Tangent:
        """Return a'(dAbar) + a''[ds](Abar) with dAbar = dmbar v^T + mbar dv^T (Lemma C.1 for a'')."""
        dpattern_bar = None if dm_bar is None else _rows_times(dm_bar, self.v.mT)
        if dv is not None:
            dpattern_bar = plus(dpattern_bar, _swapped(_rows_times(dv, self._m_bar.mT)))
        dscore_bar = None if dpattern_bar is None else self._through_pattern(dpattern_bar)
        if dpattern is None or self.is_linear:
            return dscore_bar
        pattern, pattern_bar = self.weights.unsqueeze(3), self._pattern_bar
        mean = (pattern * pattern_bar).sum(-1, keepdim=True)
        spread = (dpattern * pattern_bar).sum(-1, keepdim=True)
        return plus(dscore_bar, dpattern * (pattern_bar - mean) - pattern * spread)

    def _first_order(self, dscore_bar: Tangent, other: Tensor) -> Tangent:
        return None if dscore_bar is None else _rows_times(dscore_bar, other) / self.scale

    @cached_property
    def _m_bar(self) -> Float[Tensor, "batch heads queries d_head"]:
        assert self.cotangent is not None
        return self._split(self.cotangent.unsqueeze(2)).squeeze(3)

    @cached_property
    def _pattern_bar(self) -> Float[Tensor, "batch heads queries 1 length"]:
        return (self._m_bar @ self.v.mT).unsqueeze(3)

    @cached_property
    def _score_bar(self) -> Float[Tensor, "batch heads queries length"]:
        return self._through_pattern(self._pattern_bar).squeeze(3)

    def _dpattern(self, dq: Tangent, dk: Tangent) -> Tangent:
        dscore = None if dq is None else _rows_times(dq, self.k.mT) / self.scale
        if dk is not None:
            dscore = plus(dscore, _swapped(_rows_times(dk, self.q.mT)) / self.scale)
        return None if dscore is None else self._through_pattern(dscore)

    def _pattern(
        self, scores: Float[Tensor, "batch heads queries length"]
    ) -> Float[Tensor, "batch heads queries length"]:
        if self.is_linear:
            return scores.masked_fill(~self.allowed, 0.0)
        return scores.masked_fill(~self.allowed, float("-inf")).softmax(-1)

    def _through_pattern(self, rows: Float[Tensor, "batch heads queries k length"]) -> Tensor:
        """Apply the (symmetric) Jacobian of scores -> pattern: diag(A) - A A^T per query, or the mask."""
        if self.is_linear:
            return rows * self.allowed.unsqueeze(1)
        weighted = self.weights.unsqueeze(3) * rows
        return weighted - self.weights.unsqueeze(3) * weighted.sum(-1, keepdim=True)

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
        return None if rows is None else self._merge(rows)


def _rows_times(
    rows: Float[Tensor, "b h i k n"], matrix: Float[Tensor, "b h n m"]
) -> Float[Tensor, "b h i k m"]:
    """Multiply every row (i, k) by the matrix of its batch and head, in the matrix's type."""
    return (rows.flatten(2, 3).to(matrix.dtype) @ matrix).unflatten(2, rows.shape[2:4])


def _times_rows(
    matrix: Float[Tensor, "b h i j"], rows: Float[Tensor, "b h j k n"]
) -> Float[Tensor, "b h i k n"]:
    """Mix positions: out_i = sum_j matrix_ij rows_j."""
    return (matrix @ rows.flatten(3)).unflatten(3, rows.shape[3:])


def _swapped(rows: Float[Tensor, "b h i k j"]) -> Float[Tensor, "b h j k i"]:
    return rows.transpose(2, 4)
