"""Dense derivatives by automatic differentiation, the networks to differentiate, and exponents by scaling.

The networks are plain functions of their weights, written from the paper's equations and
independent of the package's modules, so that a formula and its check share no code.
"""

import math
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.func import grad, hessian, jacfwd, jacrev, jvp

from hessfig.predictions.architecture import Architecture
from hessfig.terms import (
    GATED,
    MLP,
    Attention,
    AttentionBias,
    Kind,
    Matrix,
    Norm,
    NormKind,
    Part,
    Scores,
)

VANISHES = 99.0  # the exponent of a block that is exactly zero
Function = Callable[[Tensor], Tensor]
Tokens = Float[Tensor, "L d_V"]
Weights = Mapping[Matrix, Tensor]
IndexedWeights = Mapping[tuple[int, Matrix], Tensor]


def scores(
    X: Tokens, weights: Weights, temperature: float = 1.0
) -> Float[Tensor, "L L"]:
    """T = X W_Q W_K^T X^T / (t sqrt(d_K)) (Section 2; temperature t of Section 4.3)."""
    W_Q = weights[Matrix.W_Q]
    W_K = weights[Matrix.W_K]
    d_K = W_Q.shape[1]
    return X @ W_Q @ W_K.T @ X.T / (temperature * math.sqrt(d_K))


def attention(X: Tokens, weights: Weights, temperature: float = 1.0) -> Tokens:
    """F = softmax(T) X W_V (eq. 1)."""
    pattern = torch.softmax(scores(X, weights, temperature), dim=-1)
    return pattern @ X @ weights[Matrix.W_V]


def linear_attention(X: Tokens, weights: Weights) -> Tokens:
    """F = T X W_V: attention with the softmax taken out (Remark 4.1)."""
    return scores(X, weights) @ X @ weights[Matrix.W_V]


def single_matrix_attention(X: Tokens, weights: Weights) -> Tokens:
    """F = softmax(X W_QK X^T) X W_V (Section 4.2)."""
    T = X @ weights[Matrix.W_QK] @ X.T
    return torch.softmax(T, dim=-1) @ X @ weights[Matrix.W_V]


def low_rank_attention(X: Tokens, weights: Weights) -> Tokens:
    """Attention with W_V = W_O W_U, W_O in R^{d_V x r} (Appendix E.1, eq. 24)."""
    W_V = weights[Matrix.W_O] @ weights[Matrix.W_U]
    return attention(X, {**weights, Matrix.W_V: W_V})


def multi_head_attention(X: Tokens, weights: IndexedWeights) -> Tokens:
    """F = sum_h A^h X W_V^h with keys (head, Matrix) (Appendix E)."""
    outputs = []
    for head in sorted({head for head, _ in weights}):
        outputs.append(attention(X, at_index(weights, head)))
    return torch.stack(outputs).sum(0)


def stacked(
    layer: Callable[[Tensor, Weights], Tensor], X: Tokens, weights: IndexedWeights
) -> Tokens:
    """Feed the output of one layer to the next; keys are (layer, Matrix), 1-based (footnote 3, Section
    4.1).
    """
    for number in sorted({number for number, _ in weights}):
        X = layer(X, at_index(weights, number))
    return X


def linear_mlp(
    X: Float[Tensor, "L d_in"], weights: Mapping[int, Tensor]
) -> Float[Tensor, "L d_out"]:
    """Rows x -> W^D ... W^1 x, weights keyed by layer, W^i in R^{out x in} (Section 2)."""
    for number in sorted(weights):
        X = X @ weights[number].T
    return X


def layer_norm(X: Float[Tensor, "L d"]) -> Float[Tensor, "L d"]:
    """Rows centred and divided by s, s^2 = variance + 1e-5; no gain, no bias."""
    return nn.functional.layer_norm(X, X.shape[-1:])


def feed_forward(
    X: Float[Tensor, "L d"], weights: Weights, activation: Function
) -> Float[Tensor, "L d"]:
    """phi(X W_in) W_out, W_in in R^{d x d_ff}."""
    return activation(X @ weights[Matrix.W_in]) @ weights[Matrix.W_out]


