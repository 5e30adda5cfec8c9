"""Traces of diagonal blocks: exact where an exact or dense route is cheap, probes (with errors) elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hessfig.config import Config, Method
from hessfig.curvature.exact.support import Level, Route, exactness
from hessfig.errors import UserError
from hessfig.measurements.blocks import block_row, columns
from hessfig.measurements.estimate import Estimate
from hessfig.measurements.frobenius.checks import check_probes
from hessfig.measurements.frobenius.cost import operations
from hessfig.measurements.frobenius.settings import settings
from hessfig.measurements.protocol import Measured, Quantity, Request
from hessfig.models.blocks import blocks_of
from hessfig.models.protocol import Layout
from hessfig.terms import Block, Part

if TYPE_CHECKING:
    from torch import Generator, Tensor

    from hessfig.curvature.column import Column
    from hessfig.curvature.problem import Problem
    from hessfig.curvature.routes import Engines

Traces = dict[Part, Estimate]
_METHODS = (Method.auto, Method.hutchinson, Method.xtrace, Method.dense, Method.exact)
_SUMMABLE = (Route.last_layer, Route.tokens)  # routes whose exact engine gives traces too


def _measure(problem: Problem, request: Request) -> Measured:
    """Return tr of every part of every (diagonal) block."""
    from hessfig.curvature.routes import Engines

    engines, rows = Engines(problem, request.model, request.estimator.products), []
    for layer, col, blocks in columns(request.blocks):
        for block in blocks:
            found = _traces(engines, request, block, request.stream(layer, col))
            rows += [block_row("trace", request, block, part, found[part]) for part in request.parts]
    return Measured(rows)


def _traces(engines: Engines, request: Request, block: Block, generator: Generator) -> Traces:
    method, count = request.estimator.method, request.estimator.num_probes
    if method in (Method.auto, Method.exact) and all(_is_summable(request, block, p) for p in request.parts):
        values = engines.exact.traces(block.layer, block.row, request.parts)
        return {part: Estimate(value, 0.0, 0, Method.exact) for part, value in values.items()}
    column = engines.column(block.layer, block.col, [block])
    if method == Method.dense or (method in (Method.auto, Method.xtrace) and column.dim <= count):
        return _summed(column, block, request)
    if method == Method.xtrace:
        return {part: _by_xtrace(column, block, part, request) for part in request.parts}
    return _sampled(column, block, request, generator)


def _is_summable(request: Request, block: Block, part: Part) -> bool:
    found = exactness(request.model, block, part)
    return found.level == Level.cheap and found.route in _SUMMABLE


def _summed(column: Column, block: Block, request: Request) -> Traces:
    """Sum the diagonal, column by column."""
    import torch

    totals = _along(column, block, torch.eye(column.dim, dtype=column.dtype), request)
    return {part: Estimate(float(total.sum()), 0.0, 0, Method.dense) for part, total in totals.items()}


def _sampled(column: Column, block: Block, request: Request, generator: Generator) -> Traces:
    """Average v.A v over Rademacher probes; its error is their standard deviation over the root of their number."""
    from hessfig.curvature.problem import rademacher

    count = request.estimator.num_probes
    probes = rademacher(column.dim, count, generator=generator, dtype=column.dtype)
    samples = _along(column, block, probes, request)
    return {part: _mean(values) for part, values in samples.items()}


def _by_xtrace(column: Column, block: Block, part: Part, request: Request) -> Estimate:
    """Estimate with leave-one-out ranges of the same test vectors for every part."""
    from hessfig.curvature.spectral.densities import xtrace
    from hessfig.curvature.spectral.lanczos import NotFinite, Square

    count, generator = request.estimator.num_probes, request.stream(block.layer, block.col)
    try:
        value, error = xtrace(Square(column, block, part), count, generator=generator)
    except NotFinite:
        value = error = float("nan")
    return Estimate(value, error, count, Method.xtrace)


def _mean(values: Tensor) -> Estimate:
    count = len(values)
    error = float(values.std()) / count**0.5 if count > 1 else float("nan")
    return Estimate(float(values.mean()), error, count, Method.hutchinson)


def _along(column: Column, block: Block, probes: Tensor, request: Request) -> dict[Part, Tensor]:
    """Return v.A v for every column v of `probes`, in chunks that bound memory."""
    import torch

    from hessfig.curvature.column import PROBES_AT_ONCE, chunks, completed, summands

    pieces: dict[Part, list[Tensor]] = {part: [] for part in request.parts}
    for chunk in chunks(probes, column, PROBES_AT_ONCE):
        products = completed(column.split_matmat(chunk, summands(request.parts)), request.parts)
        for (_, part), product in products.items():
            pieces[part].append((chunk.to(product) * product).sum(dim=0))
    return {part: torch.cat(found) for part, found in pieces.items()}


def _check(config: Config, layout: Layout) -> None:
    if config.estimator.method not in _METHODS:
        raise UserError(
            "quantities=[trace]: this estimator gives no trace",
            got=f"estimator={config.estimator.method}",
            allowed=", ".join(f"estimator={method}" for method in _METHODS),
            remedy="estimator=auto",
        )
    blocks = [block for block in blocks_of(config.blocks, layout, config.model) if block.is_diagonal]
    check_probes(config, blocks, layout)
    for block in blocks:
        _check_block(config, block)


def _check_block(config: Config, block: Block) -> None:
    exact = all(exactness(config.model, block, part).route in _SUMMABLE for part in config.parts)
    if config.estimator.method == Method.exact and not exact:
        raise UserError(
            f"estimator=exact: no exact trace of block {block}",
            got=f"blocks with {block.col}",
            allowed="blocks of the last layer, and of linear MLPs",
            remedy="estimator=auto (Hutchinson there), or estimator=dense",
        )


def _is_diagonal(block: Block) -> bool:
    return block.is_diagonal


def _settings(config: Config, layout: Layout) -> dict[str, Any]:
    """Return the settings of norms, of the diagonal blocks alone."""
    diagonal = [block for block in blocks_of(config.blocks, layout, config.model) if block.is_diagonal]
    places = [[block.layer, block.row_layer, str(block.row), str(block.col)] for block in diagonal]
    found = {**settings(config, layout), "blocks": places}
    if config.estimator.method == Method.xtrace:  # of traces: by the configured products, unlike that of norms
        found["estimator"]["products"] = config.estimator.products.value
    return found


QUANTITY = Quantity("trace", _measure, settings=_settings, check=_check, operations=operations, serves=_is_diagonal)
