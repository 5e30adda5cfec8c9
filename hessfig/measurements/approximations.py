r"""Distances of approximations from blocks of the Hessian: relative errors and angles, exact or by probes.

With B the block, A its approximation, <A, B> = tr A^T B and ||.|| the Frobenius norm:

.. math:: \text{error} = \frac{\|B - A\|}{\|B\|}, \qquad
          \text{scale error} = \min_c \frac{\|B - c A\|}{\|B\|} = \sqrt{1 - \cos^2}, \qquad
          \cos = \frac{\langle A, B \rangle}{\|A\| \, \|B\|},

since c = <A, B> / ||A||^2 leaves ||B||^2 - <A, B>^2 / ||A||^2. The second says how good
an approximation is to an optimiser whose learning rate is tuned.

Signs v have E |M v|^2 = ||M||^2 and E Bv.Av = <A, B>, so that all three numbers follow
from products of B and A with the same vectors where the block is too large for a matrix.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import inf, nan

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from hessfig.config.enums import Method, State
from hessfig.config.science import ModelConfig
from hessfig.curvature.approximations import matrices
from hessfig.curvature.approximations.named import Material, SampleGradients
from hessfig.curvature.column import Column, completed, multiplied, summands, view_of
from hessfig.curvature.problem import Objective, rademacher
from hessfig.curvature.spectral.lanczos import Square
from hessfig.measurements.approximable import (
    MOST_DENSE,
    chosen_approximations,
    lacking,
    unavailable_approximation,
)
from hessfig.measurements.block_norms import dense_parts
from hessfig.measurements.eigenvalues import square_columns
from hessfig.measurements.quantity import (
    Estimate,
    Measured,
    Request,
    Row,
    block_row,
    exact,
)
from hessfig.measurements.stability import preconditioner
from hessfig.models.protocol import kind
from hessfig.terms import (
    NUMBERS_OF_APPROXIMATIONS,
    Approximation,
    Block,
    Matrix,
    Need,
    Part,
)
from hessfig.weights import Weight

# Of the block itself, in a basis or not.
_OWN_DIAGONALS = {Approximation.diagonal, Approximation.soap}
_PAIRS = {Approximation.kfoc, Approximation.kronecker_sum}
_OF_WHOLE_BATCHES = (
    "compute_loss takes batches whole; "
    "hessfig.Problem(network, inputs, targets, loss) tells samples apart"
)
_NO_MAP = "no torch.nn.Linear that the network calls, and no convolution with groups=1,"
FITTED = 2  # test vectors of a fitted Kronecker sum, at least, for each row or column of the weight
NEGLIGIBLE = 1e-12  # an approximation that is this small compared with the block is rounding, and counts as 0
Vectors = Float[Tensor, "dim k"]
Numbers = tuple[Estimate, ...]  # one for each of NUMBERS_OF_APPROXIMATIONS


def approximations(objective: Objective, request: Request) -> Measured:
    """Return NAME_error, NAME_scale_error and NAME_angle of every approximation, part and diagonal block.

    The formulas are those of the module. Blocks of at most MOST_DENSE parameters (all of them
    with estimator=dense, none with hutchinson) are exact; others come from probes, with a
    jackknife's standard error. Parts that vanish by the network's structure have no rows.
    Raises UserError for a name that a block cannot have.

    Examples
    --------
    A linear map with a squared loss has H = X^T X (x) I, a Kronecker product, which is what
    K-FAC assumes. Here X^T X = [[5, 4], [4, 5]], and the diagonal keeps 50 of 82 squares:

    >>> import hessfig
    >>> inputs, targets = torch.tensor([[1.0, 2.0], [2.0, 1.0]]), torch.zeros(2, 1)
    >>> problem = hessfig.Problem(torch.nn.Linear(2, 1, bias=False), inputs, targets, "mse")
    >>> table = hessfig.measure(problem, blocks=["weight"], quantities=["approximations"], parts="H")
    >>> value = dict(zip(table.quantity, table.value.tolist()))
    >>> round(value["diagonal_angle"] ** 2 * 82, 6), round(value["kfac_error"], 6)
    (50.0, 0.0)
    """
    shared = _Shared(objective, request)
    is_zero = kind(request.model.kind).is_structural_zero
    rows: list[Row] = []
    for block, column in square_columns(objective, request):
        parts = []
        for part in request.parts:
            if not is_zero(request.model, block, part):
                parts.append(part)
        if parts:
            rows += _of_block(shared, block, column, parts)
    return Measured(rows)


def approximation_of(objective: Objective, request: Request) -> matrices.Product:
    """Return the approximation that a request names, for its one block and part.

    Those of the block itself are made from the dense block; the block diagonals multiply with
    the Hessian. Raises UserError for one that the block cannot have.

    Returns
    -------
    product
        With `matmat`, from (dim, k) to A V.
    """
    ((block, column),) = square_columns(objective, request)
    shared = _Shared(objective, request)
    part = request.parts[0]
    (name,) = shared.names(block)
    side = objective.layout.side(block.layer, str(block.col))
    if name.facts.needs == Need.whole:
        pieces = _pieces(objective, side, by_layer=name == Approximation.layer_diagonal)
        return _BlockDiagonal(Square(column, block, part).matmat, pieces)
    material = shared.material(side, column.dim)
    if name not in _OWN_DIAGONALS | _PAIRS:
        return material.approximation(name)
    reference = _Dense(block, column, [part])
    if name in _OWN_DIAGONALS:
        return reference.diagonal_matrix(part, _basis(name, material))
    rank = shared.config.approximation.rank
    return _Comparison(reference, material, rank).matrix(name, part)


class _Shared:
    """What all blocks of a cell share: the gradients of samples, and the moments of the training."""

    def __init__(self, objective: Objective, request: Request) -> None:
        self.problem = objective
        self.request = request
        self.config = request.at.config

    @cached_property
    def samples(self) -> SampleGradients:
        """Gradients of samples; with gd the mini-batch is the whole batch."""
        training = self.config.training
        size = inf if training.optimiser.facts.is_full_batch else training.batch_size
        return SampleGradients(self.problem, self.request.stream(0, "labels"), size)

    @cached_property
    def stored(self) -> dict[str, Tensor] | None:
        """The root of the second moment that adam keeps, corrected for its bias, plus eps; None where there is none.

        sqrt(nu_t / (1 - beta2^t)) + eps is P / (1 - beta1^t), with P the preconditioner: what adam
        divides by, without the factor of its first moment.
        """
        at = self.request.at
        training = self.config.training
        is_trained = bool(at.step) and self.config.state.kind == State.trained
        if not is_trained or not training.optimiser.facts.is_adaptive:
            return None
        assert at.step is not None
        parameters = {}
        for name, parameter in self.problem.network.named_parameters():
            parameters[name] = parameter.detach()
        correction = 1 - training.betas[0] ** at.step
        roots = {}
        for name, diagonal in preconditioner(at, parameters).items():
            roots[name] = diagonal.double().cpu() / correction
        return roots

    def names(self, block: Block) -> Iterator[Approximation]:
        """Yield the approximations that the block can have. Raises UserError for one that is asked for by name.

        Before the first update of a training there are no moments: no rows then.
        """
        layout = self.problem.layout
        for name in chosen_approximations(self.config):
            why = lacking(name, block, self.config, layout)
            why = why or self._missing(name, block)
            if why and self.config.approximation.names:
                raise unavailable_approximation(name, block, why)
            if not why and (name.facts.needs != Need.moments or self.stored):
                yield name

    def _missing(self, name: Approximation, block: Block) -> str:
        """Return why a block does not have an approximation, as far as shapes and modules tell; empty if it has.

        This needs the network: whether a weight has two axes, and which linear map calls it.
        """
        needs = name.facts.needs
        if needs in (Need.any, Need.moments, Need.whole):
            return ""
        side = self.problem.layout.side(block.layer, str(block.col))
        if needs == Need.linear:
            return self._without_map(side)
        axes = len(self.shape(side[0]))
        if axes == 2:
            return ""
        return f"it is of the weight of one matrix, and {side[0].name} has {axes} axes"

    def _without_map(self, side: Sequence[Weight]) -> str:
        """Return why weights are not those of a linear map that the network calls; empty if they are."""
        if hasattr(self.problem.network, "opaque_batches"):
            return _OF_WHOLE_BATCHES
        if self.samples.map_of(side):
            return ""
        names = " and ".join(weight.name for weight in side)
        return f"{_NO_MAP} holds {names} whole"

    def material(self, side: Sequence[Weight], dim: int) -> Material:
        """Return the inputs from which the approximations of a block of `side` are computed."""
        shape = torch.Size([dim])
        if len(side) == 1:
            shape = self.shape(side[0])
        heads = _heads(self.request.model, side[0])
        return Material(self.samples, side, shape, stored=self.stored, heads=heads)

    def shape(self, weight: Weight) -> torch.Size:
        """Return the shape of a weight, a view of its parameter."""
        parameter = self.problem.network.get_parameter(weight.parameter)
        return view_of(parameter, weight).shape


def _of_block(
    shared: _Shared, block: Block, column: Column, parts: Sequence[Part]
) -> Iterator[Row]:
    """Yield the rows of one block, for every approximation and part."""
    request = shared.request
    side = shared.problem.layout.side(block.layer, str(block.col))
    reference = _reference(block, column, parts, request)
    material = shared.material(side, column.dim)
    compare = _Comparison(reference, material, shared.config.approximation.rank)
    for name in shared.names(block):
        for part in parts:
            numbers = compare.numbers(name, part)
            pairs = zip(NUMBERS_OF_APPROXIMATIONS, numbers, strict=True)
            for number, estimate in pairs:
                yield block_row(f"{name}_{number}", request, block, part, estimate)


def _heads(model: ModelConfig, weight: Weight) -> int:
    """Return the number of heads of a weight: keys and values may have fewer heads than queries."""
    if weight.name in (Matrix.W_K, Matrix.W_V):
        return model.n_kv_heads or model.n_heads
    return model.n_heads


def _reference(
    block: Block, column: Column, parts: Sequence[Part], request: Request
) -> _Dense | _Probed:
    """Return the block as a matrix, or by products with probes where it is too large for one.

    As many probes as entries cost what the matrix costs.
    """
    method = request.estimator.method
    count = request.estimator.num_probes
    # As many probes as entries cost what the matrix costs.
    is_small = column.dim <= max(MOST_DENSE, count)
    if method == Method.dense or (method == Method.auto and is_small):
        return _Dense(block, column, parts)
    generator = request.stream(block.layer, str(block.col))
    return _Probed(block, column, parts, count, generator)


class _Comparison:
    """A block next to its approximations; each is made once for all parts, unless it is made of the part itself."""

    def __init__(
        self, reference: _Dense | _Probed, material: Material, rank: int
    ) -> None:
        self._reference = reference
        self._material = material
        self._rank = rank
        self._computed: dict[Approximation, matrices.Product] = {}

    def numbers(self, name: Approximation, part: Part) -> Numbers:
        """Return error, error after the best scalar, and angle; nan for what is not finite."""
        reference = self._reference
        if not reference.is_finite(part):
            return _nothing(reference)
        try:
            if name in _OWN_DIAGONALS:
                return reference.diagonal(part, _basis(name, self._material))
            return reference.compared(part, self.matrix(name, part))
        except torch.linalg.LinAlgError:
            # Gradients that are not finite have no eigenvectors.
            return _nothing(reference)

    def matrix(self, name: Approximation, part: Part) -> matrices.Product:
        """Return an approximation that is not the block's own diagonal.

        Those made of the part itself (Kronecker sums, block diagonals) are made for each part;
        those of gradients and inputs are the same for all parts.
        """
        material = self._material
        if name == Approximation.kronecker_sum:
            return self._reference.kronecker_sum(part, material.shape, self._rank)
        if name in _PAIRS:
            return self._reference.kronecker_sum(part, material.shape, 1)
        if name.facts.needs == Need.whole:
            by_layer = name == Approximation.layer_diagonal
            objective = material.samples.objective
            pieces = _pieces(objective, material.weights, by_layer=by_layer)
            return self._reference.block_diagonal(part, pieces)
        if name not in self._computed:
            self._computed[name] = material.approximation(name)
        return self._computed[name]


def _basis(name: Approximation, material: Material) -> matrices.Basis | None:
    """Return the basis of SOAP, the eigenvectors of Shampoo's two factors; None for the diagonal in the axes."""
    return material.shampoo_basis if name == Approximation.soap else None


