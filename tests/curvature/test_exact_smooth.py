"""Exact norms behind a smooth activation, for hidden widths that are no multiple of a strip of entries."""

import pytest

from hessfig.config.enums import MLP, Products
from hessfig.config.science import ModelConfig
from hessfig.measurements.block_norms import dense_norms
from hessfig.models.blocks import matrices_of
from hessfig.models.exact.exact_blocks import ExactEngine
from hessfig.models.routes import Engines
from hessfig.terms import PARTS, Block, Matrix
from tests.daily import thinned
from tests.toys import toy_problem


@pytest.mark.parametrize("d_mlp", thinned([7, 16, 20, 50], 2))
@pytest.mark.parametrize("row", thinned([Matrix.W_in, Matrix.W_out, Matrix.W_V], 2))
def test_a_gelu_layer_of_any_width(d_mlp, row):
    model = ModelConfig(d_model=6, d_mlp=d_mlp, mlp=MLP.gelu)
    problem = toy_problem(model)
    block = Block(1, row, Matrix.W_in)
    dense = dense_norms(
        Engines(problem, model, Products.linearised).column(1, Matrix.W_in, [block]),
        list(PARTS),
    )
    exact = ExactEngine(problem, model).column(1, Matrix.W_in, [row], list(PARTS))
    for part in PARTS:
        assert exact[row, part] == pytest.approx(dense[block, part].value, rel=1e-10)


def test_every_pair_of_a_gelu_layer_has_an_exact_norm():
    """`estimator=exact model.mlp=gelu blocks=all` used to fail in every cell."""
    model = ModelConfig(d_model=4, d_mlp=16, mlp=MLP.gelu)
    engine = ExactEngine(toy_problem(model), model)
    weights = matrices_of(model)
    for index, row in enumerate(weights):
        for col in weights[index:]:
            layer = 1 if row.has_layer or col.has_layer else 0
            for norm in engine.column(layer, col, [row], list(PARTS)).values():
                assert norm >= 0
