"""Groups of weights and pairs across layers: against dense double backward, on the tape and through curvlinops."""

import pytest
import torch

from hessfig.config.enums import Norm, Products
from hessfig.config.science import ModelConfig
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.routes import Engines
from hessfig.models.tape.columns import LinearisedColumn
from hessfig.terms import Block, Group, Part
from tests.curvature.oracle import places, whole_oracle
from tests.daily import thinned
from tests.toys import ARCHITECTURES, EXACT_PRODUCTS, toy_problem, toy_task

pytestmark = pytest.mark.filterwarnings(
    "ignore:H_f. curvlinops' product is off:RuntimeWarning"
)
BLOCKS = [
    Block(1, "attention", "attention"),
    Block(2, "mlp", "mlp"),
    Block(2, "attention", "mlp"),
    Block(1, "layer", "layer"),
    Block(0, "embeddings", "embeddings"),
    Block(0, "all", "all"),
    Block(2, "W_V", "W_V", row_layer=1),
    Block(1, "W_Q", "W_out", row_layer=2),
    Block(2, "attention", "attention", row_layer=1),
]


@pytest.fixture(scope="module", params=["two layers", "pre"])
def case(request):
    model = ARCHITECTURES[request.param]
    problem = toy_problem(model, toy_task(model, base=2))
    return model, problem, whole_oracle(problem)


@pytest.mark.parametrize("products", EXACT_PRODUCTS)
@pytest.mark.parametrize("block", BLOCKS, ids=str)
@pytest.mark.long
def test_every_block_is_the_oracles(case, block, products):
    model, problem, dense = case
    column = Engines(problem, model, products).column(block.layer, block.col, [block])
    found = dense_blocks(column)
    rows = places(problem, block.row_layer, block.row)
    cols = places(problem, block.layer, block.col)
    scale = float(dense[Part.H][rows][:, cols].abs().max())
    for part in (Part.H_o, Part.H_f):
        torch.testing.assert_close(
            found[block, part],
            dense[part][rows][:, cols],
            rtol=1e-10,
            atol=1e-11 * scale,
        )


@pytest.mark.parametrize(
    "name", thinned(["two layers", "pre", "post", "single", "linear mlp"], 2)
)
def test_every_group_stays_on_the_tape(name):
    model = ARCHITECTURES[name]
    engines = Engines(toy_problem(model), model, Products.linearised)
    layout = engines.problem.layout
    for group in set(Group) & set(layout.others):
        for layer in layout.layers_of(group):
            column = engines.column(layer, group, [Block(layer, group, group)])
            assert isinstance(column, LinearisedColumn), (layer, group)


def test_norms_are_a_group_of_networks_that_have_them():
    for norm in Norm:
        model = ModelConfig(d_model=4, d_mlp=6, norm=norm)
        found = toy_problem(model).layout.layers_of("norms")
        assert (
            found
            == {Norm.none: [], Norm.pre: [0, 1], Norm.post: [1], Norm.sandwich: [0, 1]}[
                norm
            ]
        )
