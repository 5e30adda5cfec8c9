"""Explicit symmetric matrices as operators, with eigenvalues that are known."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from hessfig.curvature.spectral.lanczos import NotFinite
from hessfig.rng import stream


class Explicit:
    """A symmetric matrix that counts the products asked of it."""

    def __init__(self, matrix: Tensor) -> None:
        self.matrix = matrix
        self.dim = len(matrix)
        self.products = 0
        self.rounding = 100 * torch.finfo(torch.float64).eps
        self.like = torch.empty(0, dtype=torch.float64)

    def matmat(self, vectors: Tensor) -> Tensor:
        self.products += vectors.shape[1]
        return self.matrix @ vectors

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        if asymmetry > 1e-7 * size:
            raise ArithmeticError("not those of a symmetric operator")


class Diagonal(Explicit):
    """A diagonal matrix that is too large to be held as one; its products are made in `dtype`."""

    def __init__(
        self, values: Sequence[float], dtype: torch.dtype = torch.float64
    ) -> None:
        super().__init__(torch.tensor(values, dtype=dtype)[:, None])
        self.rounding = 100 * torch.finfo(dtype).eps

    def matmat(self, vectors: Tensor) -> Tensor:
        self.products += vectors.shape[1]
        return (self.matrix * vectors.to(self.matrix.dtype)).double()


class InFloat32(Explicit):
    """The same matrix with products in float32; `overflow` makes them infinite, `skew` adds what is not symmetric."""

    def __init__(
        self, exact: Explicit, *, overflow: bool = False, skew: float = 0.0
    ) -> None:
        super().__init__(exact.matrix)
        self.rounding = 100 * torch.finfo(torch.float32).eps
        self.overflow = overflow
        skewed = torch.ones_like(exact.matrix).triu(1)
        self.single = (exact.matrix + skew * (skewed - skewed.T)).float()

    def matmat(self, vectors: Tensor) -> Tensor:
        self.products += vectors.shape[1]
        if self.overflow:
            raise NotFinite("products are not finite")
        return (self.single @ vectors.float()).double()

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        if asymmetry > 5e-3 * size:
            raise ArithmeticError("not those of a symmetric operator")


def with_eigenvalues(values: Sequence[float], *, seed: int = 0) -> Explicit:
    """Return a matrix of these eigenvalues in random directions."""
    return Explicit(rotated(torch.tensor(list(values), dtype=torch.float64), seed=seed))


def rotated(values: Tensor, *, seed: int) -> Tensor:
    """Return Q diag(values) Q^T with a random orthogonal Q."""
    drawn = torch.randn(
        len(values),
        len(values),
        dtype=torch.float64,
        generator=stream(seed, "rotation"),
    )
    basis, _ = torch.linalg.qr(drawn)
    product = basis * values @ basis.T
    return (product + product.T) / 2
