"""Steps of the tape for components: fixed linear maps, products, gains, and derivatives of mixing weights.

A fixed linear map has no second-order term and no weights, so one class serves all:
each component is a pair of functions, L and its transpose L^T, of rows (batch, length,
k, width). That a pair fits, <L x, y> = <x, L^T y>, is what makes the Hessian symmetric.
"""

from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor, nn

from hessfig.config.enums import Attention
from hessfig.models.components import rotated
from hessfig.models.tape.tape import WEIGHT, Probes, Step, Tangent, plus

Map = Callable[[Tensor], Tensor]


class Fixed(Step):
    """y = L x: a fixed linear map of rows (batch, length, k, d), given with its transpose.

    dy = L dx and d(xbar) = L^T d(ybar).

    Examples
    --------
    A map and its transpose satisfy <L x, y> = <x, L^T y>:

    >>> there, back = difference(heads=1, factor=0.5)
    >>> x, y = torch.tensor([[[[1.0, 2.0]]]]), torch.tensor([[[[3.0]]]])
    >>> (there(x) * y).sum().item(), (x * back(y)).sum().item()
    (0.0, 0.0)
    """

    def __init__(
        self, inputs: tuple[str, ...], output: str, x: Tensor, maps: tuple[Map, Map]
    ) -> None:
        self.inputs, self.output, (self.there, self.back) = inputs, output, maps
        self.value = self.there(x.unsqueeze(2)).squeeze(2)

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        if dxs[0] is None:
            return None
        return self.there(dxs[0])

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        return [None if dy_bar is None else self.back(dy_bar)]


def times(factor: float | Float[Tensor, "length 1 1"]) -> tuple[Map, Map]:
    """Return the multiplication by a number, or by one number per position."""
    if isinstance(factor, Tensor):
        return (lambda rows: rows * factor.to(rows.dtype),) * 2
    return (lambda rows: factor * rows,) * 2


def averaged(length: int) -> tuple[Map, Map]:
    """Return the mean over `length` positions, as one position.

    The transpose gives every position the row divided by `length`.
    """
    return (
        lambda rows: rows.mean(dim=1, keepdim=True),
        lambda rows: rows.expand(-1, length, -1, -1) / length,
    )


def prefixes(known: Float[Tensor, "positions reach"]) -> tuple[Map, Map]:
    """Return the map to the concatenation (x_1, ..., x_p, 0, ..., 0) for every position p; `known` masks its tokens.

    The width grows from d to reach d. The transpose cuts a row into its tokens, masks them
    and adds up the positions that see each.
    """
    seen = known[:, None, :, None]

    def there(rows: Tensor) -> Tensor:
        return (rows.transpose(1, 2)[:, None] * seen.to(rows.dtype)).flatten(3)

    def back(rows: Tensor) -> Tensor:
        return (
            (rows.unflatten(-1, (len(known.T), -1)) * seen.to(rows.dtype))
            .sum(dim=1)
            .transpose(1, 2)
        )

    return there, back


def at_positions(positions: slice, length: int) -> tuple[Map, Map]:
    """Return the map that selects the rows at `positions` of `length`; its transpose fills the others with zeros."""

    def back(rows: Tensor) -> Tensor:
        whole = rows.new_zeros(rows.shape[0], length, *rows.shape[2:])
        whole[:, positions] = rows
        return whole

    return lambda rows: rows[:, positions], back


def picked(index: Tensor, number: int) -> tuple[Map, Map]:
    """Return the map that selects rows by `index` (batch, length) from `number` rows in a batch of one.

    Its transpose adds up all places that hold the same row. So a variable of the first
    layer is stored once per distinct row and still has the products of all.
    """

    def back(rows: Tensor) -> Tensor:
        sums = rows.new_zeros(number, *rows.shape[2:])
        return sums.index_add_(0, index.flatten(), rows.flatten(0, 1)).unsqueeze(0)

    return (
        lambda rows: rows[0].index_select(0, index.flatten()).unflatten(0, index.shape),
        back,
    )


def split(heads: int) -> tuple[Map, Map]:
    """Return the map that gives every head a separate row, with the heads of a position in sequence.

    It is a permutation of entries, so its transpose is its inverse.
    """
    return (
        lambda rows: rows.unflatten(-1, (heads, -1)).movedim(3, 2).flatten(1, 2),
        lambda rows: rows.unflatten(1, (-1, heads)).movedim(2, 3).flatten(3),
    )


def joined(heads: int) -> tuple[Map, Map]:
    """Return the inverse of `split`, which is its transpose."""
    return split(heads)[::-1]


