"""Checks that a quantity can be measured with the given settings, before anything is measured, without tensors.

Each check raises UserError with what was given, what is allowed and a setting that works.
Bounds of memory are those of one worker: a matrix of E entries in float64 takes 8 E
bytes, and as many again for each copy that is made of it.
"""

from collections.abc import Sequence

from hessfig.config.enums import (
    Attention,
    Curvature,
    Data,
    Draws,
    DType,
    Method,
    Products,
    State,
)
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig
from hessfig.errors import UserError
from hessfig.measurements.quantity import Requirement, columns
from hessfig.measurements.settings_and_costs import diagonal_blocks, names_blocks
from hessfig.models.blocks import SCORE_LIKE, blocks_of, components, matrices_of
from hessfig.models.exact.support import Route, check_exact, exactness
from hessfig.models.protocol import NetworkKind, Structure, kind, kinds_where
from hessfig.terms import (
    AT_SCORES,
    OPENED,
    Block,
    Group,
    Kind,
    Matrix,
    Optimiser,
    Part,
    split_in,
)
from hessfig.weights import Layout, Weight

DENSE_BOUND = 8e9  # bytes of a worker
MANY = 1000  # probes
COPIES = 4  # H_o and H_f, each once more while its columns are put together
# Of all matrices of a block at once: two of 8 660 rows, or one of 12 247.
MATRIX_BYTES = 1.2e9
# Weights of a network whose Hessian is decomposed; a minute, and 0.5 GB.
MOST_DENSE = 4096
PLAIN = sorted(
    (rule for rule in Optimiser if rule.facts.has_formula),
    key=lambda rule: (-len(rule.facts.moments), rule),
)
# Quantities whose error includes that of products by differences.
BY_DIFFERENCES = (
    "frobenius",
    "trace",
    "largest_eigenvalue",
    "smallest_eigenvalue",
    "loss",
    "gradient_norm",
)
# Routes whose exact engine gives traces too.
SUMMABLE = (Route.last_layer, Route.tokens, Route.gradient)


def check_parts(config: Config, blocks: Sequence[Block]) -> None:
    """Raise UserError for parts at the scores of a network, block or route that does not have them.

    H_oT and H_fT exist where T = x W_Q W_K^T x^T / c, bilinear in the two weights (Remark
    D.1): for W_Q, W_K, W_QK and their pairs inside a layer, without norms or rotations of
    queries and keys, and with products of the tape.
    """
    at_scores = [part.value for part in config.parts if part in AT_SCORES]
    if not at_scores:
        return
    names = ", ".join(at_scores)
    known = SCORE_LIKE & {*matrices_of(config.model)}
    if not known:
        kinds = kinds_where(_shows_scores)
        raise UserError(
            f"parts: {names} are of the split at the attention scores, which this network does not expose",
            got=f"model.kind={config.model.kind}",
            allowed="; ".join(f"model.kind={name}" for name in kinds),
            remedy="parts=[H_o,H_f,H], the split at the outputs",
        )
    for block in blocks:
        sides = {block.row, block.col}
        is_of_scores = sides <= known or sides == {Group.query_key.value}
        if block.is_across or not is_of_scores:
            raise UserError(
                f"parts: {names} are of the split at the scores of a layer; block {block} has none",
                got=f"block {block}",
                allowed=f"query_key, {', '.join(sorted(known))} and their pairs, inside a layer",
                remedy="blocks=[query_key], or parts=[H_o,H_f,H]",
            )
    if beyond := components(config.model):
        name, value = next(iter(beyond.items()))
        raise UserError(
            f"parts: {names} are those of scores bilinear in W_Q and W_K, without today's components",
            got=f"model.{name}={value}",
            allowed="the settings of the paper's networks",
            remedy=f"leave model.{name} out, or parts=[H_o,H_f,H]",
        )
    _check_tape(config, names)


