"""A diagonal block and part of the Hessian as a symmetric operator on float64 vectors; products are counted."""

from __future__ import annotations

from collections.abc import Hashable
from functools import cached_property
from typing import Protocol

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.curvature.column import PROBES_AT_ONCE, SPLIT, Column, chunks
from hessfig.rng import stream
from hessfig.terms import Part

# Of a sound operator's products, relative to their size: where the softmax saturates (linear attention, sigma 10),
# H_o loses ten digits to cancellation and rounding reaches 1e-6. Operators that are wrong differ by per cents.
ASYMMETRY = {torch.float64: 1e-5, torch.float32: 5e-3}
_BESIDE = 1e-6  # what is as small as this beside the other parts is rounding


class NotFinite(ArithmeticError):
    """A product that is not finite: the network overflows here, and nothing can be said of its eigenvalues."""


class Operator(Protocol):
    """A symmetric matrix that is known by its products."""

    dim: int
    rounding: float
    products: int

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V as float64."""

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError when `asymmetry` is more than rounding beside `size`, that of products."""


class Square:
    """One part of a diagonal block: `column` holds the block under `row`. `rounding` is of its products' type."""

    def __init__(self, column: Column, row: Hashable, part: Part) -> None:
        self.column, self.row, self.part = column, row, part
        self.dim, self.products = column.dim, 0
        self.rounding = 100 * torch.finfo(column.dtype).eps

    def matmat(self, vectors: Float[Tensor, "n k"]) -> Float[Tensor, "n k"]:
        """Return A V as float64, on the CPU. Raises NotFinite for products that are not finite."""
        self.products += vectors.shape[1]
        given = vectors.to(self.column.dtype)
        found = [
            self.column.split_matmat(chunk, parts=[self.part])[self.row, self.part]
            for chunk in chunks(given, self.column, PROBES_AT_ONCE)
        ]
        product = torch.cat(found, dim=1).to(vectors)
        if not bool(product.isfinite().all()):
            raise NotFinite(f"products of {self.part} are not finite")
        return product

    def check_symmetric(self, asymmetry: float, size: float) -> None:
        """Raise ArithmeticError when `asymmetry` is more than rounding beside `size`, that of products.

        A part that vanishes up to rounding (H_f of a linear map through automatic differentiation) is measured against
        the other parts: noise has no symmetry.
        """
        allowed = ASYMMETRY.get(self.column.dtype, 5e-2)
        if asymmetry <= allowed * size or asymmetry <= allowed * _BESIDE * self._size_of_parts:
            return
        raise ArithmeticError(
            f"the products of {self.part} are not those of a symmetric operator: u.Av differs from v.Au by "
            f"{asymmetry / size:.2g} of their size"
        )

    @cached_property
    def _size_of_parts(self) -> float:
        """The length of the products of H_o and H_f with a random unit vector, the longer one."""
        vector = torch.randn(self.dim, 1, dtype=torch.float64, generator=stream(0, "size of parts"))
        products = self.column.split_matmat((vector / vector.norm()).to(self.column.dtype), parts=SPLIT)
        return max(float(products[self.row, part].norm()) for part in SPLIT)
