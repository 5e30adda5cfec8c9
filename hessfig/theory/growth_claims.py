"""Statements about degrees and growth rates: those of the paper, and those for components by counting monomials."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import combinations_with_replacement

import torch
from torch import Tensor

from hessfig import terms
from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import (
    GrowthRate,
    Prediction,
    growth_rate,
    regimes,
)
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
            degrees = list(net.exponents(part, 1.0).values())
            values |= {
                f"{part} of the {name}, lowest": min(degrees),
                f"{part} of the {name}, highest": max(degrees),
            }
    return values


def _table_printed(nets: dict[str, ScaledNetwork]) -> Values:
    """Degree in X at a fixed residual: Sigma counts 2, Omega counts 1."""
    degrees = {
        "H_o of the attention": 6,
        "H_f of the attention": 3,
        "H_o of the MLP": 2,
        "H_f of the MLP": 1,
    }
    return {
        f"{name}, {end}": _number(degree)
        for name, degree in degrees.items()
        for end in ("lowest", "highest")
    }


Depths = dict[int, ScaledNetwork[Key]]


def _depth_draw(dims: Dims, generator: torch.Generator) -> Depths:
    X, Y = (normal(dims.L, dims.d_V, generator=generator) for _ in range(2))
    weights = statement.indexed_weights(dims, generator, 3)
    stacked = partial(autodiff.stacked, autodiff.linear_attention)
    return {
        depth: ScaledNetwork(
            X, Y, {key: w for key, w in weights.items() if key[0] <= depth}, stacked
        )
        for depth in (1, 2, 3)
    }


def _depth_oracle(nets: Depths) -> Values:
    values: dict[str, Tensor] = {}
    for depth, net in nets.items():
        for part in (Part.H_o, Part.H):
            exponents = net.exponents(part, DEPTH_SIGMA)
            values |= {
                f"{part}, {m} of layer {n} of {depth}": exponents[(n, m), (n, m)]
                for n, m in net.weights
            }
    return values


def _depth_printed(nets: Depths) -> dict[str, Tensor]:
    """2 3^D: every layer of H_o, and the last layer of H."""
    every = {
        f"{Part.H_o}, {m} of layer {n} of {depth}": depth
        for depth, net in nets.items()
        for n, m in net.weights
    }
    last = {
        f"{Part.H}, {m} of layer {depth} of {depth}": depth
        for depth in nets
        for m in MATRICES
    }
    return {name: _number(2 * 3**depth) for name, depth in {**every, **last}.items()}


def _depth_corrected(nets: Depths) -> Values:
    """And H below the last layer: 3^D as sigma -> 0, because H_f is not zero there."""
    earlier = {
        f"{Part.H}, {m} of layer {n} of {depth}": _number(3**depth)
        for depth, net in nets.items()
        for n, m in net.weights
        if n < depth
    }
    return {**_depth_printed(nets), **earlier}


def _number(value: float | int) -> Tensor:
    return torch.tensor(float(value), dtype=torch.float64)


DEGREES = {
    "tab1": Check(_table_draw, _table_oracle, _table_printed),
    "depth": Check(_depth_draw, _depth_oracle, _depth_printed, _depth_corrected),
}


Q, K, V = MATRICES
PAIRS = list(combinations_with_replacement(MATRICES, 2))
TINY, LARGE = 1e-5, 3.0

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
    return {
        f"{name}{suffix}": ScaledNetwork(point.X, Y, point.weights, layer)
        for name, layer in layers.items()
        for suffix, Y in (("", point.Y), (", Y = 0", 0 * point.Y))
    }


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
        exponents = {part: net.exponents(part, sigma) for part in PARTS}
        once = {
            part: {pair: found[pair] for pair in PAIRS if pair in found}
            for part, found in exponents.items()
        }
        values |= prefixed(f"{name}:", named(once))
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
    exponents = {
        part: {pair: _number(one) for pair, one in table.items()}
        for part, table in EQUATION_5.items()
    }
    return prefixed("softmax:", named(exponents))


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


@dataclass(frozen=True)
class DrawnCase(Instance):
    """A case with its tokens, targets and weights."""

    case: Case

    @property
    def seen(self) -> list[Key]:
        return [key for key in self.weights if key[1] in self.case.seen]

    def norms(
        self, regime: Regime, scale: float
    ) -> dict[tuple[Part, Key, Key], Tensor]:
        """The Frobenius norms of the blocks of the seen weights; above sqrt(eps) means eps = 0."""
        case, axis = self.case, self.case.axis
        X = scale * self.X if axis == SIGMA else self.X
        weights = {
            key: scale * w if key[1] == axis else w for key, w in self.weights.items()
        }

        eps = 0.0 if regime == Regime.between else 1.0
        branch = scale if axis == BRANCH else 1.0
        network = ComponentNetwork(
            case.architecture, eps, case.norm_kind, case.is_rotated, branch
        )

        def outputs(seen: Mapping[Key, Tensor]) -> Tensor:
            return network.outputs(X, {**weights, **seen})

        seen, loss = {key: weights[key] for key in self.seen}, self._loss()
        blocks = with_sum(
            {part: hessian_blocks(outputs, loss, seen, part) for part in AT_OUTPUTS}
        )
        return {
            (part, *pair): torch.linalg.matrix_norm(block)
            for part in PARTS
            for pair, block in blocks[part].items()
        }

    def _loss(self) -> Loss:
        if self.case.architecture.square_loss:
            return square_loss(self.Y)
        shares = torch.softmax(self.Y, -1)
        return lambda F: -(shares * torch.log_softmax(F, -1)).sum(-1).mean()

    def rates(self) -> dict[str, tuple[Part, Regime, tuple[Key, Key], GrowthRate]]:
        """Return the predictions for every pair of the compared weights of one layer, by name."""
        case, predictions = self.case, {}
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
                            part,
                            regime,
                            (row, col),
                            rate,
                        )
        return predictions

    def _named(self, matrix: Matrix) -> str:
        return TIED if self.case.architecture.tied and matrix == Matrix.W_E else matrix


def _draw(case: Case, dims: Dims, generator: torch.Generator) -> DrawnCase:
    d = dims.d_V
    d_K = max(dims.d_K, 2)
    rest = case.architecture
    shapes: dict[Key, tuple[int, int]] = {}
    for layer in range(1, rest.num_layers + 1):
        shapes |= {
            (layer, Matrix.W_Q): (d, d_K),
            (layer, Matrix.W_K): (d, d_K),
            (layer, Matrix.W_V): (d, d),
        }
        shapes |= {(layer, Matrix.W_G): (d, d)} if rest.has_gate else {}
        if rest.kind == Kind.transformer:
            shapes |= {
                (layer, Matrix.W_O): (d, d),
                (layer, Matrix.W_in): (d, dims.d_ff),
            }
            shapes |= (
                {(layer, Matrix.W_gate): (d, dims.d_ff)}
                if rest.mlp in terms.GATED
                else {}
            )
            shapes |= {(layer, Matrix.W_out): (dims.d_ff, d)}
    weights = {
        key: normal(*shape, generator=generator, scale=0.5)
        for key, shape in shapes.items()
    }
    width = dims.L if rest.tied else d + 1 if rest.kind == Kind.transformer else d
    if rest.kind == Kind.transformer:
        weights[0, Matrix.W_E] = torch.zeros(dims.L, d, dtype=torch.float64)
        weights[0, Matrix.W_U] = normal(d, width, generator=generator)
    X, Y = (normal(dims.L, columns, generator=generator) for columns in (d, width))
    return DrawnCase(
        X,
        Y,
        {
            key: w
            for key, w in weights.items()
            if not (rest.tied and key[1] == Matrix.W_U)
        },
        case,
    )


def component_exponents(drawn: Sequence[DrawnCase]) -> Values:
    """Return the measured exponents between two scales; VANISHES for blocks that are exactly zero."""
    values: dict[str, Tensor] = {}
    for case in drawn:
        regimes_seen = {
            regime: SCALES[regime] for _, regime, *_ in case.rates().values()
        }
        norms = {
            regime: (case.norms(regime, at), case.norms(regime, 2 * at))
            for regime, at in regimes_seen.items()
        }
        for name, (part, regime, pair, _) in case.rates().items():
            low, high = (found[part, *pair] for found in norms[regime])
            values[name] = exponent(low, high)
    return values


def component_predictions(drawn: Sequence[DrawnCase]) -> Values:
    """The exponents of `growth_rates.growth_rate`; VANISHES for structural zeros."""
    rates = {
        name: rate.exponent
        for case in drawn
        for name, (*_, rate) in case.rates().items()
    }
    return {
        name: torch.tensor(VANISHES if found is None else found, dtype=torch.float64)
        for name, found in rates.items()
    }


_BARE = Architecture(
    kind=Kind.self_attention, square_loss=True, differential_norm=False
)
_LAYER = Architecture(differential_norm=False)
# A ReLU layer of a few units may be dead, or have one alive and be normalised.
_SMALL = replace(_LAYER, mlp=MLP.linear)

MIXING = [
    *(Case(f"{name} attention", replace(_BARE, attention=name)) for name in Attention),
    Case(
        "sigmoid attention with its bias",
        replace(
            _BARE,
            attention=Attention.sigmoid,
            attention_bias=terms.AttentionBias.log_length,
        ),
    ),
    *(
        Case(
            f"centred softmax, lambda = {centring:g}", replace(_BARE, centring=centring)
        )
        for centring in (0.9, 1.0)
    ),
    Case(
        "differential attention, lambda = 1",
        replace(_BARE, attention=Attention.differential, differential_lambda=1.0),
    ),
    Case(
        "differential attention with its norm",
        replace(_BARE, attention=Attention.differential, differential_norm=True),
        norm_kind=NormKind.rms,
    ),
]
SCORES = [
    *(
        Case(f"{name} scores", replace(_BARE, scores=name))
        for name in Scores
        if name != Scores.plain
    ),
    *(
        Case(
            f"{attention} attention, {scores} scores",
            replace(_BARE, attention=attention, scores=scores),
        )
        for attention, scores in [
            (Attention.linear, Scores.softcap),
            (Attention.kernel, Scores.cosine),
            (Attention.sparsemax, Scores.cosine),
        ]
    ),
    Case("rotated queries and keys", _BARE, is_rotated=True),
    *(
        Case(
            f"{name} attention with slopes",
            replace(_BARE, attention=name, shifted_scores=True),
        )
        for name in (Attention.softmax, Attention.sigmoid)
    ),
]
NORMS = [
    *(
        Case(f"{norm}-norm, {kind}", replace(_SMALL, norm=norm), _ALL, kind)
        for norm in (Norm.pre, Norm.post, Norm.sandwich)
        for kind in NormKind
    ),
    Case("pre-norm, two layers", replace(_SMALL, norm=Norm.pre, num_layers=2)),
    Case(
        "post-norm, normalised queries and keys",
        replace(_SMALL, norm=Norm.post, scores=Scores.qk_norm),
    ),
]
SUBLAYERS = [
    *(
        Case(f"MLP {name}", replace(_LAYER, mlp=name), (Matrix.W_in, Matrix.W_gate))
        for name in MLP
        if name != MLP.none
    ),
    Case(
        "pre-norm, MLP swiglu",
        replace(_LAYER, mlp=MLP.swiglu, norm=Norm.pre),
        (Matrix.W_in, Matrix.W_gate),
    ),
    Case("output gate", replace(_BARE, gate=Gate.output), (*_ATTENTION, Matrix.W_G)),
    Case(
        "output gate, linear",
        replace(_BARE, gate=Gate.output, attention=Attention.linear),
        (Matrix.W_V, Matrix.W_G),
    ),
    Case("tied embeddings", replace(_LAYER, tied=True), (*_ATTENTION, Matrix.W_E)),
    Case(
        "tied embeddings, pre-norm",
        replace(_SMALL, tied=True, norm=Norm.pre),
        (Matrix.W_V, Matrix.W_E),
    ),
]
POWERS = [
    *(
        Case(
            f"{name} attention, scale of {axis}",
            replace(_BARE, attention=name),
            axis=axis,
        )
        for name in (Attention.softmax, Attention.linear, Attention.kernel)
        for axis in _ATTENTION
    ),
    Case(
        "normalised scores, scale of W_Q",
        replace(_BARE, scores=Scores.cosine),
        axis=Matrix.W_Q,
    ),
    Case("pre-norm, factor of branches", replace(_SMALL, norm=Norm.pre), axis=BRANCH),
    Case(
        "no norm, two layers, factor of branches",
        replace(_SMALL, num_layers=2),
        axis=BRANCH,
    ),
]


def _check(cases: Sequence[Case]) -> Check:
    def draw(dims: Dims, generator: torch.Generator) -> list[DrawnCase]:
        return [_draw(case, dims, generator) for case in cases]

    numbers = {"small": SCALES[Regime.small_sigma], "large": SCALES[Regime.large_sigma]}
    return Check(
        draw, component_exponents, corrected=component_predictions, numbers=numbers
    )


COMPONENTS = {
    "components-mixing": _check(MIXING),
    "components-scores": _check(SCORES),
    "components-norms": _check(NORMS),
    "components-sublayers": _check(SUBLAYERS),
    "components-powers": _check(POWERS),
}
STATEMENTS = {**DEGREES, **GROWTH, **COMPONENTS}
