r"""Growth rates: how the norm of every Hessian block scales with sigma, by counting powers of the input.

Figures, slopes and `verify` all take their predictions from here. In each regime the
output of a network, and its derivatives, are sums of monomials in the input and the
weights (network_series). With

    e(A)    = the dominant power of sigma in df/dA
    e(A, B) = the dominant power of sigma in d2f/dAdB

.. math:: \|H_o(A, B)\|_F \sim \sigma^{e(A) + e(B)}, \qquad \|H_f(A, B)\|_F \sim \sigma^{e(A, B) + r},

where the loss gradient is ~ sigma^r (as sigma -> 0: r = 0 unless the targets are zero):
H_o is a product of two Jacobians and d2l/df2 ~ 1, H_f a second derivative times dl/df
(eq. 2). The larger term dominates H. H_f is identically zero for a block whose weights
share no monomial. This gives eq. 5, Remark 4.1, Table 1, the 2 * 3^D of Section 4.1, and
cases that the paper leaves out. Scale factors - temperature, heads, widths - change no
exponent.
"""

from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache

from hessfig.predictions.architecture import Architecture
from hessfig.predictions.monomials import VALUE, Monomial, NoPower
from hessfig.predictions.network_series import SIGMA, TIED, Output, Regime
from hessfig.terms import MLP, Attention, Block, Kind, Matrix, Part


class Prediction(StrEnum):
    """The prediction for a block: a power of sigma, identically zero, or unknown."""

    exponent = "exponent"
    structural_zero = "structural zero"
    unknown = "unknown"


@dataclass(frozen=True)
class GrowthRate:
    """||block||_F ~ sigma^exponent in `regime`; `exponent` is None unless `prediction` is one.

    `reference` names the source of the claim, or why there is none; `reason` names the
    dominant monomials.
    """

    prediction: Prediction
    exponent: float | None
    regime: Regime
    reference: str
    reason: str = ""


@cache
def growth_rate(
    block: Block,
    part: Part,
    architecture: Architecture,
    regime: Regime = Regime.small_sigma,
    axis: str = SIGMA,
) -> GrowthRate:
    """Return the predicted growth of ||part(block)||_F with sigma in a regime (the rule: see the module's docstring).

    Parameters
    ----------
    block : Block
    part : Part
        H, H_o or H_f; the split at the scores is not counted.
    architecture : Architecture
    regime : Regime
    axis : str
        sigma, the name of a weight, whose scale is varied at a fixed input, or the factor
        of every branch.

    Returns
    -------
    GrowthRate
        Unknown for networks, names and pairs outside the scope of the rule, and where a
        function saturates.

    Examples
    --------
    The query block of one layer of attention with a squared loss, eq. 5:

    >>> layer = Architecture(kind=Kind.self_attention, square_loss=True)
    >>> block = Block(1, "W_Q", "W_Q")
    >>> [growth_rate(block, part, layer).exponent for part in (Part.H_o, Part.H_f, Part.H)]
    [6.0, 5.0, 5.0]

    Three layers of linear attention without skips, H_o of the last one: 2 * 3^3.

    >>> deep = Architecture(num_layers=3, attention=Attention.linear, attention_skip=False, mlp=MLP.none)
    >>> growth_rate(Block(3, "W_V", "W_V"), Part.H_o, deep).exponent
    54.0
    """
    reason = _beyond_the_rule(block, part, architecture)
    if reason:
        return _unknown(reason, regime)
    if not _terms(block, part, architecture, Regime.small_sigma, axis):
        zero = _zero_reference(block, part, architecture)
        return GrowthRate(Prediction.structural_zero, None, Regime.every_sigma, zero)
    if architecture.no_power and axis == SIGMA:
        return _unknown(architecture.no_power, regime)
    try:
        terms = _terms(block, part, architecture, regime, axis)
    except NoPower as error:
        return _unknown(str(error), regime)
    power, words = min(terms)
    if axis == SIGMA and _is_exact(part, architecture, terms):
        holds = Regime.every_sigma
    else:
        holds = regime
    exponent = _exponent(power, regime)
    reference = _reference(block, part, architecture, regime, axis)
    return GrowthRate(Prediction.exponent, exponent, holds, reference, words)


def edge(architecture: Architecture) -> float:
    """Return the sigma above which every norm is one of degree 0: eps^(1 / 2p) where what it meets goes with sigma^p.

    A norm divides by sqrt(|u|^2 + eps), and |u| ~ sigma^p passes sqrt(eps) there. It is 0 for
    a network without norms that have an eps.

    Examples
    --------
    The paper's pre-norm layer meets the stream ~ sigma first, with eps = 1e-5:

    >>> from hessfig.terms import Norm
    >>> round(edge(Architecture(norm=Norm.pre)), 5)
    0.00316
    """
    output = Output(Block(0, "", ""), architecture, Regime.between)
    output.series()
    edges = [0.0]
    for power in output.normed:
        if power > 0:
            edges.append(architecture.norm_eps ** (0.5 / power))
    return max(edges)


