"""Columns of blocks by differences of gradients, without double backward, and the errors of their products.

H v = (g(w + h v) - g(w - h v)) / 2h + O(h^2) with the gradient g, at several steps h.
The spread of the results is the error of the product (richardson.py).
"""

from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import cached_property, partial
from traceback import walk_tb

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import (
    PROBES_AT_ONCE,
    SPLIT,
    Column,
    DecayedColumn,
    Products,
    Rows,
    SidedColumn,
    chunks,
    completed,
    multiplied,
    to_multiply,
)
from hessfig.curvature.double_backward import (
    differentiable_twice,
    gradients,
    narrowest_type,
    summed,
)
from hessfig.curvature.losses import output_gradient
from hessfig.curvature.problem import Objective, Scalar, along, evaluating
from hessfig.curvature.richardson import (
    ACCURATE,
    Differenced,
    Quotient,
    extrapolated,
    first_step,
    length,
    moved_weights,
    product_by_differences,
)
from hessfig.curvature.smooth_piece import Constant, PieceOf
from hessfig.errors import UserError
from hessfig.rng import in_turn, stream
from hessfig.terms import AT_OUTPUTS, Part

# The largest error of a product by differences, relative to its size.
ROUGHEST = 0.1
Errors = dict[tuple[Hashable, Part], Float[Tensor, " k"]]


def step(weights: Float[Tensor, " dim"], probe: Float[Tensor, " dim"]) -> float:
    r"""Return the step h = u^(1/3) |w| / |v| with the unit roundoff u of the type of the weights; |w| = 1 if w = 0.

    Central differences of gradients g have a truncation error and a rounding error,

    .. math:: e(h) = \frac{h^2}{6} |g'''| + \frac{u |g|}{h}, \qquad
              e'(h) = 0 \text{ at } h = \Bigl(\frac{3 u |g|}{|g'''|}\Bigr)^{1/3},

    with the third derivative along the vector. If gradients vary on the length scale of the
    weights, |g'''| = |g| / |w|^3, this is u^(1/3) |w| for a probe of length one, up to the
    factor 3^(1/3); the error is then about u^(2/3) |g| / |w|, 2e-11 of a product in float64.

    Examples
    --------
    >>> import torch
    >>> from hessfig.curvature.differences import step
    >>> round(step(torch.tensor([3.0, 4.0]), torch.tensor([1.0, 0.0])), 5)
    0.01953
    """
    unit = torch.finfo(weights.dtype).eps / 2
    size = weights.double().norm() or 1.0
    return float(unit ** (1 / 3) * size / probe.double().norm())


