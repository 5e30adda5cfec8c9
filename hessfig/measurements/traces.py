r"""Traces of diagonal blocks, and the Hessian of every parameter as an array.

.. math:: \operatorname{tr} A = \sum_i A_{ii} = \mathbb{E} \, v^T A v \quad\text{for } \mathbb{E}[v v^T] = I.
"""

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

    H_fT has none: it has no diagonal entries, being B (x) I between W_Q and W_K and zero
    elsewhere (Remark D.1).

    Examples
    --------
    A linear map with a squared loss has H = X^T X for two samples, of trace 1 + 4 + 4 + 16:

    >>> import hessfig
    >>> inputs, targets = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.zeros(2, 1)
    >>> problem = hessfig.Problem(torch.nn.Linear(2, 1, bias=False), inputs, targets, "mse")
    >>> table = hessfig.measure(problem, blocks=["weight"], quantities=["trace"], parts="H")
    >>> table.value.item()
    25.0
    """
    engines = Engines(objective, request.model, request.estimator.products)
    others = [part for part in request.parts if part != Part.H_fT]
    summed = replace(request, parts=others)
    rows = []
    for layer, col, blocks in columns(request.blocks):
        for block in blocks:
            estimates = {Part.H_fT: exact(0.0, Method.exact)}
            if others:
                generator = request.stream(layer, col)
                estimates |= _traces(engines, summed, block, generator)
            for part in request.parts:
                rows.append(block_row("trace", request, block, part, estimates[part]))
    return Measured(rows)


def hessian(objective: Objective, request: Request) -> Measured:
    """Return arrays `hessian` (n, n), `names` and `sizes` of the parameters in its order, and no rows.

    A transformer's is in the order and orientation of Figure 1 (see published_hessian);
    other networks' parameters come in their own order, flattened as they are. Of a network
    of the user's own whose blocks are named these are the arrays: `block_k` (rows, columns;
    float64) for entry k of the list `entries`, each block and part.

    The array of a whole network is in float32.
    """
    if names_blocks(request.at.config):
        return Measured([], _named(objective, request))
    if is_published(request.model):
        arrays = published_hessian(objective)
    else:
        arrays = _plain(objective, request)
    return Measured([], {**arrays, "hessian": arrays["hessian"].cpu().float().numpy()})


def _traces(
    engines: Engines, request: Request, block: Block, generator: Generator
) -> Traces:
    """Return the traces of one block by the configured method; `auto` takes exact ones, small blocks, or probes.

    A block of no more entries than probes is summed: n products with unit vectors cost no
    more than the probes.
    """
    method = request.estimator.method
    parts = request.parts
    may_be_exact = method in (Method.auto, Method.exact)
    if may_be_exact and all(_is_summable(request, block, part) for part in parts):
        values = engines.exact.traces(block.layer, block.row, parts)
        return {part: exact(value, Method.exact) for part, value in values.items()}
    column = engines.column(block.layer, block.col, [block])
    # As many probes as entries cost what the diagonal costs.
    is_small = column.dim <= request.estimator.num_probes
    if method == Method.auto:
        layout = engines.problem.layout
        is_small = is_small or is_few(layout, block.layer, block.col)
    if method == Method.dense or (method in (Method.auto, Method.xtrace) and is_small):
        return _summed(column, block, request)
    if method == Method.xtrace:
        return {part: _by_xtrace(column, block, part, request) for part in parts}
    return _sampled(column, block, request, generator)


def _is_summable(request: Request, block: Block, part: Part) -> bool:
    """Whether the exact engine gives the trace of a part cheaply."""
    shortcut = exactness(request.model, block, part)
    return shortcut.level == Level.cheap and shortcut.route in SUMMABLE


def _summed(column: Column, block: Block, request: Request) -> Traces:
    """Return the sum of the diagonal entries A_ii = e_i^T A e_i, column by column.

    Errors of products by differences are added without signs, as the worst case.
    """
    units = torch.eye(column.dim, dtype=column.dtype)
    diagonals, errors = _along(column, block, units, request)
    traces = {}
    for part, diagonal in diagonals.items():
        total = exact(float(diagonal.sum()), Method.dense)
        error = errors[part].sum()
        traces[part] = _differenced(total, column, block, part, error)
    return traces


def _sampled(
    column: Column, block: Block, request: Request, generator: Generator
) -> Traces:
    r"""Average v.A v over Rademacher probes; its error is their standard deviation over the root of their number.

    .. math:: \mathbb{E} \, v^T A v = \operatorname{tr}(A \, \mathbb{E}[v v^T]) = \operatorname{tr} A, \qquad
              \operatorname{Var} \, v^T A v = 2 \sum_{i \ne j} A_{ij}^2

    for a symmetric A (Hutchinson, 1989): a diagonal matrix has no error, unlike with
    Gaussian probes.
    """
    count = request.estimator.num_probes
    probes = rademacher(column.dim, count, generator=generator, dtype=torch.int8)
    samples, errors = _along(column, block, probes, request)
    traces = {}
    for part, values in samples.items():
        mean = float(values.mean())
        error = standard_error(values)
        estimate = Estimate(mean, error, count, Method.hutchinson)
        of_products = errors[part].mean()
        traces[part] = _differenced(estimate, column, block, part, of_products)
    return traces


def _differenced(
    estimate: Estimate, column: Column, block: Block, part: Part, error: Tensor
) -> Estimate:
    """Return a trace with the `error` that its products by differences cause; other products have none.

    The two errors are independent, so their squares add. A trace of zero has no relative error:
    it is rough only if the products state no error of a zero.
    """
    source = differences_in(column)
    if source is None:
        return estimate
    is_rough = not source.relative_error(block, part) <= ROUGHEST
    if is_rough and not estimate.value:
        is_rough = math.isnan(source.error_of_zero(block, part))
    both = math.hypot(estimate.error, float(error))
    return replace(estimate, error=both, is_unreliable=is_rough)


def _by_xtrace(column: Column, block: Block, part: Part, request: Request) -> Estimate:
    """Estimate traces by XTrace, with the same test vectors for every part, from a stream of the block."""
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

    The errors are those of differences; there are none for other products. H is the sum of
    both parts of a split where both are requested.
    """
    source = differences_in(column)
    values: dict[Part, list[Tensor]] = {part: [] for part in request.parts}
    errors: dict[Part, list[Tensor]] = {part: [] for part in request.parts}
    needed = products_of(column, request.parts)
    for chunk in cast_chunks(probes, column):
        products = completed(column.split_matmat(chunk, needed), request.parts)
        for part in request.parts:
            product = products[block, part]
            deviation = torch.zeros_like(product)
            if source is not None:
                deviation = source.deviations[block, part]
            values[part].append((chunk.to(product) * product).sum(dim=0))
            errors[part].append((chunk.to(deviation) * deviation).sum(dim=0).abs())
    return _joined(values), _joined(errors)


