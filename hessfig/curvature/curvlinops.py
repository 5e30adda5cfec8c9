"""Products of any network through curvlinops, and by double backward where those fail their checks."""

from __future__ import annotations

import warnings
from collections.abc import Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial, reduce
from math import prod
from operator import add
from typing import Protocol, runtime_checkable

import torch
from curvlinops import GGNLinearOperator, HessianLinearOperator, xtrace
from curvlinops._torch_base import PyTorchLinearOperator
from jaxtyping import Float
from torch import Generator, Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel

from hessfig.curvature.column import SPLIT, Products, Rows, completed, rows_of, to_multiply
from hessfig.curvature.problem import Data, Problem, Scalar, Suffix
from hessfig.errors import UserError, plain
from hessfig.models.layered import Headed, Layered
from hessfig.models.protocol import Weight
from hessfig.rng import stream
from hessfig.tasks.losses import Linearised
from hessfig.terms import PARTS, Part


class SidedColumn:
    """The blocks (row, col) for one `col` of `layer` and several rows, acting on vectors in col's space.

    A side of a block is one weight or several (a group), each a parameter or a view of one. `parameters` are those
    that hold the weights of all sides, each once: what is differentiated. `dim` counts the entries of `col`; `shape` is
    that of its weight, (dim,) for several.
    """

    def __init__(self, problem: Problem, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        self.col = problem.layout.side(layer, col)
        self.rows = {key: problem.layout.side(*at) for key, at in rows_of(layer, rows).items()}
        self.weights = [*self.col, *(weight for row in self.rows.values() for weight in row)]
        self.places = {path: place for place, path in enumerate(dict.fromkeys(w.parameter for w in self.weights))}
        self.parameters = [problem.network.get_parameter(path) for path in self.places]
        self.dim, self.dtype = sum(weight.size for weight in self.col), self.parameters[0].dtype
        alone = len(self.col) == 1
        self.shape = view_of(self.parameters[0], self.col[0]).shape if alone else torch.Size([self.dim])

    def spread(self, probes: Float[Tensor, "dim k"]) -> list[Tensor]:
        """Put the probes where the column's weights stand in their parameters, zeros elsewhere: (*shape, k) each."""
        k, pieces = probes.shape[1], probes.split([weight.size for weight in self.col])
        columns = [torch.zeros(*p.shape, k, dtype=probes.dtype, device=probes.device) for p in self.parameters]
        for weight, piece in zip(self.col, pieces, strict=True):
            target = view_of(columns[self.places[weight.parameter]], weight)
            target += piece.unflatten(0, target.shape[:-1])
        return columns

    def gathered(self, products: Mapping[Part, Sequence[Tensor]]) -> Products:
        """Read the products of every row off those of the parameters, keyed (row, part)."""
        found: dict[tuple[Hashable, Part], Tensor] = {}
        for key, row in self.rows.items():
            for part, product in products.items():
                found[key, part] = self._gather(product, row)
        return found

    def _gather(self, products: Sequence[Tensor], row: Sequence[Weight]) -> Float[Tensor, "n k"]:
        views = [view_of(products[self.places[weight.parameter]], weight) for weight in row]
        flat = [view.reshape(prod(view.shape[:-1]), -1) for view in views]
        return flat[0] if len(flat) == 1 else torch.cat(flat)


def view_of(tensor: Tensor, weight: Weight) -> Tensor:
    """Return the entries of `weight` in a tensor of its parameter's shape (further axes behind)."""
    whole = tensor.unflatten(0, weight.axes) if weight.axes else tensor
    return whole if weight.index is None else whole[weight.index]


_DIFFERENTIABLE_ONCE = "Error"  # what torch puts into the graph of such a function's gradient


class DoubleBackward:
    """A part of the Hessian in some parameters of a suffix, with the interface of curvlinops' operators."""

    def __init__(self, suffix: Suffix, part: Part, parameters: Sequence[nn.Parameter]) -> None:
        names = {parameter: name for name, parameter in suffix.named_parameters()}
        self._suffix, self._terms = suffix, suffix.terms(part)
        self._multiply = self._outer if part == Part.H_o else self._whole
        self._names = [names[parameter] for parameter in parameters]
        self._at = [parameter.detach().clone().requires_grad_() for parameter in parameters]

    def __matmul__(self, columns: Sequence[Tensor]) -> list[Tensor]:
        """Multiply: one tensor (*shape, k) a parameter in and out."""
        with torch.enable_grad(), differentiable_twice():
            pieces = [self._of_batch(start, scalar, columns) for start, scalar in self._terms]
        return [torch.stack(of_parameter).sum(dim=0) for of_parameter in zip(*pieces, strict=True)]

    def _of_batch(self, start: Tensor, scalar: Scalar, columns: Sequence[Tensor]) -> list[Tensor]:
        at = dict(zip(self._names, self._at, strict=True))
        vectors = [[column[..., k] for column in columns] for k in range(columns[0].shape[-1])]
        products = self._multiply(functional_call(self._suffix, at, (start,)), scalar, vectors)
        return [torch.stack(of_parameter, dim=-1) for of_parameter in zip(*products, strict=True)]

    def _whole(self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return the Hessian of scalar(outputs) times every vector: the gradient of <gradient, v>."""
        slopes = _known(gradients(scalar(outputs), self._at, create_graph=True))
        return [gradients(inner(slopes, vector), self._at) for vector in vectors]

    def _outer(self, outputs: Tensor, scalar: Scalar, vectors: list[list[Tensor]]) -> list[list[Tensor]]:
        """Return J^T B J times every vector, B the scalar's Hessian in the outputs.

        J^T c is linear in c, so that J v is the gradient of <J^T c, v> in c.
        """
        leaf, cotangent = outputs.detach().requires_grad_(), torch.zeros_like(outputs).requires_grad_()
        (slope,) = gradients(scalar(leaf), [leaf], create_graph=True)
        pulled = _known(gradients(outputs, self._at, cotangent, create_graph=True))
        found = []
        for vector in vectors:
            (tangent,) = gradients(inner(pulled, vector), [cotangent])
            (curved,) = gradients(inner([slope], [tangent]), [leaf])
            found.append(gradients(outputs, self._at, curved))
        return found


def gradients(
    value: Tensor, at: Sequence[Tensor], along: Tensor | None = None, *, create_graph: bool = False
) -> list[Tensor]:
    """Return the gradient of `value` (times `along`) in `at`, zeros for what it does not depend on; graphs are kept.

    With `create_graph`, cotangents require gradients: torch would take the gradients of a function that is
    differentiable once for constants where they do not, silently.
    """
    if not value.requires_grad:
        return [torch.zeros_like(tensor) for tensor in at]
    if create_graph and along is None:
        along = torch.ones_like(value, requires_grad=True)
    return list(
        torch.autograd.grad(value, at, along, retain_graph=True, create_graph=create_graph, materialize_grads=True)
    )


def _known(slopes: list[Tensor]) -> list[Tensor]:
    """Return first derivatives. Raises RuntimeError where a function that has no second ones is among their graph.

    torch.autograd.grad would take such a function's derivative for zero, silently.
    """
    seen, ahead = set(), [slope.grad_fn for slope in slopes]
    while ahead:
        node = ahead.pop()
        if node is None or node in seen:
            continue
        if node.name().rpartition("::")[2] == _DIFFERENTIABLE_ONCE:
            raise RuntimeError("a function in the network or the loss is marked as differentiable once")
        seen.add(node)
        ahead += [further for further, _ in node.next_functions]
    return slopes


def inner(left: Sequence[Tensor], right: Sequence[Tensor]) -> Tensor:
    """Return the inner product of two lists of tensors."""
    return torch.stack([(one * other).sum() for one, other in zip(left, right, strict=True)]).sum()


@contextmanager
def differentiable_twice() -> Iterator[None]:
    """Keep to attention kernels that have second derivatives: the fused ones have none."""
    was = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel([SDPBackend.MATH]):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(was)


_ROUNDING = {torch.float64: 1e-7, torch.float32: 5e-3}
_TINY = 1e-300
Tensors = Sequence[Tensor]


@runtime_checkable
class Operator(Protocol):
    """A symmetric operator on lists of tensors, one a parameter, (*shape, k)."""

    def __matmul__(self, columns: Sequence[Tensor]) -> Sequence[Tensor]:
        """Multiply."""


def verified_or_fallback(
    fast: Operator, reliable: Operator, other_part: Operator, parameters: Sequence[nn.Parameter], name: str
) -> Operator:
    """Return `fast` if it is symmetric and agrees with `reliable` on a random vector, else `reliable`, with a warning.

    So too where `fast` cannot multiply at all (an operation without a derivative in forward mode, or one that vmap does
    not know). What is small beside the products of `other_part` of the Hessian counts as rounding. Raises UserError
    where `reliable` cannot multiply, and ArithmeticError where the one that is left is not symmetric.
    """
    first, second = (_random(parameters, word) for word in ("u", "v"))
    truth = _multiplied(reliable, second)
    floor = 1e-6 * _norm(other_part @ second)
    images = _attempted(fast, first, second)
    if isinstance(images, Exception):
        why = f"curvlinops cannot differentiate this network ({type(images).__name__}: {images})"
    else:
        difference = [a - b for a, b in zip(images[1], truth, strict=True)]
        off = _norm(difference) / max(_norm(truth), _norm(images[1]), floor, _TINY)
        agrees = off <= _rounding(first) or not (_is_finite(truth) or _is_finite(images[1]))
        if agrees and _is_symmetric(first, second, images, floor):
            return fast
        why = f"curvlinops' product is off by {off:.1%} here"
    message = f"{name}: {plain(why)}; plain double backward is used instead"
    warnings.warn(message, RuntimeWarning, stacklevel=2)
    if not _is_symmetric(first, second, (reliable @ first, truth), floor):
        raise ArithmeticError(f"the products of {name} are not those of a symmetric operator: u.Av differs from v.Au")
    return reliable


def _multiplied(reliable: Operator, vector: Tensors) -> Tensors:
    try:
        return reliable @ vector
    except (UserError, MemoryError, torch.OutOfMemoryError):
        raise
    except Exception as error:
        raise UserError(
            "the network or its loss cannot be differentiated twice",
            got=plain(f"{type(error).__name__}: {error}", most=300),
            allowed="operations that have a derivative of their derivative",
            remedy="write the operation in elementary ones; choose no attention kernel in forward()",
        ) from error


def _attempted(fast: Operator, *vectors: Tensors) -> tuple[Tensors, Tensors] | Exception:
    """Return the products by both vectors, or what was raised: `reliable` has multiplied, so the network is sound."""
    try:
        first, second = (fast @ vector for vector in vectors)
        return first, second
    except Exception as error:
        return error


def _is_finite(columns: Tensors) -> bool:
    return all(bool(column.isfinite().all()) for column in columns)


def _random(parameters: Sequence[nn.Parameter], name: str) -> list[Tensor]:
    generator = stream(0, "belief", name)  # the name of the stream is part of the numbers
    draws = [torch.randn((*p.shape, 1), dtype=torch.float64, generator=generator) for p in parameters]
    return [draw.to(p) for draw, p in zip(draws, parameters, strict=True)]


def _is_symmetric(u: Tensors, v: Tensors, images: tuple[Tensors, Tensors], floor: float) -> bool:
    """Whether u.Av = v.Au up to rounding, `images` being Au and Av. Products that are not finite cannot tell."""
    difference = abs(_dot(v, images[0]) - _dot(u, images[1]))
    scale = _norm(u) * max(_norm(images[0]), _norm(images[1]), floor)
    return not difference > _rounding(u) * scale


def _norm(columns: Tensors) -> float:
    return _dot(columns, columns) ** 0.5


def _dot(left: Tensors, right: Tensors) -> float:
    return sum(float((a.double() * b.double()).sum()) for a, b in zip(left, right, strict=True))


def _rounding(columns: Tensors) -> float:
    return _ROUNDING.get(columns[0].dtype, 5e-2)


COLUMNS_AT_ONCE = 64


class ColumnOperator(SidedColumn):
    """The blocks of a column by curvlinops.

    An off-diagonal block costs no more products than the diagonal one: one product with a vector that is zero outside
    `col` gives every row. H_f is the Hessian of the loss linearised in the outputs (eq. 2), so H_o + H_f serves the
    full Hessian without a third product. An operator is made when its part is first needed, and verified then where no
    test of this package holds its products.
    """

    def __init__(self, problem: Problem, layer: int, col: str, rows: Sequence[str] | Rows) -> None:
        super().__init__(problem, layer, col, rows)
        self._suffix = problem.suffix(self.weights)
        self._is_tested, self._operators = _is_tested(problem, self.weights), dict[Part, Operator]()

    @property
    def bytes_per_probe(self) -> int:
        """Memory the products of one probe take, counted from above."""
        return self._suffix.bytes_per_probe

    def split_matmat(self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT) -> Products:
        """Return A V of every row, all columns of `probes` in one product for each of `parts`."""
        columns = self.spread(probes.to(self.parameters[0].device))
        operators = {part: self._operator(part) for part in to_multiply(parts)}
        with differentiable_twice():
            found = {part: operator @ columns for part, operator in operators.items()}
        return completed(self.gathered(found), parts)

    def square_operator(self, part: Part) -> PyTorchLinearOperator:
        """Return the diagonal block of `part` as one curvlinops operator (the column has that block alone)."""
        if part == Part.H:
            return self.square_operator(Part.H_o) + self.square_operator(Part.H_f)
        operator = self._operator(part)
        return operator if isinstance(operator, PyTorchLinearOperator) else _AsLinearOperator(operator, self.parameters)

    def _operator(self, part: Part) -> Operator:
        """Return the operator of a part over the whole of the column's and rows' parameters, made once."""
        if part not in self._operators:
            self._operators[part] = self._made(part)
        return self._operators[part]

    def _made(self, part: Part) -> Operator:
        fast = _operator_of(part, self._suffix, self.parameters)
        if self._is_tested:
            return fast
        with differentiable_twice():
            reliable = DoubleBackward(self._suffix, part, self.parameters)
            other_part = self._operator(Part.H_o) if part == Part.H_f else reliable
            return verified_or_fallback(fast, reliable, other_part, self.parameters, part)


class _AsLinearOperator(PyTorchLinearOperator):
    """Another operator, by double backward, as one of curvlinops'."""

    SELF_ADJOINT = True

    def __init__(self, operator: Operator, parameters: Sequence[nn.Parameter]) -> None:
        shapes = [tuple(parameter.shape) for parameter in parameters]
        super().__init__(shapes, shapes)
        self._operator, self._parameter = operator, parameters[0]

    device = property(lambda self: self._parameter.device)
    dtype = property(lambda self: self._parameter.dtype)

    def _matmat(self, X: list[Tensor]) -> list[Tensor]:
        return list(self._operator @ X)


def xtrace_squared_frobenius(operator: PyTorchLinearOperator, num_probes: int, *, generator: Generator) -> float:
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
    assert part in PARTS, f"{part} is a matter of the tape (check_parts)"
    if part == Part.H_f:
        return _operator(HessianLinearOperator, suffix, Linearised(), parameters, suffix.gradients)
    kind = GGNLinearOperator if part == Part.H_o else HessianLinearOperator
    return _operator(kind, suffix, suffix.loss, parameters, suffix.data)


def _is_tested(problem: Problem, weights: Sequence[Weight]) -> bool:
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
