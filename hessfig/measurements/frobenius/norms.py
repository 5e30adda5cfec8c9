"""From squared norms of products to a Frobenius norm and its standard error."""

from __future__ import annotations

from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor


@dataclass(frozen=True)
class BlockNorm:
    """A block's Frobenius norm; `frob_sem` is 0 when exact and NaN when the estimator gives no error."""

    frob: float
    frob_sem: float
    num_probes: int


def frobenius(squared_norms: Float[Tensor, " num_probes"]) -> BlockNorm:
    """Estimate ||A||_F from ||A v_k||^2 of independent probes with E[v v^T] = I (Hutchinson).

    E ||A v||^2 = ||A||_F^2, so frob = sqrt(m) with m the mean. Its standard error is that of m taken through the
    square root to first order (delta method): std / sqrt(K) / (2 sqrt(m)). NaN for a single probe.
    """
    count, mean = len(squared_norms), squared_norms.mean()
    frob = mean.sqrt().item()
    if frob == 0.0:
        return BlockNorm(0.0, 0.0, count)
    spread = squared_norms.std().item() if count > 1 else float("nan")
    return BlockNorm(frob, spread / count**0.5 / (2 * frob), count)
