"""hessfig measures the blocks of a transformer's Hessian and redraws the figures that rest on them."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hessfig.api.arguments import Measure
    from hessfig.api.interface import Problem, measure
    from hessfig.api.monitor import Monitor
    from hessfig.api.predicted import predict
    from hessfig.api.sessions import Run, plot, read, run
    from hessfig.curvature.block_operator import BlockOperator
    from hessfig.errors import UserError
    from hessfig.integrations import lens as lens
    from hessfig.models.found_weights import find_weights

__all__ = [
    "BlockOperator",
    "Measure",
    "Monitor",
    "Problem",
    "Run",
    "UserError",
    "__version__",
    "find_weights",
    "measure",
    "plot",
    "predict",
    "read",
    "run",
]
__version__ = "0.5.0"
_HOMES = {
    **dict.fromkeys(("Problem", "measure"), "hessfig.api.interface"),
    **dict.fromkeys(("Run", "plot", "read", "run"), "hessfig.api.sessions"),
    "Measure": "hessfig.api.arguments",
    "BlockOperator": "hessfig.curvature.block_operator",
    "Monitor": "hessfig.api.monitor",
    "UserError": "hessfig.errors",
    "predict": "hessfig.api.predicted",
    "find_weights": "hessfig.models.found_weights",
}


def __getattr__(name: str) -> Any:
    """Import the interface when it is first used: the command line must start without torch."""
    if name == "lens":
        return import_module("hessfig.integrations.lens")
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'hessfig' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the names of the interface, which are imported when they are used, for completion by TAB."""
    return sorted(
        {*__all__, "lens", *(name for name in globals() if name.startswith("__"))}
    )
