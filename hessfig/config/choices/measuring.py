"""The values of settings of where and how it is measured."""

from __future__ import annotations

from enum import StrEnum


class Spacing(StrEnum):
    """How the values of sigma are spread between `low` and `high`."""

    log = "log"
    linear = "linear"


class Method(StrEnum):
    """How a block norm is found."""

    hutchinson = "hutchinson"
    aligned = "aligned"
    xtrace = "xtrace"
    dense = "dense"
    exact = "exact"
    auto = "auto"


class Products(StrEnum):
    """Whose Hessian-vector products: our linearised network, or curvlinops (reference; any differentiable model)."""

    linearised = "linearised"
    curvlinops = "curvlinops"


class Probes(StrEnum):
    """Random start vectors of Lanczos runs: entries +1 or -1, or normal ones."""

    rademacher = "rademacher"
    gaussian = "gaussian"


class DType(StrEnum):
    """Floating-point type of model and products."""

    float64 = "float64"
    float32 = "float32"


class Launcher(StrEnum):
    """Who measures: worker processes of this machine, or the tasks of a Slurm job array."""

    local = "local"
    slurm = "slurm"


class Reuse(StrEnum):
    """What shows that a network of the user's own is one that was measured: what its factory returns, or its code."""

    content = "content"
    sources = "sources"
