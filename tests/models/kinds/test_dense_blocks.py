"""Vision transformers, MLPs and CNNs: every parameter named once, and the blocks and zeros of dense differentiation."""

import warnings
from itertools import product

import pytest

from hessfig.config.enums import Data, Kind, Loss
from hessfig.config.science import TaskConfig
from hessfig.curvature.curvlinops import ColumnOperator
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.blocks import matrices_of
from hessfig.models.protocol import kind
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.terms import Block, Part
from tests.curvature.oracle import dense_oracle
from tests.daily import daily
from tests.models.kinds import test_cnn, test_mlp, test_vit
from tests.toys import toy_problem, toy_task

SHAPES = {
    f"{model.kind} {model.norm} {model.mlp} {model.n_layers}": model
    for of_kind in (test_cnn, test_mlp, test_vit)
    for model in of_kind.SHAPES
}
# Layers of CNNs are large: these two have different numbers of channels.
OF_CNN = (1, 4)
CASES = [*product(SHAPES, (Loss.cross_entropy, Loss.mse))]
DAILY = (
    ("cnn none relu 1", Loss.mse),
    ("cnn post gelu 1", Loss.mse),
    ("mlp none gelu 3", Loss.mse),
    ("vit none relu 1", Loss.mse),
)


def problem_of(model, loss=Loss.cross_entropy):
    if model.kind == Kind.mlp:
        return toy_problem(model, toy_task(model, loss=loss, batch_size=6))
    samples = {Kind.vit: 12, Kind.cnn: 3}[model.kind]
    return toy_problem(
        model, TaskConfig(data=Data.digits, batch_size=samples, loss=loss)
    )


@pytest.mark.parametrize("name", SHAPES)
def test_the_layout_names_every_parameter_once(name):
    problem = problem_of(SHAPES[name])
    sizes = {path: one.numel() for path, one in problem.network.named_parameters()}
    assert {one.parameter: one.size for one in problem.layout.weights} == sizes
    assert len(problem.layout.weights) == len(sizes)
    assert problem.layout.names == [str(one) for one in matrices_of(SHAPES[name])]


@pytest.mark.parametrize(("name", "loss"), daily(CASES, *DAILY))
def test_blocks_are_those_of_dense_differentiation_and_zero_where_promised(name, loss):
    """By the tape, which CNNs do not have, and by curvlinops."""
    model = SHAPES[name]
    problem = problem_of(model, loss)
    has_tape = model.kind != Kind.cnn
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        tape = LinearisedNetwork(problem, model) if has_tape else None
    for layer in range(1, model.n_layers + 1) if has_tape else OF_CNN:
        weights = []
        for one in matrices_of(model):
            if problem.layout.members(layer if one.has_layer else 0, one):
                weights.append(one)
        oracle = dense_oracle(problem, layer, weights)
        for col in weights:
            columns = [ColumnOperator(problem, layer, col, weights)]
            if tape:
                columns.append(tape.column(layer, col, weights))
            for (row, part), block in product_blocks(columns):
                truth = oracle[part][row, col]
                size = max(float(truth.abs().max()), 1e-8)
                assert (block - truth).abs().max() <= 1e-10 * size, (row, part)
                if (row, part) == (col, Part.H_f):
                    at = Block(layer if col.has_layer else 0, col, col)
                    promised = kind(model.kind).is_structural_zero(model, at, Part.H_f)
                    assert promised == (not block.any()), (layer, col)


def product_blocks(columns):
    for column in columns:
        yield from dense_blocks(column).items()
