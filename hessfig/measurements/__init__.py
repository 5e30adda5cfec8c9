"""Measurements: computes quantities from products with the Hessian, as numbers with errors."""

import sys
import warnings
from importlib import import_module
from types import ModuleType
from typing import Any

_HOME = f"{__name__}.quantity"


class _Moved(ModuleType):
    """A module of 0.2.0, whose names are in quantity now. Deprecated in 0.3.0, dropped in 0.5.0."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(f"module {self.__name__!r} has no attribute {name!r}")
        value = getattr(import_module(_HOME), name)
        words = f"{self.__name__} is deprecated and will be dropped in hessfig 0.5.0: import {name} from {_HOME}"
        warnings.warn(words, DeprecationWarning, stacklevel=2)
        return value


for _name in ("protocol", "blocks", "estimate"):
    globals()[_name] = sys.modules[f"{__name__}.{_name}"] = _Moved(f"{__name__}.{_name}")
