"""One thread, shapes checked at run time, and one toy run of the installed command shared by all tests."""

from __future__ import annotations

import os

os.environ.update({name: "1" for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")})

from jaxtyping import install_import_hook

install_import_hook(
    ["hessfig.tasks", "hessfig.models", "hessfig.curvature", "hessfig.theory"], "beartype.beartype"
)
