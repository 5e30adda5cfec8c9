"""One matrix per item (one scored position of one sequence), held in factors rather than formed."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

Term = tuple[Tensor | None, Tensor]


@dataclass(frozen=True)
class ItemMatrices:
    """M_n = sum of left_n^T right_n over `terms`, plus diag(diagonal_n); `left` None stands for the identity.

    Shapes: left (n or 1, rank, rows), right (n or 1, rank, cols), diagonal (n, rows). Without terms and
    diagonal every M_n is zero.
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
        diagonal = other.diagonal if self.diagonal is None else self.diagonal + other.diagonal
        return ItemMatrices(self.terms + other.terms, diagonal)

    def block(self, rows: slice, cols: slice) -> Float[Tensor, "#n rows cols"]:
        """Return M_n[rows, cols] for all items; the slices are equal or disjoint where there is a diagonal."""
        products = [_product(term, rows, cols) for term in self.terms]
        if self.diagonal is not None and rows == cols:
            products.append(torch.diag_embed(self.diagonal[:, rows]))
        return sum(products[1:], start=products[0])

    def traces(self) -> Float[Tensor, "#n"]:
        """Return tr M_n of square matrices."""
        found = [
            right.diagonal(dim1=1, dim2=2).sum(-1) if left is None else (left * right).sum(dim=(1, 2))
            for left, right in self.terms
        ]
        if self.diagonal is not None:
            found.append(self.diagonal.sum(dim=1))
        return sum(found[1:], start=found[0])

    def after(self, rows: Float[Tensor, "#n k rows"]) -> Float[Tensor, "#n k cols"]:
        """Return rows M_n (rows may have one item for all)."""
        products = [(rows if left is None else rows @ left.mT) @ right for left, right in self.terms]
        if self.diagonal is not None:
            products.append(rows * self.diagonal[:, None])
        return sum(products[1:], start=products[0])

    def between(self, left: Tensor | None, right: Tensor | None) -> ItemMatrices:
        """Return left_n^T M_n right_n for features `left` and `right` (None: the identity, all a diagonal allows)."""
        assert self.diagonal is None or (left is None and right is None)
        terms = [(_chain(one, left), other if right is None else other @ right) for one, other in self.terms]
        return ItemMatrices(tuple(terms), self.diagonal)

    def merged(self, labels: Int[Tensor, " n"]) -> ItemMatrices:
        """Return sum of M_n over the items of each label: one matrix per label, formed."""
        groups = [torch.nonzero(labels == label).flatten() for label in range(int(labels.max()) + 1)]
        return ItemMatrices(((None, torch.stack([self._sum_over(group) for group in groups])),))

    def _sum_over(self, group: Int[Tensor, " k"]) -> Float[Tensor, "rows cols"]:
        total = sum(_summed(term, group) for term in self.terms)
        assert isinstance(total, Tensor)
        return total if self.diagonal is None else total + torch.diag(self.diagonal[group].sum(dim=0))


def _product(term: Term, rows: slice, cols: slice) -> Tensor:
    left, right = term
    return right[:, rows, cols] if left is None else left[:, :, rows].mT @ right[:, :, cols]


def _summed(term: Term, group: Tensor) -> Tensor:
    left, right = term
    right = right[group] if len(right) > 1 else right.expand(len(group), -1, -1)
    if left is None:
        return right.sum(dim=0)
    left = left[group] if len(left) > 1 else left.expand(len(group), -1, -1)
    return left.flatten(0, 1).mT @ right.flatten(0, 1)


def _chain(factor: Tensor | None, feature: Tensor | None) -> Tensor | None:
    if factor is None or feature is None:
        return feature if factor is None else factor
    return factor @ feature