def lower_edge(architecture: Architecture) -> float:
    """Return the sigma below which every norm is linear: eps^((m + 1) / 2p), after m norms that divide by sqrt(eps).

    Behind m linear norms a quantity is sigma^p / eps^(m/2), which passes sqrt(eps) at
    sigma^p = eps^((m + 1)/2). It falls with the norms that follow one another: eps^(3/2) for
    a layer of pre-norm, eps for one of post-norm. It is 0 for a network without norms that
    have an eps.

    m is read from the fraction of a counted power: each norm below its eps subtracts a
    `gain` of 1/1000.
    """
    gain = 1e-3  # far below one, to separate powers of the input from numbers of norms
    output = Output(Block(0, "", ""), architecture, Regime.small_sigma, gain=gain)
    output.series()
    edges = []
    for size in output.normed:
        power = round(size)
        norms_before = round((power - size) / gain)
        if power > 0:
            exponent = 0.5 * (norms_before + 1) / power
            edges.append(architecture.norm_eps**exponent)
    return min(edges, default=0.0)


def regime_between(
    architecture: Architecture, low: float, high: float
) -> Regime | None:
    """Return the regime of all sigma from `low` to `high`; None if they belong to several regimes.

    For a network without norms with an eps, the only regime is sigma -> 0; it applies
    to all ranges from below one.
    """
    above = 0.0
    below = 0.0
    if architecture.is_counted:
        above = edge(architecture)
        below = lower_edge(architecture)
    if low >= 1:
        return Regime.large_sigma
    if above == 0 or high <= below:
        return Regime.small_sigma
    if low >= above and high <= 1:
        return Regime.between
    return None


def borders(architecture: Architecture) -> list[float]:
    """Return the sigmas at which one regime ends or another begins, from small to large."""
    return sorted({lower_edge(architecture), edge(architecture), 1.0} - {0.0})


def regimes(architecture: Architecture) -> list[Regime]:
    """Return the regimes of a network, from small to large sigma."""
    if architecture.is_counted and edge(architecture) > 0:
        return [Regime.small_sigma, Regime.between, Regime.large_sigma]
    return [Regime.small_sigma, Regime.large_sigma]


def _beyond_the_rule(block: Block, part: Part, architecture: Architecture) -> str:
    """Return why the rule makes no prediction for this block, or ""."""
    if not architecture.is_counted:
        return f"the powers of model.kind={architecture.kind} have not been counted"
    if part not in (Part.H, Part.H_o, Part.H_f):
        return f"{part} is split at the scores, and only the split at the outputs is counted"
    names = {block.row, block.col}
    strange = sorted(names - {*Matrix, TIED})
    if strange:
        return f"{strange[0]} is not a single weight of the paper's networks"
    if block.is_across:
        return "the two weights belong to different layers"
    if (
        architecture.attention == Attention.kernel
        and architecture.most_keys == 1
        and not names <= _OF_VALUES
    ):
        return "kernel attention over a single key is one up to rounding"
    output = Output(block, architecture, Regime.small_sigma)
    output.series()
    missing = [name for name in (block.row, block.col) if name not in output.met]
    return f"the network has no {missing[0]}" if missing else ""


def _unknown(reason: str, regime: Regime) -> GrowthRate:
    """Return that there is no prediction, and why."""
    return GrowthRate(Prediction.unknown, None, regime, f"no prediction: {reason}")


def _terms(
    block: Block, part: Part, architecture: Architecture, regime: Regime, axis: str
) -> list[tuple[float, str]]:
    """Return the power and the words of every term of a part of a block; none where it vanishes identically.

    - H_o: df/dA times df/dB, e(A) + e(B);
    - H_f: d2f/dAdB times the gradient, e(A, B) + r;
    - H_f of a diagonal block with weight decay: a constant, power 0.

    H has all of them, and the lowest power dominates.
    """
    output = Output(block, architecture, regime, axis).series()
    gradient = _gradient(output.table[VALUE], architecture)
    first = output.derivative(1, 0)
    if block.is_diagonal:
        other = first
        second = output.derivative(2, 0)
    else:
        other = output.derivative(0, 1)
        second = output.derivative(1, 1)
    terms = []
    if part != Part.H_f and first and other:
        words = _told(f"df/d{block.row}", first, regime)
        if block.is_diagonal:
            words = f"{words} squared"
        else:
            words = f"{words} times {_told(f'df/d{block.col}', other, regime)}"
        terms.append((first.power + other.power, words))
    if part != Part.H_o and second:
        curvature = _told(f"d2f/d{block.row} d{block.col}", second, regime)
        words = f"{curvature} times {_told('the gradient', gradient, regime)}"
        terms.append((second.power + gradient.power, words))
    if part != Part.H_o and block.is_diagonal and architecture.weight_decay:
        terms.append((0.0, f"{_DECAY} adds a constant to the diagonal"))
    return terms


