"""Networks inside wrappers of other libraries: the module that opens a wrapper."""

import sys
from importlib import import_module
from typing import Any


def opener_of(network: Any) -> Any:
    """Return our module that opens a wrapper: a bridge of TransformerLens; None for other networks.

    It has wrapped(), bridge_as_network(), ... The library is not imported.
    """
    library = sys.modules.get("transformer_lens.model_bridge.bridge")
    if library is not None and isinstance(network, library.TransformerBridge):
        return import_module("hessfig.models.lens_bridge")
    return None
