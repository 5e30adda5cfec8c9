"""Components of modern transformers in torch: norms, scores, patterns, positions, gated MLPs.

All are written in elementary operations, which are twice differentiable under vmap and
in forward mode, too.
"""

import math
from collections.abc import Callable

import torch
from jaxtyping import Bool, Float
from torch import Tensor, nn
from torch.nn import functional as F

from hessfig.config.enums import (
    MLP,
    Attention,
    AttentionBias,
    Gate,
    NormKind,
    Positions,
    QueryKey,
    Scores,
    Sink,
)
from hessfig.config.science import ModelConfig

UNIT_EPS = 1e-12  # added to the mean square of queries and keys in cosine scores
ROPE_BASE = 10_000.0


class RMSNorm(nn.Module):
    """y = weight * x / sqrt(mean(x^2) + eps) over the last axis (arXiv 1910.07467)."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))
        self.eps = eps

    def forward(
        self, rows: Float[Tensor, "*rows width"]
    ) -> Float[Tensor, "*rows width"]:
        return self.weight * rms_normalised(rows, self.eps)


class HeadGain(nn.Module):
    """y = weight_h x for every head h, the learned temperature of cosine scores."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(heads))

    def forward(
        self, rows: Float[Tensor, "batch heads length d"]
    ) -> Float[Tensor, "batch heads length d"]:
        return self.weight[:, None, None] * rows


def rms_normalised(rows: Tensor, eps: float) -> Tensor:
    """Return x / sqrt(mean(x^2) + eps) over the last axis."""
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt()


def norm_layer(model: ModelConfig, width: int) -> nn.Module:
    """Return a norm of `model.norm_kind`."""
    of_kind = RMSNorm if model.norm_kind == NormKind.rms else nn.LayerNorm
    return of_kind(width, eps=model.norm_eps)


# Whose `weight` is 1 at initialisation.
GAINS = (nn.LayerNorm, nn.GroupNorm, RMSNorm, HeadGain)


def silu(rows: Tensor) -> Tensor:
    """Return x sigmoid(x); the SiLU of torch has no forward-mode derivative of its gradient."""
    return rows * torch.sigmoid(rows)


ACTIVATIONS: dict[MLP, Callable[[Tensor], Tensor]] = {
    MLP.relu: F.relu,
    MLP.gelu: F.gelu,
    MLP.linear: lambda x: x,
    MLP.silu: silu,
    MLP.swiglu: silu,
    MLP.geglu: F.gelu,
}


