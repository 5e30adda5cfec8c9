"""Anybody's network: model.factory=FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION makes network, data and loss."""

from __future__ import annotations

import inspect
from dataclasses import replace

from hessfig.config.own_code import guarded
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.files import check_pin
from hessfig.models.protocol import Drawn, Kind, Layout
from hessfig.models.python.factory import KEY, call_factory, find_factory, source_of


def layout(config: Config) -> Layout:
    """Return the weights of the network that the factory makes first."""
    return draw(config, None, config.first_seed).layout


def draw(config: Config, sigma: float | None, seed: int) -> Drawn:
    """Call the factory with those of `seed` and `sigma` that it takes, in the configured type.

    Raises UserError when it cannot be found or returns something else than a network with data and a loss.
    """
    from hessfig.models.python.content import content_of
    from hessfig.models.python.foreign import as_drawn
    from hessfig.rng import one_thread

    with one_thread():  # weights that the factory trains, say, have the same bits in every process
        made = call_factory(config, sigma, seed)
        drawn = as_drawn(made, dtype=config.dtype, source=str(config.model.factory))
    check_pin(config.model.factory, KEY, found=source_of(config), planned=config.model.sha256)
    with guarded(KEY, str(config.model.factory)):
        return replace(drawn, content=content_of(drawn))


def content(config: Config, sigma: float | None, seed: int) -> str:
    """Return a hash of what the factory returns for `seed` and `sigma`."""
    return draw(config, sigma, seed).content


def _source(config: Config) -> str:
    return config.model.sha256 or source_of(config)


def axes(config: Config) -> frozenset[str]:
    """Return which of sigma and seed the factory takes."""
    return frozenset({"sigma", "seed"} & set(inspect.signature(find_factory(config)).parameters))


def _check(config: Config) -> None:
    if config.model.options and not config.model.factory:
        raise UserError(
            "model.options are for model.factory", got=config.model.options, allowed="{}", remedy=""
        )


KIND = Kind(
    layout=layout, draw=draw, axes=axes, check=_check, files=source_of, source=_source, content=content
)
