"""The data of figure=bounds: how loose the spectral bounds are, against sigma and over all scales.

Writes output_dir/bounds/looseness.csv (ratio of bound to true spectral norm when the tokens are sigma times
standard normal, per block and for the whole) and output_dir/bounds/table.csv (the same over random scales of
tokens, weights and targets, with the number of violations).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from itertools import combinations_with_replacement
from pathlib import Path

import torch

from hessfig.rng import stream
from hessfig.theory.autodiff.draws import attention_point
from hessfig.theory.claims.attention.bounds import SLACK, scaled
from hessfig.theory.formulas.attention import bounds
from hessfig.theory.formulas.attention.softmax import MATRICES, AttentionPoint
from hessfig.theory.studies.kept import keep
from hessfig.theory.verify.statement import Dims
from hessfig.theory.verify.tables import csv_text, quartiles

DIMS = Dims(L=8, d_V=6, d_K=4)
SEED = 1234
PROBLEMS, RANDOM_SCALES = 30, 150
SIGMAS = tuple(10 ** (-2 + k / 5) for k in range(13))

WHOLE = ("whole", "whole")
Ratios = dict[tuple[str, str, str], list[float]]


def run(output_dir: Path) -> list[Path]:
    """Compute and write both tables; return their paths."""
    looseness = ("sigma", "bound", "row", "col", "q25", "median", "q75", "count")
    table = ("bound", "row", "col", "minimum", "q25", "median", "q75", "violations", "count")
    folder = output_dir / "bounds"
    tables = {"looseness": (looseness, _against_sigma()), "table": (table, _over_scales())}
    return keep(folder, {name: csv_text(*content) for name, content in tables.items()})


def ratios(points: list[AttentionPoint]) -> Ratios:
    """Bound over true spectral norm, by (bound, row, col) with row and col a weight, or both 'whole'."""
    found: Ratios = defaultdict(list)
    for point in points:
        blocks, whole = bounds.true_norms(point)
        for name, spread in (("norm", bounds.spread_from_norm), ("diameter", bounds.spread_from_diameter)):
            claimed = bounds.block_bounds(point, spread(point))
            for row, col in combinations_with_replacement(MATRICES, 2):
                found[name, row, col].append(claimed[row, col] / blocks[row, col])
            found[name, *WHOLE].append(bounds.whole_bound(claimed) / whole)
        found["arXiv 2510.16927", *WHOLE].append(bounds.published_bound(point) / whole)
    return found


def _against_sigma() -> Iterator[tuple[object, ...]]:
    points = [attention_point(DIMS, stream(SEED, "bounds", k)) for k in range(PROBLEMS)]
    for sigma in SIGMAS:
        for names, values in ratios([scaled(point, sigma, 1.0, 1.0) for point in points]).items():
            yield (sigma, *names, *quartiles(values), len(values))


def _over_scales() -> Iterator[tuple[object, ...]]:
    """Tokens, query-key weights and targets of sizes 0.1 to 3, log-uniform and independent."""
    points = []
    for k in range(RANDOM_SCALES):
        generator = stream(SEED, "bounds", "scales", k)
        sizes = 10 ** (1.5 * torch.rand(3, generator=generator, dtype=torch.float64) - 1)
        points.append(scaled(attention_point(DIMS, generator), *sizes.tolist()))
    for names, values in ratios(points).items():
        violations = sum(value * SLACK < 1 for value in values)
        yield (*names, min(values), *quartiles(values), violations, len(values))
