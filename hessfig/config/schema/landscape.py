"""Settings of the loss landscape: samples, where it is looked at, permutations, and places of k."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from hessfig.config.optimisation import Direction


@dataclass
class LandscapeConfig:
    """How L_k(w) = (l_1(w) + ... + l_k(w)) / k is looked at, l_i the loss of sample i of the task's batch.

    k runs from `first` to the number of samples, evenly in its logarithm. w* is the configured state.
    """

    samples: Annotated[int | None, "samples of the task's batch, the first ones; null: all of them"] = None
    distance: Annotated[float | None, "|w - w*|; null: at w* itself"] = None
    direction: Annotated[Direction, "of w - w*: a random unit vector, or along the gradient of the batch"] = (
        Direction.random
    )
    permutations: Annotated[int, "orders of the samples that means and bands are over"] = 200
    first: Annotated[int, "the smallest k"] = 1
    points: Annotated[int, "places of k"] = 25
    draws: Annotated[int, "random w of the integrals Delta_1 and Delta_2"] = 20
    spread: Annotated[float, "standard deviation s of these w, N(w*, s^2 I)"] = 0.01
    curvatures: Annotated[
        int, "samples whose Hessian's largest eigenvalue in size is found, for the bound"
    ] = 8
