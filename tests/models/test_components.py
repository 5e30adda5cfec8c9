"""Components of today's transformers: every route against dense double backward, and the zeros that are promised."""

from dataclasses import replace

import pytest
import torch

from hessfig.config.enums import Kind, Method, Products
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, ModelConfig
from hessfig.errors import UserError
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.protocol import kind
from hessfig.models.routes import Engines
from hessfig.models.tape.columns import LinearisedColumn
from hessfig.rng import stream
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.terms import Block, Part
from tests.curvature.oracle import places, whole_oracle
from tests.daily import thinned
from tests.toys import toy_problem, toy_task

pytestmark = pytest.mark.filterwarnings("ignore:H.*curvlinops:RuntimeWarning")
ALL = Block(0, "all", "all")
SPLIT = (Part.H_o, Part.H_f)
VARIANTS = {
    "sigmoid": {"attention": "sigmoid"},
    "sigmoid log": {"attention": "sigmoid", "attention_bias": "log_length"},
    "sparsemax": {"attention": "sparsemax", "mlp": "relu"},
    "entmax15": {"attention": "entmax15", "sink": "both", "sink_beta": 0.2},
    "kernel": {"attention": "kernel", "scores": "qk_norm"},
    "differential": {"attention": "differential", "n_kv_heads": 1},
    "differential bare": {
        "attention": "differential",
        "differential_norm": False,
        "differential_lambda": 0.3,
    },
    "centred": {"centring": 0.9, "sink": "scores", "sink_beta": 0.2},
    "centred whole": {
        "centring": 1.0,
        "scores": "softcap",
        "softcap": 0.8,
        "window": 2,
    },
    "off by one": {"attention": "off_by_one", "mlp": "linear"},
    "qk norm": {"scores": "qk_norm"},
    "cosine": {"scores": "cosine", "temperature": 0.7},
    "softcap": {"scores": "softcap", "softcap": 0.8},
    "softcap linear": {"scores": "softcap", "softcap": 0.8, "attention": "linear"},
    "rms": {"norm": "pre", "norm_kind": "rms"},
    "post rms": {"norm": "post", "norm_kind": "rms", "mlp": "gelu"},
    "sandwich": {"norm": "sandwich", "residual_scale": 0.5, "norm_eps": 0.3},
    "rope": {"positions": "rope"},
    "alibi": {"positions": "alibi"},
    "no positions": {"positions": "none"},
    "silu": {"mlp": "silu"},
    "swiglu": {"mlp": "swiglu"},
    "geglu": {"mlp": "geglu", "norm": "sandwich", "norm_kind": "rms"},
    "shared keys": {"n_kv_heads": 1},
    "gate": {"gate": "output", "attention": "linear"},
    "tied": {"tied": True},
    "window": {"window": 2, "residual_scale": 2**-0.5},
    "much": {
        **{
            "attention": "differential",
            "scores": "cosine",
            "positions": "rope",
            "n_kv_heads": 1,
            "gate": "output",
        },
        **{
            "mlp": "swiglu",
            "norm": "pre",
            "norm_kind": "rms",
            "window": 3,
            "d_head": 4,
            "n_layers": 1,
        },
    },
}
BARE = (
    "sigmoid log",
    "centred",
    "centred whole",
    "kernel",
    "differential",
    "cosine",
    "qk norm",
    "softcap",
    "rope",
    "alibi",
    "gate",
    "window",
)
NEVER_ON_THE_TAPE = ("kernel", "tied")


def chosen(settings):
    """Return settings with the members of their choices in place of words."""
    default = ModelConfig()
    found = {}
    for key, value in settings.items():
        found[key] = (
            type(getattr(default, key))(value) if isinstance(value, str) else value
        )
    return found


def model_of(name):
    """Return two layers of two heads with the components of a variant."""
    toy = {"d_model": 4, "d_mlp": 5, "n_layers": 2, "n_heads": 2}
    return ModelConfig(**{**toy, **chosen(VARIANTS[name])})


def bare(name):
    """Return a single attention with the components of a variant that it can have."""
    settings = {}
    for key, value in VARIANTS[name].items():
        if key not in ("residual_scale", "mlp"):
            settings[key] = value
    return ModelConfig(
        kind=Kind.self_attention, **{"d_model": 8, "n_heads": 2, **chosen(settings)}
    )


