"""A library of curvature: objectives and their blocks as operators, products, eigenvalues and approximations.

It needs no settings. docs/library.md shows it; the names below are its public ones, imported when they are first used.
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
    "HeadedColumn": "vocabulary_head",
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
    """Import a public name when it is first used: vocabulary of the library is read by plans that need no torch."""
    if name in _HOMES:
        return getattr(import_module(f"hessfig.curvature.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'hessfig.curvature' has no attribute {name!r}")
