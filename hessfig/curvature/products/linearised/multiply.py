"""The product of rows with a matrix, which the tape spends its time on, by the fastest kernel for its type."""

from __future__ import annotations

from pathlib import Path

import torch
from jaxtyping import Float
from torch import Tensor

_CPU = Path("/proc/cpuinfo")  # of Linux


def _is_intel(cpu: Path) -> bool:
    """Whether the first processor is Intel's."""
    return cpu.exists() and "GenuineIntel" in cpu.read_text(errors="replace").partition("\n\n")[0]


# MKL, behind `@`, takes narrow kernels on processors of other makers; oneDNN, in the same torch, the widest there are.
_HAS_ONEDNN = torch.backends.mkldnn.is_available() and hasattr(torch.ops.mkldnn, "_linear_pointwise")
_BY_ONEDNN = _HAS_ONEDNN and not _is_intel(_CPU)


def times_transposed(rows: Float[Tensor, "*n k"], matrix: Float[Tensor, "m k"]) -> Float[Tensor, "*n m"]:
    """Return rows matrix^T.

    Float32 on the CPU goes to oneDNN, in full precision: 2.3 times MKL's rate on an AMD EPYC, and 0.9 times it on an
    Intel Xeon, which keeps MKL (docs/benchmarks.md). It knows no float64.
    """
    if not _goes_to_onednn(rows):
        return rows @ matrix.T
    product: Tensor = torch.ops.mkldnn._linear_pointwise(rows, matrix, None, "none", [], "")
    return product


def _goes_to_onednn(rows: Tensor) -> bool:
    return _BY_ONEDNN and rows.dtype == torch.float32 and rows.device.type == "cpu"