class PlainMLP(nn.Module):
    """W_out phi(W_in x + b_in) + b_out."""

    def __init__(self, width: int, hidden: int, kind: MLP) -> None:
        super().__init__()
        self.fc_in = nn.Linear(width, hidden)
        self.fc_out = nn.Linear(hidden, width)
        self.act = ACTIVATIONS[kind]

    def forward(
        self, rows: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch length width"]:
        return self.fc_out(self.act(self.fc_in(rows)))


class GatedMLP(nn.Module):
    """W_out (phi(W_gate x + b_gate) * (W_in x + b_in)) + b_out, phi silu or gelu (arXiv 2002.05202)."""

    def __init__(self, width: int, hidden: int, kind: MLP) -> None:
        super().__init__()
        self.gate, self.fc_in = nn.Linear(width, hidden), nn.Linear(width, hidden)
        self.fc_out = nn.Linear(hidden, width)
        self.act = ACTIVATIONS[kind]

    def forward(
        self, rows: Float[Tensor, "batch length width"]
    ) -> Float[Tensor, "batch length width"]:
        return self.fc_out(self.act(self.gate(rows)) * self.fc_in(rows))


def score_sink(model: ModelConfig) -> float:
    """Return the constant that is added to the score of the first key in every head, before mask and softmax."""
    if model.sink in (Sink.scores, Sink.both):
        return model.sink_beta
    return 0.0


def with_sink(
    scores: Float[Tensor, "*rows keys"], beta: float
) -> Float[Tensor, "*rows keys"]:
    """Return scores + beta e_1^T; beta is constant, so derivatives are those of the softmax at shifted scores."""
    if beta:
        keys = torch.arange(scores.shape[-1], device=scores.device)
        return scores + beta * (keys == 0).to(scores.dtype)
    return scores


def distances(length: int, device: torch.device | None = None) -> Tensor:
    """Return |i - j| for all pairs of positions, (length, length)."""
    positions = torch.arange(length, device=device)
    return (positions[:, None] - positions).abs()


def outside_window(
    length: int, window: int | None, device: torch.device | None = None
) -> Bool[Tensor, "length length"]:
    """Return a mask of the keys that are too far away for a query."""
    return distances(length, device) >= (length if window is None else window)


def rotated(
    rows: Float[Tensor, "*rows length d"], positions: Tensor, *, back: bool = False
) -> Tensor:
    """Rotate every pair of entries (2 i, 2 i + 1) by position * 10000^(-2 i / d) (arXiv 2104.09864), or `back`."""
    half = rows.shape[-1] // 2
    rates = ROPE_BASE ** (
        -torch.arange(half, dtype=torch.float64, device=rows.device) / half
    )
    angles = positions.to(torch.float64)[:, None] * (-rates if back else rates)
    cos = angles.cos().to(rows.dtype)
    sin = angles.sin().to(rows.dtype)
    even, odd = rows[..., 0::2], rows[..., 1::2]
    return torch.stack(
        [even * cos - odd * sin, even * sin + odd * cos], dim=-1
    ).flatten(-2)


class Attending(nn.Module):
    """Base of all attentions of the package: scores, mixing weights, mixed values and their gate.

    It has the linear maps `q` and `v`; `k`, unless queries and keys share a single
    matrix; `o`, unless it `is_bare`, which also excludes biases; and `g`, if there is a
    gate. Differential attention has two `sets` of scores per head, each from one half
    of its queries and keys.
    """

    def __init__(
        self, model: ModelConfig, d_head: int, d_value: int, *, is_bare: bool
    ) -> None:
        super().__init__()
        self.model = model
        self.n_heads = model.n_heads
        self.kv_heads = model.n_kv_heads or model.n_heads
        self.sets = 2 if model.attention == Attention.differential else 1
        self.is_single = model.query_key == QueryKey.single
        bias = not is_bare
        self.q = nn.Linear(
            model.d_model,
            self.n_heads * (model.d_model if self.is_single else d_head),
            bias,
        )
        if not self.is_single:
            self.k = nn.Linear(model.d_model, self.kv_heads * d_head, bias)
        self.v = nn.Linear(model.d_model, self.kv_heads * d_value, bias)
        if not is_bare:
            self.o = nn.Linear(self.n_heads * d_value, model.d_model)
        self.divisor = math.sqrt(d_head // self.sets) * model.temperature
        normed, is_differential = model.scores == Scores.qk_norm, self.sets == 2
        self.q_norm = (
            RMSNorm(d_head // self.sets, model.norm_eps) if normed else nn.Identity()
        )
        self.k_norm = (
            RMSNorm(d_head // self.sets, model.norm_eps) if normed else nn.Identity()
        )
        self.score_gain = (
            HeadGain(self.n_heads * self.sets)
            if model.scores == Scores.cosine
            else None
        )
        self.head_norm = (
            RMSNorm(d_value, model.norm_eps)
            if is_differential and model.differential_norm
            else None
        )
        self.g = (
            nn.Linear(model.d_model, self.n_heads * d_value, bias)
            if model.gate == Gate.output
            else None
        )

    def mixed(
        self,
        hidden: Float[Tensor, "batch length d_model"],
        queries: slice,
        masked: Bool[Tensor, "most most"],
    ) -> Float[Tensor, "batch queries inner"]:
        """Return the concatenated mixed values of all heads at the positions `queries`, after norm and gate."""
        weights = self.pattern(self.scores(hidden, queries), queries, masked)
        rows = weights @ self.shared(heads_of(self.v(hidden), self.kv_heads))
        if self.head_norm is not None:
            rows = (1 - self.model.differential_lambda) * self.head_norm(rows)
        merged = rows.transpose(1, 2).flatten(2)
        if self.g is None:
            return merged
        return merged * torch.sigmoid(self.g(hidden[:, queries]))

    def scores(
        self, hidden: Tensor, queries: slice
    ) -> Float[Tensor, "batch heads queries length"]:
        """Return the unmasked scores of the query positions, including biases; phi(q).phi(k) for kernel attention."""
        query, key = self._query_and_key(hidden, queries)
        if self.model.attention == Attention.kernel:
            return (1 + query) @ (1 + key).transpose(-2, -1)
        scores = query @ key.transpose(-2, -1) / self.divisor
        if self.model.scores == Scores.softcap:
            scores = self.model.softcap * torch.tanh(scores / self.model.softcap)
        scores = with_sink(scores, score_sink(self.model))
        if self.model.positions != Positions.alibi:
            return scores
        return (
            scores
            + slopes(self.model, self.sets, hidden.shape[1], like=scores)[:, queries]
        )

    def pattern(
        self, scores: Tensor, queries: slice, masked: Bool[Tensor, "most most"]
    ) -> Float[Tensor, "batch n_heads queries length"]:
        """Return the mixing weights, 0 if `masked`; for differential attention, the difference of two sets."""
        bias = sigmoid_bias(self.model, len(masked))
        hidden = masked[queries, : scores.shape[-1]]
        scores = scores + bias if bias else scores
        weights = PATTERNS[self.model.attention](scores, hidden)
        if self.sets == 1:
            centring = self.model.centring
            if centring:
                return weights - centring * equal_weights(~hidden, like=weights)
            return weights
        first, second = weights.unflatten(1, (self.n_heads, 2)).unbind(2)
        return first - self.model.differential_lambda * second

    def shared(
        self, rows: Float[Tensor, "batch kv_heads length d"]
    ) -> Float[Tensor, "batch heads length d"]:
        """Repeat every head of values (or set of heads of keys) for the heads of queries that share it."""
        repeats = self.n_heads // self.kv_heads
        if repeats == 1:
            return rows
        return (
            rows.unflatten(1, (self.kv_heads, -1))
            .repeat_interleave(repeats, dim=1)
            .flatten(1, 2)
        )

    def _query_and_key(self, hidden: Tensor, queries: slice) -> tuple[Tensor, Tensor]:
        query = self.q_norm(
            heads_of(self.q(hidden[:, queries]), self.n_heads * self.sets)
        )
        if self.is_single:
            return query, hidden[:, None]
        key = self.k_norm(heads_of(self.k(hidden), self.kv_heads * self.sets))
        if self.score_gain is not None:
            query = self.score_gain(rms_normalised(query, UNIT_EPS))
            key = rms_normalised(key, UNIT_EPS)
        if self.model.positions == Positions.rope:
            positions = torch.arange(hidden.shape[1], device=hidden.device)
            query = rotated(query, positions[queries])
            key = rotated(key, positions)
        return query, self.shared(key)


def equal_weights(
    allowed: Bool[Tensor, "queries keys"], *, like: Tensor
) -> Float[Tensor, "queries keys"]:
    """Return one over the number of allowed keys for each of them, the weights of softmax at equal scores."""
    shares = allowed.to(like.dtype)
    return shares / shares.sum(-1, keepdim=True)


def slopes(
    model: ModelConfig, sets: int, length: int, *, like: Tensor
) -> Float[Tensor, "heads length length"]:
    """Return -2^(-8 h / n_heads) |i - j| of heads h = 1, 2, ..., each for its `sets` of scores (arXiv 2108.12409)."""
    heads = torch.arange(1, model.n_heads + 1, dtype=like.dtype, device=like.device)
    slope = (2.0 ** (-8 * heads / model.n_heads)).repeat_interleave(sets)
    return -slope[:, None, None] * distances(length, like.device).to(like.dtype)


def sigmoid_bias(model: ModelConfig, length: int) -> float:
    """Return the constant that is added to the scores of sigmoid attention over `length` tokens."""
    if model.attention_bias == AttentionBias.log_length:
        return -math.log(length)
    return 0.0


def heads_of(
    rows: Float[Tensor, "batch length inner"], heads: int
) -> Float[Tensor, "batch heads length d"]:
    """Split rows into heads, in order."""
    return rows.unflatten(-1, (heads, -1)).transpose(1, 2)


def softmax(scores: Tensor, masked: Tensor) -> Tensor:
    """Return exp(s_j) / sum over allowed keys."""
    return torch.softmax(scores.masked_fill(masked, float("-inf")), dim=-1)


def off_by_one(scores: Tensor, masked: Tensor) -> Tensor:
    """Return exp(s_j) / (1 + sum over allowed keys): a softmax with an additional logit 0."""
    kept = scores.masked_fill(masked, float("-inf"))
    return torch.softmax(
        torch.cat([kept, torch.zeros_like(kept[..., :1])], dim=-1), dim=-1
    )[..., :-1]


def sigmoid(scores: Tensor, masked: Tensor) -> Tensor:
    """Return 1 / (1 + exp(-s_j)) (arXiv 2409.04431)."""
    return torch.sigmoid(scores).masked_fill(masked, 0.0)


def linear(scores: Tensor, masked: Tensor) -> Tensor:
    """Return the scores of allowed keys, unchanged."""
    return scores.masked_fill(masked, 0.0)


def kernel(scores: Tensor, masked: Tensor) -> Tensor:
    """Return s_j over the sum of the allowed ones (arXiv 2006.16236)."""
    kept = scores.masked_fill(masked, 0.0)
    return kept / kept.sum(-1, keepdim=True)


def sparsemax(scores: Tensor, masked: Tensor) -> Tensor:
    """Return the nearest point of the simplex, max(s_j - tau, 0) (arXiv 1602.02068): affine on its support."""
    support = _support(
        scores.detach().masked_fill(masked, float("-inf")), _sparsemax_holds
    )
    kept = torch.where(support, scores, 0.0)
    tau = (kept.sum(-1, keepdim=True) - 1) / support.sum(-1, keepdim=True)
    return torch.where(support, kept - tau, 0.0)


def entmax15(scores: Tensor, masked: Tensor) -> Tensor:
    """Return max(s_j / 2 - tau, 0)^2, which sum to 1 (arXiv 1905.05702): tau in closed form on its support."""
    support = _support(
        scores.detach().masked_fill(masked, float("-inf")) / 2, _entmax_holds
    )
    count = support.sum(-1, keepdim=True)
    kept = torch.where(support, scores / 2, 0.0)
    mean = kept.sum(-1, keepdim=True) / count
    spread = torch.where(support, kept - mean, 0.0).square().sum(-1, keepdim=True)
    tau = mean - ((1 - spread) / count).sqrt()
    return torch.where(support, kept - tau, 0.0).square()


def _support(
    scores: Tensor, holds: Callable[[Tensor], Tensor]
) -> Bool[Tensor, "*rows keys"]:
    """Return a mask of the k largest scores, with the largest k for which `holds` is true of the sorted scores."""
    ordered = scores.sort(dim=-1, descending=True).values
    number = holds(ordered).sum(-1, keepdim=True)
    return scores >= ordered.gather(-1, number - 1)


def _sparsemax_holds(ordered: Tensor) -> Tensor:
    count = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
    return 1 + count * ordered > ordered.cumsum(-1)


def _entmax_holds(ordered: Tensor) -> Tensor:
    count = torch.arange(1, ordered.shape[-1] + 1, device=ordered.device)
    shifted = ordered - ordered[..., :1]
    mean = shifted.cumsum(-1) / count
    spread = shifted.square().cumsum(-1) - count * mean.square()
    return shifted > mean - ((1 - spread).clamp(min=0) / count).sqrt()


PATTERNS: dict[Attention, Callable[[Tensor, Tensor], Tensor]] = {
    Attention.softmax: softmax,
    Attention.linear: linear,
    Attention.sigmoid: sigmoid,
    Attention.sparsemax: sparsemax,
    Attention.entmax15: entmax15,
    Attention.kernel: kernel,
    Attention.differential: softmax,
    Attention.off_by_one: off_by_one,
}
