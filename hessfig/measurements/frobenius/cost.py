"""What the norms of a cell cost, roughly: exact blocks by their route, others by their products."""

from __future__ import annotations

from collections.abc import Sequence

from hessfig.config import Config, Kind, Method
from hessfig.curvature.exact.support import Level, cost, exactness, probe_cost
from hessfig.measurements.blocks import columns
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.terms import Block, Part

COUNTED = (Kind.transformer, Kind.self_attention, Kind.linear_mlp)  # kinds whose operations are counted


def operations(config: Config, layout: Layout) -> float:
    """Return a rough count of floating-point operations of one cell; 0 for networks whose cost nobody knows."""
    if config.model.kind not in COUNTED:
        return 0.0
    blocks = blocks_of(config.blocks, layout, config.model)
    return sum(_column_operations(config, layout, *column) for column in columns(blocks))


def is_exact(config: Config, block: Block, part: Part) -> bool:
    """Whether the configured estimator finds `part` of `block` without probes."""
    method = config.estimator.method
    cheap = method == Method.auto and exactness(config.model, block, part).level == Level.cheap
    return cheap or method == Method.exact


def _column_operations(config: Config, layout: Layout, layer: int, col: str, blocks: Sequence[Block]) -> float:
    by_block = {
        (block, part): cost(config.model, config.task, block, part)
        for block in blocks
        for part in config.parts
        if is_exact(config, block, part)
    }
    exact = sum(
        max(value for (one, _), value in by_block.items() if one == block) for block in {b for b, _ in by_block}
    )
    is_probed = len(by_block) < len(blocks) * len(config.parts)
    return exact + (_product_operations(config, layout, layer, col) if is_probed else 0.0)


def _product_operations(config: Config, layout: Layout, layer: int, col: str) -> float:
    estimator = config.estimator
    count = layout.size(layer, col) if estimator.method == Method.dense else estimator.num_probes
    return count * probe_cost(config.model, config.task, Block(layer, col, col))
