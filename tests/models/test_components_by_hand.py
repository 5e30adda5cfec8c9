"""Components of networks by hand, and refused where they do not fit."""

import math

import pytest
import torch
from torch.testing import assert_close

from hessfig.config.checks import check_config
from hessfig.config.enums import Data, Kind, Method
from hessfig.config.keys import in_key
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models import components as of
from hessfig.models.networks import BareAttention
from hessfig.rng import stream
from tests.models.test_components import chosen
from tests.toys import toy_problem, toy_task

HEADS = 2
WIDTH = 8
LENGTH = 6


def draw(*shape, name="rows"):
    return torch.randn(shape, dtype=torch.float64, generator=stream(0, name))


def bare(**settings):
    model = ModelConfig(
        kind=Kind.self_attention, d_model=WIDTH, n_heads=HEADS, **chosen(settings)
    )
    network = toy_problem(model).network
    assert isinstance(network, BareAttention)
    return network


def by_hand(network, x, pattern, *, sets=1, query=None):
    """Return the values mixed by `pattern` (a function of scores), head by head; `query` changes queries and keys."""
    d = WIDTH // HEADS // sets
    rows = []
    for head in range(HEADS):
        v = (x @ network.v.weight.T)[..., head * d * sets : (head + 1) * d * sets]
        scores = []
        for part in range(sets):
            at = slice((head * sets + part) * d, (head * sets + part + 1) * d)
            q, k = ((x @ w.weight.T)[..., at] for w in (network.q, network.k))
            q, k = (q, k) if query is None else (query(q), query(k))
            scores.append(q @ k.mT / math.sqrt(d))
        rows.append(pattern(*scores) @ v)
    return torch.cat(rows, dim=-1)


def outputs(network, x):
    return network.from_hidden(x, 0, slice(None))


def off_by_one(s):
    return s.exp() / (1 + s.exp().sum(-1, keepdim=True))


def rms(rows):
    return rows / (rows.square().mean(-1, keepdim=True) + 1e-5).sqrt()


BY_HAND = {
    "softmax": ({"temperature": 1.3}, lambda s: (s / 1.3).softmax(-1), None),
    "linear": ({"attention": "linear"}, lambda s: s, None),
    "sigmoid": ({"attention": "sigmoid"}, torch.sigmoid, None),
    "sigmoid log": (
        {"attention": "sigmoid", "attention_bias": "log_length"},
        lambda s: 1 / (1 + LENGTH * (-s).exp()),
        None,
    ),
    "off by one": ({"attention": "off_by_one"}, off_by_one, None),
    "centred": ({"centring": 0.9}, lambda s: s.softmax(-1) - 0.9 / LENGTH, None),
    "softcap": (
        {"scores": "softcap", "softcap": 0.5},
        lambda s: (0.5 * (s / 0.5).tanh()).softmax(-1),
        None,
    ),
    "qk norm": ({"scores": "qk_norm"}, lambda s: s.softmax(-1), rms),
    "cosine": (
        {"scores": "cosine"},
        lambda s: s.softmax(-1),
        lambda q: 2 * q / q.norm(dim=-1, keepdim=True),
    ),
    "kernel": (
        {"attention": "kernel"},
        lambda s: 2 * s / (2 * s).sum(-1, keepdim=True),
        lambda q: 1 + q,
    ),
}


@pytest.mark.parametrize("name", BY_HAND)
def test_attention_by_hand(name):
    settings, pattern, query = BY_HAND[name]
    network = bare(**settings)
    x = draw(2, LENGTH, WIDTH)
    assert_close(outputs(network, x), by_hand(network, x, pattern, query=query))


@pytest.mark.parametrize("normed", [True, False])
def test_differential_attention_by_hand(normed):
    network = bare(attention="differential", differential_norm=normed)
    x = draw(2, LENGTH, WIDTH)
    found = by_hand(
        network, x, lambda s, t: s.softmax(-1) - 0.8 * t.softmax(-1), sets=2
    )
    if normed:
        found = 0.2 * rms(found.unflatten(-1, (HEADS, -1))).flatten(-2)
    assert_close(outputs(network, x), found)


