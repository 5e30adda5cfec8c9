"""What a worker process needs loaded: the measuring code, with torch held to one thread."""

from __future__ import annotations

import warnings

warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")

import torch  # noqa: E402

import hessfig.models.networks  # noqa: E402, F401  (the slow import of TransformerLens, once for all workers)
from hessfig.sweep.measure import measure  # noqa: E402

torch.set_num_threads(1)

__all__ = ["measure"]
