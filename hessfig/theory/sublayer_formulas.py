"""Derivatives of the sublayers of a transformer block: feed-forward, LayerNorm, and their composition.

For rows x_i with C = I - 1 1^T / d, n = C x / s and s^2 = |C x|^2 / d + eps: dn/dx = (C - n
n^T / d) / s, because ds/dx = n / d. The same rule once more gives the second derivative.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.terms import Matrix, Part
from hessfig.theory.attention_formulas import AttentionPoint, jacobians
from hessfig.theory.autodiff import Weights, attention, feed_forward
from hessfig.theory.matrix_formulas import (
    block_diagonal,
    commutation,
    identity,
    kron,
    vec,
)

Pair = tuple[Matrix, Matrix]
IN = Matrix.W_in
OUT = Matrix.W_out
Rows = Float[Tensor, "L d"]
Square = Float[Tensor, "Ld Ld"]


@dataclass(frozen=True)
class Activation:
    """An entrywise function with its first two derivatives (ReLU: almost everywhere)."""

    name: str
    function: Callable[[Tensor], Tensor]
    slope: Callable[[Tensor], Tensor]
    curvature: Callable[[Tensor], Tensor]


def _normal_density(h: Tensor) -> Tensor:
    normaliser = math.sqrt(2 * math.pi)
    return torch.exp(-h.square() / 2) / normaliser


def _gelu_slope(h: Tensor) -> Tensor:
    distribution = (1 + torch.erf(h / math.sqrt(2))) / 2
    return distribution + h * _normal_density(h)


def _gelu_curvature(h: Tensor) -> Tensor:
    return (2 - h.square()) * _normal_density(h)


RELU = Activation("relu", torch.relu, lambda h: (h > 0).to(h.dtype), torch.zeros_like)
GELU = Activation("gelu", torch.nn.functional.gelu, _gelu_slope, _gelu_curvature)


def weight_jacobians(
    Y: Rows, weights: Weights, activation: Activation
) -> dict[Matrix, Float[Tensor, "Ld p"]]:
    """dG/dW_in = (I (x) W_out^T) diag(vec phi') (Y (x) I) and dG/dW_out = phi(Y W_in) (x) I."""
    hidden = Y @ weights[IN]
    by_hidden = _slope_map(hidden, weights, activation)
    d, d_ff = weights[IN].shape
    return {
        IN: by_hidden @ kron(Y, identity(d_ff)),
        OUT: kron(activation.function(hidden), identity(d)),
    }


def input_jacobian(Y: Rows, weights: Weights, activation: Activation) -> Square:
    """dG/dY = (I (x) W_out^T) diag(vec phi') (I (x) W_in^T): the chain rule of G = phi(Y W_in) W_out."""
    by_hidden = _slope_map(Y @ weights[IN], weights, activation)
    return by_hidden @ kron(identity(len(Y)), weights[IN].T)


def paired_second_derivatives(
    Y: Rows, weights: Weights, activation: Activation, gradient: Rows
) -> dict[Pair, Float[Tensor, "p q"]]:
    """sum_i g_i . d2 G_i for the pairs of W_in and W_out, g the gradient at the output.

    (in,in): sum_i y_i y_i^T (x) diag(phi''(h_i) o W_out g_i), zero for ReLU; (in,out): sum_i y_i
    (x) diag(phi'(h_i)) (x) g_i^T; (out,out): zero.

    Parameters
    ----------
    Y : (L, d)
        The inputs y_i, with h_i = y_i W_in.
    weights : dict
        W_in in R^{d x d_ff} and W_out in R^{d_ff x d}.
    gradient : (L, d)
    """
    hidden = Y @ weights[IN]
    d, d_ff = weights[IN].shape
    size = d * d_ff
    bend = activation.curvature(hidden) * (gradient @ weights[OUT].T)
    slope = activation.slope(hidden)
    eye = identity(d_ff)
    inner = torch.einsum("ia,ib,ik,kl->akbl", Y, Y, bend, eye)
    mixed = torch.einsum("ia,ik,kl,ib->aklb", Y, slope, eye, gradient)
    return {
        (IN, IN): inner.reshape(size, size),
        (IN, OUT): mixed.reshape(size, size),
        (OUT, OUT): Y.new_zeros(size, size),
    }


def _slope_map(
    hidden: Float[Tensor, "L d_ff"], weights: Weights, activation: Activation
) -> Float[Tensor, "Ld Lf"]:
    slopes = torch.diag(vec(activation.slope(hidden)))
    return kron(identity(len(hidden)), weights[OUT].T) @ slopes


EPS = 1e-5


def normalised(X: Rows) -> tuple[Rows, Float[Tensor, " L"]]:
    """The normalised rows n_i and their scales s_i."""
    centred = X - X.mean(dim=1, keepdim=True)
    variance = centred.square().mean(dim=1)
    scale = (variance + EPS).sqrt()
    return centred / scale[:, None], scale


def jacobian(X: Rows) -> Square:
    """The Jacobian of LayerNorm, blockdiag_i (C - n_i n_i^T/d) / s_i (statement ln1).

    Examples
    --------
    Adding a constant to a row does not change it, so that each row of the Jacobian sums to zero:

    >>> X = torch.tensor([[1.0, 2.0, 6.0]], dtype=torch.float64)
    >>> bool(jacobian(X).sum(1).abs().max() < 1e-15)
    True
    """
    n, scale = normalised(X)
    size = X.shape[1]
    rows = _centring(size) - torch.einsum("ia,ib->iab", n, n) / size
    return block_diagonal(rows / scale[:, None, None])


def second_derivative(X: Rows) -> Float[Tensor, "L d d d"]:
    r"""d2 n_a / dx_b dx_g of each row; derivatives across rows are zero (statement ln2).

    .. math:: \frac{\partial^2 n_a}{\partial x_b \, \partial x_g} =
              -\frac{n_a C_{bg} + n_b C_{ag} + n_g C_{ab}}{d s^2} + \frac{3 \, n_a n_b n_g}{d^2 s^2}
    """
    n, scale = normalised(X)
    size = X.shape[1]
    C = _centring(size)
    pairs = (
        torch.einsum("ia,bg->iabg", n, C)
        + torch.einsum("ib,ag->iabg", n, C)
        + torch.einsum("ig,ab->iabg", n, C)
    )
    cubic = torch.einsum("ia,ib,ig->iabg", n, n, n)
    by_row = scale.square()[:, None, None, None]
    return (3 * cubic / size**2 - pairs / size) / by_row


def contracted_second_derivative(X: Rows, r: Rows) -> Square:
    """Lambda = blockdiag_i sum_a r_ia d2 n_ia/dx_i2, without building the third-order object.

    Lambda_i = -[(r.n) C + n (C r)^T + (C r) n^T]/(d s^2) + 3 (r.n) n n^T/(d^2 s^2).
    """
    n, scale = normalised(X)
    size = X.shape[1]
    C = _centring(size)
    overlap = (r * n).sum(1)[:, None, None]
    mixed = torch.einsum("ia,ib->iab", n, r @ C)
    pairs = -(overlap * C + mixed + mixed.mT) / size
    cubic = 3 * overlap * torch.einsum("ia,ib->iab", n, n) / size**2
    by_row = scale.square()[:, None, None]
    return block_diagonal((pairs + cubic) / by_row)


def jacobian_with_frozen_scale(X: Rows) -> Square:
    """blockdiag_i C/s_i: what (P (x) I) G of the follow-up's code computes, the derivative with s held fixed.

    NOTE(paper): not the Jacobian of LayerNorm; it lacks the rank-one term -n n^T/(d s).
    """
    _, scale = normalised(X)
    return block_diagonal(_centring(X.shape[1]) / scale[:, None, None])


def second_derivative_of_scale_only(X: Rows) -> Float[Tensor, "L d d d"]:
    """mu_a d2(1/s)/dx_b dx_g: what is left when only second derivatives of P = 1/s are kept (the follow-up's
    remark).

    NOTE(paper): it lacks the cross terms -(n_b C_ag + n_g C_ab)/(d s^2), which come
    from d(1/s) dmu.
    """
    n, scale = normalised(X)
    size = X.shape[1]
    own = torch.einsum("ia,bg->iabg", n, _centring(size))
    cubic = torch.einsum("ia,ib,ig->iabg", n, n, n)
    by_row = scale.square()[:, None, None, None]
    return (3 * cubic / size**2 - own / size) / by_row


def _centring(size: int) -> Float[Tensor, "d d"]:
    return identity(size) - 1 / size


def outer_product_block(
    X: Float[Tensor, "L d_in"], weights: Mapping[int, Tensor], layer: int
) -> Float[Tensor, "p p"]:
    """After^T After (x) Before Sigma Before^T, for half the mean squared error per token (Section 2).

    After and Before are the products of the weights above and below `layer`. For ||F -
    Y||^2/(L d_out) multiply with 2/d_out.
    """
    before = below(weights, layer, X.shape[1])
    after = above(weights, layer)
    Sigma = X.T @ X / len(X)
    return kron(after.T @ after, before @ Sigma @ before.T)


def functional_block(
    X: Float[Tensor, "L d_in"],
    residual: Float[Tensor, "L d_out"],
    weights: Mapping[int, Tensor],
    pair: tuple[int, int],
) -> Float[Tensor, "p q"]:
    """H_f(W^i, W^j), i > j, for half the mean squared error: linear in Omega = X^T D / L (Section 2, Table
    1).

    <D, F> with D held fixed is linear in each of W^D, ..., W^1, so that diagonal blocks vanish.
    """
    upper, lower = pair
    rows, columns = weights[lower].shape
    later = {k: w for k, w in weights.items() if k > lower}
    between = below(later, upper, rows)
    Omega = X.T @ residual / len(X)
    before = below(weights, lower, X.shape[1])
    right = before @ Omega @ above(weights, upper)
    return kron(right.T, between) @ commutation(columns, rows)


def below(
    weights: Mapping[int, Tensor], layer: int, width: int
) -> Float[Tensor, "fan_in d_in"]:
    """W^{layer-1} ... W^1, the identity of size `width` when there is none."""
    product = identity(width)
    for number in sorted(number for number in weights if number < layer):
        product = weights[number] @ product
    return product


def above(weights: Mapping[int, Tensor], layer: int) -> Float[Tensor, "d_out fan_out"]:
    """W^D ... W^{layer+1}, the identity when `layer` is the last."""
    product = identity(weights[layer].shape[0])
    for number in sorted(number for number in weights if number > layer):
        product = weights[number] @ product
    return product


class Placement(StrEnum):
    """Where the norms sit."""

    post = "post"
    pre = "pre"


@dataclass(frozen=True)
class BlockPoint:
    """One block at one input: what its derivatives need. The eps of LayerNorm is EPS.

    Post-LN: Y = LN(X + F(X)), S = Y + G(Y), Z = LN(S). Pre-LN: X' = X + F(LN X), Y = LN(X'), Z
    = S = X' + G(Y). G is the feed-forward sublayer, F the attention, r = Z - target and J =
    dZ/dS.

    Parameters
    ----------
    X, target : (L, d)
    weights : dict
    activation : Activation
    placement : Placement
    """

    X: Rows
    target: Rows
    weights: Weights
    activation: Activation
    placement: Placement

    @cached_property
    def attended(self) -> Rows:
        """X + F(X) post-LN, X + F(LN X) pre-LN."""
        return self.X + attention(self._attention_input, self.weights)

    @cached_property
    def Y(self) -> Rows:
        """The input of the feed-forward sublayer."""
        return normalised(self.attended)[0]

    @cached_property
    def summed(self) -> Rows:
        """S, what enters the last norm (post-LN) or leaves the block (pre-LN)."""
        stream = self.Y if self.placement == Placement.post else self.attended
        return stream + feed_forward(self.Y, self.weights, self.activation.function)

    @cached_property
    def residual(self) -> Rows:
        """r = Z - target."""
        if self.placement == Placement.post:
            output = normalised(self.summed)[0]
        else:
            output = self.summed
        return output - self.target

    @cached_property
    def output_jacobian(self) -> Square:
        """J = dZ/dS."""
        if self.placement == Placement.post:
            return jacobian(self.summed)
        return identity(self.X.numel())

    @property
    def _attention_input(self) -> Rows:
        if self.placement == Placement.post:
            return self.X
        return normalised(self.X)[0]

    def jacobian(self, matrix: Matrix) -> Float[Tensor, "Ld p"]:
        """dZ/dW for any of the five weights."""
        if matrix in (IN, OUT):
            by_weights = weight_jacobians(self.Y, self.weights, self.activation)
            return self.output_jacobian @ by_weights[matrix]
        layer = AttentionPoint(self._attention_input, 0 * self.X, self.weights)
        by_attended = self.output_jacobian @ self._attended_to_summed()
        return by_attended @ jacobians(layer)[matrix]

    def feed_forward_hessian(
        self, part: Part
    ) -> dict[tuple[Matrix, Matrix], Float[Tensor, "p q"]]:
        r"""H, H_o or H_f of (W_in, W_in), (W_in, W_out), (W_out, W_out) for ||Z - target||_F^2/(L d).

        With J_a = dG/dW_a, Lambda the second derivative of the last norm contracted with r, and g =
        J^T r,

        .. math:: H_o(a, b) = c \, J_a^T J^T J J_b, \qquad
                  H_f(a, b) = c \Big( J_a^T \Lambda J_b + \sum_i g_i \cdot \partial^2 G_i \Big).

        Pre-LN has J = I and Lambda = 0, so that H_f(W_in, W_in) vanishes for ReLU; post-LN keeps
        the first term.
        """
        if part == Part.H_o:
            return self._outer_product()
        functional = self._functional()
        if part == Part.H_f:
            return functional
        outer = self._outer_product()
        return {pair: outer[pair] + functional[pair] for pair in outer}

    def _outer_product(self) -> dict[tuple[Matrix, Matrix], Float[Tensor, "p q"]]:
        J_in = self.jacobian(IN)
        J_out = self.jacobian(OUT)
        c = 2 / self.X.numel()
        return {
            (IN, IN): c * J_in.T @ J_in,
            (IN, OUT): c * J_in.T @ J_out,
            (OUT, OUT): c * J_out.T @ J_out,
        }

    def _functional(self) -> dict[tuple[Matrix, Matrix], Float[Tensor, "p q"]]:
        c = 2 / self.X.numel()
        J = weight_jacobians(self.Y, self.weights, self.activation)
        gradient = self.output_jacobian.T @ vec(self.residual)
        by_token = gradient.reshape(self.X.shape)
        paired = paired_second_derivatives(
            self.Y, self.weights, self.activation, by_token
        )
        if self.placement == Placement.pre:
            return {pair: c * paired[pair] for pair in paired}
        bend = contracted_second_derivative(self.summed, self.residual)
        blocks = {}
        for (a, b), second in paired.items():
            blocks[a, b] = c * (J[a].T @ bend @ J[b] + second)
        return blocks

    def _attended_to_summed(self) -> Square:
        """Return dS/dF, from the attention's outputs: (I + dG/dY) J_LN post-LN, and I + dG/dY J_LN pre-LN."""
        norm = jacobian(self.attended)
        through = input_jacobian(self.Y, self.weights, self.activation)
        direct = identity(self.X.numel())
        if self.placement == Placement.post:
            return (direct + through) @ norm
        return direct + through @ norm
