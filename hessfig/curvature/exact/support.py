"""Which blocks have exact norms, by which route, and what they cost: standard library only, for checks of settings."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

from hessfig.config.choices import MLP, Kind, Norm
from hessfig.config.schema import ModelConfig
from hessfig.errors import UserError
from hessfig.models.matrices import matrices_of
from hessfig.terms import Block, Matrix, Part

_KINDS = (Kind.transformer, Kind.self_attention, Kind.linear_mlp)
_SCORE_LIKE = (Matrix.W_Q, Matrix.W_K, Matrix.W_QK)


class Route(StrEnum):
    """How a block is found: items of the last layer, few outputs, causal scores, column by column, token by token."""

    last_layer = "last_layer"
    outputs = "outputs"
    scores = "scores"
    columns = "columns"
    tokens = "tokens"
    missing = "missing"


class Level(StrEnum):
    """A fraction of a second at the paper's size, seconds and more, or not to be had."""

    cheap = "cheap"
    expensive = "expensive"
    unsupported = "unsupported"


@dataclass(frozen=True)
class Exactness:
    """Whether `estimator=exact` serves a part of a block, why (not), and what to type instead."""

    level: Level
    route: Route
    reason: str
    remedy: str = ""


def exactness(model: ModelConfig, block: Block, part: Part) -> Exactness:
    """Say whether and how the exact norm of `part` of `block` can be had.

    The last layer is cheap even with LayerNorm (0.8 s at the paper's size, as much as 30 probes): the spread over
    seeds of such networks is so small that probes would have to be as many.
    """
    route = route_of(model, block, part)
    if route == Route.missing:
        why = _UNKNOWN if not _is_known(model, block) else _REASONS[route]
        return Exactness(Level.unsupported, route, why, "estimator=hutchinson, or estimator=auto")
    cheap = route == Route.tokens or (route == Route.last_layer and not _is_wide(model, block))
    return Exactness(Level.cheap if cheap else Level.expensive, route, _REASONS[route])


def route_of(model: ModelConfig, block: Block, part: Part) -> Route:
    """Return the way to the exact norm of `part` of `block`: none for unknown networks, groups, other layers."""
    if not _is_known(model, block):
        return Route.missing
    if model.kind == Kind.linear_mlp:
        return Route.tokens
    weights, is_last = {block.row, block.col}, block.layer in (0, model.n_layers)
    if weights & {Matrix.W_E, Matrix.W_pos} or (Matrix.W_U in weights and not is_last):
        return Route.columns
    if is_last:
        return Route.last_layer
    if part == Part.H_o:
        return Route.outputs
    return Route.scores if block.is_diagonal and block.row in _SCORE_LIKE else Route.missing


def _is_known(model: ModelConfig, block: Block) -> bool:
    return model.kind in _KINDS and not block.is_across and {block.row, block.col} <= set(matrices_of(model))


def check_exact(model: ModelConfig, blocks: Iterable[Block], parts: Sequence[Part]) -> None:
    """Raise UserError for the first part of a block that has no exact norm."""
    for block in blocks:
        for part in parts:
            found = exactness(model, block, part)
            if found.level == Level.unsupported:
                raise UserError(
                    f"estimator.method=exact: no exact {part} of block {block}: {found.reason}",
                    got=f"model.n_layers={model.n_layers}, part {part}",
                    allowed="below the last layer H_o of any block, H_f and H of W_Q, W_K, W_QK and of embeddings",
                    remedy=found.remedy,
                )


def _is_wide(model: ModelConfig, block: Block) -> bool:
    """Whether the Gram matrices run over the MLP's hidden layer and something beside it."""
    curved = model.norm != Norm.none or model.mlp == MLP.gelu
    return Matrix.W_in in (block.row, block.col) and (curved or not block.is_diagonal)


_UNKNOWN = "exact routes know single weights of one layer of transformers, bare attention and linear MLPs"
_REASONS = {
    Route.last_layer: "in the last layer an output depends on its own position's vectors alone",
    Route.outputs: "H_o has no more than the outputs' rank: one pass down for each",
    Route.scores: "W_Q and W_K enter through the causal scores alone: one pass up and two down for each",
    Route.columns: "the smaller weight of the two has few entries: one product for each",
    Route.tokens: "linear MLPs see single tokens, of which there are few",
    Route.missing: "below the last layer the outputs depend on it through too many values",
}
