"""Settings that enter the key of a cell, by quantity, and rough estimates of a cell's cost.

A key holds what a number depends on and nothing else: a setting that the configured
estimator does not read is left out, so that changing it reuses the cells. Settings that
came later are left out at the value that stands for what was before, so that older cells
keep their keys.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from hessfig.config.enums import Draws, DType, Kind, Method, Products
from hessfig.config.keys import as_plain, without_added
from hessfig.config.schema import Config, ModelConfig
from hessfig.measurements.exact_choice import expensive_blocks, is_turned
from hessfig.measurements.quantity import ColumnOfBlocks, columns
from hessfig.models.blocks import blocks_of, matrices_of
from hessfig.models.exact.costs import (
    COLUMNS_AT_ONCE,
    MEMORY_BOUND,
    PROBES_AT_ONCE,
    Cost,
    Sizes,
    evaluation_cost,
    exact_cost,
    probe_cost,
    setup_cost,
)
from hessfig.models.exact.support import Level, exactness, is_counted
from hessfig.states.training.trajectory import science
from hessfig.terms import AT_SCORES, Block, Group, Part
from hessfig.weights import Layout

FEW = 256  # entries of a column that `auto` takes dense in a small network (docs/accuracy.md)
# Of an extreme eigenvalue: both starts, at the default tolerance.
_ASSUMED_PRODUCTS = 60
# Of all eigenvalues of a matrix, times its size cubed (reduction to tridiagonal form).
_FLOPS = 4 / 3


def frobenius_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of norms; with `auto`, also where it does not take an exact norm, or does not turn probes.

    Up to version 0.4 it did both there; every other cell keeps its key. `probed` lists the
    first, `plain` the second.
    """
    settings = norm_settings(config, layout)
    expensive = too_expensive(config, layout)
    probed = []
    plain = []
    for block in blocks_of(config.blocks, layout, config.model):
        if block in expensive:
            probed.append(block)
        if _is_left_plain(config, layout, block, expensive):
            plain.append(block)
    if expensive:
        settings["estimator"]["probed"] = _places(probed)
    if plain:
        settings["estimator"]["plain"] = _places(plain)
    return settings


