"""Where a second-order expansion departs from the loss: one rule for slices, planes and descents.

The expansion P departs from the loss L at the first point t with |L(t) - P(t)| > share * C(t), C(t) the largest
|L(s) - L(0)| for s up to t. The largest change so far, not the change at t alone: that one is zero where the loss
crosses its first value again. Gaps that are rounding beside |L(0)| do not count; a loss that is not
finite has departed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

FIRST, LAST, _PER_OCTAVE = 1e-4, 1e2, 4
_HALVINGS = 6


@dataclass(frozen=True)
class ExpansionRule:
    """When an expansion departs: the `share` of the loss's largest change, and what counts as rounding."""

    share: float
    rounding: float

    def is_off(self, gap: float, change: float, start: float) -> bool:
        """Whether a gap is too large; one that is not a number is."""
        return not abs(gap) <= self.share * change + self.rounding * abs(start)

    def horizon(self, losses: Sequence[float], expansion: Sequence[float]) -> float:
        """Return the first place at which the expansion has departed; infinite where it has at none."""
        changes = np.fmax.accumulate(np.abs(np.subtract(losses, losses[0])))
        gaps = np.subtract(losses, expansion)
        each = (t for t in range(len(losses)) if self.is_off(float(gaps[t]), float(changes[t]), losses[0]))
        return float(next(each, np.inf))

    def departure(
        self, loss: Callable[[float], float], expansion: Callable[[float], float], *, first: float = FIRST
    ) -> tuple[float, float]:
        """Return the distance at which the expansion departs, and half of its bracket; infinite beyond LAST / FIRST.

        Distances rise from `first` by the fourth root of 2; the bracket is then halved six times.
        """
        start, largest, change, low = loss(0.0), 0.0, 0.0, 0.0

        def is_off(t: float) -> bool:
            nonlocal change
            found = loss(t)
            change = max(largest, abs(found - start))
            return self.is_off(found - expansion(t), change, start)

        for high in (first * 2 ** (np.arange(np.log2(LAST / FIRST) * _PER_OCTAVE) / _PER_OCTAVE)).tolist():
            change = largest
            if is_off(high):
                return _bisected(is_off, low, high)
            largest, low = change, high
        return np.inf, 0.0


def _bisected(is_off: Callable[[float], bool], low: float, high: float) -> tuple[float, float]:
    """Return the middle and half the length of what is left of a bracket after _HALVINGS."""
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (low, middle) if is_off(middle) else (middle, high)
    return (low + high) / 2, (high - low) / 2