def _gradient(output: Monomial, architecture: Architecture) -> Monomial:
    """Return the leading monomial of the loss gradient by the outputs; second derivatives of the loss are of order one.

    For squared errors it is 2 (f - Y) up to a factor: of order one for small outputs, those
    of f where f grows or Y = 0. For cross-entropy it is softmax(f) - Y, of order one. Raises
    NoPower for cross-entropy of logits that grow: both vanish like exponentials then, or do
    not.
    """
    if architecture.zero_targets or (architecture.square_loss and output.power < 0):
        return output
    if output.power < 0:
        raise NoPower("the logits grow, and cross-entropy saturates")
    return Monomial()


def _exponent(power: float, regime: Regime) -> float:
    """Return the power of sigma; for large sigma, powers are those of 1 / sigma."""
    if regime == Regime.large_sigma:
        return 0.0 - power
    return power


def _told(name: str, monomial: Monomial, regime: Regime) -> str:
    """Return a quantity with its power of sigma, and the factors that give it."""
    return f"{name} ~ sigma^{_exponent(monomial.power, regime):g} ({monomial})"


def _is_exact(
    part: Part, architecture: Architecture, terms: list[tuple[float, str]]
) -> bool:
    """Return whether the exponent holds at every sigma: one power in the output, and no part in its distance to Y.

    H_f has the factor f - Y, whose two terms are different powers; weight decay alone is
    exact.
    """
    if part == Part.H_f:
        return all(words.startswith(_DECAY) for _, words in terms)
    is_single = len(terms) == 1
    return is_single and architecture.is_homogeneous and architecture.square_loss


_ATTENTION_WEIGHTS = frozenset({Matrix.W_Q, Matrix.W_K, Matrix.W_QK, Matrix.W_V})
_OF_VALUES = frozenset(Matrix) - {Matrix.W_Q, Matrix.W_K, Matrix.W_QK} | {TIED}
_COUNTING = "power counting (not in the paper)"
_PRINTED = Architecture()
_DECAY = "weight decay"  # how the words of its term begin


def _reference(
    block: Block, part: Part, architecture: Architecture, regime: Regime, axis: str
) -> str:
    """Say where the paper makes the claim, if it does."""
    last = block.layer == architecture.num_layers
    if regime != Regime.small_sigma or axis != SIGMA or not _is_printed(architecture):
        return _COUNTING
    if architecture.kind == Kind.linear_mlp:
        return "Section 4.1, Table 1 (MLP)"
    if not {block.row, block.col} <= _ATTENTION_WEIGHTS:
        return _COUNTING
    if architecture.attention == Attention.linear:
        if last or part == Part.H_o:
            return "Remark 4.1, Section 4.1 (2 * 3^D)"
        return _COUNTING
    if last:
        return "eq. 5"
    figured = block.is_diagonal and (part != Part.H_f or block.row == Matrix.W_Q)
    return "eq. 5, Figure 6" if figured else _COUNTING


def _is_printed(architecture: Architecture) -> bool:
    """Return whether a network is made of the paper's components, and its targets are of order one.

    The properties in which the paper's own networks differ are set equal; the rest must be
    the defaults.
    """
    if architecture.attention not in (Attention.softmax, Attention.linear):
        return False
    if architecture.mlp not in (MLP.relu, MLP.linear, MLP.none):
        return False
    # These differ among the paper's own networks.
    common = replace(
        architecture,
        kind=_PRINTED.kind,
        num_layers=_PRINTED.num_layers,
        attention=_PRINTED.attention,
        attention_skip=_PRINTED.attention_skip,
        mlp=_PRINTED.mlp,
        query_key=_PRINTED.query_key,
        square_loss=False,
        no_power="",
        shifted_scores=False,
    )
    return common == _PRINTED


def _zero_reference(block: Block, part: Part, architecture: Architecture) -> str:
    """Say why a block vanishes identically, and where the paper says so."""
    if part != Part.H_f:
        return "the output does not depend on one of the weights: every position attends to itself only"
    if architecture.kind == Kind.linear_mlp:
        return "Section 2: a linear MLP has a block-hollow H_f"
    if block.row == block.col == Matrix.W_U:
        return "the output is affine in W_U"
    if block.row in (Matrix.W_V, Matrix.W_O):
        return "Theorem 3.2: the output is (piecewise) affine in this weight"
    is_of_attention = block.row in _ATTENTION_WEIGHTS
    if architecture.attention == Attention.linear and is_of_attention:
        return "Remark 4.1: linear attention has a block-hollow H_f"
    if architecture.attention == Attention.sparsemax and is_of_attention:
        return "sparsemax is piecewise affine in the scores, and they are linear in this weight"
    if block.is_diagonal and architecture.most_keys != 1:
        return "the output is (piecewise) affine in this weight"
    return "no term of the output contains both weights"
