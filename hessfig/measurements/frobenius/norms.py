"""From squared norms of products to a Frobenius norm and its standard error."""

from __future__ import annotations

from jaxtyping import Float
from torch import Tensor

from hessfig.measurements.estimate import Estimate


def frobenius(squared_norms: Float[Tensor, " num_probes"]) -> Estimate:
    """Estimate ||A||_F from ||A v_k||^2 of independent probes with E[v v^T] = I (Hutchinson).

    E ||A v||^2 = ||A||_F^2, so frob = sqrt(m) with m the mean. Its standard error is that of m taken through the
    square root to first order (delta method): std / sqrt(K) / (2 sqrt(m)). NaN for a single probe.
    """
    count, mean = len(squared_norms), squared_norms.mean()
    frob = mean.sqrt().item()
    if frob == 0.0:
        return Estimate(0.0, 0.0, count)
    spread = squared_norms.std().item() if count > 1 else float("nan")
    return Estimate(frob, spread / count**0.5 / (2 * frob), count)
