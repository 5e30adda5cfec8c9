"""Networks of today's components on given tokens, for derivatives by autodiff, apart from those that are measured."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor
from torch.nn import functional as F

from hessfig.predictions.architecture import Architecture
from hessfig.terms import GATED, MLP, Attention, AttentionBias, Kind, Matrix, Norm, NormKind, Scores
from hessfig.theory.autodiff import IndexedWeights, Weights, at_index

Rows = Float[Tensor, "L d"]

ACTIVATIONS: dict[MLP, Callable[[Tensor], Tensor]] = {
    **{MLP.relu: torch.relu, MLP.gelu: F.gelu, MLP.linear: lambda z: z, MLP.geglu: F.gelu},
    **{MLP.silu: lambda z: z * torch.sigmoid(z), MLP.swiglu: lambda z: z * torch.sigmoid(z)},
}


@dataclass(frozen=True)
class ComponentNetwork:
    """A bare attention layer, or a transformer's layers and its read-out.

    The norms have no gain, which changes no power. `eps` is that of every norm, `branch` the factor of every
    sublayer's output.
    """

    of: Architecture
    eps: float
    norm_kind: NormKind
    is_rotated: bool
    branch: float

    def outputs(self, X: Rows, weights: IndexedWeights) -> Float[Tensor, "L outputs"]:
        """Return what the network makes of the tokens X.

        `weights` are keyed by layer, 1-based, and matrix; those of layer 0 are W_E, which is added to X and stands for
        the embeddings, and W_U.
        """
        if self.of.kind == Kind.self_attention:
            return self._mixed(X, at_index(weights, 1))
        embedded = stream = X + weights[0, Matrix.W_E]
        for number in range(1, self.of.num_layers + 1):
            stream = self._after_layer(stream, at_index(weights, number))
        return self._before(stream) @ (embedded.T if self.of.tied else weights[0, Matrix.W_U])

    def _after_layer(self, X: Rows, weights: Weights) -> Rows:
        """Return the residual stream after a layer."""
        after = self.of.norm == Norm.post
        attended = self._branch(X, lambda rows: self._mixed(rows, weights) @ weights[Matrix.W_O])
        X = X + attended if self.of.attention_skip else attended
        X = self._norm(X) if after else X
        if self.of.mlp != MLP.none:
            X = X + self._branch(X, lambda rows: self._fed_forward(rows, weights))
            X = self._norm(X) if after else X
        return X

    def _branch(self, X: Rows, sublayer: Callable[[Rows], Rows]) -> Rows:
        made = sublayer(self._before(X))
        return self.branch * (self._norm(made) if self.of.norm == Norm.sandwich else made)

    def _before(self, X: Rows) -> Rows:
        """Return what a sublayer, or the read-out, takes of the stream."""
        return self._norm(X) if self.of.norm in (Norm.pre, Norm.sandwich) else X

    def _norm(self, X: Rows) -> Rows:
        """Return the rows centred (LayerNorm) and over their root mean square."""
        return _rms(X - X.mean(-1, keepdim=True) if self.norm_kind == NormKind.layer else X, self.eps)

    def _fed_forward(self, X: Rows, weights: Weights) -> Rows:
        act = ACTIVATIONS[self.of.mlp]
        inner = X @ weights[Matrix.W_in]
        made = act(X @ weights[Matrix.W_gate]) * inner if self.of.mlp in GATED else act(inner)
        return made @ weights[Matrix.W_out]

    def _mixed(self, X: Rows, weights: Weights) -> Rows:
        """Return the mixed values, normalised (differential attention) and gated."""
        mixed = self._pattern(X, weights) @ X @ weights[Matrix.W_V]
        if self.of.attention == Attention.differential and self.of.differential_norm:
            mixed = _rms(mixed, self.eps)
        return mixed * torch.sigmoid(X @ weights[Matrix.W_G]) if self.of.has_gate else mixed

    def _pattern(self, X: Rows, weights: Weights) -> Float[Tensor, "L L"]:
        query, key = X @ weights[Matrix.W_Q], X @ weights[Matrix.W_K]
        query, key = (self._rotated(query), self._rotated(key)) if self.is_rotated else (query, key)
        if self.of.attention == Attention.differential:
            return self._difference(query, key)
        query, key = self._normalised(query), self._normalised(key)
        if self.of.attention == Attention.kernel:
            features = (1 + query) @ (1 + key).T
            return features / features.sum(-1, keepdim=True)
        return self._weights(self._scores(query, key))

    def _difference(self, query: Rows, key: Rows) -> Float[Tensor, "L L"]:
        """Return softmax - lambda softmax, of the first and the second half of the columns."""
        half = query.shape[1] // 2
        halves = (slice(half), slice(half, None))
        scores = (self._scores(self._normalised(query[:, cut]), self._normalised(key[:, cut])) for cut in halves)
        one, two = (torch.softmax(each, -1) for each in scores)
        return one - self.of.differential_lambda * two

    def _normalised(self, rows: Rows) -> Rows:
        """Return queries or keys of length one, of root mean square one, or as they are."""
        if self.of.scores == Scores.cosine:
            return rows / rows.square().sum(-1, keepdim=True).sqrt()
        return _rms(rows, self.eps) if self.of.scores == Scores.qk_norm else rows

    def _scores(self, query: Rows, key: Rows) -> Float[Tensor, "L L"]:
        scores = query @ key.T / math.sqrt(query.shape[1])
        scores = torch.tanh(scores) if self.of.scores == Scores.softcap else scores
        if not self.of.shifted_scores:
            return scores
        positions = torch.arange(len(query), dtype=query.dtype)
        return scores - 0.1 * (positions[:, None] - positions).abs()

    def _weights(self, scores: Float[Tensor, "L L"]) -> Float[Tensor, "L L"]:
        name, bias = self.of.attention, -math.log(scores.shape[-1])
        if name == Attention.linear:
            return scores
        if name == Attention.sigmoid:
            return torch.sigmoid(scores + (bias if self.of.attention_bias == AttentionBias.log_length else 0.0))
        if name == Attention.sparsemax:
            return sparsemax(scores)
        if name == Attention.entmax15:
            return entmax15(scores)
        if name == Attention.off_by_one:
            return torch.softmax(F.pad(scores, (0, 1)), -1)[:, :-1]
        return torch.softmax(scores, -1)

    def _rotated(self, rows: Rows) -> Rows:
        """Turn entries c and c + d / 2 of row i by the angle i / (c + 1); an odd last entry stays."""
        half = rows.shape[1] // 2
        first, second, rest = rows[:, :half], rows[:, half : 2 * half], rows[:, 2 * half :]
        angle = torch.arange(len(rows), dtype=rows.dtype)[:, None] / torch.arange(1, half + 1, dtype=rows.dtype)
        turned = first * angle.cos() - second * angle.sin(), first * angle.sin() + second * angle.cos()
        return torch.cat([*turned, rest], 1)


def sparsemax(scores: Float[Tensor, "rows keys"]) -> Float[Tensor, "rows keys"]:
    """Return the projection of every row onto the simplex: max(s - tau, 0), which sums to one."""
    ordered = scores.sort(-1, descending=True).values
    counts = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    threshold = (ordered.cumsum(-1) - 1) / counts
    tau = threshold.gather(-1, (ordered > threshold).sum(-1, keepdim=True) - 1)
    return torch.relu(scores - tau)


def entmax15(scores: Float[Tensor, "rows keys"]) -> Float[Tensor, "rows keys"]:
    """Return max(s / 2 - tau, 0)^2 with the tau that makes every row sum to one."""
    ordered = (scores / 2).sort(-1, descending=True).values
    counts = torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)
    mean = ordered.cumsum(-1) / counts
    spread = (ordered.square().cumsum(-1) / counts - mean.square()) * counts
    threshold = mean - ((1 - spread).clamp(min=0) / counts).sqrt()
    tau = threshold.gather(-1, (ordered >= threshold).sum(-1, keepdim=True) - 1)
    return torch.relu(scores / 2 - tau).square()


def _rms(rows: Rows, eps: float) -> Rows:
    return rows / (rows.square().mean(-1, keepdim=True) + eps).sqrt()
