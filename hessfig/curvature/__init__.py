"""Curvature of losses: blocks of the Hessian as operators, their products, eigenvalues and approximations.

The library needs no settings; see docs/library.md. The names below are public and are
imported on first use.
"""

from importlib import import_module
from typing import Any

_HOMES = {
    "Objective": "problem",
    "Batch": "problem",
    "BlockOperator": "block_operator",
    "ImplicitMatrix": "implicit_matrix",
    "Solution": "implicit_matrix",
    "ApproximatedBlock": "approximations.approximated_block",
    "ColumnOperator": "curvlinops",
    "BatchedColumn": "batched",
    "DifferencedColumn": "differences",
    "product_by_differences": "richardson",
    "LossGradient": "gradients",
    "Square": "spectral.lanczos",
    "LanczosRun": "spectral.lanczos",
    "extremes": "spectral.extremes",
    "dense_matrix": "spectral.densities",
    "quadrature": "spectral.densities",
    "xtrace": "spectral.densities",
    "rademacher": "problem",
    "why_no_split": "loss_convexity",
}
__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    """Import a public name on first use, so that planning a sweep does not import torch."""
    if name in _HOMES:
        return getattr(import_module(f"hessfig.curvature.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hessfig.curvature' has no attribute {name!r}")
