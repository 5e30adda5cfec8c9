"""LayerNorm by rows, without gain and bias: value, Jacobian and second derivative in closed form.

With C = I - 11^T/d, mu_i the centred rows, s_i^2 = |mu_i|^2/d + eps and n_i = mu_i/s_i:

    dn_i/dx_i = (C - n_i n_i^T / d) / s_i
    d2 n_a/dx_b dx_g = -(n_a C_bg + n_b C_ag + n_g C_ab)/(d s^2) + 3 n_a n_b n_g/(d^2 s^2),   zero across
    rows.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.theory.formulas.matrix_calculus import block_diagonal, identity

EPS = 1e-5


def normalised(X: Float[Tensor, "L d"], eps: float = EPS) -> tuple[Float[Tensor, "L d"], Float[Tensor, " L"]]:
    """The normalised rows n_i and their scales s_i."""
    centred = X - X.mean(dim=1, keepdim=True)
    scale = (centred.square().mean(dim=1) + eps).sqrt()
    return centred / scale[:, None], scale


def jacobian(X: Float[Tensor, "L d"], eps: float = EPS) -> Float[Tensor, "Ld Ld"]:
    """blockdiag_i (C - n_i n_i^T/d) / s_i."""
    n, scale = normalised(X, eps)
    size = X.shape[1]
    rows = _centring(size) - torch.einsum("ia,ib->iab", n, n) / size
    return block_diagonal(rows / scale[:, None, None])


def second_derivative(X: Float[Tensor, "L d"], eps: float = EPS) -> Float[Tensor, "L d d d"]:
    """d2 n_a / dx_b dx_g of each row; derivatives across rows are zero."""
    n, scale = normalised(X, eps)
    size, C = X.shape[1], _centring(X.shape[1])
    pairs = (
        torch.einsum("ia,bg->iabg", n, C)
        + torch.einsum("ib,ag->iabg", n, C)
        + torch.einsum("ig,ab->iabg", n, C)
    )
    cubic = torch.einsum("ia,ib,ig->iabg", n, n, n)
    return (-pairs / size + 3 * cubic / size**2) / scale.square()[:, None, None, None]


def contracted_second_derivative(
    X: Float[Tensor, "L d"], r: Float[Tensor, "L d"], eps: float = EPS
) -> Float[Tensor, "Ld Ld"]:
    """Lambda = blockdiag_i sum_a r_ia d2 n_ia/dx_i2, without building the third-order object.

    Lambda_i = -[(r.n) C + n (C r)^T + (C r) n^T]/(d s^2) + 3 (r.n) n n^T/(d^2 s^2).
    """
    n, scale = normalised(X, eps)
    size, C = X.shape[1], _centring(X.shape[1])
    overlap = (r * n).sum(1)[:, None, None]
    mixed = torch.einsum("ia,ib->iab", n, r @ C)
    rows = -(overlap * C + mixed + mixed.mT) / size + 3 * overlap * torch.einsum("ia,ib->iab", n, n) / size**2
    return block_diagonal(rows / scale.square()[:, None, None])


def jacobian_with_frozen_scale(X: Float[Tensor, "L d"], eps: float = EPS) -> Float[Tensor, "Ld Ld"]:
    """blockdiag_i C/s_i: what (P (x) I) G of the follow-up's code computes, the derivative with s held fixed.

    NOTE(paper): not the Jacobian of LayerNorm; it lacks the rank-one term -n n^T/(d s).
    """
    _, scale = normalised(X, eps)
    return block_diagonal(_centring(X.shape[1]) / scale[:, None, None])


def second_derivative_of_scale_only(X: Float[Tensor, "L d"], eps: float = EPS) -> Float[Tensor, "L d d d"]:
    """mu_a d2(1/s)/dx_b dx_g: what is left when only second derivatives of P = 1/s are kept (the follow-up's
    remark).

    NOTE(paper): it lacks the cross terms -(n_b C_ag + n_g C_ab)/(d s^2), which come from d(1/s) dmu.
    """
    n, scale = normalised(X, eps)
    size = X.shape[1]
    own = -torch.einsum("ia,bg->iabg", n, _centring(size)) / size
    cubic = 3 * torch.einsum("ia,ib,ig->iabg", n, n, n) / size**2
    return (own + cubic) / scale.square()[:, None, None, None]


def _centring(size: int) -> Float[Tensor, "d d"]:
    return identity(size) - 1 / size