CASES = {
    **{name: model_of(name) for name in VARIANTS},
    **{f"{name} alone": bare(name) for name in BARE},
}


@pytest.fixture(scope="module", params=thinned(CASES, 2))
def case(request):
    """Return a network whose biases and gains are drawn too, and its dense Hessians."""
    model = CASES[request.param]
    problem = toy_problem(
        model,
        toy_task(
            model,
            batch_size=2,
            **{} if model.kind == Kind.self_attention else {"base": 2},
        ),
    )
    for name, parameter in problem.network.named_parameters():
        if parameter.ndim == 1:
            parameter += 0.3 * torch.randn(
                parameter.shape, dtype=torch.float64, generator=stream(1, "gain", name)
            )
    return request.param, model, problem, whole_oracle(problem)


def close(found, dense, scale):
    torch.testing.assert_close(found, dense, rtol=0, atol=1e-10 * scale)


def test_weight_decay_stands_on_the_diagonal_of_h_and_h_f():
    """Of H_f too: it is no outer product of the outputs; of a group where a row and the column share a weight."""
    model = ModelConfig(d_model=4, d_mlp=5)
    decay = 0.3
    problem = toy_problem(
        model, toy_task(model, batch_size=2, base=2, weight_decay=decay)
    )
    dense = whole_oracle(problem)
    blocks = [
        Block(1, row, "attention") for row in ("attention", "W_V", "W_in", "layer")
    ]
    found = dense_blocks(
        Engines(problem, model, Products.linearised).column(1, "attention", blocks)
    )
    cols = places(problem, 1, "attention")
    for block in blocks:
        rows = places(problem, 1, block.row)
        same = (rows[:, None] == cols).to(torch.float64)
        close(found[block, Part.H_o], dense[Part.H_o][rows][:, cols], 1.0)
        close(
            found[block, Part.H_f], dense[Part.H_f][rows][:, cols] + decay * same, 1.0
        )
    task = toy_task(model, batch_size=2, base=2, weight_decay=decay)
    config = Config(
        model=model,
        task=task,
        blocks=["W_U"],
        parts=[Part.H_f],
        estimator=EstimatorConfig(Method.dense),
    )
    (row,) = compute_cell(Cell(Variant("", config), 0.3, 1, "frobenius")).rows
    assert row["status"] == "ok"
    assert row["value"] == pytest.approx(decay * problem.layout.size(0, "W_U") ** 0.5)
    with pytest.raises(
        UserError, match=r"task\.weight_decay: loss is measured without it"
    ):
        Variant("", replace(config, quantities=["loss"])).check()


@pytest.mark.parametrize(
    "products",
    [Products.linearised, pytest.param(Products.curvlinops, marks=pytest.mark.long)],
)
def test_every_route_gives_the_dense_hessian(case, products):
    name, model, problem, dense = case
    column = Engines(problem, model, products).column(0, "all", [ALL])
    on_tape = products == Products.linearised and not name.startswith(NEVER_ON_THE_TAPE)
    assert isinstance(column, LinearisedColumn) == on_tape
    found = dense_blocks(column)
    for part in SPLIT:
        close(found[ALL, part], dense[part], float(dense[part].abs().max()))
    close(
        found[ALL, Part.H_o] + found[ALL, Part.H_f],
        dense[Part.H],
        float(dense[Part.H].abs().max()),
    )


@pytest.mark.long
def test_columns_of_single_weights_are_the_dense_ones_and_vanish_where_that_is_promised(
    case,
):
    _, model, problem, dense = case
    engines = Engines(problem, model, Products.linearised)
    vanish = kind(model.kind).is_structural_zero
    scale = float(dense[Part.H].abs().max())
    for col in (weight for weight in problem.layout.weights if weight.is_main):
        block = Block(col.layer, col.name, col.name)
        found = dense_blocks(engines.column(col.layer, col.name, [block]))
        here = places(problem, col.layer, col.name)
        for part in SPLIT:
            close(found[block, part], dense[part][here][:, here], scale)
        assert vanish(model, block, Part.H_f) == (
            float(found[block, Part.H_f].abs().max()) == 0.0
        ), block
        assert not vanish(model, block, Part.H_o)
