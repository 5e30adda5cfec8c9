"""First and second derivatives of the mixing weights of attention in its scores, for every pattern on the tape.

All Jacobians are symmetric. `weights` are the mixing weights of one query along the last axis, 0 where a key is masked.
"""

from torch import Tensor

from hessfig.config.enums import Attention

NOT_ON_THE_TAPE = (Attention.kernel,)  # its Jacobian is not symmetric


def along(kind: Attention, weights: Tensor, allowed: Tensor, rows: Tensor) -> Tensor:
    """Apply the Jacobian of scores -> weights to `rows`.

    diag(a) - a a^T for a softmax, with a logit of no value too; diag(a (1 - a)) for the sigmoid; the mask for linear
    attention; diag(m) - m m^T / |m| for sparsemax with support m; diag(u) - u u^T / sum(u), u = sqrt(a), for entmax.
    """
    if kind == Attention.linear:
        return rows * allowed
    if kind == Attention.sigmoid:
        return weights * (1 - weights) * rows
    if kind in (Attention.sparsemax, Attention.entmax15):
        root = _root(kind, weights)
        weighted = root * rows
        return weighted - root * weighted.sum(-1, keepdim=True) / root.sum(-1, keepdim=True)
    weighted = weights * rows
    return weighted - weights * weighted.sum(-1, keepdim=True)


def second(kind: Attention, weights: Tensor, weights_bar: Tensor, dweights: Tensor) -> Tensor | None:
    """Return the derivative of `along(weights_bar)` where the weights move by `dweights` (Lemma C.1 for a softmax).

    None where the weights are piecewise linear in the scores.
    """
    if kind in (Attention.linear, Attention.sparsemax):
        return None
    if kind == Attention.sigmoid:
        return dweights * (1 - 2 * weights) * weights_bar
    if kind == Attention.entmax15:
        return _of_entmax(weights, weights_bar, dweights)
    mean = (weights * weights_bar).sum(-1, keepdim=True)
    spread = (dweights * weights_bar).sum(-1, keepdim=True)
    return dweights * (weights_bar - mean) - weights * spread


def _root(kind: Attention, weights: Tensor) -> Tensor:
    return weights.sqrt() if kind == Attention.entmax15 else (weights > 0).to(weights.dtype)


def _of_entmax(weights: Tensor, weights_bar: Tensor, dweights: Tensor) -> Tensor:
    """Differentiate u (abar - m), m = <u, abar> / sum(u), with 2 u du = da."""
    root = weights.sqrt()
    droot = (dweights / (2 * root)).where(weights > 0, 0.0)
    total = root.sum(-1, keepdim=True)
    mean = (root * weights_bar).sum(-1, keepdim=True) / total
    dmean = ((droot * weights_bar).sum(-1, keepdim=True) - mean * droot.sum(-1, keepdim=True)) / total
    return droot * (weights_bar - mean) - root * dmean