def post_norm_block(
    X: Float[Tensor, "L d"], weights: Weights, activation: Function
) -> Float[Tensor, "L d"]:
    """Z = LN(Y + FFN(Y)), Y = LN(X + F(X))."""
    Y = layer_norm(X + attention(X, weights))
    return layer_norm(Y + feed_forward(Y, weights, activation))


def pre_norm_block(
    X: Float[Tensor, "L d"], weights: Weights, activation: Function
) -> Float[Tensor, "L d"]:
    """Z = X' + FFN(LN(X')), X' = X + F(LN(X))."""
    summed = X + attention(layer_norm(X), weights)
    return summed + feed_forward(layer_norm(summed), weights, activation)


def at_index(weights: IndexedWeights, index: int) -> dict[Matrix, Tensor]:
    """The weights of one layer or head."""
    return {matrix: w for (number, matrix), w in weights.items() if number == index}


Key = TypeVar("Key", bound=Hashable)
Network = Callable[[Mapping[Key, Tensor]], Tensor]
Loss = Function  # of the outputs


def square_loss(Y: Tensor) -> Loss:
    """F -> ||F - Y||^2 / (L d_V), the paper's loss (Section 2)."""

    def loss(F: Tensor) -> Tensor:
        return (F - Y).square().mean()

    return loss


def dense_hessian(
    network: Network[Key],
    loss: Loss,
    weights: Mapping[Key, Tensor],
    part: Part = Part.H,
) -> Float[Tensor, "p p"]:
    """The Hessian of loss(network(weights)), or a part of it, rows and columns in the order of `weights`.

    With f the network, J its Jacobian and g = dl/df at the point w_0, the parts are Hessians of
    other functions of w there:

    - H_o of l(f(w_0) + J (w - w_0)), in which the network is linear;
    - H_f of <g, f(w)>, in which the loss is linear, with g held fixed;
    - H of l(f(w)).

    Parameters
    ----------
    network : callable
        From the weights by key to the outputs.
    loss : callable
        Of the outputs.
    weights : dict
    part : Part

    Examples
    --------
    f = a b with the loss (f - 1)^2 at a = 2, b = 3: H_o = 2 [[9, 6], [6, 4]], and H_f = 2 (6 - 1)
    off the diagonal.

    >>> weights = {name: torch.tensor([value]) for name, value in (("a", 2.0), ("b", 3.0))}
    >>> product = lambda w: w["a"] * w["b"]
    >>> dense_hessian(product, square_loss(torch.ones(1)), weights, Part.H_o).tolist()
    [[18.0, 12.0], [12.0, 8.0]]
    >>> dense_hessian(product, square_loss(torch.ones(1)), weights, Part.H_f).tolist()
    [[0.0, 10.0], [10.0, 0.0]]
    """
    point, output = flattened(network, weights)
    return hessian(_PART_FUNCTIONS[part](output, loss, point))(point)


def flattened(
    network: Network[Key], weights: Mapping[Key, Tensor]
) -> tuple[Tensor, Function]:
    """The weights as one vector, and the network as a function of such a vector."""
    slices = _slices(weights)

    def output(flat: Tensor) -> Tensor:
        parts = {}
        for key, weight in weights.items():
            parts[key] = flat[slices[key]].reshape(weight.shape)
        return network(parts)

    point = torch.cat([weight.reshape(-1) for weight in weights.values()])
    return point, output


def hessian_blocks(
    network: Network[Key],
    loss: Loss,
    weights: Mapping[Key, Tensor],
    part: Part = Part.H,
) -> dict[tuple[Key, Key], Float[Tensor, "_ _"]]:
    """`dense_hessian` cut into blocks, one per ordered pair of weights."""
    dense = dense_hessian(network, loss, weights, part)
    slices = _slices(weights)
    blocks = {}
    for a in weights:
        for b in weights:
            blocks[a, b] = dense[slices[a], slices[b]]
    return blocks


def with_sum(parts: Mapping[Part, Mapping[Key, Any]]) -> dict[Part, dict[Key, Any]]:
    """The blocks (or bounds on them) of H_o and H_f, and those of their sum H."""
    outer = dict(parts[Part.H_o])
    functional = dict(parts[Part.H_f])
    whole = {key: outer[key] + functional[key] for key in outer}
    return {Part.H_o: outer, Part.H_f: functional, Part.H: whole}


