"""Networks inside wrappers of other libraries: each library's row names the module that opens its wrapper."""

from __future__ import annotations

import sys
from importlib import import_module
from typing import Any

# A module of the library, the class of the wrapper in it, and the module here with wrapped(), bridge_as_network(), ...
_WRAPPERS = (("transformer_lens.model_bridge.bridge", "TransformerBridge", "hessfig.models.lens_bridge"),)


def opener_of(network: Any) -> Any:
    """Return the module that opens a wrapper, None for any other network; no library is imported to find out."""
    for library, kind, opener in _WRAPPERS:
        module = sys.modules.get(library)
        if module is not None and isinstance(network, getattr(module, kind)):
            return import_module(opener)
    return None
