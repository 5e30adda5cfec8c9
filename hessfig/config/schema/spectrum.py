"""Settings of spectra: extreme eigenvalues, densities, and what is read off a list of eigenvalues."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hessfig.config.choices import Probes


@dataclass
class SpectrumConfig:
    """How eigenvalues are found. Recurrences are float64 whatever the products are (`dtype`)."""

    k: Annotated[int, "how many of the outermost eigenvalues at either end"] = 1
    tolerance: Annotated[
        float, "residual at which an extreme eigenvalue is found, relative to the largest eigenvalue in size"
    ] = 1e-6
    steps: Annotated[
        int,
        "Lanczos steps: nodes of a probe of a density; of an extreme eigenvalue, vectors before a restart",
    ] = 100
    num_probes: Annotated[int, "random start vectors of a density"] = 10
    probes: Annotated[Probes, "how the start vectors of a density are drawn"] = Probes.rademacher
    cut: Annotated[
        float,
        "eigenvalues below this share of the largest in size count as zero in shares and condition numbers",
    ] = 1e-10
