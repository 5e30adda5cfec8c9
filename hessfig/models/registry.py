"""The kinds of networks: every module or folder of hessfig.models that holds a KIND; a new file is a new kind."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module

from hessfig import models
from hessfig.errors import UserError, did_you_mean
from hessfig.models.protocol import Kind

_NOT_KINDS = ("protocol", "registry", "matrices", "structure", "blocks", "layered", "activations", "stored")


def kinds() -> list[str]:
    """Return the names of all kinds, without importing one."""
    found = pkgutil.iter_modules(models.__path__)
    return [module.name for module in found if module.name not in _NOT_KINDS]


@cache
def kind(name: str) -> Kind:
    """Return the kind called `name`. Raises UserError when there is none."""
    known = kinds()
    if name not in known:
        raise UserError(
            "model.kind: there is no such kind of network",
            got=name,
            allowed=", ".join(known),
            remedy=did_you_mean(name, known) or "your own: model=python model.factory=FILE.py:FUNCTION",
        )
    found = import_module(f"hessfig.models.{name}").KIND
    assert isinstance(found, Kind)
    return found