def check_differences(config: Config) -> None:
    """Raise UserError for products by differences in numbers whose error would not include that of the products.

    A product by differences of gradients is (g(w + h v) - g(w - h v)) / 2 h, with errors of
    truncation and rounding. The quantities of BY_DIFFERENCES add them to their error, and
    `loss` and `gradient_norm` take no products.
    """
    if config.estimator.products != Products.differences:
        return
    methods = [Method.hutchinson, Method.aligned, Method.dense]
    # No norm of a user's own network has a formula.
    if config.model.kind == Kind.python:
        methods.append(Method.auto)
    refused = []
    if config.estimator.method not in methods:
        refused.append(f"estimator={config.estimator.method}")
    others = [name for name in config.quantities if name not in BY_DIFFERENCES]
    if others:
        refused.append(f"quantities=[{','.join(others)}]")
    if config.task.weight_decay:
        refused.append(f"task.weight_decay={config.task.weight_decay}")
    if any(part in AT_SCORES for part in config.parts):
        refused.append(f"parts=[{','.join(config.parts)}]")
    if refused:
        raise UserError(
            "estimator.products=differences: this number would not state the error of its products",
            got=refused[0],
            allowed=f"quantities={', '.join(BY_DIFFERENCES)}; estimator={', '.join(methods)}; no weight decay; "
            "parts H, H_o, H_f",
            remedy="quantities=[frobenius] estimator=hutchinson, or no products by differences",
        )


def check_published_probes(config: Config, blocks: Sequence[Block]) -> None:
    """Raise UserError for published probes of anything but the published norms."""
    if config.estimator.probes != Draws.published:
        return
    drawn = {Matrix.W_Q, Matrix.W_V}
    if config.model.kind == Kind.linear_mlp:
        drawn = {Matrix.W}
    refused = []
    if config.state.draw != Draws.published:
        refused.append(f"state.draw={config.state.draw}")
    if config.estimator.method != Method.hutchinson:
        refused.append(f"estimator={config.estimator.method}")
    if config.quantities != ["frobenius"]:
        refused.append(f"quantities=[{','.join(config.quantities)}]")
    for block in blocks:
        if not block.is_diagonal or block.col not in drawn:
            refused.append(f"block {block}")
    for part in config.parts:
        if part in AT_SCORES:
            refused.append(f"part {part}")
    if refused:
        raise UserError(
            "estimator.probes=published: the published code draws no probes for this",
            got=refused[0],
            allowed="state=published estimator=published, norms of W_Q and W_V, or of W of linear MLPs",
            remedy="leave estimator.probes out",
        )


def _shows_scores(network: NetworkKind) -> bool:
    return bool(SCORE_LIKE & {*network.matrices(ModelConfig())})


def _check_tape(config: Config, parts: str) -> None:
    """Raise UserError for an estimator or products without the parts at the scores."""
    refused = []
    if config.estimator.method == Method.xtrace:
        refused.append("estimator=xtrace")
    if config.estimator.products == Products.curvlinops:
        refused.append("estimator.products=curvlinops")
    if refused:
        raise UserError(
            f"parts: {parts} have products on the tape alone",
            got=refused[0],
            allowed="estimator=auto, hutchinson, aligned, dense; estimator.products=linearised",
            remedy="estimator=auto estimator.products=linearised",
        )


def check_norms(config: Config, layout: Layout) -> None:
    """Raise UserError for blocks that the configured estimator cannot serve, or that would not fit into memory.

    `exact` needs a formula for every block and part, `aligned` and `xtrace` need diagonal
    blocks of single matrices, `dense` needs the memory of a column, and many probes theirs.
    """
    blocks = blocks_of(config.blocks, layout, config.model)
    method = config.estimator.method
    _check_probes(config, blocks, layout)
    if method == Method.exact:
        check_exact(config.model, blocks, config.parts)
    if method.facts.symmetric:
        for block in blocks:
            _check_symmetric(config, block, layout)
    if method == Method.dense:
        check_dense(config, layout)


