"""XTrace: the trace of a symmetric operator with a leave-one-out error (Epperly, Tropp and Webber, arXiv 2301.07825).

Half of the products find the range that the test vectors see, the other half the operator on that range. Every test
vector in turn is left out of the range and estimates what the range of the others has missed: estimates that are
unbiased and exchangeable. Their mean is the estimate, their spread its error.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Generator, Tensor

from hessfig.curvature.spectral.operator import Operator

_RANK = 1e-12  # directions below this share of the largest are no part of a range


def xtrace(operator: Operator, num_products: int, *, generator: Generator) -> tuple[float, float]:
    """Return the trace and its standard error, from `num_products` products (an even number, less than 2 dim).

    Test vectors are uniform on the sphere of radius sqrt(n); what is left of one outside a range is scaled to the
    sphere of that complement (the paper's improved version, section 2.3). The error is nan with a single test vector.
    """
    count = num_products // 2
    drawn = torch.randn(count, operator.dim, dtype=torch.float64, generator=generator).T
    tests = drawn * (operator.dim**0.5 / drawn.norm(dim=0))
    image = operator.matmat(tests)
    basis, sizes, _ = torch.linalg.svd(image, full_matrices=False)
    basis = basis[:, sizes > _RANK * sizes[0]] if float(sizes[0]) > 0.0 else basis[:, :0]
    inner = basis.T @ operator.matmat(basis) if basis.shape[1] else image.new_zeros(0, 0)
    estimates = torch.stack([_left_out(i, tests, image, basis, inner) for i in range(count)])
    error = float(estimates.std()) / count**0.5 if count > 1 else float("nan")
    return float(estimates.mean()), error


def _left_out(i: int, tests: Tensor, image: Tensor, basis: Tensor, inner: Tensor) -> Float[Tensor, ""]:
    """Return tr(Q'AQ) + w'(1 - QQ')A(1 - QQ')w, w test vector i and Q the range of the others' images."""
    others = torch.cat([image[:, :i], image[:, i + 1 :]], dim=1)
    left, sizes, _ = torch.linalg.svd(basis.T @ others, full_matrices=False)
    within = (
        left[:, sizes > _RANK * sizes.max()] if sizes.numel() and float(sizes.max()) > 0.0 else left[:, :0]
    )
    inside = within @ (within.T @ (basis.T @ tests[:, i]))
    outside = tests[:, i].square().sum() - inside.square().sum()
    left_over = tests[:, i] @ image[:, i] - 2 * inside @ (basis.T @ image[:, i]) + inside @ inner @ inside
    dim, rank = len(tests), within.shape[1]
    scale = (dim - rank) / outside if rank < dim else torch.zeros_like(outside)
    return (within.T @ inner @ within).trace() + scale * left_over
