r"""Frobenius norms of sums of Kronecker products of small factors, without forming a large matrix.

Vectors are rows, as in the paper. A weight that enters item n (a scored position of a
sequence) as u_n = c_n W, and the loss through the u_n alone, has the Hessian block

.. math:: H = \sum_n c_n c_n^T \otimes M_n, \qquad M_n = \frac{\partial^2 \ell}{\partial u_n^2},

because the entry (v, a), (w, b) of the block is the sum over n of c_n[v] M_n[a, b]
c_n[w]. With <A (x) B, C (x) D> = <A, C> <B, D>,

.. math:: \|H\|_F^2 = \sum_{n, m} (c_n \cdot c_m)^2 \, \langle M_n, M_m \rangle.

n^2 p q operations replace the (v p)^2 entries of H, for M_n of p x q numbers and c_n of
v. Two weights have c_n e_n^T in place of c_n c_n^T, and (c_n . c_m) (e_n . e_m) as
weights. Items whose c_n are equal are added first: sum_n c_n c_n^T (x) M_n over such
items is c c^T (x) sum_n M_n.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def labels_of(inputs: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Return a number for each distinct row: in the first layer, equal tokens at equal positions share a number.

    Rows are equal if all their entries are, without a tolerance. The numbers are those of
    the sorted distinct rows.

    Examples
    --------
    >>> labels_of(torch.tensor([[2.0, 0.0], [1.0, 1.0], [2.0, 0.0]])).tolist()
    [1, 0, 1]
    """
    return torch.unique(inputs, dim=0, return_inverse=True)[1]


def has_repeats(labels: Int[Tensor, " n"]) -> bool:
    """Whether any items share a label; if none do, `ItemMatrices.merged` would only copy."""
    return int(labels.max()) + 1 < len(labels)


