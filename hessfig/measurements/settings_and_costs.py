"""Settings that enter the key of a cell, by quantity, and rough estimates of a cell's cost."""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hessfig.config.enums import Draws, DType, Kind, Method, Products
from hessfig.config.keys import as_plain, without_added
from hessfig.config.schema import Config, ModelConfig
from hessfig.measurements.exact_choice import expensive_blocks, is_turned
from hessfig.measurements.quantity import columns
from hessfig.models.blocks import blocks_of, matrices_of
from hessfig.models.exact.costs import (
    MEMORY_BOUND,
    PROBES_AT_ONCE,
    Sizes,
    exact_cost,
    probe_cost,
    setup_cost,
)
from hessfig.models.exact.support import Level, exactness, is_counted
from hessfig.states.training.trajectory import science
from hessfig.terms import AT_SCORES, Block, Group, Part
from hessfig.weights import Layout

FEW = 256  # entries of a column that `auto` takes dense in a small network (docs/accuracy.md)
_ASSUMED_PRODUCTS = (
    60  # of an extreme eigenvalue: both starts, at the default tolerance
)
_FLOPS = 4 / 3  # of all eigenvalues of a matrix, times its size cubed


def frobenius_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of norms; with `auto`, also where it does not take an exact norm, or does not turn probes.

    Up to version 0.4 it did both there; every other cell keeps its key.
    """
    settings, expensive = norm_settings(config, layout), too_expensive(config, layout)
    blocks = blocks_of(config.blocks, layout, config.model)
    if expensive:
        settings["estimator"]["probed"] = _places(
            [block for block in blocks if block in expensive]
        )
    plain = [
        block for block in blocks if _is_left_plain(config, layout, block, expensive)
    ]
    if plain:
        settings["estimator"]["plain"] = _places(plain)
    return settings


def _is_left_plain(
    config: Config, layout: Layout, block: Block, expensive: Collection[Block]
) -> bool:
    """Whether the probes of a diagonal block are not turned into its axes, because that takes too long."""
    is_matrix = is_counted(config.model) and block.col in matrices_of(config.model)
    if config.estimator.method != Method.auto or not (block.is_diagonal and is_matrix):
        return False
    if is_few(layout, block.layer, block.col) or _is_all_exact(
        config, [block], expensive
    ):
        return False
    entries = layout.size(block.layer, block.col)
    return not is_turned(
        config.model, config.task, config.estimator, block, entries, config.dtype
    )


def too_expensive(config: Config, layout: Layout) -> frozenset[Block]:
    """Return the requested blocks that `auto` probes although they have an exact norm in the last layer."""
    if config.estimator.method != Method.auto:
        return frozenset()
    blocks = blocks_of(config.blocks, layout, config.model)
    return expensive_blocks(
        config.model, config.task, config.estimator, blocks, config.parts, config.dtype
    )


def norm_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of probes; with `auto`, also the number of entries up to which columns are dense."""
    settings = probe_settings(config, layout)
    sides = columns(blocks_of(config.blocks, layout, config.model))
    if config.estimator.method == Method.auto and any(
        is_few(layout, layer, col) and not _is_all_exact(config, blocks)
        for layer, col, blocks in sides
    ):
        settings["estimator"]["dense"] = FEW
    return settings


def is_few(layout: Layout, layer: int, col: str) -> bool:
    """Whether `auto` computes dense blocks of a column: it has at most FEW entries, in a small network.

    Four probes see so little of a block of a few directions that their error may be far
    too small.
    """
    return layout.size(layer, col) <= FEW and layout.is_small


def _is_all_exact(
    config: Config, blocks: Sequence[Block], expensive: Collection[Block] = ()
) -> bool:
    return all(
        is_exact(config, block, part, expensive)
        for block in blocks
        for part in config.parts
    )


def probe_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return estimator, blocks and parts as plain values, without settings that the estimator does not read."""
    estimator, facts = config.estimator, config.estimator.method.facts
    probes = {"num_probes": estimator.num_probes} if facts.fewest else {}
    products = {"products": _engine(config)} if facts.products else {}
    if estimator.probes != Draws.named:
        drawn = {"probes": estimator.probes.value}
    else:
        drawn = {}
    return {
        "estimator": {"method": estimator.method.value, **probes, **products, **drawn},
        "blocks": _places(blocks_of(config.blocks, layout, config.model)),
        "parts": sorted(str(part) for part in config.parts),
    }


def dense_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return blocks, parts, and the products from which dense blocks are built."""
    return {**norm_settings(config, layout), "estimator": {"products": _engine(config)}}


