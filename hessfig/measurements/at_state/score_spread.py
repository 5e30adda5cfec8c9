"""Standard deviations of attention scores and of mixing weights: stand-ins for curvature that are judged beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config import Config, Kind
from hessfig.errors import UserError
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME, PATTERN = "score_spread", "pattern_spread"
_WITH_ATTENTION = (Kind.transformer, Kind.self_attention)


def _measure(problem: Problem, request: Request) -> Measured:
    """Return, layer by layer, the standard deviation over sums, heads and pairs of positions on the measuring batch.

    Of the scores before the softmax (pairs that the mask allows), and of the mixing weights after it (all pairs).
    """
    from hessfig.measurements.at_state.measuring.attention import spreads
    from hessfig.measurements.at_state.measuring.rows import state_row

    return Measured(
        [
            state_row(name, request, value, layer=layer)
            for layer, pair in enumerate(spreads(problem), start=1)
            for name, value in zip((NAME, PATTERN), pair, strict=True)
        ]
    )


def _check(config: Config, layout: Layout) -> None:
    del layout
    if config.model.kind not in _WITH_ATTENTION:
        raise UserError(
            f"quantities=[{NAME}]: this network shows no attention scores",
            got=f"model.kind={config.model.kind}",
            allowed="; ".join(f"model.kind={kind}" for kind in _WITH_ATTENTION),
            remedy=f"leave {NAME} out",
        )


QUANTITY = Quantity(NAME, _measure, check=_check, gives=(NAME, PATTERN))
