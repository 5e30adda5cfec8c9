"""What a step of the network offers: its value, tangents up, cotangent tangents down.

Tangents carry the probes in their third axis, (batch, length, k, d); None is an exact zero, so that what
vanishes is never computed. For y = f(x) with cotangent ybar of the linearised loss, the tangent of xbar is
J^T (tangent of ybar) + (dJ[dx])^T ybar. The first term serves H_o and H_f, the second (only added when the
tangents of the inputs are given) makes H_f.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from torch import Tensor

Tangent = Tensor | None


@runtime_checkable
class Node(Protocol):
    """One step; `inputs` and `output` name variables of the tape, `value` is the output at the point.

    `cotangent` is set once, by `Tape.record`, before anything is multiplied; what follows from it may be kept.
    """

    inputs: tuple[str, ...]
    output: str
    value: Tensor
    cotangent: Tensor | None

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        """Return the tangent of the output."""

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return the tangents of the inputs' cotangents (None where not `needed`)."""


def plus(a: Tangent, b: Tangent) -> Tangent:
    """Add, where None is zero."""
    if a is None or b is None:
        return b if a is None else a
    return a + b
