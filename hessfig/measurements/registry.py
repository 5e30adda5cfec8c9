"""The quantities: every module or folder of hessfig.measurements with a QUANTITY; a new file is a new one."""

from __future__ import annotations

import pkgutil
from functools import cache
from importlib import import_module
from pathlib import Path

from hessfig.errors import UserError, did_you_mean
from hessfig.measurements.protocol import Quantity

_NOT_QUANTITIES = ("protocol", "registry", "estimate", "rows", "blocks")


def quantities() -> list[str]:
    """Return the names of all quantities, without importing one."""
    found = pkgutil.iter_modules([str(Path(__file__).parent)])
    return [module.name for module in found if module.name not in _NOT_QUANTITIES]


@cache
def quantity(name: str) -> Quantity:
    """Return the quantity called `name`. Raises UserError when there is none."""
    known = quantities()
    if name not in known:
        raise UserError(
            "quantities: there is no such quantity",
            got=name,
            allowed=", ".join(known),
            remedy=did_you_mean(name, known) or f"for example quantities=[{known[0]}]",
        )
    found = import_module(f"hessfig.measurements.{name}").QUANTITY
    assert isinstance(found, Quantity)
    return found