class DifferencedColumn(SidedColumn):
    r"""A column of blocks by differences of gradients, with the step and the error of every vector.

    H v is that of `richardson.product_by_differences`, by differences of the gradient g.
    H_f v is the same for the gradient of <dl/df, f> with dl/df fixed. For H_o v the
    gradient s = dl/df in the outputs is taken at moved weights and J at the weights:

    .. math:: J^\top \frac{s(f(w + h v)) - s(f(w - h v))}{2 h} = J^\top B J v + O(h^2),

    since the derivative of s(f(w + h v)) in h is B J v at h = 0. One step takes two
    gradients for H and H_f, and two forward passes and one backward pass for H_o. Each
    part has its own differences; H, if requested alone, is by differences of gradients.

    Steps do not leave the smooth piece of the function in which the weights are (see
    smooth_piece.PieceOf), so that the products are those of double backward across
    kinks too. For this the gradient is evaluated twice more, at the weights (once, if
    nothing is piecewise constant). Comparisons are kept for all batches: a byte or two
    for each activation of a ReLU.

    Parameters
    ----------
    objective : Objective
        The loss.
    layer, col
        Layer and name of the weight or group; layers count from 1 (0: outside the
        layers).
    rows : names in the same layer, or {key: (layer, name)}
        The rows of the blocks.

    Attributes
    ----------
    deviations : dict
        Estimates of the errors of the last products, entry by entry, with the keys and
        shapes of the products.
    gradients : int
        The number of gradients that were evaluated.

    Examples
    --------
    >>> import torch, hessfig
    >>> from hessfig.curvature import DifferencedColumn
    >>> problem = hessfig.Problem(torch.nn.Linear(3, 2), torch.eye(3), torch.tensor([0, 1, 1])).objective("float64")
    >>> column = DifferencedColumn(problem, 0, "weight", ["weight", "bias"])
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
        names = {parameter: name for name, parameter in self._suffix.named_parameters()}
        self._names = [names[parameter] for parameter in self.parameters]
        # The parameters that autograd does not reach: H is zero there.
        self._unreached = set()
        if objective.witness:
            for name in objective.witness.constants:
                self._unreached.add(id(objective.network.get_parameter(name)))
        self._here = [parameter.detach() for parameter in self.parameters]
        # Sums over all products so far: squares of their deviations, and of themselves.
        self._squares: dict[tuple[Hashable, Part], Tensor] = {}
        self._typical: dict[Part, dict[Hashable, float]] = {}
        # The sum of the squared lengths of all vectors so far.
        self._squared_lengths = 0.0
        # What is piecewise constant, by part and batch.
        self._constants_of: dict[tuple[Part, int], list[Constant]] = {}
        self.deviations: Products = {}
        self.gradients = 0

    @in_turn
    def split_matmat(
        self, probes: Float[Tensor, "dim k"], parts: Sequence[Part] = SPLIT
    ) -> Products:
        """Return A V by (row, part), for every row and each of `parts`; see `deviations` for their errors.

        If both H_o and H_f are multiplied, H V and its deviation are sums too: the deviations
        have signs, and add up as estimates of the errors themselves.
        """
        multiplied_parts = to_multiply(parts)
        products, deviations = self._products(
            probes.to(self._here[0]), multiplied_parts
        )
        self._squared_lengths += float(probes.double().square().sum())
        every = list(multiplied_parts)
        if {*AT_OUTPUTS} <= {*multiplied_parts}:
            every.append(Part.H)
        self.deviations = completed(deviations, every)
        for key, product in completed(products, every).items():
            deviation = self.deviations[key].double().square().sum()
            pair = torch.stack([deviation, product.double().square().sum()])
            self._squares[key] = self._squares.get(key, 0) + pair
        return completed(products, parts)

    def relative_error(self, row: Hashable, part: Part) -> float:
        """Return the error of all products so far, relative to their size, both as Frobenius norms.

        With the products P = [A v_1, A v_2, ...] and the estimates D of their errors,
        |D|_F / |P|_F. By the triangle inequality the norm of the exact products lies within
        |D|_F of |P|_F, so that an estimate of a norm from these products has at most this
        relative error. The ratio is infinite if all products are zero, because products that
        are lost in rounding look the same.
        """
        deviation, size = self._squares[row, part].tolist()
        if not size:
            return float("inf")
        return float((deviation / size) ** 0.5)

    def error_of_zero(self, row: Hashable, part: Part) -> float:
        """Return the error of all products so far, if all are exactly zero; NaN if it is not small beside H.

        Of a part that vanishes, such as H_f of the weights of a last linear layer, the
        error has no product to be compared with: it is compared with the usual error of
        products of H (`most_of_zero`).
        """
        deviation, size = self._squares[row, part].tolist()
        if size:
            return float("nan")
        most = self._squared_lengths**0.5 * self.most_of_zero(row)
        if not deviation**0.5 <= most:
            return float("nan")
        return float(deviation**0.5)

    def most_of_zero(self, row: Hashable) -> float:
        r"""Return the largest error of a product that is zero, for a vector v of length 1.

        The usual error of products of H, whose length is taken to be the first of these
        that is not zero, for a random unit vector u in the weights of the column:

        .. math:: |H_\text{block} u|, \qquad |H u| \text{ in the parameters of all rows and of the column},
                  \qquad |g| / |w| \text{ in these}.

        The block of two weights that do not interact is zero itself. The last one is the
        length that a product has if the gradient g changes by its own length over a step as
        long as the weights.
        """
        size = self.typical(row, Part.H)
        if not size:
            size = self._size_beside
        return self.usual_error * size

    @cached_property
    def _size_beside(self) -> float:
        """|H u| in all parameters of the column and its rows, or |g| / |w| in these if H is zero there."""
        products, _ = self._of_parameters(self._random_unit, [Part.H])
        size = length(products[Part.H])
        if size:
            return size
        return length(self._gradient_sizes) / (length(self._here) or 1.0)

    def typical(self, row: Hashable, part: Part) -> float:
        """Return |A v| / |v| for a random vector v: the root mean square of the singular values of A.

        For a normal v of n entries, E |A v|^2 / E |v|^2 = |A|_F^2 / n, and |A|_F^2 is the sum
        of the squared singular values. It costs one product, and is kept.
        """
        if part not in self._typical:
            products, _ = self._products(self._random_unit, to_multiply([part]))
            self._typical[part] = {}
            for (key, _), product in products.items():
                self._typical[part][key] = float(product.double().norm())
        return self._typical[part][row]

    @property
    def _random_unit(self) -> Float[Tensor, "dim 1"]:
        """A random vector of length 1, always the same."""
        draws = stream(0, "typical product")
        draw = torch.randn(
            self.dim, 1, dtype=torch.float64, generator=draws, device="cpu"
        )
        return (draw / draw.norm()).to(self._here[0])

    @cached_property
    def unit(self) -> float:
        """The roundoff u of the type with the fewest digits in which the network or the loss computes.

        It is read off the graph of the first batch (double_backward.narrowest_type): a float64
        network with a float32 softmax has gradients with the digits of float32.
        """
        start, scalar = self._suffix.terms(Part.H)[0]
        leaves = [weight.clone().requires_grad_() for weight in self._here]
        with torch.enable_grad():
            inside = narrowest_type(scalar(self._outputs(leaves, start)))
        return max(torch.finfo(one).eps / 2 for one in (inside, self.dtype))

    @property
    def usual_error(self) -> float:
        """The largest relative error of a product whose step is not searched further."""
        return ACCURATE * self.unit**0.5

    def _products(
        self, probes: Tensor, parts: Sequence[Part]
    ) -> tuple[Products, Products]:
        """Return the products of the rows and their deviations."""
        products, deviations = self._of_parameters(probes, parts)
        return self.gathered(products), self.gathered(deviations)

    def _of_parameters(
        self, probes: Tensor, parts: Sequence[Part]
    ) -> tuple[dict[Part, list[Tensor]], dict[Part, list[Tensor]]]:
        """Return the products in all parameters and their deviations, a search of the step for each vector and part."""
        spread = self.spread(probes)
        for parameter, direction in zip(self.parameters, spread, strict=True):
            if id(parameter) in self._unreached:
                direction.zero_()
        vectors = []
        for k in range(probes.shape[1]):
            vectors.append([direction[..., k] for direction in spread])
        products = {}
        deviations = {}
        for part in parts:
            each = [self._product(vector, part) for vector in vectors]
            self.gradients += sum(one.gradients for one in each)
            products[part] = _stacked([one.product for one in each])
            deviations[part] = _stacked([one.deviation for one in each])
        return products, deviations

    def _product(self, vector: Sequence[Tensor], part: Part) -> Differenced:
        """Return A v with its deviation, for one vector; a zero vector takes no gradient and has no error.

        In the parameters that autograd does not reach v was set to zero before: H has zero
        rows and columns there, but a moved parameter would change the gradient of the others.
        """
        if not any(bool(one.any()) for one in vector):
            zeros = [torch.zeros_like(one) for one in vector]
            return Differenced(zeros, zeros, 0)
        if part != Part.H_o:
            gradient = partial(self._gradient, part=part)
            return product_by_differences(gradient, self._here, vector, unit=self.unit)
        ratio = moved_weights(self._here, vector)
        quotient = partial(self._outer_quotient, vector, ratio)
        h = first_step(self._here, vector, unit=self.unit)
        return extrapolated(quotient, h, unit=self.unit)

    def _gradient(self, weights: Sequence[Tensor], part: Part) -> list[Tensor]:
        """Return the gradient whose derivative is the part, the sum over batches."""
        pieces = []
        for number, (start, scalar) in enumerate(self._suffix.terms(part)):
            here = partial(self._gradient_of, self._here, start, scalar)
            with self._piece(part, number, here):
                pieces.append(self._gradient_of(weights, start, scalar))
        return summed(pieces)

    def _gradient_of(
        self, weights: Sequence[Tensor], start: Tensor, scalar: Scalar
    ) -> list[Tensor]:
        """Return the gradient of a scalar function of the outputs of one batch."""
        at = [weight.clone().requires_grad_() for weight in weights]
        # Checkpoints would be recomputed at other weights.
        with torch.enable_grad(), differentiable_twice():
            return gradients(scalar(self._outputs(at, start)), at)

    def _piece(
        self, part: Part, number: int, here: Callable[[], Sequence[Tensor]]
    ) -> AbstractContextManager[object]:
        """Return a context that holds what is piecewise constant in a batch; `here` evaluates it at the weights.

        Nothing is held if torch computes something else there while it is watched, or
        cannot: higher-order operators (torch.cond) lose parameters then, or are not
        traced. What was recorded is kept by part and batch, so that a batch is recorded once.
        """
        if (part, number) not in self._constants_of:
            self._constants_of[part, number] = self._constants_here(here)
        constants = self._constants_of[part, number]
        return PieceOf(constants) if constants else nullcontext()

    def _constants_here(self, here: Callable[[], Sequence[Tensor]]) -> list[Constant]:
        """Return what is piecewise constant at the weights, in the order of evaluation."""
        try:
            with PieceOf() as piece:
                watched = here()
        except (AssertionError, RuntimeError) as error:
            if not _is_of_the_compiler(error):
                raise
            return []
        if piece.constants and not self._is_same(watched, here()):
            return []
        return piece.constants

    def _is_same(self, watched: Sequence[Tensor], plain: Sequence[Tensor]) -> bool:
        """Whether two evaluations agree to half of the digits: |a - b| <= sqrt(u) |b|."""
        difference = [one - other for one, other in zip(watched, plain, strict=True)]
        return not length(difference) > self.unit**0.5 * length(plain)

    def _outer_quotient(
        self, vector: Sequence[Tensor], ratio: float, step: float
    ) -> Quotient:
        """Return J^T (s(w + h v) - s(w - h v)) / 2h, the sum over batches; `ratio` is |w| / |v|.

        The sizes of its terms, which bound its rounding, are |g| + |w| / |v| |H_o v| entry by
        entry: J^T s is the gradient g, and a roundoff u |w| of the moved weights, taken along
        v, is mapped by H_o to u |w| / |v| |H_o v|.
        """
        ahead = [p + step * v for p, v in zip(self._here, vector, strict=True)]
        behind = [p - step * v for p, v in zip(self._here, vector, strict=True)]
        pieces = []
        batches = zip(self._suffix.data, self._suffix.shares, strict=True)
        for number, ((start, targets), share) in enumerate(batches):
            slope = partial(self._output_gradient, start=start, targets=targets)
            here = partial(slope, self._here)
            with self._piece(Part.H_o, number, here):
                (slope_ahead,) = slope(ahead)
            with self._piece(Part.H_o, number, here):
                (slope_behind,) = slope(behind)
            curved = share * (slope_ahead - slope_behind) / (2 * step)
            pieces.append(self._gradient_of(self._here, start, partial(along, curved)))
        difference = summed(pieces)
        sizes = []
        for size, product in zip(self._gradient_sizes, difference, strict=True):
            sizes.append(size + ratio * product.abs())
        return Quotient(difference, sizes)

    def _output_gradient(
        self, weights: Sequence[Tensor], start: Tensor, targets: Tensor
    ) -> list[Tensor]:
        """Return s = dl/df at other weights, as a list of one tensor."""
        leaves = [weight.clone().requires_grad_() for weight in weights]
        with evaluating(self._suffix.network):
            outputs = self._outputs(leaves, start).detach()
        return [output_gradient(self._suffix.loss, outputs, targets)]

    @cached_property
    def _gradient_sizes(self) -> list[Tensor]:
        """The absolute values of the gradient at the weights, J^T dl/df, which is also that of the linearised loss."""
        return [one.abs() for one in self._gradient(self._here, Part.H_f)]

    def _outputs(self, weights: Sequence[Tensor], start: Tensor) -> Tensor:
        return self._suffix.at(dict(zip(self._names, weights, strict=True)), start)


def _is_of_the_compiler(error: BaseException) -> bool:
    """Whether an exception passed through torch's compiler, which traces higher-order operators."""
    frames = [frame for frame, _ in walk_tb(error.__traceback__)]
    modules = [frame.f_globals.get("__name__", "") for frame in frames]
    return any(module.startswith(_COMPILER) for module in modules)