def _is_left_plain(
    config: Config, layout: Layout, block: Block, expensive: Collection[Block]
) -> bool:
    """Whether the probes of a diagonal block are not turned into its axes, because that takes too long.

    Only where `auto` takes probes for a single weight matrix at all.
    """
    model = config.model
    if config.estimator.method != Method.auto or not block.is_diagonal:
        return False
    if not is_counted(model) or block.col not in matrices_of(model):
        return False
    if is_few(layout, block.layer, block.col):
        return False
    if _is_all_exact(config, [block], expensive):
        return False
    entries = layout.size(block.layer, block.col)
    return not is_turned(
        model, config.task, config.estimator, block, entries, config.dtype
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
    if config.estimator.method != Method.auto:
        return settings
    for layer, col, blocks in _columns(config, layout):
        if is_few(layout, layer, col) and not _is_all_exact(config, blocks):
            settings["estimator"]["dense"] = FEW
    return settings


def is_few(layout: Layout, layer: int, col: str) -> bool:
    """Whether `auto` computes dense blocks of a column: it has at most FEW entries, in a small network.

    Four probes see so little of a block of a few directions that their error may be far too
    small: of n directions, K probes see the squared lengths along K of them.
    """
    return layout.size(layer, col) <= FEW and layout.is_small


def _is_all_exact(
    config: Config, blocks: Sequence[Block], expensive: Collection[Block] = ()
) -> bool:
    """Whether no part of the blocks takes probes."""
    for block in blocks:
        for part in config.parts:
            if not is_exact(config, block, part, expensive):
                return False
    return True


def probe_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return estimator, blocks and parts as plain values, without settings that the estimator does not read.

    A setting is read if the method's facts say so: a number of probes, the products. Blocks
    enter as (layer of the column, layer of the row, row, column).
    """
    estimator = config.estimator
    read: dict[str, Any] = {"method": estimator.method.value}
    if estimator.method.facts.fewest:
        read["num_probes"] = estimator.num_probes
    if estimator.method.facts.products:
        read["products"] = _engine(config)
    if estimator.probes != Draws.named:
        read["probes"] = estimator.probes.value
    return {
        "estimator": read,
        "blocks": _places(blocks_of(config.blocks, layout, config.model)),
        "parts": sorted(str(part) for part in config.parts),
    }


def dense_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return blocks, parts, and the products from which dense blocks are built."""
    return {**norm_settings(config, layout), "estimator": {"products": _engine(config)}}


def names_blocks(config: Config) -> bool:
    """Whether the settings name single blocks of a user's own network, not the whole network or all weights."""
    of_all = ("each", "pairs", "all", ["all"])
    return config.model.kind == Kind.python and config.blocks not in of_all


def hessian_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the named blocks with their parts; empty for the Hessian of the whole network."""
    if names_blocks(config):
        return dense_settings(config, layout)
    return {}


def _places(blocks: Sequence[Block]) -> list[list[Any]]:
    """Return blocks as plain values."""
    places = []
    for block in blocks:
        row = str(block.row)
        col = str(block.col)
        places.append([block.layer, block.row_layer, row, col])
    return places


def trace_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of norms, for the diagonal blocks only."""
    settings = norm_settings(config, layout)
    settings["blocks"] = _places(diagonal_blocks(config, layout))
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

    `blocks` are the diagonal ones; `training` is the whole rule, which enters the number at
    any state.
    """

    def settings(config: Config, layout: Layout) -> dict[str, Any]:
        values: dict[str, Any] = {}
        for group, read in groups.items():
            plain = as_plain(getattr(config, group))
            values[group] = {name: plain[name] for name in read}
        for name in names:
            values[name] = _READ[name](config, layout)
        return values

    return settings


def extreme_settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of an extreme eigenvalue; two starts, as before there was this setting, are left out."""
    read = reads(*OF_BLOCKS, spectrum=("k", "tolerance", "steps", "starts"))
    return without_added(read(config, layout))


def keys_read(settings: Mapping[str, Any]) -> frozenset[str]:
    """Return the settings, by dotted key, that the settings of a quantity are of; `training` stands for all of it.

    What a table says about a quantity's settings, and what a change of a setting measures
    anew, are read from here.

    Examples
    --------
    >>> sorted(keys_read({"size": 100, "spectrum": {"k": 1, "steps": 80}}))
    ['spectrum.k', 'spectrum.steps', 'training.evaluation_size']
    """
    keys = set()
    for name, value in settings.items():
        if isinstance(value, Mapping) and name != "training":
            keys |= {f"{name}.{inside}" for inside in value}
        elif value is not None:
            keys.add(_KEYS.get(name, name))
    # The optimiser tells whether batches have that size, or are the whole set.
    if "batch_size" in settings:
        keys.add("training.optimiser")
    return frozenset(keys)


def norm_operations(config: Config, layout: Layout) -> float:
    r"""Return a rough count of floating-point operations of one cell; 0 for networks of unknown cost.

    .. math:: \text{evaluation} + \sum_{\text{columns}} \Big( \sum_{\text{exact blocks}} \text{own}
              + K \cdot \text{probe} \Big),

    with K probes, or entries of a dense column, for columns that have any block without an
    exact norm. Before the first probe, the network is evaluated, and the tape recorded. A
    late weight's probes may take less than that.
    """
    if not is_counted(config.model):
        return 0.0
    expensive = too_expensive(config, layout)
    total = 0.0
    has_probes = False
    for layer, col, blocks in _columns(config, layout):
        total += _column_operations(config, layout, layer, col, blocks, expensive)
        has_probes = has_probes or not _is_all_exact(config, blocks, expensive)
    if has_probes:
        sizes = Sizes.of(config.model, config.task)
        total += evaluation_cost(sizes).flops + setup_cost(sizes).flops
    return total


def norm_bytes(config: Config, layout: Layout) -> float:
    r"""Return what a cell holds at once: the tensors of one exact norm, or of the vectors multiplied together.

    .. math:: \max\Big( \text{exact}, \; \text{setup} + \text{probes at once} \cdot \text{probe} \Big)

    over blocks and columns, with unit vectors in place of probes where a column is dense,
    and at least that of the network and of the tape, which late weights do not exceed. In
    float32, tangents of scores and pattern are float64 (`Mixing.sharp`), and so is the
    network. Of a probe, the tensors of linear maps take half the bytes there (`of_maps`,
    the cost without keys).
    """
    sizes = Sizes.of(config.model, config.task)
    expensive = too_expensive(config, layout)
    number = 4 if config.dtype == DType.float32 else 8
    setup = setup_cost(sizes).held
    most = setup + evaluation_cost(sizes).held
    for layer, col, blocks in _columns(config, layout):
        for block in blocks:
            exact = _exact_cost(config, block, expensive)
            if exact is not None:
                most = max(most, exact.held)
        if not _is_all_exact(config, blocks, expensive):
            block = Block(layer, col, col)
            whole = probe_cost(sizes, block, config.parts).held
            of_maps = probe_cost(replace(sizes, keys=0), block, config.parts).held
            each = whole - (1 - number / 8) * of_maps
            if _is_dense(config, layout, layer, col):
                vectors = min(COLUMNS_AT_ONCE, layout.size(layer, col))
            else:
                vectors = PROBES_AT_ONCE
            at_once = min(vectors, max(1, int(MEMORY_BOUND / each)))
            if _is_turned(config, layout, blocks, expensive):
                # The probes that give the axes are multiplied together.
                sketches = min(PROBES_AT_ONCE, config.estimator.num_probes // 3)
                at_once = max(at_once, sketches)
            most = max(most, setup + at_once * each)
    return most


def dense_bytes(config: Config, layout: Layout) -> float:
    r"""Return what the dense blocks of the largest column hold at once: unit vectors, and its rows of every part.

    .. math:: b n \Big(n + p \sum_{\text{rows}} m\Big)

    for n entries of the column, m of a row, b bytes a number, and p parts; H is the sum of
    two that are held beside it.
    """
    number = 4 if config.dtype == DType.float32 else 8
    num_parts = len(config.parts)
    if Part.H in config.parts:
        num_parts = max(num_parts, 3)
    most = 0
    for layer, col, blocks in _columns(config, layout):
        entries = layout.size(layer, col)
        rows = sum(layout.size(block.row_layer, block.row) for block in blocks)
        most = max(most, entries * (entries + num_parts * rows))
    return number * most


def _is_turned(
    config: Config,
    layout: Layout,
    blocks: Sequence[Block],
    expensive: Collection[Block],
) -> bool:
    """Whether the probes of a column are turned into the axes of its diagonal block."""
    method = config.estimator.method
    for block in blocks:
        if block.is_diagonal and block.col in matrices_of(config.model):
            if method == Method.aligned:
                return True
            if method == Method.auto:
                return not _is_left_plain(config, layout, block, expensive)
    return False


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
    if exactness(model, block, part).level != Level.cheap:
        return False
    return block not in expensive or part in AT_SCORES


def hessian_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations: one product of the whole network per parameter."""
    if not is_counted(config.model):
        return 0.0
    first = layout.weights[0].name
    of_product = _probe_operations(config, Block(0, first, first))
    return layout.size(0, Group.all) * of_product


def dense_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of all eigenvalues: one product per column, then the eigenvalues.

    n products, and _FLOPS n^3 = 4/3 n^3 for the reduction of each part of a block of n
    entries to tridiagonal form, next to which the rest is small.
    """
    counts = _sizes(config, layout)
    solved = sum(_FLOPS * size**3 for _, size in counts) * len(config.parts)
    return solved + _of_products(config, counts)


def density_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of a density: products, and orthogonalising against all vectors before.

    m steps on vectors of n entries take m products, and step k is orthogonalised against k
    vectors in 4 k n operations: 2 m^2 n in all, per probe and part.
    """
    steps = config.spectrum.steps
    probes = config.spectrum.num_probes
    num_parts = len(config.parts)
    inside = 0
    counts = []
    for block, size in _sizes(config, layout):
        taken = min(steps, size)
        inside += 2 * taken**2 * size
        counts.append((block, probes * taken * num_parts))
    return inside * probes * num_parts + _of_products(config, counts)


def extreme_operations(config: Config, layout: Layout) -> float:
    """Return a rough count of operations of extreme eigenvalues, which no setting fixes.

    _ASSUMED_PRODUCTS for each of k eigenvalues and each part.
    """
    count = _ASSUMED_PRODUCTS * config.spectrum.k * len(config.parts)
    counts = [(block, count) for block in diagonal_blocks(config, layout)]
    return _of_products(config, counts)


def diagonal_blocks(config: Config, layout: Layout) -> list[Block]:
    """Return the requested diagonal blocks."""
    blocks = blocks_of(config.blocks, layout, config.model)
    return [block for block in blocks if block.is_diagonal]


def _columns(config: Config, layout: Layout) -> list[ColumnOfBlocks]:
    """Return the requested blocks, column by column."""
    return columns(blocks_of(config.blocks, layout, config.model))


def _sizes(config: Config, layout: Layout) -> list[tuple[Block, int]]:
    """Return the requested diagonal blocks with the number of their rows."""
    sizes = []
    for block in diagonal_blocks(config, layout):
        sizes.append((block, layout.size(block.layer, block.col)))
    return sizes


def _exact_cost(
    config: Config, block: Block, expensive: Collection[Block]
) -> Cost | None:
    """Return the cost of the parts of a block that are exact; None if none is."""
    parts = []
    for part in config.parts:
        if is_exact(config, block, part, expensive):
            parts.append(part)
    if not parts:
        return None
    return exact_cost(config.model, config.task, block, parts)


def _column_operations(
    config: Config,
    layout: Layout,
    layer: int,
    col: str,
    blocks: Sequence[Block],
    expensive: Collection[Block],
) -> float:
    """Return the operations of the exact norms of a column, and of its probes if it takes any.

    Blocks that are probed share the probes of the column.
    """
    total = 0.0
    for block in blocks:
        exact = _exact_cost(config, block, expensive)
        if exact is not None:
            total += exact.flops
    if _is_all_exact(config, blocks, expensive):
        return total
    return total + _product_operations(config, layout, layer, col)


def _product_operations(config: Config, layout: Layout, layer: int, col: str) -> float:
    """Return the operations of a column's products: one for every entry if it is dense, else one for every probe."""
    if _is_dense(config, layout, layer, col):
        count = layout.size(layer, col)
    else:
        count = config.estimator.num_probes
    return count * _probe_operations(config, Block(layer, col, col))


def _is_dense(config: Config, layout: Layout, layer: int, col: str) -> bool:
    """Whether a column is multiplied with all unit vectors."""
    method = config.estimator.method
    if method == Method.auto:
        return is_few(layout, layer, col)
    return method == Method.dense


def _probe_operations(config: Config, block: Block) -> float:
    return probe_cost(Sizes.of(config.model, config.task), block, config.parts).flops


def _of_products(config: Config, counts: Sequence[tuple[Block, int]]) -> float:
    """Return the operations of `counts` products, block by block; 0 for networks of unknown cost."""
    if not is_counted(config.model):
        return 0.0
    return sum(count * _probe_operations(config, block) for block, count in counts)
