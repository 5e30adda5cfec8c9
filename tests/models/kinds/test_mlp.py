"""The MLP on the addition task: as large as a transformer, causal, with the products of its own derivatives."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.config.enums import MLP, DType, Kind, Method, QueryKey
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.errors import UserError
from hessfig.models.kinds.mlp import width
from hessfig.models.networks import PrefixMLP
from hessfig.models.protocol import kind
from hessfig.models.routes import Engines
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.variant import Variant
from hessfig.terms import Block
from tests.toys import PAPER, build_model, toy_problem, toy_task

DEEP = ModelConfig(kind=Kind.mlp, d_model=3, n_layers=3, d_mlp=5)
SHAPES = [
    replace(DEEP, n_layers=1),
    DEEP,
    replace(DEEP, mlp=MLP.gelu),
    replace(DEEP, mlp=MLP.linear),
]
name = pytest.mark.parametrize(
    "model", SHAPES, ids=lambda model: f"{model.n_layers} {model.mlp}"
)


def size(config):
    return sum(weight.size for weight in kind(config.model.kind).layout(config).weights)


models = st.builds(
    ModelConfig,
    n_layers=st.integers(1, 4),
    d_model=st.sampled_from([2, 8, 16, 128]),
    d_head=st.sampled_from([None, 3]),
    n_heads=st.integers(1, 2),
    norm=st.sampled_from(PAPER.norms),
    query_key=st.sampled_from(QueryKey),
    attention=st.sampled_from(PAPER.attentions),
)


@settings(max_examples=25, derandomize=True, deadline=None)
@given(models, st.integers(1, 5))
@pytest.mark.long
def test_it_has_the_number_of_parameters_of_the_transformer_within_half_a_hidden_unit(
    model, digits
):
    task = TaskConfig(digits=digits)
    goal = size(Config(model=model, task=task))
    mlp = Config(model=replace(model, kind=Kind.mlp), task=task)
    units = width(mlp)
    around = []
    for step in (-1, 0, 1):
        if units + step:
            around.append(
                size(replace(mlp, model=replace(mlp.model, d_mlp=units + step)))
            )
    assert abs(size(mlp) - goal) == min(abs(found - goal) for found in around)


def test_the_published_size_is_matched():
    found = {}
    for one in (Kind.transformer, Kind.mlp):
        found[one] = size(Config(model=ModelConfig(kind=one, n_layers=2)))
    assert abs(found[Kind.mlp] / found[Kind.transformer] - 1) < 0.005


@name
def test_later_tokens_change_nothing_at_earlier_positions(model):
    network = build_model(model, sigma=0.7, seed=1, length=9, dtype=DType.float64)
    assert isinstance(network, PrefixMLP)
    tokens = torch.arange(9)[None] % 10
    for later in range(1, 8):
        changed = tokens.clone()
        changed[:, later:] = (changed[:, later:] + 3) % 12
        for scored in (slice(0, 8), slice(2, 8)):
            before, after = (
                network.from_hidden(network.hidden(x, 0), 0, scored)
                for x in (tokens, changed)
            )
            kept = max(0, later - scored.start)
            assert torch.equal(before[:, :kept], after[:, :kept])
            assert not torch.allclose(before[:, kept:], after[:, kept:])


@name
def test_cut_behind_a_layer_it_is_the_same_network(model):
    problem = toy_problem(model)
    network = problem.layered
    inputs = problem.batch.inputs
    scored = problem.batch.scored
    outputs = []
    for depth in range(model.n_layers + 1):
        outputs.append(
            network.from_hidden(network.hidden(inputs, depth), depth, scored)
        )
    for one in outputs:
        assert torch.allclose(one, outputs[0], rtol=1e-13, atol=1e-15)


def test_weights_keep_the_scale_of_their_inputs():
    model = ModelConfig(kind=Kind.mlp, d_model=16, n_layers=2, d_mlp=50)
    network = build_model(model, sigma=0.3, seed=1, length=9, dtype=DType.float64)
    for linear, inputs in (
        (network.layers[0], 8 * 16),
        (network.layers[1], 50),
        (network.head, 50),
    ):
        assert linear.weight.std().item() == pytest.approx(
            (0.64 / inputs) ** 0.5, rel=0.1
        )
        assert not linear.bias.any()
    assert network.tok_embed.weight.std().item() == pytest.approx(0.3, rel=0.2)


def test_auto_probes_it_and_exact_is_refused():
    config = Config(model=DEEP, task=toy_task(DEEP), blocks="each", seeds=1)
    variant = Sweep([("", config)]).variants[0]
    assert [block.row for block in variant.blocks] == ["W_E", "W_U", "W_in", "W", "W"]
    exact = replace(config, estimator=replace(config.estimator, method=Method.exact))
    with pytest.raises(UserError, match=r"no exact H_o(.|\n)*linear MLPs"):
        Sweep([("", exact)])


def test_an_mlp_without_an_activation_is_refused_and_the_matched_width_has_a_key_of_its_own():
    with pytest.raises(UserError, match="nothing but an MLP"):
        Sweep(
            [
                (
                    "",
                    Config(
                        model=replace(DEEP, mlp=MLP.none),
                        task=toy_task(DEEP),
                        blocks=["W_in"],
                    ),
                )
            ]
        )
    model = ModelConfig(kind=Kind.mlp, d_model=8)
    keys = {
        Cell(Variant("", Config(model=one, blocks=["W_in"])), 0.1, 1).key
        for one in (model, replace(model, d_mlp=32))
    }
    assert len(keys) == 2


def test_the_tape_is_taken():
    problem = toy_problem(DEEP)
    engines = Engines(problem, DEEP, Config().estimator.products)
    assert not isinstance(
        engines.column(1, "W_in", [Block(1, "W_in", "W_in")]), ColumnOperator
    )