def names_blocks(config: Config) -> bool:
    """Whether the settings name single blocks of a user's own network, not the whole network or all weights."""
    return config.model.kind == Kind.python and config.blocks not in (
        "each",
        "pairs",
        "all",
        ["all"],
    )


def hessian_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the named blocks with their parts; empty for the Hessian of the whole network."""
    return dense_settings(config, layout) if names_blocks(config) else {}


def _places(blocks: Sequence[Block]) -> list[list[Any]]:
    return [
        [block.layer, block.row_layer, str(block.row), str(block.col)]
        for block in blocks
    ]


def trace_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of norms, for the diagonal blocks only."""
    settings = {
        **norm_settings(config, layout),
        "blocks": _places(diagonal_blocks(config, layout)),
    }
    # Xtrace of traces is by the configured products, unlike that of norms.
    if config.estimator.method.facts.fewest:
        settings["estimator"]["products"] = _engine(config)
    return settings


def _engine(config: Config) -> str:
    """Return the name of the products, with the version of their algorithm if it has changed.

    Since version 2 of differences, the step of every product is chosen by its vector,
    and products are extrapolated.
    """
    name = config.estimator.products.value
    return f"{name} 2" if config.estimator.products == Products.differences else name


_READ: dict[str, Callable[[Config, Layout], Any]] = {
    "blocks": lambda config, layout: [
        [block.layer, str(block.col)] for block in diagonal_blocks(config, layout)
    ],
    "num_probes": lambda config, layout: config.estimator.num_probes,
    "parts": lambda config, layout: sorted(str(part) for part in config.parts),
    "products": lambda config, layout: _engine(config),
    "size": lambda config, layout: config.training.evaluation_size,
    "steps": lambda config, layout: config.spectrum.steps,
    "tolerance": lambda config, layout: config.spectrum.tolerance,
    "training": lambda config, layout: science(config)["training"],
}
_KEYS = {
    **{name: f"estimator.{name}" for name in ("num_probes", "products")},
    **{name: f"spectrum.{name}" for name in ("steps", "tolerance", "cut")},
    **{"size": "training.evaluation_size", "batch_size": "training.batch_size"},
}
OF_BLOCKS, SCALED = ("products", "blocks", "parts"), ("tolerance", "steps", "products")


def reads(
    *names: str, **groups: tuple[str, ...]
) -> Callable[[Config, Layout], dict[str, Any]]:
    """Return the settings of a quantity that reads `names` (of _READ), and settings of `groups` by their names there.

    `blocks` are the diagonal ones; `training` is the whole rule, which enters the
    number at any state.
    """

    def settings(config: Config, layout: Layout) -> dict[str, Any]:
        plain = {group: as_plain(getattr(config, group)) for group in groups}
        grouped = {
            group: {name: plain[group][name] for name in read}
            for group, read in groups.items()
        }
        return {**grouped, **{name: _READ[name](config, layout) for name in names}}

    return settings


def extreme_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of an extreme eigenvalue; two starts, as before there was this setting, are left out."""
    return without_added(
        reads(*OF_BLOCKS, spectrum=("k", "tolerance", "steps", "starts"))(
            config, layout
        )
    )


def keys_read(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings, by dotted key, that the settings of a quantity are of; `training` stands for all of it."""
    groups = {
        group: part
        for group, part in settings.items()
        if isinstance(part, Mapping) and group != "training"
    }
    single = {
        _KEYS.get(name, name)
        for name, value in settings.items()
        if name not in groups and value is not None
    }
    # The optimiser tells whether batches have that size, or are the whole set.
    if "batch_size" in settings:
        single.add("training.optimiser")
    return frozenset(
        (
            *single,
            *(f"{group}.{name}" for group, part in groups.items() for name in part),
        )
    )