def _pieces(
    objective: Objective, weights: Sequence[Weight], *, by_layer: bool
) -> list[Tensor]:
    """Return the places of the entries of each weight, or of all entries of each layer.

    Entries outside the layers (layer 0) stand alone, those of each weight together.

    Parameters
    ----------
    objective : Objective
        Names the layers of the entries.
    weights : sequence of Weight
        In the order of the block's entries.
    """
    sizes = [weight.size for weight in weights]
    places = torch.arange(sum(sizes)).split(sizes)
    groups: dict[object, list[Tensor]] = {}
    for number, (weight, of_weight) in enumerate(zip(weights, places, strict=True)):
        if not by_layer:
            groups[f"weight {number}"] = [of_weight]
            continue
        layers = layers_of_entries(objective, weight)
        for layer in layers.unique().tolist():
            group: object = layer or f"weight {number}"
            groups.setdefault(group, []).append(of_weight[layers == layer])
    return [torch.cat(members) for members in groups.values()]


def layers_of_entries(objective: Objective, weight: Weight) -> Int[Tensor, " n"]:
    """Return the layer of every entry of a weight of the group `all`.

    A whole parameter of a network of one's own has no layer itself: its entries have those of
    the weights that are named in it.
    """
    layers = torch.full((weight.size,), weight.layer)
    if weight.layer or weight.index is not None:
        return layers
    shape = objective.network.get_parameter(weight.parameter).shape
    for named in objective.layout.weights:
        if named.parameter == weight.parameter and named.layer:
            view_of(layers.view(shape), named).fill_(named.layer)
    return layers


