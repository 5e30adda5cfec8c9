"""The steps of a training that are measured."""

from __future__ import annotations

from hessfig.config.choices import Data
from hessfig.config.schema import Config

TRAINABLE = (Data.addition, Data.digits)


def step_values(config: Config) -> list[int]:
    """Return the steps at which a trained state is measured, in rising order."""
    asked = config.state.step
    if asked is None:
        return [config.training.steps]
    return sorted(asked) if isinstance(asked, list) else [asked]


def kept_steps(config: Config) -> list[int]:
    """Return the steps whose states this run keeps: those asked for and the listed ones below the last of them.

    Steps that nobody asks for are not trained: a run of 8 000 that is measured at 300 ends there.
    """
    asked = step_values(config)
    return sorted({*asked, *(step for step in config.training.checkpoints if step < asked[-1])})
