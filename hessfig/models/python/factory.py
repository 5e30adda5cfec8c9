"""The function behind model.factory, called with what it takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

from hessfig.config.own_code import find, guarded, source
from hessfig.config.schema import Config
from hessfig.errors import UserError

KEY = "model.factory"


def find_factory(config: Config) -> Callable[..., Any]:
    """Return the function that model.factory names. Raises UserError when there is none."""
    found = find(KEY, config.model.factory, config.config_dir)
    if not callable(found):
        raise UserError(
            f"{KEY}: {config.model.factory} is no function",
            got=type(found).__name__,
            allowed="a function that returns (network, inputs, targets, loss) or (..., weights), or a hessfig.Problem",
            remedy="write def make(): return network, inputs, targets, loss",
        )
    return found


def call_factory(config: Config, sigma: float | None, seed: int) -> Any:
    """Call the factory with model.options, and with sigma and seed if it takes them."""
    factory = find_factory(config)
    signature = inspect.signature(factory)
    offered = {"sigma": 1.0 if sigma is None else sigma, "seed": seed}
    words = {key: value for key, value in offered.items() if key in signature.parameters}
    words |= dict(config.model.options)
    try:
        signature.bind(**words)
    except TypeError as error:
        raise UserError(
            f"{KEY}: {config.model.factory} cannot be called: {error}",
            got=", ".join(f"{key}={value}" for key, value in words.items()) or "no arguments",
            allowed=str(signature),
            remedy="give its arguments as model.options={NAME: VALUE}",
        ) from error
    with guarded(KEY, str(config.model.factory)):
        return factory(**words)


def source_of(config: Config) -> str:
    """Return a hash of the code behind the factory, as far as it is the user's own."""
    find_factory(config)
    return source(config.model.factory, config.config_dir)