def check_dense(config: Config, layout: Layout) -> None:
    """Raise UserError for blocks whose matrices would not fit into memory: those of one column are held at once.

    The entries of all blocks of the column, times COPIES and the bytes of a number, must not
    exceed DENSE_BOUND.
    """
    most = 0
    largest = ""
    for _, col, blocks in columns(blocks_of(config.blocks, layout, config.model)):
        entries = sum(entries_of_block(block, layout) for block in blocks)
        if entries > most:
            most, largest = entries, col
    what = f"the column of blocks of {largest}"
    _check_memory("estimator=dense", what, config, most)


def check_moments(config: Config, layout: Layout) -> None:
    """Raise UserError for a network whose softmax attention is not known.

    Moments are those under a row of weights that sum to one.
    """
    del layout
    model = config.model
    shown = kinds_where(_shows_scores)
    if model.kind not in shown or model.attention != Attention.softmax:
        raise UserError(
            "quantities: moments are those of softmax attention (Theorems 3.1 and 3.2)",
            got=f"model.kind={model.kind}, model.attention={model.attention}",
            allowed=f"model.kind={', '.join(shown)} with model.attention=softmax",
            remedy="leave moment_1, moment_2 and moment_3 out",
        )


def check_trace(config: Config, layout: Layout) -> None:
    """Raise UserError for a block whose trace the estimator does not give.

    The exact engine has traces where blocks are sums of Kronecker products (SUMMABLE).
    """
    blocks = diagonal_blocks(config, layout)
    _check_probes(config, blocks, layout)
    if config.estimator.method != Method.exact:
        return
    for block in blocks:
        routes = {exactness(config.model, block, part).route for part in config.parts}
        if not routes <= set(SUMMABLE):
            raise UserError(
                f"estimator=exact: no exact trace of block {block}",
                got=f"blocks with {block.col}",
                allowed="blocks of the last layer, and of linear MLPs",
                remedy="estimator=auto (Hutchinson there), or estimator=dense",
            )


def check_hessian(config: Config, layout: Layout) -> None:
    """Raise UserError for a Hessian, or blocks of it, that would not fit into memory.

    n^2 entries for the n parameters of the network, or of those that Figure 1 shows.
    """
    if names_blocks(config):
        blocks = blocks_of(config.blocks, layout, config.model)
        entries = sum(entries_of_block(block, layout) for block in blocks)
        entries *= len(config.parts)
        plural = "s" if len(blocks) > 1 else ""
        what = f"{len(blocks)} block{plural} of the Hessian"
    else:
        number = 0
        for weight in layout.side(0, Group.all):
            if not is_published(config.model) or _is_drawn(weight):
                number += weight.size
        entries = number**2
        what = f"the Hessian of {number} parameters"
    _check_memory("quantities=[hessian]", what, config, entries)


def is_published(model: ModelConfig) -> bool:
    """Whether the whole Hessian of a network has the order of Figure 1."""
    return kind(model.kind).structure == Structure.layers and not components(model)


def check_count(config: Config, layout: Layout) -> None:
    """Raise UserError if a block has fewer eigenvalues than are requested at one end: k > n."""
    sizes = {}
    for block in diagonal_blocks(config, layout):
        sizes[block] = layout.size(block.layer, block.col)
    for block, size in sizes.items():
        if config.spectrum.k > size:
            least = min(sizes.values())
            raise UserError(
                f"spectrum.k: block {block} has fewer eigenvalues",
                got=config.spectrum.k,
                allowed=f"a whole number from 1 to {least}",
                remedy=f"spectrum.k={least}",
            )


