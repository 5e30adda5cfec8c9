"""Small networks of anybody: products by batched double backward, through a graph that is made once and kept."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn
from torch.autograd.graph import saved_tensors_hooks

from hessfig.curvature.curvlinops import (
    ColumnOperator,
    DoubleBackward,
    Operator,
    differentiable_twice,
    is_symmetric,
    norm,
    random_vectors,
)
from hessfig.curvature.problem import Problem, Suffix
from hessfig.models.layered import Layered
from hessfig.terms import Part

MOST_PARAMETERS = 3000
MOST_WORK = 2**29  # parameters times the numbers that one pass of the network keeps
ON_ONE_THREAD = 2**20  # of these numbers: below, threads cost more than they save
_AT_ONCE = 2**21  # of these numbers that the products of one chunk keep
_KEPT_NUMBERS = "kept numbers"
_ROUNDING = {torch.float64: 1e-9, torch.float32: 1e-3}


def kept_numbers(problem: Problem) -> int:
    """Return how many numbers one forward pass over all batches keeps for its gradient."""
    sizes: list[int] = []

    def keep(tensor: Tensor) -> Tensor:
        sizes.append(tensor.numel())
        return tensor

    with torch.enable_grad(), differentiable_twice(), saved_tensors_hooks(keep, lambda tensor: tensor):
        for batch in problem.batches:
            problem.loss(problem.network(batch.inputs), batch.targets)
    return sum(sizes)


@contextmanager
def threads_for(problem: Problem) -> Iterator[None]:
    """Take one thread for a small network, whose operations are over before threads have met; then as many as before.

    A network of the package (layered) keeps the number it has.
    """
    before = torch.get_num_threads()
    if not isinstance(problem.network, Layered) and kept_numbers(problem) <= ON_ONE_THREAD:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def is_small(problem: Problem) -> bool:
    """Whether the columns of a network of somebody's own are cheaper through kept graphs."""
    parameters = list(problem.network.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    if isinstance(problem.network, Layered) or count > MOST_PARAMETERS or parameters[0].device.type != "cpu":
        return False
    if _KEPT_NUMBERS not in problem.kept:
        problem.kept[_KEPT_NUMBERS] = kept_numbers(problem)
    return bool(count * problem.kept[_KEPT_NUMBERS] <= MOST_WORK)


class SmallColumn(ColumnOperator):
    """A column whose products are batched passes through graphs that the problem keeps, for all blocks and quantities.

    A part whose products do not pass their checks takes the route of its base class, which says what is wrong.
    """

    def _made(self, part: Part) -> Operator:
        """Return the operator of a part."""
        try:
            hessian = _kept_hessian(self._problem, part)
        except (MemoryError, KeyboardInterrupt):
            raise
        except Exception:  # torch cannot batch or differentiate an operation, or does it wrongly
            return super()._made(part)
        return _OfColumn(hessian, list(self.places), {weight.parameter for weight in self.col})


class _OfColumn:
    """Products of a part, in the parameters `names`, with vectors that are zero outside the parameters `col`."""

    def __init__(self, hessian: SmallHessian, names: Sequence[str], col: Collection[str]) -> None:
        self._hessian, self._wanted = hessian, [hessian.places[name] for name in names]
        self._given = {place: hessian.places[name] for place, name in enumerate(names) if name in col}

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Multiply: one tensor (*shape, k) a parameter in and out."""
        given = {at: columns[place].movedim(-1, 0) for place, at in self._given.items()}
        return [product.movedim(0, -1) for product in self._hessian.products(given, self._wanted)]


class SmallHessian(DoubleBackward):
    """A part of the Hessian in all parameters of a small network, with a graph of the gradient that is made once.

    Raises ArithmeticError where batched products are not those of a symmetric operator, one by one.
    """

    def __init__(self, problem: Problem, part: Part, other: SmallHessian | None) -> None:
        named = dict(problem.network.named_parameters())
        super().__init__(Suffix(problem, None), part, list(named.values()))
        self.before, self.places = snapshot(problem), {name: place for place, name in enumerate(named)}
        self._chunk = max(1, _AT_ONCE // max(1, problem.kept[_KEPT_NUMBERS]))
        with torch.enable_grad(), differentiable_twice():
            self._graphs = [self.graph(start, scalar) for start, scalar in self._terms]
        self._check(list(named.values()), other)

    def products(self, given: Mapping[int, Tensor], wanted: Sequence[int]) -> list[Tensor]:
        """Return the products (k, *shape) at the places `wanted` with vectors (k, *shape) by place."""
        count = len(next(iter(given.values())))
        with torch.enable_grad(), differentiable_twice():
            pieces = [
                self._chunk_of({place: vectors[at : at + self._chunk] for place, vectors in given.items()}, wanted)
                for at in range(0, count, self._chunk)
            ]
        return [torch.cat(of_parameter) for of_parameter in zip(*pieces, strict=True)]

    def _chunk_of(self, given: Mapping[int, Tensor], wanted: Sequence[int]) -> list[Tensor]:
        of_batches = [graph.products(given, wanted) for graph in self._graphs]
        return [torch.stack(of_parameter).sum(dim=0) for of_parameter in zip(*of_batches, strict=True)]

    def _check(self, parameters: list[nn.Parameter], other: SmallHessian | None) -> None:
        """Compare two batched products with single ones, and u.Av with v.Au."""
        first, second = (random_vectors(parameters, word) for word in ("u", "v"))
        pairs = [torch.cat(pair, dim=-1).movedim(-1, 0) for pair in zip(first, second, strict=True)]
        found = self.products(dict(enumerate(pairs)), range(len(pairs)))
        images = tuple([one[k].unsqueeze(-1) for one in found] for k in range(len((first, second))))
        truth, self.size = self @ second, norm(images[1])
        off = norm([one - sure for one, sure in zip(images[1], truth, strict=True)])
        floor = 1e-6 * (other.size if other else self.size)
        if not off <= _ROUNDING.get(truth[0].dtype, 1e-2) * max(norm(truth), floor):
            raise ArithmeticError("batched double backward is wrong here")
        if not is_symmetric(first, second, (images[0], images[1]), floor):
            raise ArithmeticError("double backward gives no symmetric operator")


def snapshot(problem: Problem) -> list[Tensor]:
    """Return copies of all that a network holds: a training changes it in place."""
    return [tensor.detach().clone() for tensor in (*problem.network.parameters(), *problem.network.buffers())]


def _kept_hessian(problem: Problem, part: Part) -> SmallHessian:
    """Return a part of the Hessian at the network's present weights, made when it is first asked for."""
    kept = problem.kept.get(part)
    if kept is None or not all(map(torch.equal, kept.before, snapshot(problem))):
        other = _kept_hessian(problem, Part.H_o) if part == Part.H_f else None
        problem.kept[part] = SmallHessian(problem, part, other)
    found: SmallHessian = problem.kept[part]
    return found