class _Dense:
    """A block as matrices: every number is exact."""

    by = Method.dense.value
    count = 0

    def __init__(self, block: Block, column: Column, parts: Sequence[Part]) -> None:
        blocks = dense_parts(column, parts)
        self._of = {part: blocks[block, part].double().cpu() for part in parts}

    def is_finite(self, part: Part) -> bool:
        """Whether the block can be compared."""
        return bool(self._of[part].isfinite().all())

    def compared(self, part: Part, product: matrices.Product) -> Numbers:
        """Return the three numbers of an approximation A of the block B.

        Its size, its overlap <A, B> with B and the best scalar come from the entries. An
        approximation that is NEGLIGIBLE counts as 0: error 1, angle 0. A block that is 0 has no
        numbers.
        """
        block = self._of[part]
        dense = product.matmat(torch.eye(len(block), dtype=torch.float64))
        size = float(block.norm())
        overlap = float((block * dense).sum())
        square = float(dense.square().sum())
        if not size:
            return self._exact(nan, nan, nan)
        if square**0.5 < NEGLIGIBLE * size:
            return self._exact(1.0, 1.0, 0.0)
        scale = overlap / square
        error = float((block - dense).norm()) / size
        scale_error = float((block - scale * dense).norm()) / size
        angle = overlap / size / square**0.5
        return self._exact(error, scale_error, angle)

    def diagonal(self, part: Part, basis: matrices.Basis | None = None) -> Numbers:
        """Return the numbers of the block's own diagonal, in a basis."""
        return self.compared(part, self.diagonal_matrix(part, basis))

    def diagonal_matrix(
        self, part: Part, basis: matrices.Basis | None = None
    ) -> matrices.Product:
        """Return the block's own diagonal, in a basis Q: Q diag(Q^T B Q) Q^T.

        It is the nearest matrix to B of all that are diagonal in Q, as the Frobenius norm does
        not depend on the basis. With Q = Q_left (x) Q_right for a weight's matrix, Q^T B Q takes
        products with the two small factors only.
        """
        block = self._of[part]
        if basis is None:
            return matrices.Diagonal(block.diagonal())
        values = _coordinates(basis, _coordinates(basis, block).T).diagonal()
        return matrices.Rotated(basis, values.reshape(len(basis.left), -1))

    def kronecker_sum(
        self, part: Part, shape: Sequence[int], rank: int
    ) -> matrices.Product:
        """Return the nearest sum of `rank` Kronecker products, by the singular values of the rearranged block."""
        return matrices.best_kronecker_sum(self._of[part], shape, rank)

    def block_diagonal(self, part: Part, pieces: Sequence[Tensor]) -> matrices.Product:
        """Return the diagonal blocks of `pieces`, zero elsewhere."""
        return _BlockDiagonal(lambda vectors: self._of[part] @ vectors, pieces)

    def _exact(self, *values: float) -> Numbers:
        return tuple(exact(value, self.by) for value in values)


