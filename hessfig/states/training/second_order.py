"""Steps divided by a curvature matrix: Newton, Gauss-Newton (whole or in blocks) and K-FAC, all with damping."""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.curvature.approximations.matrices import kronecker_factors
from hessfig.curvature.batched import pulled_back
from hessfig.curvature.double_backward import gradients
from hessfig.curvature.problem import Batch, hooked, scored_outputs
from hessfig.terms import Optimiser

Slopes = list[Tensor]
Solver = Callable[[Slopes], Slopes]


@dataclass(frozen=True)
class BatchLoss:
    """The loss of a network on one batch; calling it gives the loss."""

    network: nn.Module
    loss: nn.Module
    batch: Batch

    def __call__(self) -> Tensor:
        return self.of(self.outputs())

    def outputs(self) -> Tensor:
        """Return the outputs at the scored positions."""
        return scored_outputs(self.network, self.batch.inputs, self.batch.scored)

    def of(self, outputs: Tensor) -> Tensor:
        """Return the loss of these outputs."""
        return self.loss(outputs, self.batch.targets)


def solver(kind: Optimiser, loss: BatchLoss, damping: float) -> Solver:
    """Return the map from gradients G, one per parameter, to (C + damping I)^-1 G, with C of `kind` at these weights.

    newton: C = |H|, the Hessian with the absolute values of its eigenvalues (arXiv
    1406.2572), so that every step descends where H is indefinite. gauss_newton: C =
    H_o. block_gauss_newton: its diagonal blocks, one per parameter (arXiv 2510.09378).
    kfac: A (x) B for the weight and bias of a linear map or an embedding (arXiv
    1503.05671, with the exact Fisher matrix of the outputs; "expand" of arXiv
    2311.00636 where a map is used at several positions), and the block of H_o for any
    other parameter. The damping is added to C itself, not to its factors.
    """
    parameters = list(loss.network.parameters())
    if kind == Optimiser.kfac:
        return _kfac(loss, parameters, damping)
    if kind == Optimiser.newton:
        values, vectors = _eigenpairs(dense_hessian(loss))
        return _damped((vectors * values.abs()) @ vectors.T, damping)
    whole = gauss_newton(loss, parameters)
    if kind == Optimiser.gauss_newton:
        return _damped(whole, damping)
    sizes = map(Tensor.numel, parameters)
    ends = torch.tensor([0, *sizes]).cumsum(0).tolist()
    blocks = [_damped(whole[a:b, a:b], damping) for a, b in pairwise(ends)]

    def solve(slopes: Slopes) -> Slopes:
        pairs = zip(blocks, slopes, strict=True)
        return [of_block([slope])[0] for of_block, slope in pairs]

    return solve


def products_of_a_solver(kind: Optimiser, loss: BatchLoss) -> int:
    """Return the number of products with the Hessian or its Gauss-Newton part that one curvature matrix takes.

    There is one product per entry of a parameter. K-FAC takes one backward pass, which
    is cheaper than a product, per scored position and class, and one product per entry
    of the parameters without Kronecker factors.
    """
    parameters = list(loss.network.parameters())
    if kind != Optimiser.kfac:
        return sum(map(Tensor.numel, parameters))
    outputs, calls = _calls(loss)
    others = set(parameters)
    for module in calls:
        others.difference_update(module.parameters())
    return outputs[0].numel() + sum(map(Tensor.numel, others))


def dense_hessian(loss: BatchLoss) -> Float[Tensor, "n n"]:
    """Return the Hessian of the loss in all parameters, made symmetric, one double backward pass per column."""
    parameters = list(loss.network.parameters())
    with torch.enable_grad():
        slope = _flat(gradients(loss(), parameters, create_graph=True))
        hessian = pulled_back(slope, parameters, torch.eye(len(slope)).to(slope))
    return (hessian + hessian.T) / 2


