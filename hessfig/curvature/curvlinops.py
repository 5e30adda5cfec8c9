"""Products of any network by curvlinops, or by double backward if those of curvlinops fail their checks."""

from collections.abc import Sequence
from functools import partial, reduce
from operator import add
from typing import Any

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator, xtrace
from curvlinops._torch_base import PyTorchLinearOperator
from jaxtyping import Float
from torch import Generator, Tensor, nn

from hessfig.curvature.column import (
    COLUMNS_AT_ONCE,
    SPLIT,
    Products,
    Rows,
    SidedColumn,
    completed,
    to_multiply,
)
from hessfig.curvature.double_backward import (
    DoubleBackward,
    TensorsOperator,
    differentiable_twice,
    verified_or_fallback,
)
from hessfig.curvature.losses import Linearised
from hessfig.curvature.problem import Data, Objective, Suffix, is_built_in
from hessfig.rng import global_draws, in_turn
from hessfig.terms import PARTS, Part
from hessfig.weights import Weight


class ColumnOperator(SidedColumn):
    """The blocks of a column, with products by curvlinops.

    One product with a vector that is zero outside `col` gives all rows, so off-diagonal
    blocks need no further products. H_f is the Hessian of the loss linearised in the
    outputs (eq. 2), so H_o + H_f gives the full Hessian without a third product. The
    operator of a part is created on first use, and is then verified, unless the
    products are covered by tests of this package.

    Parameters
    ----------
    objective : Objective
        The loss.
    layer, col
        Layer and name of the weight or group; layers count from 1 (0: outside the
        layers).
    rows : names in the same layer, or {key: (layer, name)}
        The rows of the blocks.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import ColumnOperator
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> column = ColumnOperator(problem, 0, "weight", ["weight", "bias"])
    >>> products = column.split_matmat(torch.ones(6, 1).double())
    >>> sorted((row, str(part), tuple(one.shape)) for (row, part), one in products.items())
    [('bias', 'H_f', (2, 1)), ('bias', 'H_o', (2, 1)), ('weight', 'H_f', (6, 1)), ('weight', 'H_o', (6, 1))]
    """

    def __init__(
        self, objective: Objective, layer: int, col: str, rows: Sequence[str] | Rows
    ) -> None:
        super().__init__(objective, layer, col, rows)
        self._suffix = objective.suffix(self.weights)
        self.bytes_per_probe = self._suffix.bytes_per_probe
        self._is_tested = _is_tested(objective, self.weights)
        self._operators = dict[Part, TensorsOperator]()

    @in_turn
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V of every row, all columns of `probes` in one product for each of `parts`."""
        for number, outputs in enumerate(self._suffix.every_output):
            self._suffix.check_held(number, outputs)
        columns = self.spread(probes.to(self.parameters[0].device))
        operators = {part: self._operator(part) for part in to_multiply(parts)}
        products = {}
        with differentiable_twice():
            for part, operator in operators.items():
                products[part] = operator @ columns
        return completed(self.gathered(products), parts)

    def square_operator(self, part: Part) -> PyTorchLinearOperator:
        """Return the diagonal block of `part` as an operator of curvlinops, for a column that has only this block.

        H is the sum of the operators of H_o and H_f, two products. Vectors are on the CPU
        whatever the device of the products, so that they are equal on every device.
        """
        if part == Part.H:
            return self.square_operator(Part.H_o) + self.square_operator(Part.H_f)
        return _OnCPU(self._operator(part), self.parameters)

    def _operator(self, part: Part) -> TensorsOperator:
        """Return the operator of a part in all parameters of the column and its rows, created once."""
        if part not in self._operators:
            self._operators[part] = self._made(part)
        return self._operators[part]

    def _made(self, part: Part) -> TensorsOperator:
        """Return the operator of curvlinops, or plain double backward if the two differ."""
        fast = _operator_of(part, self._suffix, self.parameters)
        if self._is_tested:
            return fast
        with differentiable_twice():
            reliable = DoubleBackward(self._suffix, part, self.parameters)
            other_part = self._operator(Part.H_o) if part == Part.H_f else reliable
            parameters = dict(zip(self.places, self.parameters, strict=True))
            return verified_or_fallback(fast, reliable, other_part, parameters, part)


class _OnCPU(PyTorchLinearOperator):
    """A symmetric operator as an operator of curvlinops on CPU vectors."""

    SELF_ADJOINT = True
    device = torch.device("cpu")

    def __init__(
        self, operator: TensorsOperator, parameters: Sequence[nn.Parameter]
    ) -> None:
        shapes = [tuple(parameter.shape) for parameter in parameters]
        super().__init__(shapes, shapes)
        self._operator = operator
        self._parameter = parameters[0]

    dtype = property(lambda self: self._parameter.dtype)

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        there = [tensor.to(self._parameter.device) for tensor in X]
        return [tensor.cpu() for tensor in self._operator @ there]


def xtrace_squared_frobenius(
    operator: PyTorchLinearOperator, num_probes: int, *, generator: Generator
) -> float:
    """Estimate ||A||_F^2 = tr(A A) of a symmetric operator with curvlinops' XTrace and `num_probes` products by A A.

    For A = A^T, tr(A A) = sum_ij A_ij^2. A product by A A is two by A, so that the
    estimate takes 2 `num_probes` products. curvlinops draws from the global generator of
    torch, which is seeded from `generator` and restored afterwards.

    References
    ----------
    E. N. Epperly, J. A. Tropp and R. J. Webber (2024), XTrace: making the most of every
    sample in stochastic trace estimation, SIAM Journal on Matrix Analysis and
    Applications 45.
    """
    with global_draws(generator):
        return float(xtrace(operator @ operator, num_probes))


def whole_hessian(
    objective: Objective, weights: Sequence[Weight]
) -> Float[Tensor, "n n"]:
    """Return the Hessian in `weights`, which are whole parameters (flattened, in this order), as a matrix.

    Column j is H e_j: n products, COLUMNS_AT_ONCE of them at a time. It is not
    symmetrised.
    """
    suffix = objective.suffix(weights)
    parameters = []
    for weight in weights:
        parameters.append(objective.network.get_parameter(weight.parameter))
    operator = _operator(
        HessianLinearOperator, suffix, objective.loss, parameters, suffix.data
    )
    device = parameters[0].device
    identity = torch.eye(operator.shape[1], dtype=objective.dtype, device=device)
    pieces = []
    for columns in identity.split(COLUMNS_AT_ONCE, dim=1):
        pieces.append(operator @ columns)
    return torch.cat(pieces, dim=1)


def _operator_of(
    part: Part, suffix: Suffix, parameters: list[nn.Parameter]
) -> PyTorchLinearOperator:
    """Return the operator of a part: J^T B J for H_o, and for H_f the Hessian of the loss linearised in the outputs.

    With g_i = dl/df_i held fixed, d2/dw2 sum_i g_i f_i = sum_i g_i d2f_i/dw2 (eq. 2).

    H_o = J^T B J is the generalised Gauss-Newton matrix of curvlinops. Its operators use
    forward mode under vmap: J v for H_o, the derivative of the gradient along v for the
    others. Where torch has these wrong, so are the products: they are verified before use
    (double_backward.verified_or_fallback).
    """
    assert part in PARTS, f"{part} is a matter of the tape (check_parts)"
    if part == Part.H_f:
        return _operator(
            HessianLinearOperator, suffix, Linearised(), parameters, suffix.gradients
        )
    kind = GGNLinearOperator if part == Part.H_o else HessianLinearOperator
    return _operator(kind, suffix, suffix.loss, parameters, suffix.data)


def _is_tested(objective: Objective, weights: Sequence[Weight]) -> bool:
    """Whether tests cover these products: those of weight matrices of the package's own networks."""
    return is_built_in(objective.network) and all(weight.is_main for weight in weights)