def one_of_each(
    inputs: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> Float[Tensor, "labels d"]:
    """Return the inputs of the first item of each label, in the order of the labels.

    Parameters
    ----------
    inputs : (n, d)
        One row per item.
    labels : (n,)
        The numbers 0 to (number of labels - 1), each at least once, as from `labels_of`.

    Examples
    --------
    >>> rows = torch.tensor([[2.0, 0.0], [1.0, 1.0], [2.0, 0.0]])
    >>> one_of_each(rows, labels_of(rows)).tolist()
    [[1.0, 1.0], [2.0, 0.0]]
    """
    count = int(labels.max()) + 1
    items = torch.arange(len(labels)).to(labels)
    first = (
        torch.full((count,), len(labels))
        .to(labels)
        .scatter_reduce(0, labels, items, "amin")
    )
    return inputs[first]


Term = tuple[Tensor | None, Tensor]


@dataclass(frozen=True)
class ItemMatrices:
    """One matrix per item, M_n = sum of left_n^T right_n over `terms`, plus diag(diagonal_n).

    An outer-product part has the rank r of the outputs, which is far below p and q, so it
    is stored as two factors of r rows; the curvature of an activation is stored as a
    diagonal. Dense matrices have the left factor None, which stands for the identity.
    Without terms and diagonal every M_n is zero.

    Parameters
    ----------
    terms : pairs of (n or 1, r, p) or None, and (n or 1, r, q)
        Factors; a first axis of 1 is shared by all items. With None, r = p.
    diagonal : (n, p), optional
        Only of square matrices.

    Examples
    --------
    Two items of 2 x 2 matrices of rank one, r_n r_n^T, and their sum:

    >>> rows = torch.tensor([[[1.0, 2.0]], [[3.0, 0.0]]])
    >>> matrices = ItemMatrices(((rows, rows),))
    >>> matrices.traces().tolist()
    [5.0, 9.0]
    >>> matrices.merged(torch.tensor([0, 0])).block(slice(2), slice(2)).tolist()
    [[[10.0, 2.0], [2.0, 4.0]]]
    """

    terms: tuple[Term, ...] = ()
    diagonal: Float[Tensor, "n rows"] | None = None

    @property
    def is_zero(self) -> bool:
        return not self.terms and self.diagonal is None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows p and columns q of each M_n; undefined for the zero of no terms."""
        if self.diagonal is not None:
            return self.diagonal.shape[-1], self.diagonal.shape[-1]
        left, right = self.terms[0]
        return (right if left is None else left.mT).shape[-2], right.shape[-1]

    def __add__(self, other: ItemMatrices) -> ItemMatrices:
        """Add item by item, by listing the terms of both: nothing is multiplied."""
        if other.diagonal is None:
            return ItemMatrices(self.terms + other.terms, self.diagonal)
        if self.diagonal is None:
            diagonal = other.diagonal
        else:
            diagonal = self.diagonal + other.diagonal
        return ItemMatrices(self.terms + other.terms, diagonal)

    def block(self, rows: slice, cols: slice) -> Float[Tensor, "#n rows cols"]:
        """Return M_n[rows, cols] for all items.

        Only the columns of the factors that are needed are multiplied: 2 r operations per
        entry and term. With a diagonal the slices must be equal or disjoint: it is added to
        blocks with equal ones, and misses the others.
        """
        products = [_product(term, rows, cols) for term in self.terms]
        if self.diagonal is not None and rows == cols:
            products.append(torch.diag_embed(self.diagonal[:, rows]))
        return sum(products[1:], start=products[0])

    def traces(self) -> Float[Tensor, "#n"]:
        r"""Return tr M_n of square matrices.

        .. math:: \operatorname{tr}(L^T R) = \sum_{a, b} L_{ab} R_{ab},

        so the product is not formed: r p operations per item and term.
        """
        traces = [
            right.diagonal(dim1=1, dim2=2).sum(-1)
            if left is None
            else (left * right).sum(dim=(1, 2))
            for left, right in self.terms
        ]
        if self.diagonal is not None:
            traces.append(self.diagonal.sum(dim=1))
        return sum(traces[1:], start=traces[0])

    def after(self, rows: Float[Tensor, "#n k rows"]) -> Float[Tensor, "#n k cols"]:
        """Return rows M_n, as (rows left_n^T) right_n: 2 k r (p + q) operations per item.

        `rows` may have one item for all.
        """
        products = [
            (rows if left is None else rows @ left.mT) @ right
            for left, right in self.terms
        ]
        if self.diagonal is not None:
            products.append(rows * self.diagonal[:, None])
        return sum(products[1:], start=products[0])

    def between(self, left: Tensor | None, right: Tensor | None) -> ItemMatrices:
        """Return left_n^T M_n right_n: second derivatives in u from those at a place that u enters linearly.

        With place = feature u, d2/du_1 du_2 = feature_1^T (d2/dplace_1 dplace_2) feature_2. The
        features are multiplied into the factors, so that the rank stays.

        Parameters
        ----------
        left : (n or 1, p, p') or None
            Feature of the rows; None is the identity.
        right : (n or 1, q, q') or None
            Feature of the columns. A diagonal has no factors to multiply, so it needs both to
            be None.
        """
        assert self.diagonal is None or (left is None and right is None)
        terms = [
            (_chain(one, left), other if right is None else other @ right)
            for one, other in self.terms
        ]
        return ItemMatrices(tuple(terms), self.diagonal)

    def merged(self, labels: Int[Tensor, " n"]) -> ItemMatrices:
        """Return the sum of M_n over the items of each label, as one dense matrix per label.

        Stacking the factors of k items to k r rows gives the sum as one product, 2 k r p q
        operations per label.
        """
        groups = [
            torch.nonzero(labels == label).flatten()
            for label in range(int(labels.max()) + 1)
        ]
        return ItemMatrices(
            ((None, torch.stack([self._sum_over(group) for group in groups])),)
        )

    def _sum_over(self, group: Int[Tensor, " k"]) -> Float[Tensor, "rows cols"]:
        """Return the sum of M_n over the items of `group`, with stacked factors."""
        total = sum(_summed(term, group) for term in self.terms)
        assert isinstance(total, Tensor)
        if self.diagonal is None:
            return total
        return total + torch.diag(self.diagonal[group].sum(dim=0))


def _product(term: Term, rows: slice, cols: slice) -> Tensor:
    """Return the block [rows, cols] of one term, for all items."""
    left, right = term
    if left is None:
        return right[:, rows, cols]
    return left[:, :, rows].mT @ right[:, :, cols]


def _summed(term: Term, group: Tensor) -> Tensor:
    """Return the sum of one term over the items of `group`: the items' rows are the rows of one product."""
    left, right = term
    if len(right) > 1:
        right = right[group]
    else:
        right = right.expand(len(group), -1, -1)
    if left is None:
        return right.sum(dim=0)
    left = left[group] if len(left) > 1 else left.expand(len(group), -1, -1)
    return left.flatten(0, 1).mT @ right.flatten(0, 1)


def _chain(factor: Tensor | None, feature: Tensor | None) -> Tensor | None:
    """Return factor feature, where None is the identity."""
    if factor is None or feature is None:
        if factor is None:
            return feature
        return factor
    return factor @ feature


_STRIP = 16
_BLOCK = 48
_CHUNK = 96


def kronecker_squared_norm(
    weights: Float[Tensor, "n n"], matrices: ItemMatrices, *, symmetric: bool
) -> Float[Tensor, ""]:
    """Return sum_nm weights_nm <M_n, M_m>, which is ||sum_n C_n (x) M_n||_F^2 for weights_nm = <C_n, C_m>.

    Three ways, by the cost of what is stored:

    - only diagonals: <M_n, M_m> = diagonal_n . diagonal_m, 2 n^2 p operations;
    - factors, where the rank r is low: <L^T R, L'^T R'> = sum of the entries of (L L'^T) o
      (R R'^T), n^2 r^2 (p + q) operations (`_by_factors`);
    - entries: the M_n are formed block by block, 2 n r p q operations, and multiplied with
      each other, n^2 p q (`_by_entries`).

    Parameters
    ----------
    weights : (n, n)
        Symmetric, so that only n <= m is computed.
    matrices : ItemMatrices
        The M_n of n items, or of one item for all.
    symmetric : bool
        Whether every M_n is symmetric, which halves the entries that are formed. It is not
        checked.

    Returns
    -------
    Tensor
        A number; rounding can make it negative when it is zero in exact arithmetic.

    Examples
    --------
    The norm of the dense block, and that of its items:

    >>> generator = torch.Generator().manual_seed(0)
    >>> c, rows = torch.randn(5, 3, generator=generator), torch.randn(5, 2, 4, generator=generator)
    >>> dense = sum(torch.kron(torch.outer(x, x), r.T @ r) for x, r in zip(c, rows))
    >>> items = kronecker_squared_norm((c @ c.T) ** 2, ItemMatrices(((rows, rows),)), symmetric=True)
    >>> dense.shape, torch.allclose(items, dense.square().sum())
    (torch.Size([12, 12]), True)
    """
    if matrices.is_zero:
        return weights.new_zeros(())
    if matrices.diagonal is not None and not matrices.terms:
        return (weights * (matrices.diagonal @ matrices.diagonal.T)).sum()
    if _factors_are_cheaper(matrices, symmetric):
        return _by_factors(weights, matrices)
    return _by_entries(weights, matrices, symmetric)


def cross_product(
    weights: Float[Tensor, "n n"],
    plain: tuple[ItemMatrices, Float[Tensor, "n v"]],
    crossed: tuple[ItemMatrices, Float[Tensor, "n m"]],
) -> Float[Tensor, ""]:
    r"""Return sum_nm weights_nm <c_n (x) M_n, e_m (x) N_m> with the first two indices of one factor exchanged.

    Entry (v, a, f) of the first tensor is c_n[v] M_n[a, f], that of the second e_m[a] N_m[v,
    f], so that

    .. math:: \sum_{v, a, f} c_n[v] \, M_n[a, f] \, e_m[a] \, N_m[v, f]
              = (M_n^T e_m) \cdot (N_m^T c_n):

    2 n^2 times the size of the factors, and no tensor of three indices.

    Parameters
    ----------
    weights : (n, n)
        Products <., .> of the third factors, which both tensors share.
    plain : (M, c)
        Matrices (a, f) and inputs (n, v).
    crossed : (N, e)
        Matrices (v, f) and vectors (n, a).
    """
    (matrices, inputs), (derivatives, gradients) = plain, crossed
    total = weights.new_zeros(())
    if matrices.is_zero or derivatives.is_zero:
        return total
    for items in _slices(len(weights), 32):
        first = _select(matrices, items).after(gradients[None])
        second = derivatives.after(inputs[items][None])
        total += ((first * second.transpose(0, 1)).sum(dim=-1) * weights[items]).sum()
    return total


def _factors_are_cheaper(matrices: ItemMatrices, symmetric: bool) -> bool:
    """Whether the factors take fewer operations than the entries: r^2 (p + q) < p q, halved where left is right.

    The 2 n r p q operations that form the entries are left out, which are few for n far
    above r. The bound is 0.6 rather than 1/2 for symmetric matrices, whose strips of the
    upper triangle include a little of the lower one. Dense and shared factors have no low
    rank to use.
    """
    if matrices.diagonal is not None or any(
        left is None or len(left) == 1 for left, _ in matrices.terms
    ):
        return False
    rank, (rows, cols) = (
        sum(right.shape[1] for _, right in matrices.terms),
        matrices.shape,
    )
    sides = 1 if _is_square(matrices) else 2
    return rank**2 * sides * (rows + cols) / 2 < rows * cols * (
        0.6 if symmetric else 1.0
    )


def _by_entries(weights: Tensor, matrices: ItemMatrices, symmetric: bool) -> Tensor:
    r"""Return the norm from Gram matrices of the M_n, formed one block of entries at a time.

    .. math:: \langle M_n, M_m \rangle = \sum_{\text{blocks}} \langle M_n[\text{block}], M_m[\text{block}] \rangle,

    so no more than one block of all items is in memory.
    """
    gram = torch.zeros_like(weights)
    for across, down, factor in _blocks(*matrices.shape, symmetric=symmetric):
        _add_gram(gram, matrices.block(across, down).flatten(1), factor)
    return (weights * gram).sum()


def _blocks(
    rows: int, cols: int, *, symmetric: bool
) -> Iterator[tuple[slice, slice, float]]:
    """Yield blocks of entries with multiplicities; for symmetric matrices the upper triangle, strip by strip.

    A strip of `_STRIP` rows is a square on the diagonal (once) and all to the right of it
    (twice, for its mirror image below). Other matrices are cut into squares of `_BLOCK`.
    """
    if not symmetric:
        yield from (
            (across, down, 1.0)
            for across in _slices(rows, _BLOCK)
            for down in _slices(cols, _BLOCK)
        )
        return
    for across in _slices(rows, _STRIP):
        yield across, across, 1.0
        if across.stop < cols:
            yield across, slice(across.stop, cols), 2.0


def _add_gram(
    gram: Float[Tensor, "n n"], entries: Float[Tensor, "#n k"], factor: float
) -> None:
    """Add the upper blocks of the Gram matrix of `entries`, doubled off the diagonal, for use in symmetric sums.

    The rows of `_CHUNK` items are multiplied with their own and with all later ones, so
    that sum(weights * gram) is the same as with the whole matrix at half the operations.
    One item for all has the same product with itself for every pair.
    """
    if len(entries) == 1:
        gram += factor * entries.square().sum()
        return
    for items in _slices(len(gram), _CHUNK):
        gram[items, items].addmm_(entries[items], entries[items].T, alpha=factor)
        rest = slice(items.stop, None)
        gram[items, rest].addmm_(entries[items], entries[rest].T, alpha=2 * factor)


def _by_factors(weights: Tensor, matrices: ItemMatrices) -> Tensor:
    r"""Return the norm by <L^T R, L'^T R'> = sum of the entries of (L L'^T) o (R R'^T); L and R stack the terms.

    .. math:: \langle L^T R, L'^T R' \rangle = \operatorname{tr}(R^T L \, L'^T R')
              = \sum_{i, j} (L L'^T)_{ij} (R R'^T)_{ij}.

    With L = R one product is squared in place. Items are taken 16 at a time with all later
    ones, so that the memory is 16 n r^2 numbers.
    """
    right = torch.cat([factor for _, factor in matrices.terms], dim=1)
    lefts = [factor for factor, _ in matrices.terms if factor is not None]
    left = right if _is_square(matrices) else torch.cat(lefts, dim=1)
    total = weights.new_zeros(())
    count = len(weights)
    for items in _slices(count, 16):
        rest = slice(items.start, count)
        products = _row_products(right, items, rest)
        if left is right:
            products = products.square_()
        else:
            products = products * _row_products(left, items, rest)
        total += (_upper(weights, items) * products.sum(dim=(1, 3))).sum()
    return total


def _row_products(
    factor: Float[Tensor, "#n r k"], items: slice, rest: slice
) -> Float[Tensor, "a r b r"]:
    """Return all products of rows of the items `items` with rows of the items `rest`."""
    here, others = factor[items], factor[rest]
    return (here.flatten(0, 1) @ others.flatten(0, 1).T).view(
        *here.shape[:2], *others.shape[:2]
    )


def _upper(weights: Tensor, items: slice) -> Tensor:
    """Return weights[items, items.start:] doubled, except for the square of `items` with themselves."""
    upper = 2 * weights[items, items.start :]
    upper[:, : items.stop - items.start] /= 2
    return upper


def _is_square(matrices: ItemMatrices) -> bool:
    """Whether every term is R^T R with one tensor R, so that M_n is symmetric and one product serves both factors."""
    return all(left is right for left, right in matrices.terms)


def _select(matrices: ItemMatrices, items: slice) -> ItemMatrices:
    """Return the matrices of some of the items."""
    terms = tuple(
        (None if left is None else _of(left, items), _of(right, items))
        for left, right in matrices.terms
    )
    return ItemMatrices(
        terms, None if matrices.diagonal is None else matrices.diagonal[items]
    )


def _of(factor: Tensor, items: slice) -> Tensor:
    if len(factor) > 1:
        return factor[items]
    return factor


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