def repeated(groups: int, repeats: int) -> tuple[Map, Map]:
    """Return the map that repeats each of `groups` equal parts of a row, with copies next to each other.

    Shared keys and values; the transpose adds the copies of each part.
    """
    return (
        lambda rows: (
            rows.unflatten(-1, (groups, -1))
            .repeat_interleave(repeats, dim=-2)
            .flatten(-2)
        ),
        lambda rows: rows.unflatten(-1, (groups, repeats, -1)).sum(-2).flatten(-2),
    )


def difference(heads: int, factor: float) -> tuple[Map, Map]:
    """Return the map that subtracts `factor` times the second half of every head from its first half.

    y = x_1 - factor x_2, with the transpose y -> (y, -factor y).
    """

    def there(rows: Tensor) -> Tensor:
        first, second = rows.unflatten(-1, (heads, 2, -1)).unbind(-2)
        return (first - factor * second).flatten(-2)

    def back(rows: Tensor) -> Tensor:
        whole = rows.unflatten(-1, (heads, -1))
        return torch.stack([whole, -factor * whole], dim=-2).flatten(-3)

    return there, back


def rotation(heads: int, positions: Tensor) -> tuple[Map, Map]:
    """Return the rotation of every head by its position (see hessfig.models.components.rotated).

    A rotation is orthogonal, so that its transpose turns back.
    """

    def turn(rows: Tensor, *, back: bool) -> Tensor:
        by_head = rows.unflatten(-1, (heads, -1)).movedim(1, -2)
        return rotated(by_head, positions, back=back).movedim(-2, 1).flatten(-2)

    return lambda rows: turn(rows, back=False), lambda rows: turn(rows, back=True)


class Multiply(Step):
    r"""y = a * b, entry by entry.

    .. math:: dy = b \, da + a \, db, \qquad d\bar a = b \, d\bar y + \bar y \, db, \qquad
              d\bar b = a \, d\bar y + \bar y \, da
    """

    def __init__(
        self, inputs: tuple[str, ...], output: str, left: Tensor, right: Tensor
    ) -> None:
        self.inputs = inputs
        self.output = output
        self.value = left * right
        self.factors = (right.unsqueeze(2), left.unsqueeze(2))

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        first, second = (
            None if dx is None else dx * factor
            for dx, factor in zip(dxs, self.factors, strict=True)
        )
        return plus(first, second)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return dybar times the other factor, and ybar times the other factor's tangent."""
        others = (None, None) if dxs is None else (dxs[1], dxs[0])
        return [
            self._pulled(dy_bar, factor, other) if need else None
            for factor, other, need in zip(self.factors, others, needed, strict=True)
        ]

    def _pulled(self, dy_bar: Tangent, factor: Tensor, other: Tangent) -> Tangent:
        """Return dybar times a factor plus ybar times that factor's tangent."""
        first = None if dy_bar is None else dy_bar * factor
        if other is None or self.cotangent is None:
            return first
        return plus(first, self.y_bar * other)


class Gain(Step):
    r"""y = w_h x for every head h of a row: one weight per head, shared by its entries and by all positions.

    .. math:: dy = w \, dx + dw \, x, \qquad d\bar x = w \, d\bar y + dw \, \bar y, \qquad
              d\bar w_h = \sum (x \, d\bar y + \bar y \, dx),

    the sum over batch, positions and the entries of head h.
    """

    def __init__(
        self, inputs: tuple[str, ...], output: str, x: Tensor, gain: nn.Module
    ) -> None:
        self.inputs, self.output, self.x = inputs, output, x.unsqueeze(2)
        self.parameters = dict[str, Tensor](gain.named_parameters())
        self.perturbed = dict[str, Probes]()
        self.width = x.shape[-1] // self.parameters[WEIGHT].numel()
        self.gains = self._spread(self.parameters[WEIGHT])
        self.value = self.gains * x

    def push(self, dxs: Sequence[Tangent]) -> Tangent:
        dw = self.perturbed.get(WEIGHT)
        dy = None if dxs[0] is None else self.gains * dxs[0]
        if dw is None:
            return dy
        return plus(dy, self._spread(dw) * self.x)

    def pull_back(
        self, dy_bar: Tangent, dxs: Sequence[Tangent] | None, needed: Sequence[bool]
    ) -> list[Tangent]:
        """Return w dybar + dw ybar."""
        dw = self.perturbed.get(WEIGHT)
        first = None if dy_bar is None else self.gains * dy_bar
        return [
            first
            if dxs is None or dw is None
            else plus(first, self._spread(dw) * self.y_bar)
        ]

    def weight_product(
        self, name: str, dy_bar: Tangent, dxs: Sequence[Tangent] | None
    ) -> Probes | None:
        """Return the tangent of wbar: x dybar + ybar dx, summed over batch, positions and each head's entries."""
        product = None if dy_bar is None else self.x * dy_bar
        if dxs is not None and dxs[0] is not None:
            product = plus(product, self.y_bar * dxs[0])
        if product is None:
            return None
        return product.sum(dim=(0, 1)).unflatten(-1, (-1, self.width)).sum(-1)

    def _spread(self, gains: Tensor) -> Tensor:
        """Return one number per entry from one per head."""
        return gains.repeat_interleave(self.width, dim=-1)


