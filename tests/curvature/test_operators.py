"""Both engines against dense automatic differentiation, block by block, and the identities between the parts."""

from dataclasses import replace
from functools import cache

import pytest
import torch

from hessfig.config.enums import Loss
from hessfig.curvature.curvlinops import ColumnOperator, xtrace_squared_frobenius
from hessfig.curvature.problem import Batch, rademacher
from hessfig.measurements.block_norms import dense_blocks
from hessfig.models.blocks import matrices_of
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import PARTS, Matrix, Part
from tests.curvature.oracle import dense_oracle
from tests.toys import ARCHITECTURES, toy_problem, toy_task

ROUNDING = 1e-13


def curvlinops(objective, model, layer, col, rows):
    return ColumnOperator(objective, layer, col, rows)


def linearised(objective, model, layer, col, rows):
    return LinearisedNetwork(objective, model).column(layer, col, rows)


engines = pytest.mark.parametrize(
    "engine", [curvlinops, linearised], ids=["curvlinops", "linearised"]
)


def measured(engine, objective, model, layer):
    """Return every block of `layer` as a matrix, by part, then by (row, col)."""
    matrices = matrices_of(model)
    found = {part: {} for part in PARTS}
    for col in matrices:
        blocks = dense_blocks(engine(objective, model, layer, col, matrices))
        for row in matrices:
            outer = blocks[row, Part.H_o]
            functional = blocks[row, Part.H_f]
            for part, block in zip(
                (Part.H_o, Part.H_f, Part.H),
                (outer, functional, outer + functional),
                strict=True,
            ):
                found[part][row, col] = block
    return found


@cache
def problem_and_oracle(name, loss, layer):
    model = ARCHITECTURES[name]
    problem = toy_problem(model, toy_task(model, **({"loss": loss} if loss else {})))
    return problem, dense_oracle(problem, layer, matrices_of(model))


def assert_all_blocks(engine, name, loss=None):
    model = ARCHITECTURES[name]
    for layer in range(1, model.n_layers + 1):
        problem, oracle = problem_and_oracle(name, loss, layer)
        found = measured(engine, problem, model, layer)
        for part in PARTS:
            scale = max(block.abs().max() for block in oracle[part].values())
            for pair, block in oracle[part].items():
                error = (found[part][pair] - block).abs().max()
                assert error <= ROUNDING * scale, (
                    f"{part} {pair} of layer {layer}: {error / scale:.1e}"
                )


@pytest.mark.parametrize("name", ARCHITECTURES)
@pytest.mark.long
def test_every_block_equals_the_dense_oracle(name):
    assert_all_blocks(linearised, name)


@pytest.mark.parametrize("loss", Loss)
@pytest.mark.parametrize("name", ["softmax", "chain"])
@pytest.mark.long
def test_every_loss_equals_the_dense_oracle(name, loss):
    assert_all_blocks(linearised, name, loss)


@pytest.mark.parametrize("name", ["softmax", "linear mlp", "bare"])
def test_the_reference_engine_equals_the_dense_oracle(name):
    """Of networks with more components tests/models/test_components.py compares both routes."""
    assert_all_blocks(curvlinops, name)


@engines
def test_each_probe_splits_into_outer_and_functional(engine):
    model = ARCHITECTURES["pre"]
    layer = 1
    col = Matrix.W_V
    problem = toy_problem(model)
    column = engine(problem, model, layer, col, [Matrix.W_Q, col])
    probes = rademacher(
        column.dim, 5, generator=stream(0, "probes"), dtype=torch.float64
    )
    products = column.split_matmat(probes)
    oracle = dense_oracle(problem, layer, [Matrix.W_Q, col])[Part.H]
    for row in (Matrix.W_Q, col):
        together = products[row, Part.H_o] + products[row, Part.H_f]
        torch.testing.assert_close(
            together, oracle[row, col] @ probes, rtol=0, atol=1e-12
        )


@engines
@pytest.mark.parametrize("loss", [Loss.cross_entropy, Loss.mse_sum_unshifted])
def test_a_batch_is_the_mean_or_the_sum_of_its_sequences(engine, loss):
    model = ARCHITECTURES["softmax"]
    problem = toy_problem(model, toy_task(model, loss=loss, batch_size=4))
    together = dense_blocks(engine(problem, model, 1, Matrix.W_Q, [Matrix.W_Q]))
    each = []
    for p in single_sequences(problem):
        each.append(dense_blocks(engine(p, model, 1, Matrix.W_Q, [Matrix.W_Q])))
    for key, block in together.items():
        total = torch.stack([blocks[key] for blocks in each]).sum(dim=0)
        parts = total if loss == Loss.mse_sum_unshifted else total / 4
        torch.testing.assert_close(block, parts, rtol=1e-12, atol=1e-15)


def single_sequences(objective):
    batch = objective.batch
    pairs = zip(batch.inputs.split(1), batch.targets.split(1), strict=True)
    return [replace(objective, batch=Batch(x, y, batch.scored)) for x, y in pairs]


def test_xtrace_leaves_the_global_generator_alone_and_repeats_itself():
    model = ARCHITECTURES["softmax"]
    operator = ColumnOperator(
        toy_problem(model), 1, Matrix.W_V, [Matrix.W_V]
    ).square_operator(Part.H)
    before = torch.get_rng_state()
    first, second = (
        xtrace_squared_frobenius(operator, 6, generator=stream(3, "probes"))
        for _ in range(2)
    )
    assert first == second
    assert torch.equal(before, torch.get_rng_state())
