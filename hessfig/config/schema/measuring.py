"""Settings of where and how it is measured: the values of sigma, and the estimator."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hessfig.config.choices import Method, Products, Spacing


@dataclass
class GridConfig:
    """The values of sigma: `points` between `low` and `high`, or the explicit list `values`."""

    spacing: Annotated[Spacing, "how the values of sigma are spread"] = Spacing.log
    low: Annotated[float, "smallest sigma"] = 0.01
    high: Annotated[float, "largest sigma"] = 10.0
    points: Annotated[int, "number of values of sigma"] = 20
    values: Annotated[list[float] | None, "the values of sigma, in place of the four settings above"] = None


@dataclass
class EstimatorConfig:
    """How block norms are found, by whose products, and with how many probes (`auto`: at most; see variance_share)."""

    method: Annotated[
        Method, "how a block norm is found; auto: exact where that is cheap, probes elsewhere"
    ] = Method.auto
    products: Annotated[Products, "whose Hessian-vector products"] = Products.linearised
    num_probes: Annotated[int, "random vectors for each column of blocks; with auto at most"] = 20
    variance_share: Annotated[float, "with auto, the share of the spread over seeds that probing may add"] = (
        0.1
    )
