"""What quantities of the landscape depend on beside network, task and state, and when they cannot be had."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hessfig.config import Config, Data
from hessfig.config.keys import as_plain
from hessfig.config.range_checks import number_of_samples
from hessfig.models.protocol import Layout

PLACES = ("samples", "first", "points", "permutations")


def settings_of(*names: str) -> Callable[[Config, Layout], dict[str, Any]]:
    """Return the settings of a quantity that reads `names` of the group landscape beside samples and places."""

    def settings(config: Config, layout: Layout) -> dict[str, Any]:
        del layout
        plain = as_plain(config.landscape)
        return {"landscape": {name: plain[name] for name in (*PLACES, *names)}}

    return settings


def check(config: Config, layout: Layout) -> None:
    """Raise UserError for samples that are not there, and for a loss that single samples have not."""
    del layout
    if config.task.data != Data.python:
        number_of_samples(config)
