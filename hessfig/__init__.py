"""hessfig measures the blocks of a transformer's Hessian and redraws the figures that rest on them."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hessfig.cli.predict import predict
    from hessfig.interface import Problem, measure

__all__ = ["Problem", "__version__", "measure", "predict"]
__version__ = "0.2.0"


def __getattr__(name: str) -> Any:
    """Import the interface when it is first used: the command line must start without torch."""
    if name in ("Problem", "measure"):
        from hessfig import interface

        return getattr(interface, name)
    if name == "predict":
        from hessfig.cli.predict import predict

        return predict
    raise AttributeError(f"module 'hessfig' has no attribute {name!r}")