def exponent(low: Tensor, high: Tensor, rounding: float | Tensor = 0.0) -> Tensor:
    """Return the power with which a norm grows from a scale to twice the scale; VANISHES for mere rounding.

    log2(high / low), as (2 sigma)^p / sigma^p = 2^p.
    """
    if low > rounding:
        return torch.log2(high / low)
    return torch.full_like(low, VANISHES)


def jacobian(function: Function, at: Tensor) -> Float[Tensor, "outputs inputs"]:
    """d vec_r(function) / d vec_r(argument) in numerator layout (eq. 4)."""
    return jacrev(function)(at).reshape(-1, at.numel())


def weight_jacobian(
    network: Network[Key], weights: Mapping[Key, Tensor], key: Key
) -> Float[Tensor, "outputs inputs"]:
    """The Jacobian of a network with respect to one of its weights."""

    def outputs(weight: Tensor) -> Tensor:
        return network({**weights, key: weight})

    return jacobian(outputs, weights[key])


def second_derivative(function: Function, at: Tensor) -> Float[Tensor, "_ inputs"]:
    """The second derivative as a column of blocks, one Hessian per output entry (eq. 4, Fig. 2)."""
    derivative = jacfwd(jacrev(function))(at)
    return derivative.reshape(-1, at.numel())


def _full(output: Function, loss: Loss, point: Tensor) -> Function:
    return lambda flat: loss(output(flat))


def _outer_product(output: Function, loss: Loss, point: Tensor) -> Function:
    def linearised_loss(flat: Tensor) -> Tensor:
        linearised = jvp(output, (point,), (flat - point,))
        return loss(linearised[0] + linearised[1])

    return linearised_loss


def _functional(output: Function, loss: Loss, point: Tensor) -> Function:
    residual = grad(loss)(output(point))
    return lambda flat: (residual * output(flat)).sum()


_PART_FUNCTIONS = {Part.H: _full, Part.H_o: _outer_product, Part.H_f: _functional}


def _slices(weights: Mapping[Key, Tensor]) -> dict[Key, slice]:
    slices = {}
    end = 0
    for key, weight in weights.items():
        start = end
        end += weight.numel()
        slices[key] = slice(start, end)
    return slices


@dataclass(frozen=True)
class ScaledNetwork(Generic[Key]):
    """A network with fixed weights and loss ||F - Y||^2/(L d) as a function of the scale of its input.

    With `at_fixed_residual` the targets follow the outputs, so that F - Y = `Y` at every scale:
    then the powers of H_f are those of the network's second derivatives alone.

    Parameters
    ----------
    X : (L, d_in)
    Y : (L, d_out)
    weights : dict
    network : callable
        From tokens and weights to outputs.
    at_fixed_residual : bool
    """

    X: Float[Tensor, "L d_in"]
    Y: Float[Tensor, "L d_out"]
    weights: Mapping[Key, Tensor]
    network: Callable[[Tensor, Mapping[Key, Tensor]], Tensor]
    at_fixed_residual: bool = False

    def exponents(self, part: Part, sigma: float) -> dict[tuple[Key, Key], Tensor]:
        """log2 of the growth of every block's Frobenius norm from sigma X to 2 sigma X; zero blocks are left
        out.
        """
        low = self.norms(part, sigma)
        high = self.norms(part, 2 * sigma)
        exponents = {}
        for pair, norm in low.items():
            if norm > 0:
                exponents[pair] = torch.log2(high[pair] / norm)
        return exponents

    def norms(self, part: Part, sigma: float) -> dict[tuple[Key, Key], Tensor]:
        """The Frobenius norm of every block at the input sigma X."""
        norms = {}
        for pair, block in self.blocks(part, sigma).items():
            norms[pair] = torch.linalg.matrix_norm(block)
        return norms

    def blocks(self, part: Part, sigma: float) -> dict[tuple[Key, Key], Tensor]:
        """Every block at the input sigma X."""
        X = sigma * self.X
        Y = self.Y
        if self.at_fixed_residual:
            Y = self.network(X, self.weights) - Y

        def outputs(weights: Mapping[Key, Tensor]) -> Tensor:
            return self.network(X, weights)

        return hessian_blocks(outputs, square_loss(Y), self.weights, part)