class _Probed:
    """A block by its products with random vectors: every number is an estimate.

    Parameters
    ----------
    block : Block
    column : Column
    parts : sequence of Part
    count : int
        K, the number of probes, at least FEWEST.
    generator : Generator
    """

    by = Method.hutchinson.value

    def __init__(
        self,
        block: Block,
        column: Column,
        parts: Sequence[Part],
        count: int,
        generator: Generator,
    ) -> None:
        self._block = block
        self._column = column
        self._parts = parts
        self.count = count
        self._generator = generator
        self._vectors = self._drawn(count)
        self._products = self._multiplied(self._vectors, parts)
        self._fitted: tuple[Vectors, dict[Part, Vectors]] | None = None

    def is_finite(self, part: Part) -> bool:
        """Whether the block can be compared."""
        return bool(self._products[part].isfinite().all())

    def compared(self, part: Part, product: matrices.Product) -> Numbers:
        """Return the three numbers, from products of block and approximation with the same vectors.

        E |M v|^2 = ||M||_F^2 and E Bv.Av = <A, B> for signs v: every norm and inner product is
        replaced by its mean over probes. Errors of numerator and denominator largely cancel in
        the ratios, because the vectors are the same.
        """
        ours = self._products[part]
        theirs = product.matmat(self._vectors)
        of_probes = (
            (ours - theirs).square(),
            ours.square(),
            theirs.square(),
            ours * theirs,
        )
        sums = torch.stack([terms.sum(dim=0) for terms in of_probes])
        whole = sums.sum(dim=1, keepdim=True)
        return self._jackknifed(_from_sums, whole, whole - sums)

    def diagonal(self, part: Part, basis: matrices.Basis | None = None) -> Numbers:
        r"""Return the numbers of the block's own diagonal D in a basis Q.

        d_k = w_k * Q^T B Q w_k has the mean D for random signs w_k: entry i is sum_j w_i (Q^T B
        Q)_ij w_j, and only j = i does not average out. The squares of one d_k would add its
        variance, so pairs of different probes give the norm,

        .. math:: \langle B, D \rangle = \|D\|^2 = \mathbb{E} \, d_k \cdot d_l \quad (k \ne l), \qquad
                  \|D\|^2 \approx \frac{1}{K (K - 1)} \sum_{k \ne l} d_k \cdot d_l.

        Without probe m the sum loses 2 sum_(l != m) d_m.d_l, for the jackknife.
        """
        count = self.count
        signs = self._vectors
        ours = self._products[part]
        if basis is not None:
            signs = self._drawn(count)
            vectors = basis.back(_as_weights(basis, signs)).flatten(1).T
            ours = _coordinates(basis, self._multiplied(vectors, [part])[part])
        each = signs * ours
        gram = each.T @ each
        others = gram.sum(dim=1) - gram.diagonal()
        size = ours.square().sum(dim=0)
        mean = torch.stack([others.sum() / (count * (count - 1)), size.mean()])
        left = (others.sum() - 2 * others) / ((count - 1) * (count - 2))
        sizes_left = (size.sum() - size) / (count - 1)
        without_each = torch.stack([left, sizes_left])
        return self._jackknifed(_from_share, mean[:, None], without_each)

    def kronecker_sum(
        self, part: Part, shape: Sequence[int], rank: int
    ) -> matrices.Product:
        """Return a sum of Kronecker products fitted to other random vectors than it is compared on.

        On its own vectors a fit would look better than it is. There are FITTED vectors for each
        row or column of the weight, at least.
        """
        vectors, products = self._for_fits(max(self.count, FITTED * max(shape)))
        return matrices.fitted_kronecker_sum(vectors, products[part], shape, rank)

    def block_diagonal(self, part: Part, pieces: Sequence[Tensor]) -> matrices.Product:
        """Return the diagonal blocks of `pieces`, zero elsewhere, by a product of the whole for each of them."""
        return _BlockDiagonal(
            lambda vectors: self._multiplied(vectors, [part])[part], pieces
        )

    def _for_fits(self, count: int) -> tuple[Vectors, dict[Part, Vectors]]:
        """Return other vectors than those that approximations are compared on, with their products."""
        if self._fitted is None:
            vectors = self._drawn(count)
            self._fitted = vectors, self._multiplied(vectors, self._parts)
        return self._fitted

    def _drawn(self, count: int) -> Vectors:
        return rademacher(
            self._column.dim, count, generator=self._generator, dtype=torch.float64
        )

    def _multiplied(
        self, vectors: Vectors, parts: Sequence[Part]
    ) -> dict[Part, Vectors]:
        """Return B V for each part, H as the sum of two others where both are known."""
        products = completed(multiplied(self._column, vectors, summands(parts)), parts)
        return {part: products[self._block, part].double().cpu() for part in parts}

    def _jackknifed(
        self,
        function: Callable[[Tensor], Tensor],
        whole: Float[Tensor, "s 1"],
        left: Float[Tensor, "s k"],
    ) -> Numbers:
        r"""Return a function f of sums over K probes, and its error from the sums without each of them.

        The jackknife: with f_k the function of the sums without probe k and f_mean their mean,

        .. math:: \text{error}^2 = \frac{K - 1}{K} \sum_k (f_k - f_{mean})^2.

        For f a mean this is its squared standard error, s^2 / K; for a smooth f of several means
        it needs no derivatives of f.

        Parameters
        ----------
        function : callable
            From (s, k) sums to (numbers, k).
        whole : (s, 1)
        left : (s, K)
            The sums without each probe.
        """
        values = function(whole)[:, 0]
        others = function(left)
        spread = (others - others.mean(dim=1, keepdim=True)).square().sum(dim=1)
        errors = (spread * (self.count - 1) / self.count).sqrt()
        estimates = []
        for value, error in zip(values.tolist(), errors.tolist(), strict=True):
            estimates.append(Estimate(value, error, self.count, self.by))
        return tuple(estimates)


