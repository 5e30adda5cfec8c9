"""Networks inside wrappers of other libraries: for each library, the module that opens its wrapper."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

# A module of the library, the class of its wrapper, and our module with wrapped(),
# bridge_as_network(), ...
_WRAPPERS = (
    (
        "transformer_lens.model_bridge.bridge",
        "TransformerBridge",
        "hessfig.models.lens_bridge",
    ),
)


def opener_of(network: Any) -> Any:
    """Return the module that opens a wrapper; None for other networks. Does not import the library."""
    for library, kind, opener in _WRAPPERS:
        module = sys.modules.get(library)
        if module is not None and isinstance(network, getattr(module, kind)):
            return import_module(opener)
    return None