def norm_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of floating-point operations of one cell; 0 for networks of unknown cost."""
    if not is_counted(config.model):
        return 0.0
    expensive = too_expensive(config, layout)
    blocks = blocks_of(config.blocks, layout, config.model)
    return sum(
        _column_operations(config, layout, *column, expensive)
        for column in columns(blocks)
    )


def norm_bytes(config: Config, layout: Layout) -> float:
    """Return what a cell of norms holds at once: the tensors of one exact norm, or of the probes taken together.

    In float32, tangents of scores and pattern are float64 (`Mixing.sharp`), and so is
    the network.
    """
    sizes = Sizes.of(config.model, config.task)
    expensive = too_expensive(config, layout)
    number = 4 if config.dtype == DType.float32 else 8
    most = 0.0
    for layer, col, blocks in columns(blocks_of(config.blocks, layout, config.model)):
        for block in blocks:
            parts = [
                part
                for part in config.parts
                if is_exact(config, block, part, expensive)
            ]
            most = max(
                most,
                exact_cost(config.model, config.task, block, parts).held
                if parts
                else 0.0,
            )
        if not _is_all_exact(config, blocks, expensive):
            block = Block(layer, col, col)
            of_maps = probe_cost(replace(sizes, keys=0), block, config.parts).held
            each = (
                probe_cost(sizes, block, config.parts).held - (1 - number / 8) * of_maps
            )
            at_once = min(PROBES_AT_ONCE, max(1, int(MEMORY_BOUND / each)))
            most = max(most, setup_cost(sizes).held + at_once * each)
    return most


def is_exact(
    config: Config, block: Block, part: Part, expensive: Collection[Block] = ()
) -> bool:
    """Whether the configured estimator computes `part` of `block` without probes."""
    method = config.estimator.method
    cheap = method == Method.auto and is_cheap(config.model, block, part, expensive)
    return cheap or method == Method.exact


def is_cheap(
    model: ModelConfig, block: Block, part: Part, expensive: Collection[Block]
) -> bool:
    """Whether `auto` takes the exact norm of a part: `expensive` blocks have that of H_fT alone."""
    return exactness(model, block, part).level == Level.cheap and (
        block not in expensive or part in AT_SCORES
    )


def hessian_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations: one product of the whole network per parameter."""
    if not is_counted(config.model):
        return 0.0
    first = layout.weights[0]
    return layout.size(0, Group.all) * _probe_operations(
        config, Block(0, first.name, first.name)
    )


def dense_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of all eigenvalues: one product per column, then the eigenvalues."""
    sizes = [
        (block, layout.size(block.layer, block.col))
        for block in diagonal_blocks(config, layout)
    ]
    solved = sum(_FLOPS * size**3 for _, size in sizes) * len(config.parts)
    return solved + _of_products(config, [(block, size) for block, size in sizes])


def density_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of a density: products, and orthogonalising against all vectors before."""
    steps, probes = config.spectrum.steps, config.spectrum.num_probes
    sizes = [
        (block, layout.size(block.layer, block.col))
        for block in diagonal_blocks(config, layout)
    ]
    inside = (
        sum(2 * min(steps, size) ** 2 * size for _, size in sizes)
        * probes
        * len(config.parts)
    )
    counts = [
        (block, probes * min(steps, size) * len(config.parts)) for block, size in sizes
    ]
    return inside + _of_products(config, counts)


def extreme_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of extreme eigenvalues, which no setting fixes."""
    count = _ASSUMED_PRODUCTS * config.spectrum.k * len(config.parts)
    return _of_products(
        config, [(block, count) for block in diagonal_blocks(config, layout)]
    )


def diagonal_blocks(config: Config, layout: Layout) -> list[Block]:
    """Return the requested diagonal blocks."""
    return [
        block
        for block in blocks_of(config.blocks, layout, config.model)
        if block.is_diagonal
    ]


def _column_operations(
    config: Config,
    layout: Layout,
    layer: int,
    col: str,
    blocks: Sequence[Block],
    expensive: Collection[Block],
) -> float:
    exact = 0.0
    for block in blocks:
        parts = [
            part for part in config.parts if is_exact(config, block, part, expensive)
        ]
        exact += (
            exact_cost(config.model, config.task, block, parts).flops if parts else 0.0
        )
    if _is_all_exact(config, blocks, expensive):
        return exact
    return exact + _product_operations(config, layout, layer, col)


def _product_operations(config: Config, layout: Layout, layer: int, col: str) -> float:
    estimator = config.estimator
    is_dense = estimator.method == Method.dense or (
        estimator.method == Method.auto and is_few(layout, layer, col)
    )
    count = layout.size(layer, col) if is_dense else estimator.num_probes
    return count * _probe_operations(config, Block(layer, col, col))


def _probe_operations(config: Config, block: Block) -> float:
    return probe_cost(Sizes.of(config.model, config.task), block, config.parts).flops


def _of_products(config: Config, counts: Sequence[tuple[Block, int]]) -> float:
    """Return the operations of products; 0 for networks of unknown cost."""
    if not is_counted(config.model):
        return 0.0
    return sum(count * _probe_operations(config, block) for block, count in counts)
