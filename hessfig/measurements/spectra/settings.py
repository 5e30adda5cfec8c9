"""What spectra depend on beside network, task and state, and what they cost."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from hessfig.config import Config
from hessfig.config.keys import as_plain
from hessfig.curvature.exact.support import probe_cost
from hessfig.measurements.frobenius.cost import COUNTED
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.terms import Block

_ASSUMED_PRODUCTS = 60  # of an extreme eigenvalue: both starts, at the default tolerance
_FLOPS = 4 / 3  # of all eigenvalues of a matrix, times its size cubed


def diagonal(config: Config, layout: Layout) -> list[Block]:
    """Return the diagonal blocks that are asked for."""
    return [block for block in blocks_of(config.blocks, layout, config.model) if block.is_diagonal]


def settings_of(*names: str) -> Callable[[Config, Layout], dict[str, Any]]:
    """Return the settings of a quantity that reads `names` of the group spectrum."""

    def settings(config: Config, layout: Layout) -> dict[str, Any]:
        plain = as_plain(config.spectrum)
        return {
            "spectrum": {name: plain[name] for name in names},
            "products": config.estimator.products.value,
            "blocks": [[block.layer, str(block.col)] for block in diagonal(config, layout)],
            "parts": sorted(str(part) for part in config.parts),
        }

    return settings


def dense_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of all eigenvalues: a product a column, then the eigenvalues."""
    sizes = [(block, layout.size(block.layer, block.col)) for block in diagonal(config, layout)]
    solved = sum(_FLOPS * size**3 for _, size in sizes) * len(config.parts)
    return solved + _of_products(config, [(block, size) for block, size in sizes])


def density_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of a density: products, and orthogonalising against all vectors before."""
    steps, probes = config.spectrum.steps, config.spectrum.num_probes
    sizes = [(block, layout.size(block.layer, block.col)) for block in diagonal(config, layout)]
    inside = sum(2 * min(steps, size) ** 2 * size for _, size in sizes) * probes * len(config.parts)
    counts = [(block, probes * min(steps, size) * len(config.parts)) for block, size in sizes]
    return inside + _of_products(config, counts)


def extreme_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of extreme eigenvalues, which no setting fixes."""
    count = _ASSUMED_PRODUCTS * config.spectrum.k * len(config.parts)
    return _of_products(config, [(block, count) for block in diagonal(config, layout)])


def _of_products(config: Config, counts: Sequence[tuple[Block, int]]) -> float:
    """Return the operations of products; 0 for networks whose cost nobody knows."""
    if config.model.kind not in COUNTED:
        return 0.0
    return sum(count * probe_cost(config.model, config.task, block) for block, count in counts)
