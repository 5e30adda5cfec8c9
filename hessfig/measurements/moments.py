"""The ingredients of blocks: Jacobians of the outputs, moments of attention, and entries that are exactly zero.

Theorem 3.1 writes H_o with the Jacobian of the outputs, which holds the first two
moments of attention; Theorem 3.2 writes H_f with the third.
"""

from collections.abc import Iterable
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config.enums import Method
from hessfig.curvature.column import SidedColumn, view_of
from hessfig.curvature.double_backward import differentiable_twice, gradients
from hessfig.curvature.problem import Objective, Suffix, evaluating, rademacher
from hessfig.measurements.block_norms import dense_parts, root_of_mean
from hessfig.measurements.quantity import (
    EXACT,
    Estimate,
    Measured,
    Request,
    columns,
    exact,
    state_row,
)
from hessfig.models.routes import Engines
from hessfig.terms import Matrix


def jacobian_norm(objective: Objective, request: Request) -> Measured:
    r"""Return ||dF/dw||_F of every requested weight w; F are the scored outputs of the whole measuring batch.

    With J = dF/dw of N outputs, and signs c in the space of outputs,

    .. math:: \|J\|_F^2 = \sum_{i=1}^N |J^T e_i|^2 = \mathbb{E} \, |J^T c|^2.

    One gradient per output, hence exact, by estimator=dense and where there are no more
    outputs than probes. Otherwise the root of the mean of |J^T c|^2 over Rademacher vectors
    c, with its standard error. One backward pass per vector.

    Examples
    --------
    A linear map has its inputs as Jacobian, 1 + 4 + 4 + 16 here:

    >>> import hessfig
    >>> inputs, targets = torch.tensor([[1.0, 2.0], [2.0, 4.0]]), torch.zeros(2, 1)
    >>> problem = hessfig.Problem(torch.nn.Linear(2, 1, bias=False), inputs, targets, "mse")
    >>> table = hessfig.measure(problem, blocks=["weight"], quantities=["jacobian_norm"])
    >>> table.value.item()
    5.0
    """
    rows = []
    for layer, name, (block, *_) in columns(request.blocks):
        norm = _jacobian_norm(objective, request, layer, name)
        rows.append(state_row("jacobian_norm", request, norm, block=block))
    return Measured(rows)


def _jacobian_norm(
    objective: Objective, request: Request, layer: int, name: str
) -> Estimate:
    """Return ||J||_F of one weight, J = dF/dw: sum_i |J^T e_i|^2 over unit vectors, or E |J^T c|^2 over signs c.

    Batches are blocks of rows of J, so that their squares add; a probe is split among them.
    The sum E |sum_b J_b^T c_b|^2 would have the same mean and cross terms as noise.
    """
    side = SidedColumn(objective, layer, name, [name])
    count = request.estimator.num_probes
    suffix = objective.suffix(side.weights)
    with evaluating(objective.network):
        sizes = [suffix(start).numel() for start, _ in suffix.data]
    squares = []
    if request.estimator.method == Method.dense or sum(sizes) <= count:
        for (start, _), size in zip(suffix.data, sizes, strict=True):
            units = iter(torch.eye(size, dtype=torch.bool))
            squares.append(_squares(side, suffix, start, units))
        return Estimate(float(torch.cat(squares).sum()) ** 0.5, 0.0, 0, EXACT)
    generator = request.stream(layer, name)
    probes = rademacher(sum(sizes), count, generator=generator, dtype=torch.int8)
    # A probe has entries for the outputs of every batch, whose squares add up.
    by_batch = probes.split(sizes)
    for (start, _), probe in zip(suffix.data, by_batch, strict=True):
        squares.append(_squares(side, suffix, start, probe.T))
    norm = root_of_mean(torch.stack(squares).sum(dim=0))
    return Estimate(norm.value, norm.error, count, Method.hutchinson.value)