_COMPILER = ("torch._dynamo", "torch._subclasses", "torch._higher_order_ops")


def _stacked(each: Sequence[Sequence[Tensor]]) -> list[Tensor]:
    """Return one tensor (*shape, k) per parameter, from one list of tensors per vector."""
    of_parameters = zip(*each, strict=True)
    return [torch.stack(of_parameter, dim=-1) for of_parameter in of_parameters]


def differences_in(column: Column) -> DifferencedColumn | None:
    """Return the column by differences behind a column, with or without weight decay; None for other products."""
    if isinstance(column, DecayedColumn):
        column = column.column
    return column if isinstance(column, DifferencedColumn) else None


def multiplied_with_errors(
    column: Column, vectors: Float[Tensor, "dim k"], parts: Sequence[Part]
) -> tuple[Products, Errors]:
    """Return A V as column.multiplied does, and the norm of the error of every product.

    Errors are those of differences, by (row, part), |deviation| of each vector in float64;
    there are none for other products, whose errors are rounding.
    """
    source = differences_in(column)
    if source is None:
        return multiplied(column, vectors, parts), {}
    products: dict[tuple[Hashable, Part], list[Tensor]] = defaultdict(list)
    errors: dict[tuple[Hashable, Part], list[Tensor]] = defaultdict(list)
    for chunk in chunks(vectors.to(column.dtype), column, PROBES_AT_ONCE):
        for key, product in column.split_matmat(chunk, parts).items():
            products[key].append(product)
            errors[key].append(source.deviations[key].double().norm(dim=0).cpu())
    return (
        {key: torch.cat(pieces, dim=1) for key, pieces in products.items()},
        {key: torch.cat(pieces) for key, pieces in errors.items()},
    )


