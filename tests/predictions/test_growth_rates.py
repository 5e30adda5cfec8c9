"""Predictions against the paper's tables, and the vocabulary against the configuration's."""

from dataclasses import replace

import pytest

from hessfig.predictions.architecture import Architecture
from hessfig.predictions.growth_rates import (
    Prediction,
    edge,
    growth_rate,
    lower_edge,
    regime_between,
    regimes,
)
from hessfig.predictions.network_series import Regime
from hessfig.terms import (
    MLP,
    PARTS,
    Attention,
    Block,
    Kind,
    Matrix,
    Norm,
    Part,
    QueryKey,
    Scores,
)

BARE = Architecture(
    Kind.self_attention, attention_skip=False, mlp=MLP.none, square_loss=True
)
CHAIN = Architecture(
    attention=Attention.linear, attention_skip=False, mlp=MLP.none, square_loss=True
)
Q = Matrix.W_Q
K = Matrix.W_K
V = Matrix.W_V


def rates(architecture, row, col, layer=1):
    """Return the exponents of H_o, H_f, H; 0 stands for a structural zero, None for no prediction."""
    found = [growth_rate(Block(layer, row, col), part, architecture) for part in PARTS]
    return tuple(
        0 if rate.prediction == Prediction.structural_zero else rate.exponent
        for rate in found
    )


@pytest.mark.parametrize(
    ("row", "col", "expected"),
    [
        (V, V, (2, 0, 2)),
        (Q, V, (4, 3, 3)),
        (K, V, (4, 3, 3)),
        (Q, Q, (6, 5, 5)),
        (K, K, (6, 5, 5)),
        (Q, K, (6, 3, 3)),
    ],
)
def test_equation_5(row, col, expected):
    assert rates(BARE, row, col) == expected
    assert rates(BARE, col, row) == expected


@pytest.mark.parametrize(
    ("row", "col", "functional"), [(Q, V, 4), (Q, Q, 6), (Q, K, 4), (V, V, 0)]
)
def test_equation_5_with_zero_targets(row, col, functional):
    zero = Architecture(**{**vars(BARE), "zero_targets": True})
    assert rates(zero, row, col)[1] == functional


@pytest.mark.parametrize(
    ("row", "col", "expected"),
    [
        (V, V, (6, 0, 6)),
        (Q, Q, (6, 0, 6)),
        (K, K, (6, 0, 6)),
        (Q, V, (6, 3, 3)),
        (K, V, (6, 3, 3)),
        (Q, K, (6, 3, 3)),
    ],
)
def test_linear_attention_remark_4_1(row, col, expected):
    linear = Architecture(**{**vars(BARE), "attention": Attention.linear})
    assert rates(linear, row, col) == expected


def test_single_matrix_has_the_query_rates():
    single = Architecture(**{**vars(BARE), "query_key": QueryKey.single})
    assert rates(single, Matrix.W_QK, Matrix.W_QK) == (6, 5, 5)


def test_figures_3a_and_6():
    for depth in range(1, 6):
        deep = Architecture(num_layers=depth)
        for layer in range(1, depth + 1):
            assert rates(deep, Q, Q, layer) == (6, 5, 5)
            assert rates(deep, V, V, layer) == (2, 0 if layer == depth else 3, 2)


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_chains_of_linear_attention(depth):
    chain = Architecture(**{**vars(CHAIN), "num_layers": depth})
    for matrix in (Q, V):
        assert rates(chain, matrix, matrix, depth) == (2 * 3**depth, 0, 2 * 3**depth)
        for layer in range(1, depth):
            assert rates(chain, matrix, matrix, layer) == (
                2 * 3**depth,
                3**depth,
                3**depth,
            )


@pytest.mark.parametrize("depth", [1, 2, 5])
def test_linear_mlp_of_any_depth(depth):
    mlp = Architecture(Kind.linear_mlp, depth, square_loss=True)
    for layer in range(1, depth + 1):
        assert rates(mlp, Matrix.W, Matrix.W, layer) == (2, 0, 2)


def test_what_follows_attention_decides_on_the_structural_zero():
    assert rates(Architecture(mlp=MLP.gelu), V, V) == (2, 2, 2)
    for mlp in (MLP.relu, MLP.linear, MLP.none):
        assert rates(Architecture(mlp=mlp), V, V) == (2, 0, 2)


