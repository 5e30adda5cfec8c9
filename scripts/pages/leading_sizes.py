"""Sizes that the theorem of mixing weights gives: norms of H(V, V) and H(Q, Q) of one layer by their leading terms.

For a transformer of one layer with one head, no norm and a piecewise linear MLP under cross-entropy, sigma -> 0. With
tokens x_i, m_i the mixed tokens (A_m X)_i, D_i the Jacobian of the logits at position i by the mixed values, S and g_i
the Hessian and the gradient of the loss at equal logits, and primes for derivatives of the mixing weights by scores,

    H(V, V) = sum_i m_i m_i^T (x) D_i^T S D_i
    H_f(Q, Q) = sum_i x_i x_i^T (x) sum_jlm A''_ijlm (D_i^T g_i . v_j) k_l k_m^T
    H_o(Q, Q) = sum_i x_i x_i^T (x) G_i S G_i^T,   G_i = sum_jl A'_ijl k_l (D_i v_j)^T

and H(Q, Q) is H_f(Q, Q), or H_o(Q, Q) where A'' vanishes at equal scores (docs/studies/constant-term.md).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from hessfig.config.enums import Attention
from hessfig.curvature.problem import Objective
from hessfig.models.networks import SelfAttention, Transformer
from hessfig.models.tape.component_steps import along_pattern, second_of_pattern

_ROUNDING = 1e-12


@dataclass(frozen=True)
class LeadingNorms:
    """Frobenius norms of the leading terms of H(V, V) and H(Q, Q)."""

    value: float
    query: float


@dataclass(frozen=True)
class _Layer:
    """A layer at its n scored positions: tokens, mixing weights at equal scores and of the leading degree, keys."""

    attention: SelfAttention
    tokens: Float[Tensor, "n width"]
    before: Float[Tensor, "n keys width"]
    equal: Float[Tensor, "n keys"]
    mixing: Float[Tensor, "n keys"]
    allowed: Float[Tensor, "n keys"]


def leading_norms(objective: Objective) -> LeadingNorms:
    """Return the norms that the leading terms give at the objective's own weights and embeddings.

    Its network is one that `has_leading_norms`; both norms are exact as sigma -> 0 only.
    """
    network = objective.network
    assert isinstance(network, Transformer)
    layer = _at_equal_scores(network, objective)
    values = layer.attention.v(layer.before)
    jacobian = _jacobian(network, layer, torch.einsum("nk,nkc->nc", layer.mixing, values))
    classes = jacobian.shape[1]
    curvature = (torch.eye(classes, dtype=jacobian.dtype) - 1 / classes) / classes / len(jacobian)
    targets = torch.nn.functional.one_hot(objective.batch.targets.flatten(), classes).to(jacobian)
    pull = torch.einsum("na,nac,nkc->nk", (1 / classes - targets) / len(jacobian), jacobian, values)
    mixed = torch.einsum("nk,nkw->nw", layer.mixing, layer.before)
    value = _kronecker_norm(mixed, jacobian.mT @ curvature @ jacobian)
    return LeadingNorms(value, _query_norm(layer, values, jacobian, curvature, pull))


def _query_norm(layer: _Layer, values: Tensor, jacobian: Tensor, curvature: Tensor, pull: Tensor) -> float:
    """Return the norm of H_f(Q, Q), or of H_o(Q, Q) where the mixing weights have no second derivative."""
    kind, keys = layer.attention.model.attention, layer.attention.k(layer.before) / layer.attention.divisor
    equal, allowed = layer.equal[:, None], layer.allowed[:, None]
    moved = along_pattern(kind, equal, allowed, keys.mT)
    bent = second_of_pattern(kind, equal, pull[:, None], moved)
    if bent is not None and bent.abs().max() > _ROUNDING * moved.abs().max() * pull.abs().max():
        return _kronecker_norm(layer.tokens, bent @ keys)
    slopes = moved @ values @ jacobian.mT
    return _kronecker_norm(layer.tokens, slopes @ curvature @ slopes.mT)


def _at_equal_scores(network: Transformer, objective: Objective) -> _Layer:
    batch, attention = objective.batch, network.layers[0].attn
    assert isinstance(attention, SelfAttention)
    hidden, mask = network.hidden(batch.inputs, 0), attention.causal_mask
    scores = attention.scores(hidden, batch.scored)
    equal, own = (attention.pattern(one, batch.scored, mask)[:, 0] for one in (0 * scores, scores))
    allowed = (~mask[batch.scored, : hidden.shape[1]]).to(hidden.dtype).expand_as(equal)
    before = hidden[:, None].expand(-1, equal.shape[1], -1, -1)
    mixing = equal if equal.any() else own
    each = (hidden[:, batch.scored], before, equal, mixing, allowed)
    return _Layer(attention, *(one.flatten(0, 1) for one in each))


def _jacobian(network: Transformer, layer: _Layer, mixed: Tensor) -> Float[Tensor, "n classes inner"]:
    """Return the Jacobian of the logits by the mixed values of each position, where these are what leads."""
    block = network.layers[0]

    def logits(token: Tensor, one: Tensor) -> Tensor:
        residual = token + layer.attention.o(one)
        return network.head(block.feed_forward(residual[None, None]))[0, 0]  # type: ignore[operator]

    at = mixed if layer.attention.model.attention != Attention.linear else 0 * mixed
    return torch.func.vmap(torch.func.jacrev(logits, argnums=1))(layer.tokens, at)


def _kronecker_norm(left: Float[Tensor, "n a"], right: Float[Tensor, "n b b"]) -> float:
    """Return the Frobenius norm of sum_i left_i left_i^T (x) right_i."""
    flat = right.flatten(1)
    return float(((left @ left.T).square() * (flat @ flat.T)).sum().clamp(min=0).sqrt())
