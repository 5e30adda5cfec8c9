r"""The output of a network as leading monomials, with the two weights of a block marked.

Components enter by their powers. With the stream x ~ sigma, a layer of attention is

.. math:: F = A(s) \, x W_V W_O, \qquad s = x W_Q W_K^T x^T \sim \sigma^2, \qquad
          A(s) = A_0 + A_1 s + A_2 s^2 + \dots,

so that dF/dW_V ~ sigma, dF/dW_Q ~ sigma^3 and d2F/dW_Q dW_Q ~ sigma^5.

Mixing weights are a function of the scores: softmax, off-by-one, entmax near equal
scores, and differential attention have every degree; without a constant where lambda =
1 cancels the weights at equal scores (centred softmax, differential attention).
Sparsemax is affine where no key is cut off, sigmoid - 1/2 is odd, kernel attention is a
ratio. Norms are odd and linear below sqrt(eps) and of degree 0 above, unit lengths are
of degree 0 everywhere.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hessfig.predictions.architecture import Architecture
from hessfig.predictions.monomials import (
    VALUE,
    CountedQuantity,
    Function,
    Growth,
    Monomial,
)
from hessfig.terms import (
    GATED,
    MLP,
    Attention,
    AttentionBias,
    Block,
    Kind,
    Matrix,
    Norm,
    Positions,
    QueryKey,
    Scores,
)

SIGMA, BRANCH = "sigma", "residual_scale"
TIED = f"{Matrix.W_E}+{Matrix.W_U}"
_EVERY, _ODD = (0, 1, 2, 3), (1, 3)
RATIO = Function("ratio", growth=Growth.degree_0)
LENGTH = Function("unit", growth=Growth.degree_0)
NORM = Function("norm", growth=Growth.degree_0)
SMALL_NORM = Function("norm", _ODD, Growth.degree_0)
SIGMOID = Function("sigmoid", (0, *_ODD))
CAP = Function("softcap", _ODD)
_SMOOTH = Function("activation", (1, 2))
_PIECES = Function("activation", (1,), Growth.polynomial, finite=True)
ACTIVATIONS: Mapping[MLP, Function] = {
    **dict.fromkeys((MLP.relu, MLP.linear), _PIECES),
    **dict.fromkeys((MLP.gelu, MLP.silu, *GATED), _SMOOTH),
}


# Two weights with the sum 1 are 1/2 and an odd function of the difference of two
# scores. So is one next to a logit 0.
_LIKE_SIGMOID = {
    Attention.softmax: 2,
    Attention.differential: 2,
    Attention.entmax15: 2,
    Attention.off_by_one: 1,
}


class Regime(StrEnum):
    """The range of sigma in which an exponent holds. `between`: above sqrt(eps) of the norms and below one."""

    small_sigma = "sigma -> 0"
    between = "sqrt(eps) < sigma < 1"
    large_sigma = "sigma -> infinity"
    every_sigma = "every sigma"


def mixing(architecture: Architecture) -> Function:
    """Return the mixing weights as a function of the scores.

    The degrees of their Taylor series follow from three facts: weights at equal scores are a
    constant, which lambda = 1 cancels; a single key has the weight 1 at every score; two
    weights are 1/2 and an odd function.

    Examples
    --------
    Two keys have the weights 1/2 + tanh(t)/2 and 1/2 - tanh(t)/2, with t half the
    difference of their scores, so only odd degrees and the constant:

    >>> mixing(Architecture()).degrees, mixing(Architecture(most_keys=2)).degrees
    ((0, 1, 2, 3), (0, 1, 3))
    """
    name, keys = architecture.attention, architecture.most_keys
    is_alone, is_odd = keys == 1, keys == _LIKE_SIGMOID.get(name, 0)
    everything = Function(name, _EVERY)
    if name == Attention.linear:
        return Function(name, (1,), Growth.polynomial, finite=True)
    if name == Attention.sigmoid:
        if architecture.attention_bias == AttentionBias.log_length:
            return everything
        return SIGMOID
    removed = {
        Attention.softmax: architecture.centring,
        Attention.differential: architecture.differential_lambda,
    }
    if removed.get(name) == 1:
        varying = _ODD if is_odd else _EVERY[1:]
        return Function(name, () if is_alone else varying, finite=is_alone)
    if is_alone and name != Attention.off_by_one:
        return Function(name, (0,), Growth.polynomial, finite=True)
    if is_odd:
        return Function(name, SIGMOID.degrees)
    if name == Attention.sparsemax:
        return Function(name, (0, 1), finite=True)
    return everything


@dataclass
class Output:
    """The monomials of a network's output in powers of `axis`, with the two weights of a block marked.

    `axis` is sigma, the name of a weight (powers of its scale, at a fixed input) or the
    factor of every branch. After `series`, `normed` holds the power of what every norm with
    an eps has met, and `met` the names of all weights. A norm below its eps divides by
    sqrt(eps): it multiplies by the small parameter to the power -`gain`.

    Examples
    --------
    One attention layer without skip: the output goes with sigma, its derivatives by W_Q with
    sigma^3 and sigma^5.

    >>> layer = Architecture(kind=Kind.self_attention)
    >>> series = Output(Block(1, "W_Q", "W_Q"), layer, Regime.small_sigma).series()
    >>> [series.derivative(order, 0).power for order in (0, 1, 2)]
    [1.0, 3.0, 5.0]
    """

    block: Block
    architecture: Architecture
    regime: Regime
    axis: str = SIGMA
    gain: float = 0.0
    normed: list[float] = field(default_factory=list)
    met: set[str] = field(default_factory=set)

    def series(self) -> CountedQuantity:
        """Return the output f = h W_U, with h the stream after all layers. Raises NoPower if no power dominates.

        The stream starts as x ~ sigma, of tokens and positions; the bare layer has the mixed
        values as its output. With tied weights, W_U is W_E ~ sigma.
        """
        architecture = self.architecture
        sigma = self._size(SIGMA)
        if architecture.kind == Kind.self_attention:
            return self._mixed(CountedQuantity.constant("x", sigma), 1)
        table = TIED if architecture.tied else Matrix.W_E
        hidden = self._weight(table, 0, power=sigma, name="x")
        if architecture.positions == Positions.learned:
            hidden += self._weight(Matrix.W_pos, 0, power=sigma, name="x")
        for layer in range(1, architecture.num_layers + 1):
            hidden = self._layer(hidden, layer)
        if architecture.norm in (Norm.pre, Norm.sandwich):
            hidden = self._norm(hidden)
        if architecture.tied:
            return hidden * self._weight(TIED, 0, power=sigma, name="x")
        return hidden * self._weight(Matrix.W_U, 0)

    def _size(self, name: str) -> float:
        """Return the power of the small parameter in the scaled factor: 1, or -1 in 1/sigma; 0 for other factors."""
        if name != self.axis:
            return 0.0
        if self.regime == Regime.large_sigma:
            return -1.0
        return 1.0

    def _weight(
        self, matrix: str, layer: int, *, power: float | None = None, name: str = ""
    ) -> CountedQuantity:
        """Return a weight, marked as the row's or the column's of the block; layer 0 is outside the layers.

        Of a diagonal block the weight is marked once: its second derivative is (2, 0).
        """
        block = self.block
        self.met.add(matrix)
        if power is None:
            power = self._size(matrix)
        value = Monomial(power, (name or matrix,))
        is_row = matrix == block.row and layer in (0, block.row_layer)
        is_col = matrix == block.col and layer in (0, block.layer)
        is_col = is_col and not block.is_diagonal
        return CountedQuantity.weight(matrix, row=is_row, col=is_col, value=value)

    def _norm(self, quantity: CountedQuantity) -> CountedQuantity:
        """Return u / |u|, or below its eps u / sqrt(eps).

        n = u / sqrt(|u|^2 + eps) is odd in u and linear for |u| << sqrt(eps), and of degree 0
        for |u| >> sqrt(eps). A quantity of order one, or one that grows, is above its eps.
        """
        size = quantity.table[VALUE].power
        self.normed.append(size)
        if self.regime == Regime.between or size <= 0:
            return quantity.through(NORM)
        return quantity.through(SMALL_NORM) * CountedQuantity.constant(power=-self.gain)

    def _layer(self, hidden: CountedQuantity, layer: int) -> CountedQuantity:
        """Return the residual stream after a layer: attention, then the MLP, each with its norms."""
        architecture = self.architecture
        if architecture.kind == Kind.linear_mlp:
            return hidden * self._weight(Matrix.W, layer)
        attended = self._branch(hidden, layer, self._attended)
        if architecture.attention_skip:
            attended = hidden + attended
        residual = self._after(attended)
        if architecture.mlp == MLP.none:
            return residual
        return self._after(residual + self._branch(residual, layer, self._fed_forward))

    def _branch(
        self,
        hidden: CountedQuantity,
        layer: int,
        sublayer: Callable[[CountedQuantity, int], CountedQuantity],
    ) -> CountedQuantity:
        """Return the output that a sublayer adds to the residual stream, with the configured norms around it.

        pre-LN: sublayer(N h); sandwich: N sublayer(N h); otherwise sublayer(h). Times the factor
        of branches, whose power counts if it is the axis.
        """
        norm = self.architecture.norm
        if norm in (Norm.pre, Norm.sandwich):
            hidden = self._norm(hidden)
        added = sublayer(hidden, layer)
        if norm == Norm.sandwich:
            added = self._norm(added)
        return added * CountedQuantity.constant(power=self._size(BRANCH))

    def _after(self, stream: CountedQuantity) -> CountedQuantity:
        """Return the residual stream after a branch was added."""
        if self.architecture.norm == Norm.post:
            return self._norm(stream)
        return stream

    def _attended(self, hidden: CountedQuantity, layer: int) -> CountedQuantity:
        """Return the outputs of the attention: mixed values times W_O."""
        return self._mixed(hidden, layer) * self._weight(Matrix.W_O, layer)

    def _fed_forward(self, hidden: CountedQuantity, layer: int) -> CountedQuantity:
        """Return the outputs of an MLP: W_out f(W_in h), or W_out (W_in h * f(W_gate h))."""
        mlp = self.architecture.mlp
        activation = ACTIVATIONS[mlp]
        inner = hidden * self._weight(Matrix.W_in, layer)
        if mlp in GATED:
            gate = hidden * self._weight(Matrix.W_gate, layer)
            inner *= gate.through(activation)
        else:
            inner = inner.through(activation)
        return inner * self._weight(Matrix.W_out, layer)

    def _mixed(self, hidden: CountedQuantity, layer: int) -> CountedQuantity:
        """Return the mixed values A(s) x W_V, normalised and gated."""
        architecture = self.architecture
        mixed = self._pattern(hidden, layer) * hidden * self._weight(Matrix.W_V, layer)
        is_differential = architecture.attention == Attention.differential
        if is_differential and architecture.differential_norm:
            mixed = self._norm(mixed)
        if architecture.has_gate:
            gate = hidden * self._weight(Matrix.W_G, layer)
            mixed *= gate.through(SIGMOID)
        return mixed

    def _pattern(self, hidden: CountedQuantity, layer: int) -> CountedQuantity:
        """Return the mixing weights, a function of the scores q k: capped first, then shifted by constants."""
        architecture = self.architecture
        query, key = self._queries_and_keys(hidden, layer)
        if architecture.attention == Attention.kernel:
            return _kernel_pattern(query, key)
        scores = query * key
        if architecture.scores == Scores.softcap:
            scores = scores.through(CAP)
        if architecture.shifted_scores:
            scores = scores + CountedQuantity.constant("slope")
        return scores.through(mixing(architecture))

    def _queries_and_keys(
        self, hidden: CountedQuantity, layer: int
    ) -> list[CountedQuantity]:
        """Return queries and keys, of length one for cosine scores; with W_QK alone the key is the stream.

        q = h W_Q and k = h W_K, both ~ sigma, so that scores are ~ sigma^2; normalised ones are
        of degree 0.
        """
        architecture = self.architecture
        if architecture.query_key == QueryKey.single:
            return [hidden * self._weight(Matrix.W_QK, layer), hidden]
        query = hidden * self._weight(Matrix.W_Q, layer)
        key = hidden * self._weight(Matrix.W_K, layer)
        if architecture.scores == Scores.cosine:
            return [query.through(LENGTH), key.through(LENGTH)]
        if architecture.scores == Scores.qk_norm:
            return [self._norm(query), self._norm(key)]
        return [query, key]


def _kernel_pattern(query: CountedQuantity, key: CountedQuantity) -> CountedQuantity:
    r"""Return phi(q).phi(k) / sum over keys, phi(z) = 1 + z, up to second powers: what all keys share cancels.

    With K_j = sum_c k_jc and Q = sum_c q_c over d numbers, the numerator of key j is

    .. math:: \phi(q) \cdot \phi(k_j) = d + Q + t_j, \qquad t_j = K_j + q \cdot k_j,

    and only t_j tells keys apart. The ratio is (d + Q + t_j) / (n (d + Q) + sum t) = 1/n +
    O(t) + O(t Q) + O(t^2) for n keys, which are the terms returned. Where t grows, its
    ratio to its sum over keys is left.
    """
    apart = key + query * key
    if apart.table[VALUE].power < 0:
        return apart.through(RATIO)
    return CountedQuantity.constant() + apart + apart * (query + apart)
