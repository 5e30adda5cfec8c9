"""Frobenius norms of sums of Kronecker products over items, from Gram matrices alone.

A weight that acts on a vector c_n of each item n contributes rank-one factors: its diagonal block is
H = sum_n (c_n c_n^T) (x) M_n, hence ||H||_F^2 = sum_nm (c_n.c_m)^2 <M_n, M_m>. No matrix of the size of a
weight squared is ever formed.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.exact.items import ItemMatrices

_STRIP, _BLOCK, _CHUNK = 16, 48, 96


def kronecker_squared_norm(
    weights: Float[Tensor, "n n"], matrices: ItemMatrices, *, symmetric: bool
) -> Float[Tensor, ""]:
    """Return sum_nm weights_nm <M_n, M_m> for symmetric `weights`; `symmetric` says that every M_n is."""
    if matrices.is_zero:
        return weights.new_zeros(())
    if not matrices.terms:
        return _of_diagonals(weights, matrices)
    if _factors_are_cheaper(matrices, symmetric):
        return _by_factors(weights, matrices)
    return _by_entries(weights, matrices, symmetric)


def cross_product(
    weights: Float[Tensor, "n n"],
    plain: tuple[ItemMatrices, Float[Tensor, "n v"]],
    crossed: tuple[ItemMatrices, Float[Tensor, "n m"]],
) -> Float[Tensor, ""]:
    """Return sum_nm weights_nm <c_n (x) M_n, e_m (x) N_m> with the first two indices of one factor exchanged.

    `plain` = (M, c), `crossed` = (N, e). Entry (v, m, f) of the first is c_n[v] M_n[m, f], of the second
    e_m[m] N_m[v, f], so the product is (M_n^T e_m).(N_m^T c_n).
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
    if matrices.diagonal is not None or any(left is None or len(left) == 1 for left, _ in matrices.terms):
        return False
    rank, (rows, cols) = sum(right.shape[1] for _, right in matrices.terms), matrices.shape
    sides = 1 if _is_square(matrices) else 2
    return rank**2 * sides * (rows + cols) / 2 < rows * cols * (0.6 if symmetric else 1.0)


def _of_diagonals(weights: Tensor, matrices: ItemMatrices) -> Tensor:
    assert matrices.diagonal is not None
    return (weights * (matrices.diagonal @ matrices.diagonal.T)).sum()


def _by_entries(weights: Tensor, matrices: ItemMatrices, symmetric: bool) -> Tensor:
    """Form the M_n a block of entries at a time and sum their Gram matrices."""
    gram = torch.zeros_like(weights)
    for across, down, factor in _blocks(*matrices.shape, symmetric=symmetric):
        _add_gram(gram, matrices.block(across, down).flatten(1), factor)
    return (weights * gram).sum()


def _blocks(rows: int, cols: int, *, symmetric: bool) -> Iterator[tuple[slice, slice, float]]:
    """Return blocks of entries and how often each counts: of symmetric matrices the upper triangle, strip by strip."""
    if not symmetric:
        yield from ((across, down, 1.0) for across in _slices(rows, _BLOCK) for down in _slices(cols, _BLOCK))
        return
    for across in _slices(rows, _STRIP):
        yield across, across, 1.0
        if across.stop < cols:
            yield across, slice(across.stop, cols), 2.0


def _add_gram(gram: Float[Tensor, "n n"], entries: Float[Tensor, "#n k"], factor: float) -> None:
    """Add the upper blocks of the Gram matrix of `entries`, doubled off the diagonal: only symmetric sums follow."""
    if len(entries) == 1:
        gram += factor * entries.square().sum()
        return
    for items in _slices(len(gram), _CHUNK):
        gram[items, items].addmm_(entries[items], entries[items].T, alpha=factor)
        rest = slice(items.stop, None)
        gram[items, rest].addmm_(entries[items], entries[rest].T, alpha=2 * factor)


def _by_factors(weights: Tensor, matrices: ItemMatrices) -> Tensor:
    """<L^T R, L'^T R'> = sum of the entries of (L L'^T) o (R R'^T); L and R stack the terms."""
    right = torch.cat([factor for _, factor in matrices.terms], dim=1)
    left = (
        right
        if _is_square(matrices)
        else torch.cat([factor for factor, _ in matrices.terms if factor is not None], dim=1)
    )
    total, count = weights.new_zeros(()), len(weights)
    for items in _slices(count, 16):
        rest = slice(items.start, count)
        products = _row_products(right, items, rest)
        products = products.square_() if left is right else products * _row_products(left, items, rest)
        total += (_upper(weights, items) * products.sum(dim=(1, 3))).sum()
    return total


def _row_products(factor: Float[Tensor, "#n r k"], items: slice, rest: slice) -> Float[Tensor, "a r b r"]:
    here, others = factor[items], factor[rest]
    return (here.flatten(0, 1) @ others.flatten(0, 1).T).view(*here.shape[:2], *others.shape[:2])


def _upper(weights: Tensor, items: slice) -> Tensor:
    upper = 2 * weights[items, items.start :]
    upper[:, : items.stop - items.start] /= 2
    return upper


def _is_square(matrices: ItemMatrices) -> bool:
    return all(left is right for left, right in matrices.terms)


def _select(matrices: ItemMatrices, items: slice) -> ItemMatrices:
    terms = tuple(
        (None if left is None else _of(left, items), _of(right, items)) for left, right in matrices.terms
    )
    return ItemMatrices(terms, None if matrices.diagonal is None else matrices.diagonal[items])


def _of(factor: Tensor, items: slice) -> Tensor:
    return factor[items] if len(factor) > 1 else factor


def _slices(count: int, size: int) -> Iterator[slice]:
    for start in range(0, count, size):
        yield slice(start, min(start + size, count))