@pytest.mark.parametrize(("name", "power"), [("sparsemax", 1), ("entmax15", 2)])
def test_sparse_patterns_solve_their_problem(name, power):
    """Both are max(s / power - tau, 0)^power, whose sum falls in tau: bisection finds it."""
    scores = 2 * draw(3, 5, 7)
    low = scores.amin(-1, keepdim=True) - 2
    high = scores.amax(-1, keepdim=True)
    for _ in range(100):
        tau = (low + high) / 2
        is_low = (scores / power - tau).clamp(min=0).pow(power).sum(
            -1, keepdim=True
        ) > 1
        low = torch.where(is_low, tau, low)
        high = torch.where(is_low, high, tau)
    expected = (scores / power - low).clamp(min=0).pow(power)
    found = getattr(of, name)(scores, torch.zeros(5, 7, dtype=torch.bool))
    assert_close(found, expected)
    assert (found == 0).any()


def test_shared_keys_are_those_of_repeated_weights():
    shared = bare(n_kv_heads=1)
    whole = bare()
    x = draw(2, LENGTH, WIDTH)
    for name in ("k", "v"):
        getattr(whole, name).weight.copy_(getattr(shared, name).weight.repeat(HEADS, 1))
    whole.q.weight.copy_(shared.q.weight)
    assert_close(outputs(shared, x), outputs(whole, x))


def test_gate_window_and_slopes_by_hand():
    x = draw(2, LENGTH, WIDTH)
    apart = (torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)).abs()
    network = bare(gate="output", window=2)
    found = by_hand(
        network, x, lambda s: s.masked_fill(apart >= 2, -math.inf).softmax(-1)
    )
    assert_close(outputs(network, x), found * torch.sigmoid(x @ network.g.weight.T))
    network = bare(positions="alibi")
    slopes = iter([2**-4, 2**-8])
    assert_close(
        outputs(network, x),
        by_hand(network, x, lambda s: (s - next(slopes) * apart).softmax(-1)),
    )


def test_rotations_tell_distances_alone():
    q = draw(1, WIDTH, name="q")
    k = draw(1, WIDTH, name="k")
    positions = torch.tensor([0, 3, 5, 8])
    turned = [of.rotated(one.expand(4, WIDTH), positions) for one in (q, k)]
    scores = turned[0] @ turned[1].T
    assert_close(scores[0, 1], scores[2, 3])
    assert_close(scores[0, 0], (q @ k.T)[0, 0])
    assert not torch.isclose(scores[0, 1], scores[0, 0])
    assert_close(of.rotated(turned[0], positions, back=True), q.expand(4, WIDTH))
    first = torch.polar(
        torch.ones(4, dtype=torch.float64), positions.double()
    ) * torch.complex(q[0, 0], q[0, 1])
    assert_close(turned[0][:, 0], first.real)


def test_weights_of_a_gated_sandwich_by_hand():
    settings = {
        "mlp": "swiglu",
        "norm": "sandwich",
        "norm_kind": "rms",
        "residual_scale": 0.5,
        "positions": "none",
    }
    model = ModelConfig(d_model=4, d_mlp=5, **chosen({**settings, "tied": True}))
    network = toy_problem(model).network
    layer = network.layers[0]
    x = draw(1, LENGTH, 4)
    middle = x + 0.5 * rms(layer.attn(rms(x)))
    inner = torch.nn.functional.silu(layer.mlp.gate(rms(middle))) * layer.mlp.fc_in(
        rms(middle)
    )
    assert_close(layer(x), middle + 0.5 * rms(layer.mlp.fc_out(inner)))
    tokens = torch.arange(LENGTH)[None]
    hidden = network.hidden(tokens, 0)
    assert_close(hidden, network.tok_embed.weight[tokens])
    expected = rms(layer(hidden)) @ network.tok_embed.weight.T
    assert_close(network(tokens), expected)


@pytest.mark.parametrize("norm_kind", ["layer", "rms"])
def test_norm_eps_stands_in_every_norm(norm_kind):
    settings = {
        "norm": "sandwich",
        "norm_kind": norm_kind,
        "norm_eps": 0.3,
        "scores": "qk_norm",
    }
    network = toy_problem(ModelConfig(d_model=4, **chosen(settings))).network
    layer = network.layers[0]
    norms = (layer.ln1, layer.ln1_post, layer.ln2, layer.ln2_post, network.ln_out)
    for norm in (*norms, layer.attn.q_norm, layer.attn.k_norm):
        x = draw(2, norm.weight.numel())
        centred = (
            x - x.mean(-1, keepdim=True) if isinstance(norm, torch.nn.LayerNorm) else x
        )
        assert_close(
            norm(x), centred / (centred.square().mean(-1, keepdim=True) + 0.3).sqrt()
        )
    assert isinstance(layer.ln1, torch.nn.LayerNorm) == (norm_kind == "layer")


