"""Networks of users: model.factory=FILE.py:FUNCTION or PACKAGE.MODULE:FUNCTION returns network, data and loss."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from hessfig.config.enums import Data, Products
from hessfig.config.schema import Config
from hessfig.config.user.user_code import code_hash, find, guarded
from hessfig.errors import UserError
from hessfig.files import check_pin
from hessfig.models.protocol import NetworkKind
from hessfig.weights import Layout

if TYPE_CHECKING:
    from hessfig.curvature.problem import Objective

KEY = "model.factory"
_SEEDS = 2**32  # numpy and torch take seeds from 0 to below it


def find_factory(config: Config) -> Callable[..., Any]:
    """Return the function named by model.factory. Raises UserError if there is none."""
    factory = find(KEY, config.model.factory, config.config_dir)
    if not callable(factory):
        raise UserError(
            f"{KEY}: {config.model.factory} is not a function",
            got=type(factory).__name__,
            allowed="a function that returns (network, inputs, targets, loss) or (..., weights), or a hessfig.Problem",
            remedy="write def make(): return network, inputs, targets, loss",
        )
    return factory


def call_factory(config: Config, sigma: float | None, seed: int) -> Any:
    """Call the factory with model.options, and with sigma and seed if it takes them, in the present folder.

    Networks of pilots have negative seeds, which not every generator takes: it gets
    those modulo 2^32.
    """
    factory = find_factory(config)
    signature = inspect.signature(factory)
    offered = {
        "sigma": 1.0 if sigma is None else sigma,
        "seed": seed if seed >= 0 else seed % _SEEDS,
    }
    words = {
        key: value for key, value in offered.items() if key in signature.parameters
    }
    if twice := sorted(words.keys() & dict(config.model.options)):
        raise UserError(
            f"model.options.{twice[0]}: the sweep runs over {twice[0]}, which {config.model.factory} takes",
            got=f"model.options.{twice[0]}={config.model.options[twice[0]]}",
            allowed="other arguments of the function",
            remedy="grid.values=[0.5] for one sigma; first_seed=5 seeds=1 for one seed",
        )
    words |= dict(config.model.options)
    try:
        signature.bind(**words)
    except TypeError as error:
        raise UserError(
            f"{KEY}: {config.model.factory} cannot be called: {error}",
            got=", ".join(f"{key}={value}" for key, value in words.items())
            or "no arguments",
            allowed=str(signature),
            remedy="give its arguments as model.options={NAME: VALUE}",
        ) from error
    with guarded(KEY, str(config.model.factory)), contextlib.chdir(Path.cwd()):
        return factory(**words)


def source_of(config: Config) -> str:
    """Return a hash of the user's own code behind the factory."""
    find_factory(config)
    return code_hash(config.model.factory, config.config_dir)


def layout(config: Config) -> Layout:
    """Return the weights of the network that the factory returns first."""
    return draw(config, None, config.first_seed).layout


def draw(config: Config, sigma: float | None, seed: int) -> Objective:
    """Call the factory with `seed` and `sigma`, as far as it takes them, and return the problem in the configured type.

    Raises UserError if the factory cannot be found, or does not return a network with
    data and a loss.
    """
    from hessfig.models.own.witnessing import factory_objective
    from hessfig.rng import one_thread

    # So that weights trained by the factory have the same bits in every process.
    with one_thread():
        returned = call_factory(config, sigma, seed)
        drawn = factory_objective(
            returned, dtype=config.dtype, source=str(config.model.factory)
        )
    check_pin(
        config.model.factory, KEY, found=source_of(config), planned=config.model.sha256
    )
    return drawn


def _source(config: Config) -> str:
    return config.model.sha256 or source_of(config)


def product_bytes(config: Config) -> float | None:
    """Return the bytes of a product of a large network, measured on its first samples on the CPU; None for others."""
    from hessfig.curvature.large.own_column import LargeNetwork

    objective = draw(config, None, config.first_seed)
    if config.estimator.products != Products.linearised or not LargeNetwork.can_take(
        objective
    ):
        return None
    return LargeNetwork.of(objective).expected


def axes(config: Config) -> frozenset[str]:
    """Return which of the arguments sigma and seed the factory takes."""
    return frozenset(
        {"sigma", "seed"} & set(inspect.signature(find_factory(config)).parameters)
    )


KIND = NetworkKind(
    layout=layout,
    draw=draw,
    axes=axes,
    product_bytes=product_bytes,
    files=source_of,
    source=_source,
    is_own=True,
    data=Data.python,
    place=KEY,
    reads=dict.fromkeys(("factory", "options", "sha256"), ""),
)
