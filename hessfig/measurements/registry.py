"""The quantities: modules or folders of hessfig.measurements and of its rooms, and those of the user's own files."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib import import_module
from typing import Any

from hessfig import measurements
from hessfig.config.user_code import (
    find,
    guarded,
    is_own,
    source,
)
from hessfig.errors import UserError, did_you_mean
from hessfig.measurements.protocol import Quantity

KEY = "quantities"
_NOT_QUANTITIES = ("protocol", "registry", "estimate", "blocks")
_ROOMS = ("spectra", "at_state", "landscape")  # folders that hold quantities, beside what these share:
_SHARED = ("settings", "checks", "measuring")


def quantities() -> list[str]:
    """Return the names of the package's quantities, without importing one."""
    return list(_places())


@cache
def _places() -> dict[str, str]:
    """Return {name: module} of the package's quantities: those of hessfig.measurements first, then room by room."""
    found = {}
    for room in ("", *_ROOMS):
        package = f"{measurements.__name__}.{room}".rstrip(".")
        folders = [f"{folder}/{room}" for folder in measurements.__path__]
        for module in pkgutil.iter_modules(folders):
            if module.name not in (*_NOT_QUANTITIES, *_SHARED, *_ROOMS):
                found[module.name] = f"{package}.{module.name}"
    return found


def quantity(name: str, config_dir: str | None = None) -> Quantity:
    """Return the quantity called `name`, or that of the user's own code (FILE.py:NAME).

    Raises UserError when there is none.
    """
    if is_own(name):
        return _guarded(_checked(name, find(KEY, name, config_dir)), name)
    return _of_the_package(name)


@cache
def _of_the_package(name: str) -> Quantity:
    known = _places()
    if name not in known:
        raise UserError(
            f"{KEY}: there is no such quantity",
            got=name,
            allowed=f"{', '.join(known)}, or FILE.py:NAME of your own",
            remedy=did_you_mean(name, known) or f"for example quantities=[{next(iter(known))}]",
        )
    return _checked(name, import_module(known[name]).QUANTITY)


def source_of(name: str, config_dir: str | None) -> str:
    """Return the hash of the file of a quantity of the user's own; none for the package's."""
    return source(name, config_dir) if is_own(name) else ""


def _guarded(own: Quantity, name: str) -> Quantity:
    """Return a user's quantity whose functions fail as UserErrors that name it."""

    def of(function: Callable[..., Any]) -> Callable[..., Any]:
        def run(*arguments: Any) -> Any:
            with guarded(KEY, name):
                return function(*arguments)

        return run

    return replace(
        own,
        measure=of(own.measure),
        settings=of(own.settings),
        check=of(own.check),
        operations=of(own.operations),
        serves=of(own.serves),
    )


def _checked(name: str, found: object) -> Quantity:
    if not isinstance(found, Quantity):
        raise UserError(
            f"{KEY}: {name} is no quantity",
            got=type(found).__name__,
            allowed="a hessfig.measurements.protocol.Quantity",
            remedy="see docs/extending.md",
        )
    return found