NOT_ON_THE_TAPE = (Attention.kernel,)  # its Jacobian is not symmetric


def along_pattern(
    kind: Attention, weights: Tensor, allowed: Tensor, rows: Tensor
) -> Tensor:
    """Apply the Jacobian of scores -> weights, which is symmetric, to `rows`.

    `weights` are the mixing weights of one query along the last axis, 0 for masked keys.

    - softmax: diag(a) - a a^T (eq. 19), also with an additional logit;
    - sigmoid: diag(a (1 - a));
    - linear attention: the mask;
    - sparsemax with support m: diag(m) - m m^T / |m| (Martins and Astudillo, ICML 2016);
    - entmax with u = sqrt(a): diag(u) - u u^T / sum(u) (Peters, Niculae and Martins, ACL
      2019).

    No matrix is formed: every one is a diagonal minus a rank of one.

    Examples
    --------
    Adding a constant to all scores changes no softmax:

    >>> weights = torch.tensor([0.25, 0.75])
    >>> along_pattern(Attention.softmax, weights, weights > 0, torch.ones(2)).tolist()
    [0.0, 0.0]
    """
    if kind == Attention.linear:
        return rows * allowed
    if kind == Attention.sigmoid:
        return weights * (1 - weights) * rows
    if kind in (Attention.sparsemax, Attention.entmax15):
        root = _root(kind, weights)
        weighted = root * rows
        return weighted - root * weighted.sum(-1, keepdim=True) / root.sum(
            -1, keepdim=True
        )
    weighted = weights * rows
    return weighted - weights * weighted.sum(-1, keepdim=True)


def second_of_pattern(
    kind: Attention, weights: Tensor, weights_bar: Tensor, dweights: Tensor
) -> Tensor | None:
    r"""Return the derivative of `along_pattern(weights_bar)` along `dweights`, that is a''[ds, abar] with da = a'[ds].

    For softmax, a' abar = a (abar - <a, abar>), so that

    .. math:: a''[ds, \bar a] = da \circ (\bar a - \langle a, \bar a \rangle) - a \, \langle da, \bar a \rangle

    (Lemma C.1, contracted). It takes da and not ds, which `push` has computed. None if the
    weights are piecewise linear in the scores: linear attention and sparsemax.
    """
    if kind in (Attention.linear, Attention.sparsemax):
        return None
    if kind == Attention.sigmoid:
        return dweights * (1 - 2 * weights) * weights_bar
    if kind == Attention.entmax15:
        return _of_entmax(weights, weights_bar, dweights)
    mean = (weights * weights_bar).sum(-1, keepdim=True)
    spread = (dweights * weights_bar).sum(-1, keepdim=True)
    return dweights * (weights_bar - mean) - weights * spread


def _root(kind: Attention, weights: Tensor) -> Tensor:
    """Return sqrt(a) of entmax, or the support of sparsemax as zeros and ones."""
    if kind == Attention.entmax15:
        return weights.sqrt()
    return (weights > 0).to(weights.dtype)


def _of_entmax(weights: Tensor, weights_bar: Tensor, dweights: Tensor) -> Tensor:
    """Differentiate u (abar - m), m = <u, abar> / sum(u), with 2 u du = da.

    du = da / (2 u) on the support and 0 elsewhere, where the weight stays 0.
    """
    root = weights.sqrt()
    droot = (dweights / (2 * root)).where(weights > 0, 0.0)
    total = root.sum(-1, keepdim=True)
    mean = (root * weights_bar).sum(-1, keepdim=True) / total
    dmean = (
        (droot * weights_bar).sum(-1, keepdim=True) - mean * droot.sum(-1, keepdim=True)
    ) / total
    return droot * (weights_bar - mean) - root * dmean