def check_spectrum(config: Config, layout: Layout) -> None:
    """Raise UserError for a block whose matrices would exceed MATRIX_BYTES in a worker.

    A block of n parameters takes 8 n^2 bytes for each matrix that is held at once
    (`num_matrices`): n = 8 660 for two of them, 12 247 for one.
    """
    check_count(config, layout)
    count = num_matrices(config.parts)
    most = int((MATRIX_BYTES / (8 * count)) ** 0.5)
    for block in diagonal_blocks(config, layout):
        size = layout.size(block.layer, block.col)
        needed = 8 * size**2 * count
        if needed > MATRIX_BYTES:
            gigabytes = f"{needed / 1e9:.1f} GB"
            raise UserError(
                f"quantities=[spectrum]: all eigenvalues of block {block}, {size} parameters, would take "
                f"{gigabytes} of memory in each worker",
                got=f"{gigabytes} for parts=[{','.join(config.parts)}]",
                allowed=f"at most {MATRIX_BYTES / 1e9:g} GB: blocks of at most {most} parameters",
                remedy="quantities=[density,largest_eigenvalue,smallest_eigenvalue], which need only products",
            )


EXAMPLES = Requirement(
    lambda config: config.task.data.facts.is_trainable,
    "this task has no examples besides its batch",
    "task.data={task.data}",
    "; ".join(f"task.data={data}" for data in Data if data.facts.is_trainable),
    "leave {quantity} out, or task=addition",
)
FORMULA = Requirement(
    lambda config: (
        config.training.optimiser.facts.has_formula and not config.training.clip_norm
    ),
    "there is no formula for this rule",
    "training.optimiser={training.optimiser}, training.clip_norm={training.clip_norm:g}",
    f"training.optimiser one of {', '.join(PLAIN)}, training.clip_norm=0",
    "leave {quantity} out; predicted_decrease takes the next update of any rule",
)


def _estimated(*methods: Method, what: str) -> Requirement:
    """Return the requirement of a quantity that only these estimators give."""
    return Requirement(
        lambda config: config.estimator.method in methods,
        what,
        got="estimator={estimator.method}",
        allowed=", ".join(f"estimator={method}" for method in methods),
        remedy="estimator=auto",
    )


_SIMPLE = (Method.auto, Method.hutchinson, Method.dense)
FOR_JACOBIANS = _estimated(*_SIMPLE, what="this estimator is for Hessians alone")
MORE_THAN_NORMS = _estimated(*_SIMPLE, what="this estimator gives norms alone")
GIVES_TRACES = _estimated(
    *(method for method in Method if method.facts.traces),
    what="this estimator gives no trace",
)
NEXT_UPDATE = Requirement(
    lambda config: config.state.kind == State.trained,
    "the next update is that of a training",
    "state={state.kind}",
    "state=trained",
    "state=trained, or leave {quantity} out",
)
OWN_RATE = Requirement(
    lambda config: config.training.curvature == Curvature.none,
    "this rule's learning rate follows the curvature",
    "training.curvature={training.curvature}",
    "training.curvature=none",
)
PRECONDITIONER = Requirement(
    lambda config: (
        config.state.kind == State.trained
        and config.training.optimiser.facts.is_adaptive
    ),
    "the preconditioner is that of a training with adam or adamw",
    "state={state.kind}, training.optimiser={training.optimiser}",
    "state=trained with training.optimiser=adam or adamw",
    "leave {quantity} out, or state=trained training=adamw",
)
SCORES = Requirement(
    lambda config: kind(config.model.kind).has_scores,
    "this network shows no attention scores",
    "model.kind={model.kind}",
    lambda: "; ".join(
        f"model.kind={name}" for name in kinds_where(lambda network: network.has_scores)
    ),
)
OF_A_STEP = (
    EXAMPLES,
    Requirement(
        lambda config: (
            config.state.kind != State.loaded
            or not config.training.optimiser.facts.moments
        ),
        "a loaded state comes without the moments of {training.optimiser}",
        "state=loaded",
        "state=trained, state=initialised, or training=gd, which has no moments",
        "leave {quantity} out, or state=trained",
    ),
    FORMULA,
    Requirement(
        lambda config: config.training.curvature != Curvature.blocks,
        "this rule's update has a learning rate for every block",
        "training.curvature={training.curvature}",
        "; ".join(
            f"training.curvature={curvature}"
            for curvature in Curvature
            if curvature != Curvature.blocks
        ),
    ),
)


