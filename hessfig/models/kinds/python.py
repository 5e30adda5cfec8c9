"""Anybody's network: model.factory=FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION makes network, data and loss."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import Data
from hessfig.config.schema import Config
from hessfig.config.user.user_code import find, guarded, reading, source
from hessfig.errors import UserError
from hessfig.files import check_pin
from hessfig.models.protocol import NetworkKind
from hessfig.weights import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Objective

KEY = "model.factory"


def find_factory(config: Config) -> Callable[..., Any]:
    """Return the function that model.factory names. Raises UserError when there is none."""
    factory = find(KEY, config.model.factory, config.config_dir)
    if not callable(factory):
        raise UserError(
            f"{KEY}: {config.model.factory} is no function",
            got=type(factory).__name__,
            allowed="a function that returns (network, inputs, targets, loss) or (..., weights), or a hessfig.Problem",
            remedy="write def make(): return network, inputs, targets, loss",
        )
    return factory


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
    with guarded(KEY, str(config.model.factory)), reading(config.model.factory):
        return factory(**words)


def source_of(config: Config) -> str:
    """Return a hash of the code behind the factory, as far as it is the user's own."""
    find_factory(config)
    return source(config.model.factory, config.config_dir)


def layout(config: Config) -> Layout:
    """Return the weights of the network that the factory makes first."""
    return draw(config, None, config.first_seed).layout


def draw(config: Config, sigma: float | None, seed: int) -> Objective:
    """Call the factory with those of `seed` and `sigma` that it takes, in the configured type.

    Raises UserError when it cannot be found or returns something else than a network with data and a loss.
    """
    from hessfig.models.own.witnessing import factory_objective
    from hessfig.rng import one_thread

    with one_thread():  # weights that the factory trains, say, have the same bits in every process
        returned = call_factory(config, sigma, seed)
        drawn = factory_objective(returned, dtype=config.dtype, source=str(config.model.factory))
    check_pin(config.model.factory, KEY, found=source_of(config), planned=config.model.sha256)
    return drawn


def _source(config: Config) -> str:
    return config.model.sha256 or source_of(config)


def axes(config: Config) -> frozenset[str]:
    """Return which of sigma and seed the factory takes."""
    return frozenset({"sigma", "seed"} & set(inspect.signature(find_factory(config)).parameters))


KIND = NetworkKind(
    layout=layout,
    draw=draw,
    axes=axes,
    files=source_of,
    source=_source,
    is_own=True,
    data=Data.python,
    place=KEY,
    reads=dict.fromkeys(("factory", "options", "sha256"), ""),
)