@pytest.mark.parametrize(
    ("norm", "regime", "expected"),
    [
        (Norm.pre, Regime.between, {Q: (0, 0, 0), V: (0, 0, 0)}),
        (Norm.pre, Regime.large_sigma, {Q: (-2, -1, -1), V: (-2, -2, -2)}),
        (Norm.sandwich, Regime.large_sigma, {Q: (-2, -1, -1), V: (-2, -1, -1)}),
        (Norm.post, Regime.between, {Q: (4, 4, 4), V: (0, 0, 0)}),
        (Norm.post, Regime.large_sigma, {Q: (None, None, None), V: (None, None, None)}),
    ],
)
def test_norms_have_laws_of_their_own(norm, regime, expected):
    normalised = Architecture(norm=norm)
    for matrix, found in expected.items():
        rated = [
            growth_rate(Block(1, matrix, matrix), part, normalised, regime)
            for part in PARTS
        ]
        assert tuple(rate.exponent for rate in rated) == found
    assert (
        growth_rate(
            Block(0, Matrix.W_U, Matrix.W_U), Part.H_f, normalised, regime
        ).prediction
        == "structural zero"
    )


def test_softmax_saturates_where_sigma_grows():
    rate = growth_rate(Block(1, Q, Q), Part.H, BARE, Regime.large_sigma)
    assert rate.prediction == Prediction.unknown
    assert "softmax saturates" in rate.reference


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"attention": Attention.sigmoid}, (6, 7, 6)),
        ({"attention": Attention.sparsemax}, (6, 0, 6)),
        ({"attention": Attention.kernel}, (6, 4, 4)),
        ({"scores": Scores.cosine}, (2, 1, 1)),
        (
            {
                "attention": Attention.differential,
                "differential_norm": False,
                "differential_lambda": 1.0,
            },
            (6, 5, 5),
        ),
        ({"centring": 0.9}, (6, 5, 5)),
        ({"centring": 1.0}, (6, 5, 5)),
        ({"most_keys": 1}, (0, 0, 0)),
        (
            {"most_keys": 2},
            (6, 7, 6),
        ),  # two weights are an odd function of the difference of their scores
        ({"most_keys": 2, "attention": Attention.entmax15}, (6, 7, 6)),
        ({"most_keys": 1, "attention": Attention.off_by_one}, (6, 7, 6)),
        ({"most_keys": 3}, (6, 5, 5)),
        ({"most_keys": 2, "centring": 1.0}, (6, 7, 6)),
        (
            {
                "most_keys": 2,
                "attention": Attention.differential,
                "differential_norm": False,
            },
            (6, 7, 6),
        ),
        ({"weight_decay": 0.1}, (6, 0.0, 0.0)),
    ],
)
def test_components_change_the_query_block(change, expected):
    assert rates(replace(BARE, **change), Q, Q) == expected


def test_two_differential_softmaxes_of_equal_weight_cancel_in_the_values():
    one = replace(BARE, attention=Attention.differential, differential_norm=False)
    assert rates(one, V, V) == (2, 0, 2)
    assert rates(replace(one, differential_lambda=1.0), V, V) == (6, 0, 6)


def test_centring_raises_the_values_at_lambda_one_alone():
    assert rates(replace(BARE, centring=0.99), V, V) == (2, 0, 2)
    assert rates(replace(BARE, centring=1.0), V, V) == (6, 0, 6)
    assert rates(Architecture(centring=1.0, mlp=MLP.none), V, V) == (6, 0, 6)


def test_weight_decay_adds_a_constant_to_every_diagonal_block():
    decayed = replace(BARE, weight_decay=0.1)
    assert growth_rate(Block(1, V, V), Part.H_f, decayed).exponent == 0
    assert growth_rate(Block(1, V, V), Part.H_f, decayed).regime == Regime.every_sigma
    assert rates(decayed, Q, V) == rates(BARE, Q, V)


def test_powers_of_weights_as_theorem_3_1_has_them():
    powers = {Q: {Q: 0, K: 2, V: 2}, K: {Q: 2, K: 0, V: 2}, V: {Q: 0, K: 0, V: 0}}
    for row, found in powers.items():
        for axis, power in found.items():
            assert (
                growth_rate(Block(1, row, row), Part.H_o, BARE, axis=axis).exponent
                == power
            )


def test_a_rate_names_the_monomials_that_rule():
    assert growth_rate(Block(1, Q, V), Part.H_o, BARE).reason == (
        "df/dW_Q ~ sigma^3 (W_K W_V [W_Q] x^3) times df/dW_V ~ sigma^1 ([W_V] x)"
    )
    assert (
        "no W_gate" in growth_rate(Block(1, Matrix.W_gate, V), Part.H, BARE).reference
    )


def test_regimes_and_their_edge():
    assert regimes(BARE) == [Regime.small_sigma, Regime.large_sigma]
    assert edge(BARE) == 0
    assert regimes(Architecture(norm=Norm.pre))[1] == Regime.between
    assert edge(Architecture(norm=Norm.pre)) == pytest.approx(1e-5**0.5)
    assert edge(Architecture(norm=Norm.pre, norm_eps=1e-12)) == pytest.approx(1e-6)