def check_layers(quantity: str, config: Config, layout: Layout) -> None:
    """Raise UserError for a network without a residual stream."""
    if not layout.num_layers or config.model.kind in OPENED:
        raise without_layers(quantity, f"model.kind={config.model.kind}")


def without_layers(quantity: str, got: str) -> UserError:
    """Return the error for a network without a residual stream."""
    return UserError(
        f"quantities=[{quantity}]: this network does not expose what is between its layers",
        got=got,
        allowed="a network with a residual stream, such as model.kind=transformer",
        remedy=f"leave {quantity} out",
    )


def has_all_eigenvectors(size: int) -> bool:
    """Whether all eigenvectors of a Hessian of this size are computed."""
    return size <= MOST_DENSE


def _check_probes(config: Config, blocks: Sequence[Block], layout: Layout) -> None:
    """Raise UserError for more than MANY probes that would not fit into memory; they are drawn at once."""
    count = config.estimator.num_probes
    method = config.estimator.method
    if count <= MANY or not method.facts.at_once:
        return
    largest = max(layout.size(block.layer, block.col) for block in blocks)
    # `auto` takes a block dense that has no more entries than there are probes.
    if method != Method.auto or largest > count:
        what = f"{count} probes of {largest} entries"
        _check_memory("estimator.num_probes", what, config, count * largest)


def _check_memory(key: str, what: str, config: Config, entries: int) -> None:
    """Raise UserError when `entries` numbers, with the copies their making takes, exceed DENSE_BOUND bytes.

    COPIES entries 8 bytes, or 4 in float32: 250 million entries in float64.
    """
    number = 8 if config.dtype == DType.float64 else 4
    size = COPIES * entries * number
    if size > DENSE_BOUND:
        raise UserError(
            f"{key}: {what} would take {size / 1e9:.1f} GB of memory in each worker",
            got=f"{size / 1e9:.1f} GB",
            allowed=f"at most {DENSE_BOUND / 1e9:g} GB",
            remedy="estimator=auto (exact where that is cheap, probes elsewhere), or a smaller model.d_model",
        )


def _check_symmetric(config: Config, block: Block, layout: Layout) -> None:
    """Raise UserError for a block that is not the diagonal one of a whole weight matrix.

    XTrace squares the block (||A||_F^2 = tr A^2), and turned probes take the axes of the
    diagonal block; XTrace also needs fewer products than the block has rows.
    """
    method = config.estimator.method
    size = layout.size(block.layer, block.col)
    side = layout.side(block.layer, block.col)
    if method == Method.xtrace and config.estimator.num_probes >= size:
        raise UserError(
            f"estimator.num_probes: xtrace needs fewer products than {block.col} has entries",
            got=config.estimator.num_probes,
            allowed=f"an even number < {size}",
            remedy="estimator=dense, which is exact and not more expensive here",
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


def entries_of_block(block: Block, layout: Layout) -> int:
    """Return rows times columns of a block."""
    rows = layout.size(block.row_layer, block.row)
    return rows * layout.size(block.layer, block.col)


def _is_drawn(weight: Weight) -> bool:
    """Whether a weight of a transformer is shown in Figure 1: the attention's biases and norms are not."""
    return weight.is_main or weight.name in ("W_E", "b_in", "b_out", "b_U")


def num_matrices(parts: list[Part]) -> int:
    """Return how many matrices are held at once: H is the sum of both parts of a split if both are requested.

    Examples
    --------
    >>> num_matrices([Part.H, Part.H_o, Part.H_f]), num_matrices([Part.H])
    (2, 1)
    """
    return len(parts) - (Part.H in parts and bool(split_in(parts)))


def leaves_the_weights(config: Config) -> bool:
    """Return True: the quantity evaluates the loss away from the weights with any settings."""
    return True
