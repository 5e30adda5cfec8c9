"""Traces of diagonal blocks, and the Hessian of every parameter as an array."""

import math
from dataclasses import replace

import torch
from jaxtyping import Float
from torch import Generator, Tensor, nn

from hessfig.config.enums import Method
from hessfig.curvature.column import Column, cast_chunks, completed, products_of
from hessfig.curvature.differences import ROUGHEST, differences_in
from hessfig.curvature.problem import Objective, rademacher, standard_error
from hessfig.curvature.spectral.densities import xtrace
from hessfig.curvature.spectral.lanczos import NotFinite, Square
from hessfig.measurements.block_norms import dense_parts
from hessfig.measurements.eigenvalues import Spectra
from hessfig.measurements.quantity import (
    Arrays,
    Estimate,
    Measured,
    Request,
    block_row,
    columns,
    exact,
)
from hessfig.measurements.requirements import SUMMABLE, is_published
from hessfig.measurements.settings_and_costs import is_few, names_blocks
from hessfig.models.exact.support import Level, exactness
from hessfig.models.routes import Engines
from hessfig.terms import Block, Group, Part
from hessfig.weights import Weight

Traces = dict[Part, Estimate]
_Samples = dict[Part, Float[Tensor, " k"]]


def trace(objective: Objective, request: Request) -> Measured:
    """Return the trace of every part of every diagonal block: exact or dense where cheap, else from probes.

    H_fT has none: it has no diagonal entries (Remark D.1).
    """
    engines, rows = Engines(objective, request.model, request.estimator.products), []
    summed = replace(
        request, parts=[part for part in request.parts if part != Part.H_fT]
    )
    for layer, col, blocks in columns(request.blocks):
        for block in blocks:
            estimates = {Part.H_fT: exact(0.0, Method.exact)}
            estimates |= (
                _traces(engines, summed, block, request.stream(layer, col))
                if summed.parts
                else {}
            )
            rows += [
                block_row("trace", request, block, part, estimates[part])
                for part in request.parts
            ]
    return Measured(rows)


def hessian(objective: Objective, request: Request) -> Measured:
    """Return arrays `hessian` (n, n), `names` and `sizes` of the parameters in its order, and no rows.

    A transformer's is in the order and orientation of Figure 1 (see published_hessian);
    other networks' parameters come in their own order, flattened as they are. Of a
    network of the user's own whose blocks are named these are the arrays: `block_k`
    (rows, columns; float64) for entry k of the list `entries`, each block and part.
    """
    if names_blocks(request.at.config):
        return Measured([], _named(objective, request))
    arrays = (
        published_hessian(objective)
        if is_published(request.model)
        else _plain(objective, request)
    )
    return Measured([], {**arrays, "hessian": arrays["hessian"].cpu().float().numpy()})


def _traces(
    engines: Engines, request: Request, block: Block, generator: Generator
) -> Traces:
    method, count = request.estimator.method, request.estimator.num_probes
    if method in (Method.auto, Method.exact) and all(
        _is_summable(request, block, p) for p in request.parts
    ):
        values = engines.exact.traces(block.layer, block.row, request.parts)
        return {part: exact(value, Method.exact) for part, value in values.items()}
    column = engines.column(block.layer, block.col, [block])
    is_small = column.dim <= count or (
        method == Method.auto and is_few(engines.problem.layout, block.layer, block.col)
    )
    if method == Method.dense or (method in (Method.auto, Method.xtrace) and is_small):
        return _summed(column, block, request)
    if method == Method.xtrace:
        return {
            part: _by_xtrace(column, block, part, request) for part in request.parts
        }
    return _sampled(column, block, request, generator)


def _is_summable(request: Request, block: Block, part: Part) -> bool:
    shortcut = exactness(request.model, block, part)
    return shortcut.level == Level.cheap and shortcut.route in SUMMABLE


def _summed(column: Column, block: Block, request: Request) -> Traces:
    """Sum the diagonal, column by column."""
    diagonals, errors = _along(
        column, block, torch.eye(column.dim, dtype=column.dtype), request
    )
    totals = {
        part: exact(float(diagonal.sum()), Method.dense)
        for part, diagonal in diagonals.items()
    }
    return {
        part: _differenced(total, column, block, part, errors[part].sum())
        for part, total in totals.items()
    }


def _sampled(
    column: Column, block: Block, request: Request, generator: Generator
) -> Traces:
    """Average v.A v over Rademacher probes; its error is their standard deviation over the root of their number."""
    count = request.estimator.num_probes
    probes = rademacher(column.dim, count, generator=generator, dtype=torch.int8)
    samples, errors = _along(column, block, probes, request)
    traces = {
        part: Estimate(
            float(values.mean()), standard_error(values), count, Method.hutchinson
        )
        for part, values in samples.items()
    }
    return {
        part: _differenced(found, column, block, part, errors[part].mean())
        for part, found in traces.items()
    }


def _differenced(
    found: Estimate, column: Column, block: Block, part: Part, error: Tensor
) -> Estimate:
    """Return a trace with the `error` that its products by differences cause; other products have none."""
    source = differences_in(column)
    if source is None:
        return found
    is_rough = not source.relative_error(block, part) <= ROUGHEST
    return replace(
        found, error=math.hypot(found.error, float(error)), is_unreliable=is_rough
    )