class _BlockDiagonal:
    """The diagonal blocks of a matrix for the pieces of its space, zero elsewhere.

    With E_p the projection to piece p, A = sum_p E_p B E_p, by a product with B for each
    piece.
    """

    def __init__(
        self, multiply: Callable[[Vectors], Vectors], pieces: Sequence[Tensor]
    ) -> None:
        self._multiply, self._pieces = multiply, pieces

    def matmat(self, vectors: Vectors) -> Vectors:
        """Return A V."""
        result = torch.zeros_like(vectors)
        for piece in self._pieces:
            alone = torch.zeros_like(vectors)
            alone[piece] = vectors[piece]
            result[piece] = self._multiply(alone)[piece]
        return result


def _from_sums(sums: Float[Tensor, "4 k"]) -> Float[Tensor, "3 k"]:
    """Return the three numbers from sums of |(B - A) v|^2, |B v|^2, |A v|^2 and Bv.Av.

    The best scalar leaves the error sqrt(1 - cos^2), cos = <A, B> / (||A|| ||B||).

    Examples
    --------
    B = 2 A, known from one probe with |A v| = 1: half of B is missing, and a factor of 2
    mends it.

    >>> sums = torch.tensor([[1.0], [4.0], [1.0], [2.0]]).double()
    >>> _from_sums(sums).flatten().tolist()
    [0.5, 0.0, 1.0]
    """
    difference, ours, theirs, overlap = sums
    is_zero = theirs < NEGLIGIBLE**2 * ours
    angle = torch.where(is_zero, 0.0, overlap / (ours * theirs).sqrt())
    error = (difference / ours).sqrt()
    scale_error = (1 - angle.square()).clamp(min=0).sqrt()
    return torch.stack([error, scale_error, angle])


