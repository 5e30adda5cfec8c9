"""The only door to curvlinops: H_o and H_f of a column of blocks as linear operators."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator, xtrace
from curvlinops._torch_base import PyTorchLinearOperator
from jaxtyping import Float
from torch import Generator, Tensor, nn

from hessfig.curvature.problem import Problem, Suffix
from hessfig.tasks.losses import Linearised
from hessfig.terms import Matrix, Part

COLUMNS_AT_ONCE = 64


class ColumnOperator:
    """The blocks (row, col) of one layer, for one `col` and several `rows`, acting on vectors in col's space.

    An off-diagonal block costs no more products than the diagonal one: one product with a vector that is
    zero outside `col` gives every row. H_f is the Hessian of the loss linearised in the outputs (eq. 2),
    so H_o + H_f serves the full Hessian without a third product.
    """

    def __init__(self, problem: Problem, layer: int, col: Matrix, rows: Sequence[Matrix]) -> None:
        self.matrices = [col, *(row for row in rows if row != col)]
        self.rows = list(rows)
        self.weights = [problem.weight(layer, matrix) for matrix in self.matrices]
        suffix = problem.suffix(layer, self.matrices)
        self._suffix = suffix
        self._operators = {
            Part.H_o: _operator(GGNLinearOperator, suffix, suffix.loss, self.weights, suffix.targets),
            Part.H_f: _operator(HessianLinearOperator, suffix, Linearised(), self.weights, suffix.gradient),
        }

    @property
    def dim(self) -> int:
        """Number of columns: entries of `col`."""
        return self.weights[0].numel()

    @property
    def shape(self) -> torch.Size:
        return self.weights[0].shape

    @property
    def bytes_per_probe(self) -> int:
        return self._suffix.bytes_per_probe

    @property
    def dtype(self) -> torch.dtype:
        return self.weights[0].dtype

    def split_matmat(self, probes: Float[Tensor, "dim k"]) -> dict[tuple[Matrix, Part], Float[Tensor, "n k"]]:
        """Return H_o V and H_f V of every row, all columns of `probes` in one product each."""
        probes = probes.to(self.weights[0].device)
        columns = [probes.unflatten(0, self.weights[0].shape), *(_zeros(w, probes) for w in self.weights[1:])]
        products = {}
        for part, operator in self._operators.items():
            for matrix, product in zip(self.matrices, operator @ columns, strict=True):
                products[matrix, part] = product.flatten(0, 1)
        return {(row, part): products[row, part] for row in self.rows for part in self._operators}

    def square_operator(self, part: Part) -> PyTorchLinearOperator:
        """Return the diagonal block of `part` as one curvlinops operator (the column has that block alone)."""
        outer, functional = self._operators[Part.H_o], self._operators[Part.H_f]
        return outer + functional if part == Part.H else self._operators[part]


def xtrace_squared_frobenius(
    operator: PyTorchLinearOperator, num_probes: int, *, generator: Generator
) -> float:
    """Estimate ||A||_F^2 = tr(A A) of a symmetric operator with curvlinops' XTrace and `num_probes` products by A A.

    curvlinops draws from torch's global generator; it is seeded from `generator` and restored.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(int(torch.randint(2**62, (), generator=generator)))
        return float(xtrace(operator @ operator, num_probes))


def whole_hessian(problem: Problem, parameters: list[nn.Parameter]) -> Float[Tensor, "n n"]:
    """Return the Hessian in `parameters` (flattened, in this order) as a matrix, COLUMNS_AT_ONCE columns a product."""
    suffix = problem.suffix(1, [Matrix.W_E])
    operator = _operator(HessianLinearOperator, suffix, problem.loss, parameters, suffix.targets)
    identity = torch.eye(operator.shape[1], dtype=problem.dtype, device=parameters[0].device)
    return torch.cat([operator @ columns for columns in identity.split(COLUMNS_AT_ONCE, dim=1)], dim=1)


def _operator(
    kind: type, suffix: Suffix, loss: nn.Module, weights: list[nn.Parameter], targets: Tensor
) -> GGNLinearOperator | HessianLinearOperator:
    data = [(suffix.inputs, targets)]
    return kind(suffix, loss, weights, data, num_data=len(suffix.inputs), check_deterministic=False)


def _zeros(weight: Tensor, probes: Tensor) -> Tensor:
    return torch.zeros(*weight.shape, probes.shape[1], dtype=probes.dtype, device=probes.device)