def test_centring_leaves_one_minus_lambda_of_the_mean_over_allowed_keys_in_every_row():
    """Causal rows allow different numbers of keys; equal values show the sum of a row's weights."""
    network = toy_problem(ModelConfig(d_model=4, centring=0.75)).network
    attention = network.layers[0].attn
    pattern = attention.pattern(
        draw(1, 1, LENGTH, LENGTH), slice(None), attention.causal_mask[:LENGTH, :LENGTH]
    )
    assert_close(pattern.sum(-1), torch.full((1, 1, LENGTH), 0.25, dtype=torch.float64))
    assert bool((pattern.triu(1) == 0).all())


REFUSED = {
    "model.scores: it needs queries and keys": {
        "query_key": "single",
        "scores": "qk_norm",
    },
    "model.attention: it needs queries and keys": {
        "query_key": "single",
        "attention": "differential",
    },
    "model.scores: kernel attention has features": {
        "attention": "kernel",
        "scores": "softcap",
    },
    "model.sink: kernel attention has features": {
        "attention": "kernel",
        "sink": "scores",
        "sink_beta": 1.0,
    },
    "model.positions: linear attention has no softmax": {
        "attention": "linear",
        "positions": "alibi",
    },
    "model.n_kv_heads does not divide model.n_heads": {"n_heads": 4, "n_kv_heads": 3},
    "rotary positions turn pairs": {"d_head": 3, "positions": "rope"},
    "differential attention halves every head": {
        "d_head": 3,
        "attention": "differential",
    },
    "model.attention_bias is read with model.attention=sigmoid": {
        "attention_bias": "log_length"
    },
    "model.differential_norm is read with": {"differential_norm": False},
    "model.centring is read with model.attention=softmax": {
        "attention": "linear",
        "centring": 0.5,
    },
    "model.norm_eps is read with model.norm=pre": {
        "norm_eps": 1e-6,
        "attention": "differential",
        "differential_norm": False,
    },
    "model.mlp: kind=vit reads it with model.mlp=relu": {
        "kind": "vit",
        "mlp": "swiglu",
    },
    "model.attention: kind=mlp does not read it": {
        "kind": "mlp",
        "attention": "sigmoid",
    },
    "model.positions: kind=self_attention has none": {
        "kind": "self_attention",
        "positions": "none",
    },
}


@pytest.mark.parametrize("message", REFUSED)
def test_components_that_exclude_each_other_are_refused(message):
    settings = dict(REFUSED[message])
    kind = Kind(settings.pop("kind", "transformer"))
    model = ModelConfig(kind=kind, **{"d_model": 8, **chosen(settings)})
    with pytest.raises(UserError, match=message):
        check_config(
            Config(
                model=model,
                task=toy_task(
                    model, **{"data": Data.digits} if kind == Kind.vit else {}
                ),
            )
        )


@pytest.mark.parametrize(
    ("task", "method", "message"),
    [
        ({"label_smoothing": 0.1, "loss": "mse"}, "auto", "task.label_smoothing"),
        (
            {"weight_decay": 0.1},
            "auto",
            "task.weight_decay is read with estimator.method=hutchinson",
        ),
    ],
)
def test_changes_of_the_loss_are_refused_where_nobody_knows_them(task, method, message):
    settings = {}
    for key, value in task.items():
        settings[key] = type(getattr(TaskConfig(), key))(value)
    with pytest.raises(UserError, match=message):
        check_config(
            Config(
                task=TaskConfig(**settings), estimator=EstimatorConfig(Method(method))
            )
        )


def test_keys_of_networks_without_components_stand():
    assert "scores" not in in_key(Config())["model"]
    assert "weight_decay" not in in_key(Config())["task"]
    assert in_key(Config(model=ModelConfig(tied=True)))["model"]["tied"] is True
