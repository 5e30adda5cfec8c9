"""Checks within the settings of the loss landscape, and of its samples against the data."""

from __future__ import annotations

import math

from hessfig.config.checks.counts import check_count
from hessfig.config.choices import Loss
from hessfig.config.schema import Config, LandscapeConfig
from hessfig.errors import UserError

_MOST = 10_000_000  # beyond, a count is a slip
_FEWEST = {"permutations": 2, "first": 1, "points": 2, "draws": 2, "curvatures": 1}


def check_landscape(landscape: LandscapeConfig) -> None:
    """Raise UserError for the first setting of the landscape that means nothing."""
    counts = {name: (getattr(landscape, name), least) for name, least in _FEWEST.items()}
    if landscape.samples is not None:
        counts["samples"] = (landscape.samples, 2)
    for name, (value, least) in counts.items():
        check_count(f"landscape.{name}", value, fewest=least, most=_MOST, example=_example(name))
    lengths = {"distance": landscape.distance, "spread": landscape.spread}
    for name, length in lengths.items():
        if length is not None and not (math.isfinite(length) and length > 0):
            at = "; null is w* itself" if name == "distance" else ""
            _refuse(name, length, f"a finite number > 0{at}")


def number_of_samples(config: Config, *, size: int | None = None) -> int:
    """Return how many samples of the task's batch (of `size` samples, where no setting says it) the landscape is of.

    Raises UserError for more samples than there are, a first k beyond them, and a loss that is no mean over samples.
    """
    landscape, size = config.landscape, size or config.task.batch_size
    count = size if landscape.samples is None else landscape.samples
    if count > size:
        raise UserError(
            "landscape.samples: k would run beyond the data",
            got=count,
            allowed=f"2 to {size} (task.batch_size)",
            remedy=f"task.batch_size={count}, or landscape.samples={size}",
        )
    if landscape.first >= count:
        raise UserError(
            "landscape.first: the smallest k is beyond the data",
            got=landscape.first,
            allowed=f"1 to {count - 1}, one less than there are samples",
            remedy="landscape.first=1",
        )
    if config.task.loss == Loss.mse_sum_unshifted:
        raise UserError(
            "task.loss: the published sum of squares is a sum over everything, not a mean over samples: "
            "it grows with k, and its L_k is no average of losses of single samples",
            got=config.task.loss,
            allowed="cross_entropy, mse",
            remedy="task.loss=cross_entropy",
        )
    return count


def _refuse(name: str, got: object, allowed: str) -> None:
    remedy = f"for example landscape.{name}={_example(name)}"
    raise UserError(f"landscape.{name}", got=got, allowed=allowed, remedy=remedy)


def _example(name: str) -> object:
    default = getattr(LandscapeConfig(), name)
    return "null" if default is None else default