def _squares(
    side: SidedColumn, suffix: Suffix, start: Tensor, vectors: Iterable[Tensor]
) -> Float[Tensor, " k"]:
    """Return |J^T c|^2 of every vector c in the space of one batch's outputs.

    The network from the weight on (`Objective.suffix`) is evaluated once, and pulled back for
    each vector.
    """
    names = {parameter: name for name, parameter in suffix.named_parameters()}
    leaves = {}
    for parameter in side.parameters:
        leaves[names[parameter]] = parameter.detach().clone().requires_grad_()
    squares = []
    with torch.enable_grad(), differentiable_twice():
        outputs = suffix.at(leaves, start)
        for vector in vectors:
            cotangent = vector.to(outputs).view_as(outputs)
            pulled = gradients(outputs, list(leaves.values()), cotangent)
            terms = []
            for weight in side.col:
                part = view_of(pulled[side.places[weight.parameter]], weight)
                terms.append(part.double().square().sum())
            squares.append(torch.stack(terms).sum())
    return torch.stack(squares)


@torch.no_grad()
def _moment(objective: Objective, request: Request, order: int) -> Measured:
    r"""Return, layer by layer, ||M_n||_F over sequences, heads and query positions i (Theorems 3.1 and 3.2).

    With the attention weights A_ij and its inputs x_j (after LayerNorm, where there is one),

    .. math:: m_i = \sum_j A_{ij} x_j, \qquad z_{ij} = x_j - m_i, \qquad
              M_{n, i} = \sum_j A_{ij} \, z_{ij}^{\otimes n} \quad (n = 2, 3),

    and M_1 holds the means m_i. M_2 is the covariance of the inputs under the row A_i, and
    M_3 their third central moment: both vanish where a row attends to one key. Positions are
    those on which the scored outputs depend: in the last layer of a transformer the scored
    ones alone.
    """
    # Of the package's networks alone.
    from hessfig.models.tape.columns import LinearisedNetwork
    from hessfig.models.tape.steps import mixing_of

    tape = LinearisedNetwork(objective, request.model).tape
    rows = []
    for layer in range(1, objective.layout.num_layers + 1):
        node = tape.holders[layer, Matrix.W_V].inputs[0]
        inputs = tape.values[node].double()
        pattern = mixing_of(tape, layer).pattern.double()
        square = 0.0
        for of_sequence, weights in zip(inputs, pattern, strict=True):
            square += _squared_moment(of_sequence, weights, order)
        # Rounding may leave a zero moment below 0.
        norm = max(float(square), 0.0) ** 0.5
        rows.append(state_row(f"moment_{order}", request, norm, layer=layer))
    return Measured(rows)


moment_1, moment_2, moment_3 = (partial(_moment, order=order) for order in (1, 2, 3))


def _squared_moment(
    x: Float[Tensor, "length d"], pattern: Float[Tensor, "heads i length"], order: int
) -> float:
    r"""Return sum_i ||M_n,i||_F^2 of one sequence, without a tensor of d^n entries.

    For n = 1 it is sum_i |m_i|^2. For n > 1 the inner product of two powers is the power of
    their inner product, z^(x n) . y^(x n) = (z . y)^n, so that

    .. math:: \|M_{n, i}\|_F^2 = \sum_{j, k} A_{ij} A_{ik} \, (z_{ij} \cdot z_{ik})^n:

    L^2 d operations per query, for L keys, instead of L d^n.

    Examples
    --------
    One head looks at two inputs 0 and 2 alike: m = 1, and the variance is 1.

    >>> import torch
    >>> x, pattern = torch.tensor([[0.0], [2.0]]), torch.tensor([[[0.5, 0.5]]])
    >>> [_squared_moment(x, pattern, order) for order in (1, 2, 3)]
    [1.0, 1.0, 0.0]
    """
    means = pattern @ x
    if order == 1:
        return float(means.square().sum())
    z = x - means.unsqueeze(2)
    products = (z @ z.mT) ** order
    return float(torch.einsum("hij,hijk,hik->", pattern, products, pattern))


def zero_share(objective: Objective, request: Request) -> Measured:
    """Return the share of entries of every part of every block that are exactly 0, from the dense blocks.

    Of H_f between different heads all are, hence at least 1 - 1/H of a diagonal block of
    attention's in the last layer with H heads (Remark E.1). Entries that are tiny do not
    count.
    """
    engines = Engines(objective, request.model, request.estimator.products)
    rows = []
    for layer, col, blocks in columns(request.blocks):
        dense = dense_parts(engines.column(layer, col, blocks), request.parts)
        for block in blocks:
            for part in request.parts:
                is_zero = dense[block, part] == 0
                share = exact(float(is_zero.double().mean()), Method.dense.value)
                row = state_row("zero_share", request, share, block=block, part=part)
                rows.append(row)
    return Measured(rows)
