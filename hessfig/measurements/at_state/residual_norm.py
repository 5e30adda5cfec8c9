"""The mean length of the residual stream's vectors after every layer, on the measuring batch."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hessfig.config import Config
from hessfig.errors import UserError
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.protocol import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Problem

NAME = "residual_norm"


def _measure(problem: Problem, request: Request) -> Measured:
    """Return mean |h| over sequences and positions after layer 0 (the embeddings), 1, ...; `layer` says which."""
    import torch

    from hessfig.measurements.at_state.measuring.rows import state_row
    from hessfig.models.layered import Layered

    if not isinstance(problem.network, Layered):
        raise _without_layers(type(problem.network).__name__)
    rows, batches = [], (problem.batch, *problem.more)
    with torch.no_grad():
        for layer in range(len(problem.layers) + 1):
            lengths = [problem.network.hidden(one.inputs, layer).norm(dim=-1).flatten() for one in batches]
            rows.append(state_row(NAME, request, float(torch.cat(lengths).mean()), layer=layer))
    return Measured(rows)


def _check(config: Config, layout: Layout) -> None:
    if not layout.num_layers or config.model.factory:
        raise _without_layers(f"model.kind={config.model.kind}")


def _without_layers(got: str) -> UserError:
    return UserError(
        f"quantities=[{NAME}]: this network does not show what is between its layers",
        got=got,
        allowed="a network with a residual stream, such as model.kind=transformer",
        remedy=f"leave {NAME} out",
    )


QUANTITY = Quantity(NAME, _measure, check=_check)