Rows = Float[Tensor, "L d"]

ACTIVATIONS: dict[MLP, Callable[[Tensor], Tensor]] = {
    MLP.relu: torch.relu,
    MLP.gelu: nn.functional.gelu,
    MLP.linear: lambda z: z,
    MLP.geglu: nn.functional.gelu,
    MLP.silu: lambda z: z * torch.sigmoid(z),
    MLP.swiglu: lambda z: z * torch.sigmoid(z),
}


@dataclass(frozen=True)
class ComponentNetwork:
    """A bare attention layer, or a transformer's layers and its read-out.

    The norms have no gain, because gains do not change powers. `eps` is the eps of
    every norm, `branch` the factor of every sublayer's output.
    """

    of: Architecture
    eps: float
    norm_kind: NormKind
    is_rotated: bool
    branch: float

    def outputs(self, X: Rows, weights: IndexedWeights) -> Float[Tensor, "L outputs"]:
        """Return the outputs of the network for the tokens X.

        The keys of `weights` are the 1-based layer and the matrix. Layer 0 has W_U, and
        W_E, which is added to X and replaces the embeddings.
        """
        if self.of.kind == Kind.self_attention:
            return self._mixed(X, at_index(weights, 1))
        embedded = stream = X + weights[0, Matrix.W_E]
        for number in range(1, self.of.num_layers + 1):
            stream = self._after_layer(stream, at_index(weights, number))
        read_out = embedded.T if self.of.tied else weights[0, Matrix.W_U]
        return self._before(stream) @ read_out

    def _after_layer(self, X: Rows, weights: Weights) -> Rows:
        """Return the residual stream after a layer."""
        after = self.of.norm == Norm.post
        attended = self._branch(
            X, lambda rows: self._mixed(rows, weights) @ weights[Matrix.W_O]
        )
        if self.of.attention_skip:
            attended = X + attended
        X = attended
        if after:
            X = self._norm(X)
        if self.of.mlp != MLP.none:
            X = X + self._branch(X, lambda rows: self._fed_forward(rows, weights))
            if after:
                X = self._norm(X)
        return X

    def _branch(self, X: Rows, sublayer: Callable[[Rows], Rows]) -> Rows:
        out = sublayer(self._before(X))
        if self.of.norm == Norm.sandwich:
            out = self._norm(out)
        return self.branch * out

    def _before(self, X: Rows) -> Rows:
        """Return the input of a sublayer, or of the read-out, from the residual stream."""
        if self.of.norm in (Norm.pre, Norm.sandwich):
            return self._norm(X)
        return X

    def _norm(self, X: Rows) -> Rows:
        """Return the rows centred (LayerNorm) and over their root mean square."""
        if self.norm_kind == NormKind.layer:
            X = X - X.mean(-1, keepdim=True)
        return _rms(X, self.eps)

    def _fed_forward(self, X: Rows, weights: Weights) -> Rows:
        act = ACTIVATIONS[self.of.mlp]
        inner = X @ weights[Matrix.W_in]
        if self.of.mlp in GATED:
            activated = act(X @ weights[Matrix.W_gate]) * inner
        else:
            activated = act(inner)
        return activated @ weights[Matrix.W_out]

    def _mixed(self, X: Rows, weights: Weights) -> Rows:
        """Return the mixed values, normalised (differential attention) and gated."""
        mixed = self._pattern(X, weights) @ X @ weights[Matrix.W_V]
        if self.of.attention == Attention.differential and self.of.differential_norm:
            mixed = _rms(mixed, self.eps)
        if self.of.has_gate:
            return mixed * torch.sigmoid(X @ weights[Matrix.W_G])
        return mixed

    def _pattern(self, X: Rows, weights: Weights) -> Float[Tensor, "L L"]:
        query = X @ weights[Matrix.W_Q]
        key = X @ weights[Matrix.W_K]
        if self.is_rotated:
            query = self._rotated(query)
            key = self._rotated(key)
        if self.of.attention == Attention.differential:
            return self._difference(query, key)
        query = self._normalised(query)
        key = self._normalised(key)
        if self.of.attention == Attention.kernel:
            features = (1 + query) @ (1 + key).T
            return features / features.sum(-1, keepdim=True)
        return self._weights(self._scores(query, key))

    def _difference(self, query: Rows, key: Rows) -> Float[Tensor, "L L"]:
        """Return softmax - lambda softmax, of the first and the second half of the columns."""
        half = query.shape[1] // 2

        def pattern(cut: slice) -> Tensor:
            queries = self._normalised(query[:, cut])
            keys = self._normalised(key[:, cut])
            return torch.softmax(self._scores(queries, keys), -1)

        second = pattern(slice(half, None))
        return pattern(slice(half)) - self.of.differential_lambda * second

    def _normalised(self, rows: Rows) -> Rows:
        """Return queries or keys of length one, of root mean square one, or as they are."""
        if self.of.scores == Scores.cosine:
            return rows / rows.norm(dim=-1, keepdim=True)
        if self.of.scores == Scores.qk_norm:
            return _rms(rows, self.eps)
        return rows

    def _scores(self, query: Rows, key: Rows) -> Float[Tensor, "L L"]:
        scores = query @ key.T / math.sqrt(query.shape[1])
        if self.of.scores == Scores.softcap:
            scores = torch.tanh(scores)
        if not self.of.shifted_scores:
            return scores
        positions = torch.arange(len(query), dtype=query.dtype)
        return scores - 0.1 * (positions[:, None] - positions).abs()

    def _weights(self, scores: Float[Tensor, "L L"]) -> Float[Tensor, "L L"]:
        name = self.of.attention
        length = scores.shape[-1]
        if name == Attention.linear:
            return scores
        if name == Attention.sigmoid:
            if self.of.attention_bias == AttentionBias.log_length:
                scores = scores - math.log(length)
            return torch.sigmoid(scores)
        if name == Attention.sparsemax:
            return sparsemax(scores)
        if name == Attention.entmax15:
            return entmax15(scores)
        if name == Attention.off_by_one:
            with_zero = nn.functional.pad(scores, (0, 1))
            return torch.softmax(with_zero, -1)[:, :-1]
        return torch.softmax(scores, -1) - self.of.centring / length

    def _rotated(self, rows: Rows) -> Rows:
        """Turn entries c and c + d / 2 of row i by the angle i / (c + 1); an odd last entry stays."""
        half = rows.shape[1] // 2
        first = rows[:, :half]
        second = rows[:, half : 2 * half]
        rest = rows[:, 2 * half :]
        position = torch.arange(len(rows), dtype=rows.dtype)[:, None]
        angle = position / torch.arange(1, half + 1, dtype=rows.dtype)
        turned = first * angle.cos() - second * angle.sin()
        other = first * angle.sin() + second * angle.cos()
        return torch.cat([turned, other, rest], 1)