def _operator(
    kind: type,
    suffix: Suffix,
    loss: nn.Module,
    parameters: list[nn.Parameter],
    data: Data,
) -> PyTorchLinearOperator:
    """Return the operator of curvlinops, which weights batches by their samples, or a weighted sum of operators.

    The loss is sum_b share_b loss_b; curvlinops takes share_b = n_b / sum n for a mean
    over batches of n_b samples, and 1 for a sum.

    If the shares are others, the operators of single batches are added with their shares as
    factors, by the linearity of second derivatives.
    """
    of = partial(kind, suffix, loss, parameters, check_deterministic=False)
    sizes = [len(inputs) for inputs, _ in data]
    total = sum(sizes)
    by_size = [size / total for size in sizes]
    if len(data) == 1 or loss.reduction == "sum" or suffix.shares == by_size:
        return of(data, num_data=total)
    terms = []
    for share, batch, size in zip(suffix.shares, data, sizes, strict=True):
        terms.append(share * of([batch], num_data=size))
    return reduce(add, terms)


class MatrixOperator(PyTorchLinearOperator):
    """An ImplicitMatrix as an operator of curvlinops; vectors are single tensors."""

    def __init__(self, matrix: Any, dtype: torch.dtype, *, is_symmetric: bool) -> None:
        rows, columns = matrix.shape
        super().__init__([(columns,)], [(rows,)])
        self._matrix = matrix
        self._real = dtype
        self.SELF_ADJOINT = is_symmetric

    device = property(lambda self: self._matrix.device)
    dtype = property(lambda self: self._real)

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        return [self._matrix @ X[0]]

    def _adjoint(self) -> PyTorchLinearOperator:
        return MatrixOperator(
            self._matrix.T, self._real, is_symmetric=self.SELF_ADJOINT
        )