def _joined(pieces: dict[Part, list[Tensor]]) -> _Samples:
    """Return the numbers of all chunks, probe by probe."""
    return {part: torch.cat(terms) for part, terms in pieces.items()}


def _named(objective: Objective, request: Request) -> Arrays:
    """Return every named block as a dense matrix, (rows, columns) in float64."""
    engines = Engines(objective, request.model, request.estimator.products)
    kept = Spectra(request)
    for layer, col, blocks in columns(request.blocks):
        dense = dense_parts(engines.column(layer, col, blocks), request.parts)
        for block in blocks:
            for part in request.parts:
                matrix = dense[block, part].cpu().double().numpy()
                kept.keep(block, part, matrix.shape[1], {}, {"block": matrix})
    return kept.arrays


def _plain(objective: Objective, request: Request) -> Arrays:
    """Return the Hessian in all parameters, in their own order.

    Names end with the number of the layer if there are several layers.
    """
    every = Block(0, Group.all, Group.all)
    engines = Engines(objective, request.model, request.estimator.products)
    whole = dense_parts(engines.column(0, Group.all, [every]), [Part.H])[every, Part.H]
    is_deep = objective.layout.num_layers > 1
    names = []
    sizes = []
    for weight in objective.layout.side(0, Group.all):
        name = weight.name
        if is_deep and weight.layer:
            name = f"{name}_{weight.layer}"
        names.append(name)
        sizes.append(weight.size)
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

    Order: W_E, W_pos, then W_Q, W_K, W_V, W_O, W_in, b_in, W_out, b_out of each layer, W_U,
    b_U (Figure 1); the attention's biases are left out. Linear maps are stored (outputs,
    inputs) and transposed here, so that parameter names[i] takes sizes[i] rows, row by row of
    its (inputs, outputs) matrix.
    """
    from hessfig.curvature.curvlinops import whole_hessian

    paths = _paths(objective.network)
    parameters = []
    weights = []
    for name, path in paths.items():
        parameter = objective.network.get_parameter(path)
        parameters.append(parameter)
        weights.append(Weight(name, path, parameter.numel()))
    order = torch.cat(_published_order(list(paths.values()), parameters))
    matrix = whole_hessian(objective, weights)[order][:, order]
    sizes = [weight.size for weight in weights]
    return {"hessian": matrix, "names": list(paths), "sizes": sizes}


def _paths(network: nn.Module) -> dict[str, str]:
    """Return the parameters of a transformer in the order of Figure 1, by name.

    Those that the network does not have are left out.
    """
    paths = {"W_E": "tok_embed.weight", "W_pos": "pos.weight"}
    parameters = dict(network.named_parameters())
    num_layers = len(network.layers)  # type: ignore[arg-type]
    for index in range(num_layers):
        suffix = "" if num_layers == 1 else f"_{index + 1}"
        for name, path in _PER_LAYER.items():
            paths[f"{name}{suffix}"] = f"layers.{index}.{path}"
    paths |= {"W_U": "head.weight", "b_U": "head.bias"}
    return {name: path for name, path in paths.items() if path in parameters}


def _published_order(paths: list[str], parameters: list[nn.Parameter]) -> list[Tensor]:
    """Return where the entries of each parameter are in the network's order: linear maps are transposed.

    Maps are stored (outputs, inputs). Entry r of the result is the index, in the flattened
    parameters, of row r of the published Hessian.

    Examples
    --------
    A map of three inputs and two outputs, whose second row starts at 3:

    >>> _published_order(["head.weight"], [nn.Parameter(torch.zeros(2, 3))])[0].tolist()
    [0, 3, 1, 4, 2, 5]
    """
    order = []
    start = 0
    for path, parameter in zip(paths, parameters, strict=True):
        index = torch.arange(start, start + parameter.numel()).reshape(parameter.shape)
        is_table = path in ("tok_embed.weight", "pos.weight")
        if not is_table and parameter.ndim > 1:
            index = index.T
        order.append(index.flatten())
        start += parameter.numel()
    return order
