"""Availability of exact norms, from settings only, without tensors.

A plan asks here before anything is computed, so the answer depends on the architecture,
the block and the part alone. How long a method takes is counted in `costs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hessfig.config.enums import MLP, Norm
from hessfig.config.schema import ModelConfig
from hessfig.errors import UserError
from hessfig.models.blocks import SCORE_LIKE, components, matrices_of
from hessfig.models.protocol import Structure, kind, kinds_where
from hessfig.terms import AT_SCORES, Block, Matrix, Part


class Route(StrEnum):
    """Method of an exact norm, by what carries the derivative from the weight to the loss.

    - `last_layer`: outputs are functions of one item's vectors, so the block is a sum of
      Kronecker products over items (`top_blocks`);
    - `tokens`: linear MLPs, the same sum over distinct tokens;
    - `outputs`: H_o from the rows R df/dtheta, one per scored output (`lower_blocks`);
    - `scores`: H and H_f of W_Q and W_K, which enter through the causal scores;
    - `columns`: one product per entry of the smaller weight;
    - `gradient`: H_fT, which is the loss's gradient in the scores between the inputs;
    - `missing`: none of these.
    """

    last_layer = "last_layer"
    outputs = "outputs"
    scores = "scores"
    columns = "columns"
    tokens = "tokens"
    gradient = "gradient"
    missing = "missing"


class Level(StrEnum):
    """Cost of an exact norm: a fraction of a second at the size of the paper, seconds or more, or unsupported.

    `estimator=auto` takes the cheap ones, unless counted operations (`costs`) favour probes.
    """

    cheap = "cheap"
    expensive = "expensive"
    unsupported = "unsupported"


@dataclass(frozen=True)
class Exactness:
    """Whether `estimator=exact` supports a part of a block, the reason, and the alternative."""

    level: Level
    route: Route
    reason: str
    remedy: str = ""


def exactness(model: ModelConfig, block: Block, part: Part) -> Exactness:
    """Return whether and how the exact norm of `part` of `block` can be computed.

    The last layer is cheap even with LayerNorm (0.8 s at the size of the paper, as long as
    30 probes). The spread over seeds of such networks is so small that at least as many
    probes would be needed.

    Examples
    --------
    H_o of W_V has an exact norm in both layers, H_f in the last one only:

    >>> model = ModelConfig(n_layers=2)
    >>> [str(exactness(model, Block(1, "W_V", "W_V"), part).route) for part in (Part.H_o, Part.H_f)]
    ['outputs', 'missing']
    >>> str(exactness(model, Block(2, "W_V", "W_V"), Part.H_f).route)
    'last_layer'
    """
    route = route_of(model, block, part)
    if route == Route.missing:
        if part in AT_SCORES:
            why = _AT_SCORES
        elif not _is_known(model, block):
            why = _UNKNOWN
        else:
            why = _REASONS[route]
        return Exactness(
            Level.unsupported, route, why, "estimator=hutchinson, or estimator=auto"
        )
    cheap = route in (Route.tokens, Route.gradient) or (
        route == Route.last_layer and not _is_wide(model, block)
    )
    return Exactness(Level.cheap if cheap else Level.expensive, route, _REASONS[route])


def route_of(model: ModelConfig, block: Block, part: Part) -> Route:
    """Return the method for the exact norm of `part` of `block`: `missing` for unknown networks, groups, other layers.

    The rules in order: H_fT by its gradient; linear MLPs by tokens; embeddings, and W_U with
    a weight of a lower layer, by columns; the last layer by items; then H_o by the outputs,
    and H or H_f of one weight of the scores by the scores.
    """
    if part in AT_SCORES:
        if part == Part.H_fT:
            return Route.gradient
        return Route.missing
    if not _is_known(model, block):
        return Route.missing
    if kind(model.kind).structure == Structure.tokens:
        return Route.tokens
    weights = {block.row, block.col}
    is_last = block.layer in (0, model.n_layers)
    if weights & {Matrix.W_E, Matrix.W_pos} or (Matrix.W_U in weights and not is_last):
        return Route.columns
    if is_last:
        return Route.last_layer
    if part == Part.H_o:
        return Route.outputs
    if block.is_diagonal and block.row in SCORE_LIKE:
        return Route.scores
    return Route.missing


def _is_known(model: ModelConfig, block: Block) -> bool:
    """Whether both weights are single matrices of one layer of a network whose steps are known."""
    return (
        is_counted(model)
        and not block.is_across
        and {block.row, block.col} <= set(matrices_of(model))
    )


def is_counted(model: ModelConfig) -> bool:
    """Whether exact methods and operation counts are known for this network."""
    return kind(model.kind).structure is not None and not components(model)


def check_exact(
    model: ModelConfig, blocks: Iterable[Block], parts: Sequence[Part]
) -> None:
    """Raise UserError for the first part of a block that has no exact norm."""
    for block in blocks:
        for part in parts:
            verdict = exactness(model, block, part)
            if verdict.level == Level.unsupported:
                got, allowed = _refused(model, block, part)
                raise UserError(
                    f"estimator.method=exact: no exact {part} of block {block}: {verdict.reason}",
                    got=got,
                    allowed=allowed,
                    remedy=verdict.remedy,
                )


def _refused(model: ModelConfig, block: Block, part: Part) -> tuple[str, str]:
    """Return what has no exact norm, and what would have one: of the part, the kind, a component or the block.

    In the order of `route_of`, so that it is what the reason is about.
    """
    if part in AT_SCORES:
        return f"part {part}", f"part {Part.H_fT}"
    if kind(model.kind).structure is None:
        known = kinds_where(lambda record: record.structure is not None)
        return f"model.kind={model.kind}", f"model.kind={', '.join(known)}"
    others = components(model)
    if others:
        got = ", ".join(f"model.{name}={value}" for name, value in others.items())
        return got, f"{', '.join(others)} of the paper's network"
    if not _is_known(model, block):
        single = ", ".join(map(str, matrices_of(model)))
        return f"block {block}", f"two of {single}, in one layer"
    return (
        f"part {part} of block {block}, model.n_layers={model.n_layers}",
        "below the last layer H_o of any block, H_f and H of W_Q, W_K, W_QK and of embeddings",
    )


def _is_wide(model: ModelConfig, block: Block) -> bool:
    """Whether the Gram matrices run over the hidden layer of the MLP and another space.

    A Gram matrix of M_n takes n^2 operations per entry of M_n, d_mlp times another width
    here. W_in with itself is exempt without norm and with a piecewise linear activation: H_f
    vanishes, and H_o has the low rank of the outputs.
    """
    curved = model.norm != Norm.none or model.mlp == MLP.gelu
    return Matrix.W_in in (block.row, block.col) and (curved or not block.is_diagonal)


_AT_SCORES = "at the scores H_fT alone has an exact norm"
_UNKNOWN = (
    "exact routes know single weights of one layer of transformers, bare attention and linear MLPs, "
    "without today's components (docs/networks.md)"
)
_REASONS = {
    Route.last_layer: "in the last layer an output depends on its own position's vectors alone",
    Route.outputs: "H_o has no more than the outputs' rank: one pass down for each",
    Route.scores: "W_Q and W_K enter through the causal scores alone: one pass up and two down for each",
    Route.columns: "the smaller weight of the two has few entries: one product for each",
    Route.tokens: "linear MLPs see single tokens, of which there are few",
    Route.gradient: "H_fT is the loss's gradient in the scores between the inputs of queries and keys",
    Route.missing: "below the last layer the outputs depend on it through too many values",
}