def check_errors(
    column: Column,
    key: tuple[Hashable, Part],
    vectors: Float[Tensor, "dim k"],
    product: Tensor,
    errors: Tensor,
) -> None:
    r"""Raise UserError if the error of a product exceeds ROUGHEST, relative to its size.

    A product A v with the error e is accepted if

    .. math:: e \le \frac{1}{10} \max\Bigl(|A v|, |v| \frac{|A u|}{|u|}\Bigr)

    for a random u. A product that is shorter than a typical one may have the error that
    is allowed for that: the product of a vector that A maps to zero consists of
    rounding errors, and no step makes its relative error small. A product that is
    exactly zero may have the usual error of products of H (DifferencedColumn.most_of_zero).
    """
    source = differences_in(column)
    sizes = product.double().norm(dim=0).cpu()
    if source is None or not bool((errors > ROUGHEST * sizes).any()):
        return
    lengths = vectors.double().norm(dim=0).cpu()
    row, _ = key
    allowed = ROUGHEST * sizes.maximum(lengths * source.typical(*key))
    is_zero = sizes == 0
    if bool(is_zero.any()):
        of_zero = lengths * source.most_of_zero(row)
        allowed = torch.where(is_zero, allowed.maximum(of_zero), allowed)
    excess = errors - allowed
    if not bool((excess <= 0).all()):
        worst = int(excess.argmax())
        raise UserError(
            "operator @ x: this product cannot be computed by differences of gradients",
            got=f"an error of {errors[worst]:.2g} for a product of length {sizes[worst]:.2g} "
            f"({source.dtype}, the best of several steps)",
            allowed=f"at most {100 * ROUGHEST:g} %",
            remedy='dtype="float64", or double backward: products="auto"',
        )
