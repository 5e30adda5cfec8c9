"""What quantities of a state share in their checks and keys."""

from __future__ import annotations

from typing import Any

from hessfig.config import Config, Optimiser, State
from hessfig.config.keys import TRAINABLE
from hessfig.errors import UserError
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.states.training.trajectory import science

ADAPTIVE = (Optimiser.adam, Optimiser.adamw)


def check_task(quantity: str, config: Config) -> None:
    """Raise UserError where there are no further examples: `quantity` needs some beside the measuring batch."""
    if config.task.data not in TRAINABLE:
        raise UserError(
            f"quantities=[{quantity}]: this task has no examples beside its batch",
            got=f"task.data={config.task.data}",
            allowed="; ".join(f"task.data={one}" for one in TRAINABLE),
            remedy=f"leave {quantity} out, or task=addition",
        )


def check_moments(quantity: str, config: Config) -> None:
    """Raise UserError for a loaded state, with which no moments come, where the optimiser has some."""
    if config.state.kind == State.loaded and config.training.optimiser != Optimiser.gd:
        raise UserError(
            f"quantities=[{quantity}]: a loaded state comes without the moments of {config.training.optimiser}",
            got="state=loaded",
            allowed="state=trained, state=initialised, or training=gd, which has no moments",
            remedy=f"leave {quantity} out, or state=trained",
        )


def diagonal_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the diagonal blocks, whose weights have rows of their own."""
    blocks = [block for block in blocks_of(config.blocks, layout, config.model) if block.is_diagonal]
    return {"blocks": [[block.layer, str(block.col)] for block in blocks]}


def training_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of the training, whose rule or batches enter the number at any state."""
    del layout
    return {"training": science(config)["training"]}
