"""Spectra smoothed by a kernel, their quantiles, and Jensen-Shannon distances between blocks."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from itertools import product

import numpy as np
from numpy.typing import NDArray
from pandas import DataFrame

from hessfig.analysis.intervals import student_band
from hessfig.analysis.stored_spectra import (
    Density,
    Spectrum,
    SpectrumKey,
    StoredQuadrature,
)
from hessfig.terms import Group

Numbers = NDArray[np.float64]
Profile = Callable[[Numbers, float], Numbers]


@dataclass(frozen=True)
class Kernel:
    """The Gaussian that replaces every node of a density.

    Its standard deviation is `width` times the range of the numbers, or follows from a
    `variance` as in the published protocol (arXiv 2402.16788, after arXiv 1901.10159):
    variance * max(1, range). `absolute` is the deviation itself, in units of the
    numbers: it does not grow with outliers, so that networks under it can be compared.
    """

    width: float = 0.01
    variance: float | None = None
    absolute: float | None = None

    def deviation(self, low: float, high: float) -> float:
        """Return the standard deviation for numbers between `low` and `high`."""
        if self.absolute is not None:
            return self.absolute
        if self.variance is not None:
            return math.sqrt(self.variance * max(1.0, high - low))
        return self.width * (high - low) or self.width

    @property
    def words(self) -> str:
        """The kernel in words, for the note of a figure."""
        if self.absolute is not None:
            return f"Gaussian kernel of standard deviation {self.absolute:g} in all networks"
        if self.variance is not None:
            return f"Gaussian kernel of variance {self.variance:g} max(1, range)"
        return f"Gaussian kernel of standard deviation {self.width:g} of the range"


@dataclass(frozen=True)
class Banded:
    """A curve over `grid`: the mean over probes, and half the width of its 95 % interval (Student's t; nan for one).

    `half` is the mean with half the Lanczos steps; the difference is the error of the
    steps, not of the probes.
    """

    grid: Numbers
    mean: Numbers
    margin: Numbers
    half: Numbers


def span(density: Density) -> tuple[float, float]:
    """Return the smallest and the largest node with a positive weight."""
    used = density.whole.nodes[density.whole.weights > 0]
    return float(used.min()), float(used.max())


def grid_over(
    low: float, high: float, deviation: float, *, points: int = 400
) -> Numbers:
    """Return evenly spaced places from three deviations below `low` to three above `high`."""
    return np.linspace(low - 3 * deviation, high + 3 * deviation, points)


def smoothed(density: Density, grid: Numbers, deviation: float) -> Banded:
    """Return the density phi(t) = sum_i w_i N(t; theta_i, deviation^2) over `grid`."""
    return _banded(density, grid, deviation, _bell)


def cumulative(density: Density, grid: Numbers, deviation: float) -> Banded:
    """Return the share of eigenvalues below each place: sum_i w_i Phi((t - theta_i) / deviation)."""
    return _banded(density, grid, deviation, _share_below)


def _banded(
    density: Density, grid: Numbers, deviation: float, kernel: Profile
) -> Banded:
    every, half = (
        _per_probe(one, grid, deviation, kernel)
        for one in (density.whole, density.half)
    )
    return Banded(grid, *student_band(every), half.mean(axis=0))


def of_eigenvalues(
    eigenvalues: Numbers, grid: Numbers, deviation: float
) -> tuple[Numbers, Numbers]:
    """Return density and cumulative of all eigenvalues under the same kernel, which the bands should contain."""
    weights = np.full((1, len(eigenvalues)), 1 / len(eigenvalues))
    exact = StoredQuadrature(eigenvalues[None], weights)
    return _per_probe(exact, grid, deviation, _bell)[0], _per_probe(
        exact, grid, deviation, _share_below
    )[0]


def _per_probe(
    quadrature: StoredQuadrature, grid: Numbers, deviation: float, kernel: Profile
) -> Numbers:
    """Return sum_i w_i kernel((t - theta_i) / deviation), one row per probe."""
    rows = []
    for nodes, weights in zip(quadrature.nodes, quadrature.weights, strict=True):
        used = weights > 0
        rows.append(_sum(grid, nodes[used], weights[used], deviation, kernel))
    return np.stack(rows)


def _sum(
    grid: Numbers, nodes: Numbers, weights: Numbers, deviation: float, kernel: Profile
) -> Numbers:
    total = np.zeros_like(grid)
    for start in range(0, len(nodes), 512):  # a table of 512 x 400 numbers at a time
        piece = slice(start, start + 512)
        total += (
            kernel((grid[:, None] - nodes[piece]) / deviation, deviation)
            @ weights[piece]
        )
    return total


def _bell(z: Numbers, deviation: float) -> Numbers:
    return np.asarray(np.exp(-0.5 * z**2) / (deviation * math.sqrt(2 * math.pi)))


def _share_below(z: Numbers, deviation: float) -> Numbers:
    from scipy.special import ndtr

    del deviation
    return np.asarray(ndtr(z))


NOISE = 1e-10  # share of the largest |eigenvalue| below which eigenvalues are zero up to rounding
_ROUNDING = 1e-12


def as_weighted(block: Spectrum | Density) -> tuple[Numbers, Numbers]:
    """Return (numbers, shares) of a spectrum or quadrature; all probes have the same weight, and shares sum to 1."""
    if isinstance(block, Spectrum):
        return block.eigenvalues, np.full(
            len(block.eigenvalues), 1 / len(block.eigenvalues)
        )
    nodes, weights = block.whole.nodes, block.whole.weights
    used = weights > 0
    return nodes[used], weights[used] / weights.sum()


def quantile(numbers: Numbers, shares: Numbers, level: float) -> float:
    """Return the smallest number with at least `level` of all shares at or below it."""
    order = np.argsort(numbers, kind="stable")
    below = np.cumsum(shares[order])
    place = np.searchsorted(below, level * below[-1] * (1 - _ROUNDING))
    return float(numbers[order][min(int(place), len(numbers) - 1)])


def kth_in_size(block: Spectrum | Density, k: int) -> float:
    """Return the size |lambda| of the k-th largest eigenvalue in size; 0 where a block has fewer.

    For a quadrature it is where the cumulative share, counted from the outside, reaches
    k - 1/2 eigenvalues of the block's `dim`. Values below NOISE of the largest are
    rounding (a block of rank less than k) and returned as 0.
    """
    if block.place.dim < k:
        return 0.0
    numbers, shares = as_weighted(block)
    sizes = np.abs(numbers)
    size = quantile(-sizes, shares, (k - 0.5) / block.place.dim) * -1.0
    return size if size > NOISE * sizes.max() else 0.0


PUBLISHED = Kernel(variance=1e-5)
# What PUBLISHED is for numbers over a range of some 100 units.
FIXED = Kernel(absolute=0.03)
KERNELS = {"published": PUBLISHED, "fixed": FIXED}
UNIT = 10  # rank by size of the eigenvalue that is the unit
_CELLS = 4  # grid cells per standard deviation of the kernel
_MOST_CELLS = 2**20
_REACH = 6.0  # standard deviations that the grid goes beyond the outermost eigenvalue


def distances(
    blocks: Sequence[Spectrum | Density], kernel: Kernel = PUBLISHED
) -> Numbers:
    """Return the matrix of distances, 0 .. ln 2, between the blocks of one network.

    Distances are nan for a block without a unit, whose 10th largest eigenvalue is zero
    or missing.
    """
    units = [kth_in_size(block, UNIT) for block in blocks]
    usable = [k for k, unit in enumerate(units) if unit > 0]
    scaled = []
    for k in usable:
        numbers, shares = as_weighted(blocks[k])
        scaled.append((numbers / units[k], shares))
    matrix = np.full((len(blocks), len(blocks)), math.nan)
    probabilities = on_common_grid(scaled, kernel)
    for place, i in enumerate(usable):
        matrix[i, i] = 0.0
        for other, j in enumerate(usable[:place]):
            matrix[i, j] = matrix[j, i] = jensen_shannon(
                probabilities[place], probabilities[other]
            )
    return matrix


def average_distance(matrix: Numbers) -> float:
    """Return the mean over all pairs of different blocks that have a distance (untrained: JS^0); nan for none."""
    pairs = matrix[np.triu_indices(len(matrix), 1)]
    known = pairs[np.isfinite(pairs)]
    return float(known.mean()) if known.size else math.nan


def on_common_grid(
    spectra: Sequence[tuple[Numbers, Numbers]], kernel: Kernel
) -> list[Numbers]:
    """Return each spectrum's probabilities, smoothed, in the cells of one even grid that holds them all.

    A cell is a quarter of the kernel's standard deviation, unless that makes more than
    a million of them.
    """
    if not spectra:
        return []
    every = np.concatenate([x for x, _ in spectra])
    low = every.min()
    high = every.max()
    deviation = kernel.deviation(float(low), float(high))
    low, high = low - _REACH * deviation, high + _REACH * deviation
    cells = min(_MOST_CELLS, math.ceil((high - low) / deviation * _CELLS))
    edges = np.linspace(low, high, cells + 1)
    return [_smooth(numbers, shares, edges, deviation) for numbers, shares in spectra]


def jensen_shannon(p: Numbers, q: Numbers) -> float:
    """Return (KL(p || m) + KL(q || m)) / 2 with m = (p + q) / 2, in natural logarithms: 0 .. ln 2."""
    middle = (p + q) / 2
    return float((_kl(p, middle) + _kl(q, middle)) / 2)


def _kl(p: Numbers, m: Numbers) -> float:
    positive = p > 0
    return float((p[positive] * np.log(p[positive] / m[positive])).sum())


def _smooth(
    numbers: Numbers, shares: Numbers, edges: Numbers, deviation: float
) -> Numbers:
    from scipy.ndimage import gaussian_filter1d

    counts, _ = np.histogram(numbers, bins=edges, weights=shares)
    cell = edges[1] - edges[0]
    density = gaussian_filter1d(
        counts, deviation / cell, mode="constant", truncate=_REACH
    )
    return np.asarray(density / density.sum())


Block = Spectrum | Density
NETWORK = ["variant", "num_layers", "part", "sigma", "step", "seed"]
PAIR = ["one_layer", "one", "other_layer", "other"]


def is_weight(place: SpectrumKey) -> bool:
    """Return whether a place is the diagonal block of a single weight, not of a group or a pair."""
    return place.is_diagonal and place.row not in list(Group)


def pair_distances(
    blocks: Iterable[Block], kernel: Kernel = PUBLISHED
) -> tuple[DataFrame, DataFrame]:
    """Return the distances of every network's blocks, and their averages.

    The first table: a row for every pair (both orders), in columns NETWORK, PAIR and
    `distance`. The second: JS^0, the average over all pairs of different blocks, of
    every network, in columns NETWORK and `average`.
    """
    networks: dict[str, list[Block]] = {}
    for block in blocks:
        # As text, nan equals nan.
        key = repr([getattr(block.place, name) for name in NETWORK])
        networks.setdefault(key, []).append(block)
    pairs = []
    means = []
    for members in networks.values():
        network = {name: getattr(members[0].place, name) for name in NETWORK}
        matrix = distances(members, kernel)
        means.append({**network, "average": average_distance(matrix)})
        for (i, row), (j, col) in product(enumerate(members), repeat=2):
            pairs.append(
                {**network, **_pair(row.place, col.place), "distance": matrix[i, j]}
            )
    return _table(pairs, [*PAIR, "distance"]), _table(means, ["average"])


def _table(rows: list[dict[str, object]], columns: list[str]) -> DataFrame:
    """Return rows as a table; its last column holds numbers."""
    return DataFrame(rows, columns=[*NETWORK, *columns]).astype({columns[-1]: float})


def _pair(one: SpectrumKey, other: SpectrumKey) -> dict[str, object]:
    return dict(zip(PAIR, (one.layer, one.row, other.layer, other.row), strict=True))
