"""Dense derivatives, all rows in one batched pass backward, each matrix checked against a pass of plain autograd."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import Tensor

Values = Callable[[], Tensor]


def jacobian(values: Values, at: Sequence[Tensor], rounding: float = 1e-11) -> Tensor:
    """Return the derivatives of the values, a row for each, in the entries of `at`, one tensor after the other.

    A batched pass is many times as fast as one for each row, but some of torch's rules
    for it are wrong. So the whole matrix times a random row is compared with one plain
    pass, which no wrong row survives: they agree up to `rounding` of the largest entry,
    which is more where a network computes in float32 inside.
    """
    return _checked(lambda: values().flatten(), at, rounding)


def hessian(scalar: Values, at: Sequence[Tensor], rounding: float = 1e-11) -> Tensor:
    """Return the second derivatives of a scalar in the entries of `at`, one tensor after the other."""

    def slope() -> Tensor:
        return _flat(
            torch.autograd.grad(
                scalar(), at, create_graph=True, materialize_grads=True
            ),
            at,
        )

    return _checked(slope, at, rounding)


def _checked(values: Values, at: Sequence[Tensor], rounding: float) -> Tensor:
    with _norms_written_out():
        found = values()
    rows = _rows(
        found,
        at,
        torch.eye(len(found), dtype=found.dtype, device=found.device),
        is_grads_batched=True,
    )
    plain = values()
    along = torch.randn(
        len(plain), generator=torch.Generator().manual_seed(0), dtype=torch.float64
    ).to(plain)
    off = float((along @ rows - _rows(plain, at, along)).abs().max())
    largest = float(rows.abs().max())
    assert off <= rounding * largest, f"the batched pass is off by {off} of {largest}"
    return rows


def _rows(
    values: Tensor, at: Sequence[Tensor], along: Tensor, **settings: Any
) -> Tensor:
    if not values.requires_grad:
        return values.new_zeros(*along.shape[:-1], sum(one.numel() for one in at))
    return _flat(
        torch.autograd.grad(values, at, along, materialize_grads=True, **settings), at
    )


def _flat(pieces: Sequence[Tensor], at: Sequence[Tensor]) -> Tensor:
    """Return derivatives next to each other; zeros that autograd fills in lack the batch."""
    many = max(
        (
            piece.shape[: piece.dim() - one.dim()]
            for piece, one in zip(pieces, at, strict=True)
        ),
        key=len,
    )
    pairs = zip(pieces, at, strict=True)
    each = [
        piece.expand((*many, *one.shape)).reshape(*many, one.numel())
        for piece, one in pairs
    ]
    return torch.cat(each, dim=-1)


@contextmanager
def _norms_written_out() -> Iterator[None]:
    """Layer norms by their formula: a batched pass goes through torch's own row by row. The plain pass has those."""

    def layer_norm(
        x: Tensor,
        shape: Sequence[int],
        weight: Any = None,
        bias: Any = None,
        eps: float = 1e-5,
    ) -> Tensor:
        axes = tuple(range(-len(shape), 0))
        centred = x - x.mean(axes, keepdim=True)
        normed = centred * (centred.square().mean(axes, keepdim=True) + eps).rsqrt()
        normed = normed if weight is None else normed * weight
        return normed if bias is None else normed + bias

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch.nn.functional, "layer_norm", layer_norm)
        yield
