"""What a norm depends on beside network, task and state."""

from __future__ import annotations

from typing import Any

from hessfig.config import Config, Method
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout


def settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return estimator, blocks and parts as plain values; settings the estimator does not read are left out."""
    method, estimator = config.estimator.method, {"method": config.estimator.method.value}
    probes = {} if method in (Method.dense, Method.exact) else {"num_probes": config.estimator.num_probes}
    products = {} if method in (Method.xtrace, Method.exact) else {"products": config.estimator.products.value}
    return {
        "estimator": {**estimator, **probes, **products},
        "blocks": [
            [block.layer, block.row_layer, str(block.row), str(block.col)]
            for block in blocks_of(config.blocks, layout, config.model)
        ],
        "parts": sorted(str(part) for part in config.parts),
    }
