"""Frobenius norms of sums of Kronecker products of small factors, without forming a large matrix."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor


def labels_of(inputs: Float[Tensor, "n d"]) -> Int[Tensor, " n"]:
    """Return a number for each distinct row: in the first layer, equal tokens at equal positions share a number."""
    return torch.unique(inputs, dim=0, return_inverse=True)[1]


def has_repeats(labels: Int[Tensor, " n"]) -> bool:
    """Whether any items share a label."""
    return int(labels.max()) + 1 < len(labels)


def one_of_each(
    inputs: Float[Tensor, "n d"], labels: Int[Tensor, " n"]
) -> Float[Tensor, "labels d"]:
    """Return the inputs of the first item of each label."""
    count, items = int(labels.max()) + 1, torch.arange(len(labels)).to(labels)
    first = (
        torch.full((count,), len(labels))
        .to(labels)
        .scatter_reduce(0, labels, items, "amin")
    )
    return inputs[first]


Term = tuple[Tensor | None, Tensor]


@dataclass(frozen=True)
class ItemMatrices:
    """M_n = sum of left_n^T right_n over `terms`, plus diag(diagonal_n); `left` None stands for the identity.

    Shapes: left (n or 1, rank, rows), right (n or 1, rank, cols), diagonal (n, rows).
    Without terms and diagonal every M_n is zero.
    """

    terms: tuple[Term, ...] = ()
    diagonal: Float[Tensor, "n rows"] | None = None

    @property
    def is_zero(self) -> bool:
        return not self.terms and self.diagonal is None

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of each M_n."""
        if self.diagonal is not None:
            return self.diagonal.shape[-1], self.diagonal.shape[-1]
        left, right = self.terms[0]
        return (right if left is None else left.mT).shape[-2], right.shape[-1]

    def __add__(self, other: ItemMatrices) -> ItemMatrices:
        if other.diagonal is None:
            return ItemMatrices(self.terms + other.terms, self.diagonal)
        if self.diagonal is None:
            diagonal = other.diagonal
        else:
            diagonal = self.diagonal + other.diagonal
        return ItemMatrices(self.terms + other.terms, diagonal)

    def block(self, rows: slice, cols: slice) -> Float[Tensor, "#n rows cols"]:
        """Return M_n[rows, cols] for all items; the slices are equal or disjoint where there is a diagonal."""
        products = [_product(term, rows, cols) for term in self.terms]
        if self.diagonal is not None and rows == cols:
            products.append(torch.diag_embed(self.diagonal[:, rows]))
        return sum(products[1:], start=products[0])

    def traces(self) -> Float[Tensor, "#n"]:
        """Return tr M_n of square matrices."""
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
        """Return rows M_n (rows may have one item for all)."""
        products = [
            (rows if left is None else rows @ left.mT) @ right
            for left, right in self.terms
        ]
        if self.diagonal is not None:
            products.append(rows * self.diagonal[:, None])
        return sum(products[1:], start=products[0])

    def between(self, left: Tensor | None, right: Tensor | None) -> ItemMatrices:
        """Return left_n^T M_n right_n for features `left` and `right` (None: the identity, required by a diagonal)."""
        assert self.diagonal is None or (left is None and right is None)
        terms = [
            (_chain(one, left), other if right is None else other @ right)
            for one, other in self.terms
        ]
        return ItemMatrices(tuple(terms), self.diagonal)

    def merged(self, labels: Int[Tensor, " n"]) -> ItemMatrices:
        """Return the sum of M_n over the items of each label, as one dense matrix per label."""
        groups = [
            torch.nonzero(labels == label).flatten()
            for label in range(int(labels.max()) + 1)
        ]
        return ItemMatrices(
            ((None, torch.stack([self._sum_over(group) for group in groups])),)
        )

    def _sum_over(self, group: Int[Tensor, " k"]) -> Float[Tensor, "rows cols"]:
        total = sum(_summed(term, group) for term in self.terms)
        assert isinstance(total, Tensor)
        if self.diagonal is None:
            return total
        return total + torch.diag(self.diagonal[group].sum(dim=0))


def _product(term: Term, rows: slice, cols: slice) -> Tensor:
    left, right = term
    if left is None:
        return right[:, rows, cols]
    return left[:, :, rows].mT @ right[:, :, cols]


def _summed(term: Term, group: Tensor) -> Tensor:
    left, right = term
    right = right[group] if len(right) > 1 else right.expand(len(group), -1, -1)
    if left is None:
        return right.sum(dim=0)
    left = left[group] if len(left) > 1 else left.expand(len(group), -1, -1)
    return left.flatten(0, 1).mT @ right.flatten(0, 1)


def _chain(factor: Tensor | None, feature: Tensor | None) -> Tensor | None:
    if factor is None or feature is None:
        if factor is None:
            return feature
        return factor
    return factor @ feature


_STRIP, _BLOCK, _CHUNK = 16, 48, 96


def kronecker_squared_norm(
    weights: Float[Tensor, "n n"], matrices: ItemMatrices, *, symmetric: bool
) -> Float[Tensor, ""]:
    """Return sum_nm weights_nm <M_n, M_m> for symmetric `weights`; `symmetric` is true if every M_n is symmetric."""
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
    """Return sum_nm weights_nm <c_n (x) M_n, e_m (x) N_m> with the first two indices of one factor exchanged.

    `plain` = (M, c), `crossed` = (N, e). Entry (v, m, f) of the first is c_n[v] M_n[m,
    f], of the second e_m[m] N_m[v, f], so the product is (M_n^T e_m).(N_m^T c_n).
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
    """Return the norm from Gram matrices of the M_n, formed one block of entries at a time."""
    gram = torch.zeros_like(weights)
    for across, down, factor in _blocks(*matrices.shape, symmetric=symmetric):
        _add_gram(gram, matrices.block(across, down).flatten(1), factor)
    return (weights * gram).sum()


def _blocks(
    rows: int, cols: int, *, symmetric: bool
) -> Iterator[tuple[slice, slice, float]]:
    """Yield blocks of entries with multiplicities; for symmetric matrices the upper triangle, strip by strip."""
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
    """Add the upper blocks of the Gram matrix of `entries`, doubled off the diagonal, for use in symmetric sums."""
    if len(entries) == 1:
        gram += factor * entries.square().sum()
        return
    for items in _slices(len(gram), _CHUNK):
        gram[items, items].addmm_(entries[items], entries[items].T, alpha=factor)
        rest = slice(items.stop, None)
        gram[items, rest].addmm_(entries[items], entries[rest].T, alpha=2 * factor)


def _by_factors(weights: Tensor, matrices: ItemMatrices) -> Tensor:
    """Return the norm by <L^T R, L'^T R'> = sum of the entries of (L L'^T) o (R R'^T); L and R stack the terms."""
    right = torch.cat([factor for _, factor in matrices.terms], dim=1)
    lefts = [factor for factor, _ in matrices.terms if factor is not None]
    left = right if _is_square(matrices) else torch.cat(lefts, dim=1)
    total, count = weights.new_zeros(()), len(weights)
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
    here, others = factor[items], factor[rest]
    return (here.flatten(0, 1) @ others.flatten(0, 1).T).view(
        *here.shape[:2], *others.shape[:2]
    )


def _upper(weights: Tensor, items: slice) -> Tensor:
    upper = 2 * weights[items, items.start :]
    upper[:, : items.stop - items.start] /= 2
    return upper


def _is_square(matrices: ItemMatrices) -> bool:
    return all(left is right for left, right in matrices.terms)


def _select(matrices: ItemMatrices, items: slice) -> ItemMatrices:
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