@pytest.mark.parametrize(
    ("architecture", "power"),
    [
        (Architecture(norm=Norm.post), 1.0),
        (Architecture(norm=Norm.pre), 1.5),
        (Architecture(norm=Norm.pre, num_layers=2), 2.5),
        (Architecture(norm=Norm.sandwich), 2.5),
        (Architecture(scores=Scores.qk_norm), 0.5),
        (Architecture(attention=Attention.differential), 0.5),
    ],
)
def test_norms_that_follow_one_another_are_linear_below_a_lower_edge(
    architecture, power
):
    low = 1e-5**power
    assert lower_edge(architecture) == pytest.approx(low)
    assert regime_between(architecture, low / 100, 0.99 * low) == Regime.small_sigma
    assert regime_between(architecture, low / 2, 2 * low) is None
    assert regime_between(architecture, 0.01, 1.0) == Regime.between


def test_embeddings_are_of_order_sigma_themselves():
    assert rates(Architecture(), Matrix.W_E, Matrix.W_E, 0) == (0, 1, 0)
    assert rates(Architecture(), Matrix.W_E, V) == (1, 0, 0)


def test_regimes_and_references():
    assert growth_rate(Block(1, Q, Q), Part.H_o, BARE).regime == Regime.small_sigma
    assert growth_rate(Block(1, Q, Q), Part.H_o, CHAIN).regime == Regime.every_sigma
    assert growth_rate(Block(1, Q, Q), Part.H, BARE).reference == "eq. 5"
    lower = growth_rate(Block(1, V, V), Part.H_f, Architecture(num_layers=2))
    assert "not in the paper" in lower.reference


def test_built_from_a_manifest():
    model = {
        "kind": "self_attention",
        "n_layers": 1,
        "attention": "linear",
        "attention_skip": False,
    }
    model |= {"norm": "none", "mlp": "none", "query_key": "separate"}
    built = Architecture.from_config({"model": model, "task": {"loss": "mse"}})
    assert built == Architecture(**{**vars(BARE), "attention": Attention.linear})


FULL = {
    "kind": "transformer",
    "n_layers": 2,
    "attention": "softmax",
    "attention_skip": True,
    "norm": "none",
}
FULL |= {"mlp": "relu", "query_key": "separate"}


def built(state=None, **model):
    """Return the architecture of a manifest's settings; `state` was not in the first manifests."""
    settings = {"model": {**FULL, **model}, "task": {"loss": "cross_entropy"}}
    return Architecture.from_config(
        settings if state is None else {**settings, "state": state}
    )


def test_settings_of_the_first_manifests_are_read_as_they_were():
    assert (
        built()
        == Architecture(num_layers=2)
        == built({"kind": "initialised"}, sigma_scales="both")
    )


@pytest.mark.parametrize(
    ("architecture", "reason"),
    [
        (built(kind="python"), "model.kind=python"),
        (built(kind="vit", attention="window", n_layers=None), "model.kind=vit"),
        (built({"kind": "loaded"}), "state.kind=loaded"),
        (built({"kind": "trained"}), "state.kind=trained"),
        (built(sigma_scales="tokens"), "model.sigma_scales=tokens"),
    ],
)
def test_no_power_is_predicted_where_nobody_counted_or_none_rules(architecture, reason):
    for part in PARTS:
        rate = growth_rate(Block(1, Q, Q), part, architecture)
        assert (rate.prediction, rate.exponent) == (Prediction.unknown, None)
        assert reason in rate.reference


def test_what_vanishes_by_structure_vanishes_at_every_point():
    for architecture in (built({"kind": "loaded"}), built(sigma_scales="tokens")):
        assert rates(architecture, V, V, 2) == (None, 0, None)
    assert rates(built(kind="python"), V, V, 2) == (None, None, None)


def test_positions_matter_where_there_are_some():
    for kind in ("linear_mlp", "self_attention"):
        assert built(kind=kind, sigma_scales="tokens") == built(kind=kind)


@pytest.mark.parametrize(
    ("block", "reason"),
    [
        (Block(1, "mlp", "mlp"), "mlp is not a single weight"),
        (Block(0, "all", "all"), "all is not a single weight"),
        (Block(1, "W_Q", "blocks.0.attn"), "blocks.0.attn is not a single weight"),
        (Block(2, "W_Q", "W_V", row_layer=1), "different layers"),
        (Block(2, "W_V", "W_V", row_layer=1), "different layers"),
        (Block(2, "W_U", "W_U", row_layer=1), "different layers"),
    ],
)
def test_blocks_beyond_the_rule(block, reason):
    for part in PARTS:
        rate = growth_rate(block, part, built())
        assert rate.prediction == Prediction.unknown
        assert reason in rate.reference
