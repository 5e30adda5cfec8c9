"""The tape holds every parameter: biases, gains and shifts, alone, in groups, all at once; against double backward."""

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.config.enums import Loss, Norm, Products, QueryKey
from hessfig.config.science import ModelConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.routes import Engines
from hessfig.models.tape.columns import LinearisedColumn, LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import PARTS, Block, Group, Part
from tests.curvature.oracle import places, whole_oracle
from tests.toys import ARCHITECTURES, PAPER, toy_problem, toy_task

ROUNDING = 1e-12
transformers = st.builds(
    ModelConfig,
    n_layers=st.integers(1, 2),
    n_heads=st.integers(1, 2),
    d_model=st.just(4),
    d_head=st.integers(2, 3),
    d_mlp=st.just(3),
    attention=st.sampled_from(PAPER.attentions),
    mlp=st.sampled_from(PAPER.mlps),
    query_key=st.sampled_from(QueryKey),
    temperature=st.sampled_from([1.0, 1.7]),
)


def moved(objective):
    """Return `objective` with biases that are not zero and gains that are not one."""
    with torch.no_grad():
        for name, parameter in objective.network.named_parameters():
            if parameter.ndim == 1:
                parameter += 0.3 * torch.randn(
                    parameter.shape, dtype=torch.float64, generator=stream(0, name)
                )
    return objective


def assert_every_column(objective, model):
    """Compare the columns of every name of every layer, with all weights of the network as rows."""
    dense = whole_oracle(objective)
    tape = LinearisedNetwork(objective, model)
    layout = objective.layout
    places_of = [
        (at, name)
        for name in [*layout.names, *layout.others]
        for at in layout.layers_of(name)
    ]
    for layer, name in places_of:
        assert tape.holds(layer, name), (layer, name)
        column = tape.column(layer, name, {"rows": (0, Group.all.value)})
        found = dense_blocks(column)
        cols = places(objective, layer, name)
        found["rows", Part.H] = column.split_matmat(
            torch.eye(column.dim).double(), (Part.H,)
        )["rows", Part.H]
        for part in PARTS:
            block = dense[part][:, cols]
            off = float((found["rows", part] - block).abs().max())
            # A column of zeros is zero up to the others' rounding.
            least = 1e-3 * max(1.0, float(dense[part].abs().max()))
            assert off <= ROUNDING * max(float(block.abs().max()), least), (
                layer,
                name,
                part,
                off,
            )


@pytest.mark.parametrize("norm", Norm)
@settings(max_examples=2, derandomize=True, deadline=None)
@given(architecture=transformers, loss=st.sampled_from(Loss))
@pytest.mark.long
def test_every_column_of_a_transformer_is_the_oracles(norm, architecture, loss):
    model = replace(architecture, norm=norm)
    assert_every_column(
        moved(toy_problem(model, toy_task(model, batch_size=2, loss=loss))), model
    )


@pytest.mark.parametrize("name", ["chain", "linear mlp", "bare", "bare linear"])
@pytest.mark.long
def test_every_column_of_the_other_networks_is_the_oracles(name):
    assert_every_column(toy_problem(ARCHITECTURES[name]), ARCHITECTURES[name])


@pytest.mark.parametrize("norm", Norm)
def test_the_whole_network_stays_on_the_tape(norm):
    model = ModelConfig(d_model=4, d_mlp=6, n_layers=2, norm=norm)
    engines = Engines(toy_problem(model), model, Products.linearised)
    column = engines.column(0, "all", [Block(0, "all", "all")])
    assert isinstance(column, LinearisedColumn)
    assert column.dim == sum(
        parameter.numel() for parameter in engines.problem.network.parameters()
    )


def test_a_weight_that_no_step_holds_takes_curvlinops():
    """A view of a parameter, and a parameter that is not the one the step was built on."""
    model = ARCHITECTURES["softmax"]
    problem = toy_problem(model)
    bias = next(weight for weight in problem.layout.weights if weight.name == "b_in")
    for changed in (
        replace(bias, index=slice(0, 2), size=2),
        replace(bias, parameter="head.bias"),
    ):
        weights = tuple(
            changed if weight is bias else weight for weight in problem.layout.weights
        )
        other = replace(problem, layout=replace(problem.layout, weights=weights))
        tape = LinearisedNetwork(other, model)
        assert not tape.holds(1, "b_in")
        assert not tape.holds(0, "all")
        assert tape.holds(1, "b_out")


def test_several_batches_take_curvlinops():
    """The tape is of one batch."""
    model = ARCHITECTURES["softmax"]
    problem = toy_problem(model)
    engines = Engines(
        replace(problem, more=(problem.batch,)), model, Products.linearised
    )
    assert isinstance(
        engines.column(1, "W_Q", [Block(1, "W_Q", "W_Q")]), ColumnOperator
    )


def test_equal_rows_of_the_first_layer_are_evaluated_once():
    """Every pair of token and position, up to the last scored one; the last layer's queries at scored positions."""
    model = ModelConfig(d_model=4, d_mlp=6, norm=Norm.pre)
    problem = toy_problem(model, toy_task(model, batch_size=40))
    values = LinearisedNetwork(problem, model).merged.values
    scored = problem.batch.scored
    pairs = {
        (int(token), at)
        for row in problem.batch.inputs
        for at, token in enumerate(row[: scored.stop])
    }
    assert values["k1"].shape[:2] == values["norm1"].shape[:2] == (1, len(pairs))
    assert values["q1"].shape[1] == len([at for _, at in pairs if at >= scored.start])
    assert values["k1*"].shape[:2] == (40, scored.stop)
    assert values["z1"].shape[:2] == (40, scored.stop - scored.start)


def test_columns_of_weight_matrices_alone_keep_their_tape():
    """Their numbers stand in tables of earlier versions, to the bit."""
    model = ARCHITECTURES["two layers"]
    tape = LinearisedNetwork(toy_problem(model), model)
    assert tape.column(1, "W_Q", ["W_Q", "W_V", "W_E"]).tape is tape.tape
    assert tape.column(0, "embeddings", ["embeddings"]).tape is tape.tape
    assert tape.column(1, "W_Q", ["b_Q"]).tape is tape.merged
    assert tape.column(0, "all", ["all"]).tape is tape.merged
