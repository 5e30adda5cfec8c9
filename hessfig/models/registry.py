"""The kinds of networks: the modules of hessfig.models.kinds; a new file there is a new kind."""

from __future__ import annotations

import pkgutil
from collections.abc import Callable
from functools import cache
from importlib import import_module

from hessfig.errors import UserError, did_you_mean
from hessfig.models import kinds as folder
from hessfig.models.protocol import NetworkKind
from hessfig.terms import Kind as Shipped


def kinds() -> list[str]:
    """Return the names of all kinds, without importing one."""
    return [module.name for module in pkgutil.iter_modules(folder.__path__)]


def kinds_where(fact: Callable[[NetworkKind], bool]) -> list[str]:
    """Return the names of the kinds of which `fact` is true, the shipped ones in their order."""
    shipped = [name.value for name in Shipped]
    found = [name for name in kinds() if fact(kind(name))]
    return sorted(found, key=lambda name: (shipped.index(name) if name in shipped else len(shipped), name))


@cache
def kind(name: str) -> NetworkKind:
    """Return the kind called `name`. Raises UserError when there is none."""
    known = kinds()
    if name not in known:
        raise UserError(
            "model.kind: there is no such kind of network",
            got=name,
            allowed=", ".join(known),
            remedy=did_you_mean(name, known) or "your own: model=python model.factory=FILE.py:FUNCTION",
        )
    found = import_module(f"{folder.__name__}.{name}").KIND
    assert isinstance(found, NetworkKind)
    return found