def _by_xtrace(column: Column, block: Block, part: Part, request: Request) -> Estimate:
    """Estimate traces by XTrace, with the same test vectors for every part."""
    count = request.estimator.num_probes
    generator = request.stream(block.layer, block.col)
    try:
        value, error = xtrace(Square(column, block, part), count, generator=generator)
    except NotFinite:
        value = error = float("nan")
    return Estimate(value, error, count, Method.xtrace)


def _along(
    column: Column, block: Block, probes: Tensor, request: Request
) -> tuple[_Samples, _Samples]:
    """Return v.A v for every column v of `probes`, and |v.e| for the error e of A v, in chunks that bound memory.

    The errors are those of differences; there are none for other products.
    """
    source = differences_in(column)
    values: dict[Part, list[Tensor]] = {part: [] for part in request.parts}
    errors: dict[Part, list[Tensor]] = {part: [] for part in request.parts}
    for chunk in cast_chunks(probes, column):
        products = completed(
            column.split_matmat(chunk, products_of(column, request.parts)),
            request.parts,
        )
        for part in request.parts:
            product = products[block, part]
            deviation = (
                torch.zeros_like(product)
                if source is None
                else source.deviations[block, part]
            )
            values[part].append((chunk.to(product) * product).sum(dim=0))
            errors[part].append((chunk.to(deviation) * deviation).sum(dim=0).abs())
    return _joined(values), _joined(errors)


def _joined(pieces: dict[Part, list[Tensor]]) -> _Samples:
    return {part: torch.cat(terms) for part, terms in pieces.items()}


def _named(objective: Objective, request: Request) -> Arrays:
    engines = Engines(objective, request.model, request.estimator.products)
    kept = Spectra(request)
    for layer, col, blocks in columns(request.blocks):
        dense = dense_parts(engines.column(layer, col, blocks), request.parts)
        for block in blocks:
            for part in request.parts:
                matrix = dense[block, part].cpu().double().numpy()
                kept.keep((block, part), matrix.shape[1], {}, {"block": matrix})
    return kept.arrays


def _plain(objective: Objective, request: Request) -> Arrays:
    side, every = objective.layout.side(0, Group.all), Block(0, Group.all, Group.all)
    engines = Engines(objective, request.model, request.estimator.products)
    whole = dense_parts(engines.column(0, Group.all, [every]), [Part.H])[every, Part.H]
    deep = objective.layout.num_layers > 1
    names = [
        f"{weight.name}_{weight.layer}" if deep and weight.layer else weight.name
        for weight in side
    ]
    sizes = [weight.size for weight in side]
    return {"hessian": whole, "names": names, "sizes": sizes}


_PER_LAYER = {
    "W_Q": "attn.q.weight",
    "W_K": "attn.k.weight",
    "W_V": "attn.v.weight",
    "W_O": "attn.o.weight",
    "W_in": "mlp.fc_in.weight",
    "b_in": "mlp.fc_in.bias",
    "W_out": "mlp.fc_out.weight",
    "b_out": "mlp.fc_out.bias",
}


def published_hessian(objective: Objective) -> Arrays:
    """Return the full Hessian of a transformer without LayerNorm, `names` of its parameters and their `sizes`.

    Order: W_E, W_pos, then W_Q, W_K, W_V, W_O, W_in, b_in, W_out, b_out of each layer,
    W_U, b_U (Figure 1); the attention's biases are left out. Linear maps are stored
    (outputs, inputs) and transposed here, so that parameter names[i] takes sizes[i]
    rows, row by row of its (inputs, outputs) matrix.
    """
    from hessfig.curvature.curvlinops import whole_hessian

    paths = _paths(objective.network)
    parameters = [objective.network.get_parameter(path) for path in paths.values()]
    sizes = [p.numel() for p in parameters]
    weights = [
        Weight(name, path, size)
        for (name, path), size in zip(paths.items(), sizes, strict=True)
    ]
    order = torch.cat(_published_order(list(paths.values()), parameters))
    matrix = whole_hessian(objective, weights)[order][:, order]
    return {"hessian": matrix, "names": list(paths), "sizes": sizes}


def _paths(network: nn.Module) -> dict[str, str]:
    paths = {"W_E": "tok_embed.weight", "W_pos": "pos.weight"}
    parameters = dict(network.named_parameters())
    for index in range(len(network.layers)):  # type: ignore[arg-type]
        suffix = "" if len(network.layers) == 1 else f"_{index + 1}"  # type: ignore[arg-type]
        paths |= {
            f"{name}{suffix}": f"layers.{index}.{path}"
            for name, path in _PER_LAYER.items()
        }
    paths |= {"W_U": "head.weight", "b_U": "head.bias"}
    return {name: path for name, path in paths.items() if path in parameters}


def _published_order(paths: list[str], parameters: list[nn.Parameter]) -> list[Tensor]:
    start, order = 0, []
    for path, parameter in zip(paths, parameters, strict=True):
        index = torch.arange(start, start + parameter.numel()).reshape(parameter.shape)
        is_table = path in ("tok_embed.weight", "pos.weight") or parameter.ndim == 1
        order.append((index if is_table else index.T).flatten())
        start += parameter.numel()
    return order