def sparsemax(scores: Float[Tensor, "rows keys"]) -> Float[Tensor, "rows keys"]:
    """Return the projection of every row onto the simplex: max(s - tau, 0), which sums to one."""
    ordered = scores.sort(-1, descending=True).values
    thresholds = (ordered.cumsum(-1) - 1) / _counts(scores)
    last = (ordered > thresholds).sum(-1, keepdim=True) - 1
    tau = thresholds.gather(-1, last)
    return torch.relu(scores - tau)


def entmax15(scores: Float[Tensor, "rows keys"]) -> Float[Tensor, "rows keys"]:
    """Return max(s / 2 - tau, 0)^2 with the tau that makes every row sum to one."""
    ordered = (scores / 2).sort(-1, descending=True).values
    counts = _counts(scores)
    mean = ordered.cumsum(-1) / counts
    variance = ordered.square().cumsum(-1) / counts - mean.square()
    left = (1 - variance * counts).clamp(min=0)
    thresholds = mean - (left / counts).sqrt()
    last = (ordered >= thresholds).sum(-1, keepdim=True) - 1
    tau = thresholds.gather(-1, last)
    return torch.relu(scores / 2 - tau).square()


def _counts(scores: Float[Tensor, "rows keys"]) -> Float[Tensor, " keys"]:
    """Return 1, 2, ..., the number of keys."""
    return torch.arange(1, scores.shape[-1] + 1, dtype=scores.dtype)


def _rms(rows: Rows, eps: float) -> Rows:
    mean_square = rows.square().mean(-1, keepdim=True)
    return rows / (mean_square + eps).sqrt()
