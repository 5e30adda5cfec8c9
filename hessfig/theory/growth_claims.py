"""Statements about degrees and growth rates: those of the paper, and those for components by counting monomials."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement
from typing import NamedTuple

import torch
from torch import Tensor

from hessfig import terms
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import Prediction, growth_rate, regimes
from hessfig.predictions.network_series import BRANCH, SIGMA, TIED, Regime
from hessfig.terms import (
    AT_OUTPUTS,
    MLP,
    PARTS,
    Attention,
    Block,
    Gate,
    Kind,
    Matrix,
    Norm,
    NormKind,
    Part,
    Scores,
)
from hessfig.theory import autodiff, statement
from hessfig.theory.attention_formulas import MATRICES
from hessfig.theory.autodiff import (
    VANISHES,
    ComponentNetwork,
    Loss,
    ScaledNetwork,
    exponent,
    hessian_blocks,
    square_loss,
    with_sum,
)
from hessfig.theory.statement import (
    Check,
    Dims,
    Instance,
    Values,
    attention_point,
    named,
    normal,
    prefixed,
    tokens_and_targets,
)

DEPTH_SIGMA = 4e-3
Key = tuple[int, Matrix]


def _table_draw(dims: Dims, generator: torch.Generator) -> dict[str, ScaledNetwork]:
    point = attention_point(dims, generator)
    layers = {
        1: normal(dims.d_K, dims.d_V, generator=generator),
        2: normal(dims.d_V, dims.d_K, generator=generator),
    }
    return {
        "attention": ScaledNetwork(
            point.X, point.Y, point.weights, autodiff.linear_attention, True
        ),
        "MLP": ScaledNetwork(point.X, point.Y, layers, autodiff.linear_mlp, True),
    }


def _table_oracle(nets: dict[str, ScaledNetwork]) -> Values:
    values: dict[str, Tensor] = {}
    for name, net in nets.items():
        for part in AT_OUTPUTS:
            degrees = net.exponents(part, 1.0).values()
            values[f"{part} of the {name}, lowest"] = min(degrees)
            values[f"{part} of the {name}, highest"] = max(degrees)
    return values


def _table_printed(nets: dict[str, ScaledNetwork]) -> Values:
    """Degree in X at a fixed residual: Sigma counts 2, Omega counts 1."""
    degrees = {
        "H_o of the attention": 6,
        "H_f of the attention": 3,
        "H_o of the MLP": 2,
        "H_f of the MLP": 1,
    }
    values = {}
    for name, degree in degrees.items():
        values[f"{name}, lowest"] = _number(degree)
        values[f"{name}, highest"] = _number(degree)
    return values


Depths = dict[int, ScaledNetwork[Key]]


def _depth_draw(dims: Dims, generator: torch.Generator) -> Depths:
    X, Y = tokens_and_targets(dims, generator)
    weights = statement.indexed_weights(dims, generator, 3)
    stacked = partial(autodiff.stacked, autodiff.linear_attention)
    nets = {}
    for depth in (1, 2, 3):
        lowest = {key: w for key, w in weights.items() if key[0] <= depth}
        nets[depth] = ScaledNetwork(X, Y, lowest, stacked)
    return nets


def _depth_oracle(nets: Depths) -> Values:
    values: dict[str, Tensor] = {}
    for depth, net in nets.items():
        for part in (Part.H_o, Part.H):
            exponents = net.exponents(part, DEPTH_SIGMA)
            for key in net.weights:
                values[_depth_name(part, key, depth)] = exponents[key, key]
    return values


def _depth_name(part: Part, key: Key, depth: int) -> str:
    layer, matrix = key
    return f"{part}, {matrix} of layer {layer} of {depth}"


def _depth_printed(nets: Depths) -> dict[str, Tensor]:
    """2 3^D: every layer of H_o, and the last layer of H."""
    values = {}
    for depth, net in nets.items():
        degree = _number(2 * 3**depth)
        for key in net.weights:
            values[_depth_name(Part.H_o, key, depth)] = degree
        for matrix in MATRICES:
            values[_depth_name(Part.H, (depth, matrix), depth)] = degree
    return values


def _depth_corrected(nets: Depths) -> Values:
    """And H below the last layer: 3^D as sigma -> 0, because H_f is not zero there."""
    values = _depth_printed(nets)
    for depth, net in nets.items():
        for key in net.weights:
            if key[0] < depth:
                values[_depth_name(Part.H, key, depth)] = _number(3**depth)
    return values


def _number(value: float | int) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


DEGREES = {
    "tab1": Check(_table_draw, _table_oracle, _table_printed),
    "depth": Check(_depth_draw, _depth_oracle, _depth_printed, _depth_corrected),
}


Q, K, V = MATRICES
PAIRS = list(combinations_with_replacement(MATRICES, 2))
TINY = 1e-5
LARGE = 3.0

EQUATION_5: dict[Part, dict[tuple[Matrix, Matrix], int]] = {
    Part.H_o: {(Q, Q): 6, (Q, K): 6, (K, K): 6, (Q, V): 4, (K, V): 4, (V, V): 2},
    Part.H_f: {(Q, Q): 5, (Q, K): 3, (K, K): 5, (Q, V): 3, (K, V): 3},
}
"""Eq. 5 as printed; of the two powers of H_f(Q, K) the lower one rules as sigma -> 0. H_f(V, V) is zero."""

Nets = dict[str, ScaledNetwork[Matrix]]


def attention_nets(dims: Dims, generator: torch.Generator) -> Nets:
    """Softmax and linear attention, with targets of order one and with Y = 0."""
    point = attention_point(dims, generator)
    layers = {"softmax": autodiff.attention, "linear": autodiff.linear_attention}
    nets = {}
    for name, layer in layers.items():
        nets[name] = ScaledNetwork(point.X, point.Y, point.weights, layer)
        nets[f"{name}, Y = 0"] = replace(nets[name], Y=0 * point.Y)
    return nets


def predicted(nets: Nets) -> Values:
    """Every non-zero block of every net: the exponent of `growth_rates.growth_rate`."""
    values: dict[str, Tensor] = {}
    for name in nets:
        for part in PARTS:
            for row, col in PAIRS:
                rate = growth_rate(Block(1, row, col), part, _architecture(name))
                if rate.exponent is not None:
                    values[f"{name}: {part}({row}, {col})"] = _number(rate.exponent)
    return values


def measured(nets: Nets, sigma: float = TINY) -> dict[str, Tensor]:
    """Return the exponents between sigma and 2 sigma, measured by automatic differentiation."""
    values: dict[str, Tensor] = {}
    for name, net in nets.items():
        for part in PARTS:
            found = net.exponents(part, sigma)
            once = {pair: found[pair] for pair in PAIRS if pair in found}
            values |= prefixed(f"{name}:", named({part: once}))
    return values


def _architecture(name: str) -> Architecture:
    attention, _, targets = name.partition(", ")
    return Architecture(
        kind=Kind.self_attention,
        attention=Attention(attention),
        square_loss=True,
        zero_targets=bool(targets),
    )


def _equation_5(nets: Nets) -> Values:
    values = {}
    for part, table in EQUATION_5.items():
        for (row, col), power in table.items():
            values[f"softmax: {part}({row}, {col})"] = _number(power)
    return values


GROWTH = {
    "eq5": Check(
        attention_nets,
        measured,
        _equation_5,
        predicted,
        numbers={"sigma": TINY, "twice": 2 * TINY},
    ),
    "eq5-large": Check(
        attention_nets,
        lambda nets: measured({"softmax": nets["softmax"]}, LARGE),
        _equation_5,
        numbers={"sigma": LARGE, "twice": 2 * LARGE},
    ),
}


SCALES = {Regime.small_sigma: 1e-5, Regime.between: 1e-5, Regime.large_sigma: 1e6}
_ATTENTION = (Matrix.W_Q, Matrix.W_K, Matrix.W_V)
_ALL = (*_ATTENTION, Matrix.W_in, Matrix.W_E, Matrix.W_U)


@dataclass(frozen=True)
class Case:
    """A network of certain components, the weights whose blocks are compared, and the axis along which they grow."""

    name: str
    architecture: Architecture
    seen: Sequence[Matrix] = _ATTENTION
    norm_kind: NormKind = NormKind.layer
    is_rotated: bool = False
    axis: str = SIGMA


Norms = dict[tuple[Part, Key, Key], Tensor]


class BlockRate(NamedTuple):
    """The predicted power of a block, None where it is zero, in a regime."""

    regime: Regime
    block: tuple[Part, Key, Key]
    power: float | None


@dataclass(frozen=True)
class DrawnCase(Instance):
    """A case with its tokens, targets and weights."""

    case: Case

    @property
    def seen(self) -> list[Key]:
        return [key for key in self.weights if key[1] in self.case.seen]

    def norms(self, regime: Regime, scale: float) -> Norms:
        """The Frobenius norms of the blocks of the seen weights; above sqrt(eps) means eps = 0."""
        case = self.case
        axis = case.axis
        X = self.X
        weights = dict(self.weights)
        for key in weights:
            if key[1] == axis:
                weights[key] = scale * weights[key]
        branch = 1.0
        if axis == SIGMA:
            X = scale * X
        if axis == BRANCH:
            branch = scale
        eps = 0.0 if regime == Regime.between else 1.0
        network = ComponentNetwork(
            case.architecture, eps, case.norm_kind, case.is_rotated, branch
        )

        def outputs(seen: Mapping[Key, Tensor]) -> Tensor:
            return network.outputs(X, {**weights, **seen})

        loss = self._loss()
        seen = {key: weights[key] for key in self.seen}
        blocks = with_sum(
            {part: hessian_blocks(outputs, loss, seen, part) for part in AT_OUTPUTS}
        )
        norms = {}
        for part in PARTS:
            for (row, col), block in blocks[part].items():
                norms[part, row, col] = torch.linalg.matrix_norm(block)
        return norms

    def _loss(self) -> Loss:
        if self.case.architecture.square_loss:
            return square_loss(self.Y)
        shares = torch.softmax(self.Y, -1)
        return lambda F: -(shares * torch.log_softmax(F, -1)).sum(-1).mean()

    def rates(self) -> dict[str, BlockRate]:
        """Return the predictions for every pair of the compared weights of one layer, by name."""
        case = self.case
        predictions = {}
        for regime in regimes(case.architecture):
            for part in PARTS:
                for row, col in combinations_with_replacement(self.seen, 2):
                    if 0 not in (row[0], col[0]) and row[0] != col[0]:
                        continue
                    block = Block(
                        max(row[0], col[0]), self._named(row[1]), self._named(col[1])
                    )
                    rate = growth_rate(
                        block, part, case.architecture, regime, case.axis
                    )
                    if rate.prediction != Prediction.unknown:
                        predictions[f"{case.name}, {regime}: {part} of {block}"] = (
                            BlockRate(regime, (part, row, col), rate.exponent)
                        )
        return predictions

    def _named(self, matrix: Matrix) -> str:
        return TIED if self.case.architecture.tied and matrix == Matrix.W_E else matrix


def _draw(case: Case, dims: Dims, generator: torch.Generator) -> DrawnCase:
    d = dims.d_V
    d_K = max(dims.d_K, 2)
    of = case.architecture
    weights: dict[Key, Tensor] = {}

    def draw(layer: int, matrix: Matrix, *shape: int) -> None:
        weights[layer, matrix] = normal(*shape, generator=generator, scale=0.5)

    for layer in range(1, of.num_layers + 1):
        draw(layer, Matrix.W_Q, d, d_K)
        draw(layer, Matrix.W_K, d, d_K)
        draw(layer, Matrix.W_V, d, d)
        if of.has_gate:
            draw(layer, Matrix.W_G, d, d)
        if of.kind == Kind.transformer:
            draw(layer, Matrix.W_O, d, d)
            draw(layer, Matrix.W_in, d, dims.d_ff)
            if of.mlp in terms.GATED:
                draw(layer, Matrix.W_gate, d, dims.d_ff)
            draw(layer, Matrix.W_out, dims.d_ff, d)
    width = d
    if of.kind == Kind.transformer:
        width = dims.L if of.tied else d + 1
        weights[0, Matrix.W_E] = torch.zeros(dims.L, d, dtype=torch.float64)
        read_out = normal(d, width, generator=generator)
        if not of.tied:
            weights[0, Matrix.W_U] = read_out
    X = normal(dims.L, d, generator=generator)
    Y = normal(dims.L, width, generator=generator)
    return DrawnCase(X, Y, weights, case)


def component_exponents(drawn: Sequence[DrawnCase]) -> Values:
    """Return the measured exponents between two scales; VANISHES for blocks that are exactly zero."""
    values: dict[str, Tensor] = {}
    for case in drawn:
        norms: dict[Regime, tuple[Norms, Norms]] = {}
        for name, rate in case.rates().items():
            regime = rate.regime
            if regime not in norms:
                at = SCALES[regime]
                norms[regime] = case.norms(regime, at), case.norms(regime, 2 * at)
            low, high = norms[regime]
            values[name] = exponent(low[rate.block], high[rate.block])
    return values


def component_predictions(drawn: Sequence[DrawnCase]) -> Values:
    """The exponents of `growth_rates.growth_rate`; VANISHES for structural zeros."""
    values = {}
    for case in drawn:
        for name, rate in case.rates().items():
            power = VANISHES if rate.power is None else rate.power
            values[name] = torch.tensor(power, dtype=torch.float64)
    return values


_BARE = Architecture(
    kind=Kind.self_attention, square_loss=True, differential_norm=False
)
_LAYER = Architecture(differential_norm=False)
# A ReLU layer of a few units may be dead, or have one alive and be normalised.
_SMALL = replace(_LAYER, mlp=MLP.linear)


def _mixing() -> Iterator[Case]:
    for name in Attention:
        yield Case(f"{name} attention", replace(_BARE, attention=name))
    biased = replace(
        _BARE,
        attention=Attention.sigmoid,
        attention_bias=terms.AttentionBias.log_length,
    )
    yield Case("sigmoid attention with its bias", biased)
    for centring in (0.9, 1.0):
        yield Case(
            f"centred softmax, lambda = {centring:g}", replace(_BARE, centring=centring)
        )
    differential = replace(_BARE, attention=Attention.differential)
    yield Case(
        "differential attention, lambda = 1",
        replace(differential, differential_lambda=1.0),
    )
    yield Case(
        "differential attention with its norm",
        replace(differential, differential_norm=True),
        norm_kind=NormKind.rms,
    )


def _scores() -> Iterator[Case]:
    for scores in Scores:
        if scores != Scores.plain:
            yield Case(f"{scores} scores", replace(_BARE, scores=scores))
    for attention, scores in [
        (Attention.linear, Scores.softcap),
        (Attention.kernel, Scores.cosine),
        (Attention.sparsemax, Scores.cosine),
    ]:
        yield Case(
            f"{attention} attention, {scores} scores",
            replace(_BARE, attention=attention, scores=scores),
        )
    yield Case("rotated queries and keys", _BARE, is_rotated=True)
    for name in (Attention.softmax, Attention.sigmoid):
        yield Case(
            f"{name} attention with slopes",
            replace(_BARE, attention=name, shifted_scores=True),
        )


def _norms() -> Iterator[Case]:
    for norm in (Norm.pre, Norm.post, Norm.sandwich):
        for kind in NormKind:
            yield Case(f"{norm}-norm, {kind}", replace(_SMALL, norm=norm), _ALL, kind)
    yield Case("pre-norm, two layers", replace(_SMALL, norm=Norm.pre, num_layers=2))
    yield Case(
        "post-norm, normalised queries and keys",
        replace(_SMALL, norm=Norm.post, scores=Scores.qk_norm),
    )


def _sublayers() -> Iterator[Case]:
    inner = (Matrix.W_in, Matrix.W_gate)
    for name in MLP:
        if name != MLP.none:
            yield Case(f"MLP {name}", replace(_LAYER, mlp=name), inner)
    swiglu = replace(_LAYER, mlp=MLP.swiglu, norm=Norm.pre)
    yield Case("pre-norm, MLP swiglu", swiglu, inner)
    gated = replace(_BARE, gate=Gate.output)
    yield Case("output gate", gated, (*_ATTENTION, Matrix.W_G))
    yield Case(
        "output gate, linear",
        replace(gated, attention=Attention.linear),
        (Matrix.W_V, Matrix.W_G),
    )
    yield Case("tied embeddings", replace(_LAYER, tied=True), (*_ATTENTION, Matrix.W_E))
    yield Case(
        "tied embeddings, pre-norm",
        replace(_SMALL, tied=True, norm=Norm.pre),
        (Matrix.W_V, Matrix.W_E),
    )


def _powers() -> Iterator[Case]:
    for name in (Attention.softmax, Attention.linear, Attention.kernel):
        for axis in _ATTENTION:
            yield Case(
                f"{name} attention, scale of {axis}",
                replace(_BARE, attention=name),
                axis=axis,
            )
    yield Case(
        "normalised scores, scale of W_Q",
        replace(_BARE, scores=Scores.cosine),
        axis=Matrix.W_Q,
    )
    pre = replace(_SMALL, norm=Norm.pre)
    yield Case("pre-norm, factor of branches", pre, axis=BRANCH)
    deep = replace(_SMALL, num_layers=2)
    yield Case("no norm, two layers, factor of branches", deep, axis=BRANCH)


def _check(cases: Iterable[Case]) -> Check:
    kept = list(cases)

    def draw(dims: Dims, generator: torch.Generator) -> list[DrawnCase]:
        return [_draw(case, dims, generator) for case in kept]

    numbers = {"small": SCALES[Regime.small_sigma], "large": SCALES[Regime.large_sigma]}
    return Check(
        draw, component_exponents, corrected=component_predictions, numbers=numbers
    )


COMPONENTS = {
    "components-mixing": _check(_mixing()),
    "components-scores": _check(_scores()),
    "components-norms": _check(_norms()),
    "components-sublayers": _check(_sublayers()),
    "components-powers": _check(_powers()),
}
STATEMENTS = {**DEGREES, **GROWTH, **COMPONENTS}