def _from_share(sums: Float[Tensor, "2 k"]) -> Float[Tensor, "3 k"]:
    """Return the three numbers of a projection A of B, from ||A||^2 and ||B||^2.

    For a projection <A, B> = ||A||^2: with the share s = ||A||^2 / ||B||^2 the error is sqrt(1
    - s), no scalar improves it, and the cosine is sqrt(s).

    Examples
    --------
    >>> import torch
    >>> _from_share(torch.tensor([[9.0], [25.0]]).double()).flatten().tolist()
    [0.8, 0.8, 0.6]
    """
    share = sums[0] / sums[1]
    error = (1 - share).clamp(min=0).sqrt()
    return torch.stack([error, error, share.clamp(min=0).sqrt()])


def _coordinates(basis: matrices.Basis, columns: Vectors) -> Vectors:
    """Return Q^T V for the basis Q = Q_left (x) Q_right: Q_left^T V Q_right for every column, read as a matrix."""
    return basis.into(_as_weights(basis, columns)).flatten(1).T


def _as_weights(basis: matrices.Basis, columns: Vectors) -> Float[Tensor, "k m n"]:
    """Return every column as a matrix of the shape of the weight that the basis is of."""
    return matrices.as_weights(columns, (len(basis.left), len(basis.right)))


def _nothing(reference: _Dense | _Probed) -> Numbers:
    """Return the numbers of an approximation or a block that is not finite."""
    nothing = Estimate(nan, nan, reference.count, reference.by)
    return (nothing,) * len(NUMBERS_OF_APPROXIMATIONS)
