"""The settings of single quantities, which make other numbers of these: landscapes, directions, approximations."""

from dataclasses import dataclass

from hessfig.config import enums
from hessfig.config.facts import added, setting
from hessfig.terms import Approximation, Optimiser

_MOST, _MOST_STEPS = 10_000_000, 100_000_000


@dataclass
class LandscapeConfig:
    """How L_k(w) = (l_1(w) + ... + l_k(w)) / k is looked at, l_i the loss of sample i of the task's batch.

    k runs from `first` to the number of samples, evenly in its logarithm. w* is the
    configured state.
    """

    samples: int | None = setting(
        None,
        "samples of the task's batch, the first ones; null: all of them",
        least=2,
        most=_MOST,
    )
    distance: float | None = setting(
        None,
        "|w - w*|; null: at w* itself",
        above=0,
        allowed="a finite number > 0; null is w* itself",
    )
    direction: enums.SampleDirection = setting(
        enums.SampleDirection.random,
        "of w - w*: a random unit vector, or along the gradient of the batch",
        where="landscape.distance!=null",
    )
    permutations: int = setting(
        200, "orders of the samples that means and bands are over", least=2, most=_MOST
    )
    first: int = setting(1, "the smallest k", least=1, most=_MOST)
    points: int = setting(25, "places of k", least=2, most=_MOST)
    draws: int = setting(
        20, "random w of the integrals Delta_1 and Delta_2", least=2, most=_MOST
    )
    spread: float = setting(
        0.01, "standard deviation s of these w, N(w*, s^2 I)", above=0
    )
    dimensions: list[int] = added(
        [1, 4, 16],
        "numbers D of eigenvectors that span the w of landscape_subspace",
        least=1,
        most=1_000,
        once=True,
    )
    curvatures: int = setting(
        8,
        "samples whose Hessian's largest eigenvalue in size is found, for the bound",
        least=1,
        most=_MOST,
    )


@dataclass
class ApproximationConfig:
    """Which approximations of a block the quantity `approximations` compares with it."""

    names: list[Approximation] = setting(
        [],
        "approximations that are compared with each block; none named: all that a block can have",
        once=True,
        allowed=f"a list of {', '.join(Approximation)}",
        example="[kfac,kfoc]",
    )
    rank: int = setting(3, "Kronecker products in kronecker_sum", least=1, most=1_000)
    subsets: int = added(
        64,
        "sets of samples that `influence` leaves out, each a training",
        least=3,
        most=10_000,
    )
    left_out: float = added(0.1, "share of the samples in such a set", above=0, below=1)


@dataclass
class DirectionsConfig:
    """How the loss is compared with its second-order expansion: on rays, along gradient descent, at critical points."""

    along: list[enums.SliceDirection] = setting(
        list(enums.SliceDirection),
        "directions of slices: eigenvectors of H (largest, smallest, bulk), the gradient, random",
        once=True,
        allowed=f"a list of {', '.join(enums.SliceDirection)}",
        example="[largest,gradient]",
    )
    plane: list[enums.SliceDirection] = setting(
        [enums.SliceDirection.largest, enums.SliceDirection.smallest],
        "the two directions that span the plane of a slice",
        size=2,
        once=True,
        allowed=f"two of {', '.join(enums.SliceDirection)}",
        example="[largest,gradient]",
    )
    reach: float | None = setting(
        None,
        "how far slices go from the state; null: one and a half times as far as where the expansion departs",
        above=0,
        allowed="a finite number > 0, or null",
        example="1",
    )
    points: int = setting(
        41, "points of a slice, and along each side of a plane", least=3, most=1_001
    )
    departure: float = setting(
        0.1,
        "the expansion departs where its error exceeds this share of the largest change of the loss",
        above=0,
        below=1,
    )
    rate: float = setting(
        0.5, "learning rate of descent, as a share of 2 / (largest eigenvalue)", above=0
    )
    steps: int = setting(100, "steps of descent", least=2, most=_MOST_STEPS)
    evaluations: int = setting(
        200,
        "gradients that a search for a critical point may take",
        least=1,
        most=_MOST_STEPS,
    )
    tolerance: float = setting(
        1e-8,
        "a critical point is found where the gradient's norm is no larger",
        above=0,
    )
    named: list[enums.NamedDirection] = added(
        [
            choice
            for choice in enums.NamedDirection
            if choice != enums.NamedDirection.smallest
        ],
        "directions of the quantity along: gradient, its signs, update, singular, random, eigenvectors",
        once=True,
        allowed=f"a list of {', '.join(enums.NamedDirection)}",
        example="[gradient,update]",
    )
    rules: list[Optimiser] = added(
        [],
        "step rules whose updates along takes at the same state; none named: the training's own",
        once=True,
        allowed=f"a list of {', '.join(Optimiser)}",
        example="[adamw,muon]",
    )
    gradients: int = added(
        20,
        "gradients at the state that make the moments of a rule which is not the training's",
        least=1,
        most=10_000,
    )
    starts: int = added(
        4,
        "random starts of each search for the largest curvature in a unit ball",
        least=0,
        most=10_000,
    )


@dataclass
class CompressionConfig:
    """How the quantities `pruning` and `quantisation` remove and round weights."""

    damping: float = setting(
        0.01,
        "added to the diagonal before a matrix is inverted, as a share of its mean entry",
        above=0,
    )
    shares: list[float] = setting(
        [place / 20 for place in range(1, 20)],
        "shares of the weights that are removed",
        least=0,
        most=1,
        once=True,
    )
    bits: list[int] = setting(
        [8, 4, 3], "bits of a rounded weight", least=1, most=16, once=True
    )
