"""The only door to curvlinops: H_o and H_f of a column of blocks as linear operators, for any network."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial, reduce
from operator import add

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator, xtrace
from curvlinops._torch_base import PyTorchLinearOperator
from jaxtyping import Float
from torch import Generator, Tensor, nn

from hessfig.curvature.column import SPLIT, Products, Rows, completed, to_multiply
from hessfig.curvature.problem import Data, Problem, Suffix
from hessfig.curvature.products.belief import Operator, believed
from hessfig.curvature.products.double_backward import DoubleBackward, differentiable_twice
from hessfig.curvature.products.sides import Sides
from hessfig.models.layered import Headed, Layered
from hessfig.models.protocol import Weight
from hessfig.tasks.losses import Linearised
from hessfig.terms import Part

COLUMNS_AT_ONCE = 64


class ColumnOperator:
    """The blocks (row, col) for one `col` of `layer` and several rows, acting on vectors in col's space.

    A side of a block is one weight or several (a group), each a parameter or a view of one. An off-diagonal block
    costs no more products than the diagonal one: one product with a vector that is zero outside `col` gives every
    row. H_f is the Hessian of the loss linearised in the outputs (eq. 2), so H_o + H_f serves the full Hessian
    without a third product. An operator is made when its part is first asked for; where nobody vouches for it, it is
    asked before it is believed.
    """

    def __init__(self, problem: Problem, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        self.sides = Sides(problem, layer, col, rows)
        self.parameters, weights = self.sides.parameters, self.sides.weights
        self._suffix = problem.suffix(weights)
        self._is_vouched_for, self._operators = _vouched_for(problem, weights), dict[Part, Operator]()

    @property
    def dim(self) -> int:
        """Number of columns: entries of `col`."""
        return self.sides.dim

    @property
    def shape(self) -> torch.Size:
        """Shape of the column's weight; (dim,) for several."""
        return self.sides.shape

    @property
    def bytes_per_probe(self) -> int:
        return self._suffix.bytes_per_probe

    @property
    def dtype(self) -> torch.dtype:
        return self.parameters[0].dtype

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V of every row, all columns of `probes` in one product for each of `parts`."""
        columns = self.sides.spread(probes.to(self.parameters[0].device))
        operators = {part: self._operator(part) for part in to_multiply(parts)}
        with differentiable_twice():
            found = {part: operator @ columns for part, operator in operators.items()}
        return completed(self.sides.gathered(found), parts)

    def square_operator(self, part: Part) -> PyTorchLinearOperator:
        """Return the diagonal block of `part` as one curvlinops operator (the column has that block alone)."""
        if part == Part.H:
            return self.square_operator(Part.H_o) + self.square_operator(Part.H_f)
        operator = self._operator(part)
        return operator if isinstance(operator, PyTorchLinearOperator) else _Surely(operator, self.parameters)

    def _operator(self, part: Part) -> Operator:
        """Return the operator of a part over the whole of the column's and rows' parameters, made once."""
        if part not in self._operators:
            self._operators[part] = self._made(part)
        return self._operators[part]

    def _made(self, part: Part) -> Operator:
        fast = _operator_of(part, self._suffix, self.parameters)
        if self._is_vouched_for:
            return fast
        with differentiable_twice():
            sure = DoubleBackward(self._suffix, part, self.parameters)
            beside = self._operator(Part.H_o) if part == Part.H_f else sure
            return believed(fast, sure, beside, self.parameters, part)


class _Surely(PyTorchLinearOperator):
    """Another operator, by double backward, as one of curvlinops'."""

    SELF_ADJOINT = True

    def __init__(self, operator: Operator, parameters: Sequence[nn.Parameter]) -> None:
        shapes = [tuple(parameter.shape) for parameter in parameters]
        super().__init__(shapes, shapes)
        self._operator, self._parameter = operator, parameters[0]

    @property
    def device(self) -> torch.device:
        return self._parameter.device

    @property
    def dtype(self) -> torch.dtype:
        return self._parameter.dtype

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        return list(self._operator @ X)


def xtrace_squared_frobenius(
    operator: PyTorchLinearOperator, num_probes: int, *, generator: Generator
) -> float:
    """Estimate ||A||_F^2 = tr(A A) of a symmetric operator with curvlinops' XTrace and `num_probes` products by A A.

    curvlinops draws from torch's global generator; it is seeded from `generator` and restored.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return float(xtrace(operator @ operator, num_probes))


def whole_hessian(problem: Problem, weights: Sequence[Weight]) -> Float[Tensor, "n n"]:
    """Return the Hessian in whole `weights` (flattened, in this order) as a matrix."""
    suffix = problem.suffix(weights)
    parameters = [problem.network.get_parameter(weight.parameter) for weight in weights]
    operator = _operator(HessianLinearOperator, suffix, problem.loss, parameters, suffix.data)
    identity = torch.eye(operator.shape[1], dtype=problem.dtype, device=parameters[0].device)
    return torch.cat([operator @ columns for columns in identity.split(COLUMNS_AT_ONCE, dim=1)], dim=1)


def _operator_of(part: Part, suffix: Suffix, parameters: list[nn.Parameter]) -> PyTorchLinearOperator:
    if part == Part.H_f:
        return _operator(HessianLinearOperator, suffix, Linearised(), parameters, suffix.gradients)
    kind = GGNLinearOperator if part == Part.H_o else HessianLinearOperator
    return _operator(kind, suffix, suffix.loss, parameters, suffix.data)


def _vouched_for(problem: Problem, weights: Sequence[Weight]) -> bool:
    """Whether tests hold these products: weight matrices of the package's own networks."""
    is_own = isinstance(problem.network, Layered) and not isinstance(problem.network, Headed)
    return is_own and all(weight.is_main for weight in weights)


def _operator(
    kind: type, suffix: Suffix, loss: nn.Module, parameters: list[nn.Parameter], data: Data
) -> PyTorchLinearOperator:
    """Return curvlinops' operator, which weighs the mean over a batch by its samples; else their weighted sum."""
    sizes = [len(inputs) for inputs, _ in data]
    of = partial(kind, suffix, loss, parameters, check_deterministic=False)
    by_size = [size / sum(sizes) for size in sizes]
    if len(data) == 1 or loss.reduction == "sum" or suffix.shares == by_size:
        return of(data, num_data=sum(sizes))
    shared = zip(suffix.shares, data, sizes, strict=True)
    return reduce(add, [share * of([one], num_data=size) for share, one, size in shared])
