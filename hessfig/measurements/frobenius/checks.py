"""Settings under which no norm can be had: found before anything is measured."""

from __future__ import annotations

from collections.abc import Sequence

from hessfig.config import Config, DType, Method
from hessfig.curvature.exact.support import check_exact
from hessfig.errors import UserError
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.terms import Block

DENSE_BOUND = 8e9
MANY = 1000  # probes
COPIES = 4  # H_o and H_f, each once more while its columns are put together


def check(config: Config, layout: Layout) -> None:
    """Raise UserError for blocks that the configured estimator cannot serve, or that would not fit into memory."""
    blocks = blocks_of(config.blocks, layout, config.model)
    method = config.estimator.method
    check_probes(config, blocks, layout)
    if method == Method.exact:
        check_exact(config.model, blocks, config.parts)
    if method in (Method.xtrace, Method.aligned):
        for block in blocks:
            _check_symmetric(config, block, layout)
    if method == Method.dense:
        column, entries = max(_columns(blocks, layout).items(), key=lambda item: item[1])
        check_dense("estimator=dense", f"the column of blocks of {column}", config, entries)


def check_probes(config: Config, blocks: Sequence[Block], layout: Layout) -> None:
    """Raise UserError for more than MANY probes that would not fit into memory; they are drawn at once."""
    count = config.estimator.num_probes
    if count <= MANY or config.estimator.method not in (Method.hutchinson, Method.aligned, Method.auto):
        return
    largest = max(layout.size(block.layer, block.col) for block in blocks)
    if config.estimator.method != Method.auto or largest > count:
        check_dense("estimator.num_probes", f"{count} probes of {largest} entries", config, count * largest)


def check_dense(key: str, what: str, config: Config, entries: int) -> None:
    """Raise UserError when `entries` numbers, with the copies their making takes, exceed DENSE_BOUND bytes."""
    size = COPIES * entries * (8 if config.dtype == DType.float64 else 4)
    if size > DENSE_BOUND:
        raise UserError(
            f"{key}: {what} would take {size / 1e9:.1f} GB of memory in each worker",
            got=f"{size / 1e9:.1f} GB",
            allowed=f"at most {DENSE_BOUND / 1e9:g} GB",
            remedy="estimator=auto (exact where that is cheap, probes elsewhere), or a smaller model.d_model",
        )


def _check_symmetric(config: Config, block: Block, layout: Layout) -> None:
    method, size = config.estimator.method, layout.size(block.layer, block.col)
    side = layout.side(block.layer, block.col)
    if method == Method.xtrace and config.estimator.num_probes >= size:
        raise UserError(
            f"estimator.num_probes: xtrace needs fewer products than {block.col} has entries",
            got=config.estimator.num_probes,
            allowed=f"an even number < {size}",
            remedy="estimator=dense, which is exact and no dearer here",
        )
    if not block.is_diagonal:
        raise UserError(
            f"estimator={method} needs symmetric blocks",
            got=f"blocks with ({block.row}, {block.col})",
            allowed="diagonal blocks",
            remedy="estimator=hutchinson or estimator=dense for pairs",
        )
    if len(side) > 1 or side[0].index is not None or not side[0].is_main:
        raise UserError(
            f"estimator={method} needs blocks of single weight matrices",
            got=block.col,
            allowed=", ".join(layout.names),
            remedy="estimator=auto for groups and views",
        )


def _columns(blocks: Sequence[Block], layout: Layout) -> dict[str, int]:
    """Return the entries of all the blocks of each column, which are held together."""
    entries: dict[tuple[int, str], int] = {}
    for block in blocks:
        size = layout.size(block.row_layer, block.row) * layout.size(block.layer, block.col)
        key = (block.layer, block.col)
        entries[key] = entries.get(key, 0) + size
    return {col: max(n for (_, c), n in entries.items() if c == col) for _, col in entries}
