"""How far two computations of one number may be apart: rounding, by type and by what the numbers went through."""

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Rounding:
    """The relative difference that counts as rounding in float64, in float32, and in types with fewer digits."""

    double: float
    single: float
    lower: float

    def of(self, dtype: torch.dtype) -> float:
        """Return the difference that is allowed in a type."""
        return {torch.float64: self.double, torch.float32: self.single}.get(dtype, self.lower)


OUTPUTS = Rounding(1e-9, 1e-3, 1e-2)  # of one network evaluated in two ways, or of vectors pulled back in two ways
LOSS = Rounding(1e-9, 1e-4, 1e-2)  # of losses, and of their Hessians in the outputs
SINGLES = Rounding(1e-6, 1e-3, 1e-2)  # of samples alone and among others: some networks compute in float32 inside
PRODUCTS = Rounding(1e-7, 5e-3, 5e-2)  # of products with a part of the Hessian by two routes
# u.Av and v.Au of a sound operator: where the softmax saturates (linear attention, sigma 10), H_o loses ten digits to
# cancellation and rounding reaches 1e-6. Operators that are wrong differ by per cents.
SYMMETRY = Rounding(1e-5, 5e-3, 5e-2)