def gauss_newton(loss: BatchLoss, parameters: Sequence[Tensor]) -> Float[Tensor, "n n"]:
    """Return J^T H_L J of some parameters, J of the outputs in them and H_L the loss's Hessian in the outputs."""
    with torch.enable_grad():
        outputs = loss.outputs()
        dual = torch.zeros_like(outputs, requires_grad=True)
        back = _flat(gradients(outputs, parameters, dual, create_graph=True))
        jacobian = pulled_back(back, [dual], torch.eye(len(back)).to(outputs))
        product = jacobian @ _curved(loss, outputs, jacobian).T
    return (product + product.T) / 2


def _eigenpairs(matrix: Float[Tensor, "... n n"]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors; NaN if the matrix is not finite: then the training diverges."""
    if bool(matrix.isfinite().all()):
        values, vectors = torch.linalg.eigh(matrix)
        return values, vectors
    return torch.full_like(matrix[..., 0], math.nan), torch.full_like(matrix, math.nan)


def _damped(matrix: Float[Tensor, "n n"], damping: float) -> Solver:
    """Return the solver of (matrix + damping I); it returns NaN if there is no Cholesky factor in this precision.

    This is the case if the matrix is not finite, or so large that rounding errors
    exceed the damping.
    """
    root, failed = torch.linalg.cholesky_ex(
        matrix + damping * torch.eye(len(matrix)).to(matrix)
    )
    if not bool(matrix.isfinite().all()) or int(failed):
        return lambda slopes: [torch.full_like(one, math.nan) for one in slopes]

    def solve(slopes: Slopes) -> Slopes:
        solution = torch.cholesky_solve(_flat(slopes)[:, None], root).flatten()
        pieces = solution.split(list(map(Tensor.numel, slopes)))
        return list(map(Tensor.view_as, pieces, slopes))

    return solve


def _flat(pieces: Sequence[Tensor]) -> Float[Tensor, " n"]:
    return torch.cat(list(map(Tensor.flatten, pieces)))


def _curved(
    loss: BatchLoss, outputs: Tensor, vectors: Float[Tensor, "k m"]
) -> Float[Tensor, "k m"]:
    """Return V H_L, H_L the Hessian of the loss in the outputs."""
    leaf = outputs.detach().requires_grad_()
    (slope,) = gradients(loss.of(leaf), [leaf], create_graph=True)
    return pulled_back(slope, [leaf], vectors)


def _maps(network: nn.Module) -> list[nn.Module]:
    """Return the linear maps and embeddings whose parameters no other module shares."""
    maps = []
    owners: Counter[Tensor] = Counter()
    for module in network.modules():
        if type(module) in (nn.Linear, nn.Embedding):
            maps.append(module)
            owners.update(module.parameters())
    shared = {parameter for parameter, count in owners.items() if count > 1}
    return [module for module in maps if shared.isdisjoint(module.parameters())]


@dataclass
class _Kronecker:
    """The block A (x) B of one map: `left` = B over outputs, `right` = A over inputs, both as eigenpairs."""

    module: nn.Module
    left: tuple[Tensor, Tensor]
    right: tuple[Tensor, Tensor]

    def solve(
        self, slopes: Mapping[Tensor, Tensor], damping: float
    ) -> dict[Tensor, Tensor]:
        """Return (A (x) B + damping I)^-1 times the gradient, by parameter."""
        table = isinstance(self.module, nn.Embedding)
        own = list(self.module.parameters())
        if table:
            matrix = slopes[own[0]].T
        else:
            rows = [slopes[p].reshape(len(p), -1) for p in own]
            matrix = torch.cat(rows, dim=1)
        (b, ub), (a, ua) = self.left, self.right
        solution = ub @ ((ub.T @ matrix @ ua) / (b[:, None] * a + damping)) @ ua.T
        if table:
            pieces = [solution.T]
        else:
            pieces = solution.split([p.numel() // len(p) for p in own], dim=1)
        return {p: piece.reshape(p.shape) for p, piece in zip(own, pieces, strict=True)}


def _kfac(loss: BatchLoss, parameters: list[nn.Parameter], damping: float) -> Solver:
    factored = _factored(loss)
    inside: set[nn.Parameter] = set()
    for block in factored:
        inside.update(block.module.parameters())
    whole = {}
    for p in parameters:
        if p not in inside:
            whole[p] = _damped(gauss_newton(loss, [p]), damping)

    def solve(slopes: Slopes) -> Slopes:
        at: dict[Tensor, Tensor] = dict(zip(parameters, slopes, strict=True))
        steps: dict[Tensor, Tensor] = {}
        for p, solve_one in whole.items():
            (steps[p],) = solve_one([at[p]])
        for block in factored:
            steps |= block.solve(at, damping)
        return [steps[p] for p in parameters]

    return solve


def _factored(loss: BatchLoss) -> list[_Kronecker]:
    """Return the Kronecker factors of every map that is used once in a forward pass."""
    outputs, calls = _calls(loss)
    leaves = [of for _, of in calls.values()]
    with torch.enable_grad():
        every = pulled_back(outputs, leaves, _roots(loss, outputs))
    sent = every.split(list(map(Tensor.numel, leaves)), dim=1)
    blocks = []
    for (module, (given, of)), back in zip(calls.items(), sent, strict=True):
        rows = back.reshape(-1, of.shape[-1])
        left, right = kronecker_factors(rows, _inputs(module, given))
        blocks.append(_Kronecker(module, _eigen(left), _eigen(right)))
    return blocks


def _calls(loss: BatchLoss) -> tuple[Tensor, dict[nn.Module, tuple[Tensor, Tensor]]]:
    """Return the network's outputs, and the input and output of every map that is used once in the forward pass."""
    calls: dict[nn.Module, list[tuple[Tensor, Tensor]]] = {}

    def note(module: nn.Module, given: tuple[Tensor, ...], output: Tensor) -> None:
        calls.setdefault(module, []).append((given[0].detach(), output))

    with hooked(_maps(loss.network), note), torch.enable_grad():
        outputs = loss.outputs()
    return outputs, {
        module: seen[0] for module, seen in calls.items() if len(seen) == 1
    }


def _roots(loss: BatchLoss, outputs: Tensor) -> Float[Tensor, "columns m"]:
    """Return one vector per scored position and column of a root of H_L there, for all samples together."""
    count = outputs[0].numel()
    width = outputs.shape[-1]
    eye = torch.eye(width).to(outputs)
    units = eye.expand(*outputs.shape[:-1], -1, -1).movedim(-1, 0).flatten(1)
    hessian = _curved(loss, outputs, units)
    hessian = hessian.reshape(width, len(outputs), -1, width).permute(1, 2, 0, 3)
    values, vectors = _eigenpairs(hessian)
    # Samples, positions, width * columns.
    root = (vectors * values.clamp(min=0).sqrt()[..., None, :]).flatten(-1)
    places = count // width
    spread = torch.zeros(places, width, len(outputs), places, width).to(outputs)
    for place in range(places):
        columns = root[:, place].reshape(-1, width, width)
        spread[place, :, :, place] = columns.permute(2, 0, 1)
    return spread.reshape(places * width, -1)


def _inputs(module: nn.Module, given: Tensor) -> Float[Tensor, "uses n"]:
    """Return the inputs of a map, row by row: one-hot tokens for an embedding, a 1 last for a map with a bias."""
    if isinstance(module, nn.Embedding):
        return nn.functional.one_hot(given.flatten(), module.num_embeddings).to(
            module.weight
        )
    rows = given.reshape(-1, given.shape[-1])
    if module.bias is None:
        return rows
    return torch.cat([rows, torch.ones(len(rows), 1).to(rows)], dim=1)


def _eigen(factor: Float[Tensor, "n n"]) -> tuple[Tensor, Tensor]:
    """Return eigenvalues and eigenvectors of a factor; negative eigenvalues, which are rounding, count as 0."""
    values, vectors = _eigenpairs(factor)
    return values.clamp(min=0), vectors
