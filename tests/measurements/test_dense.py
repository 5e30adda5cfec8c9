"""Blocks as matrices."""

import pytest
import torch

from hessfig.curvature import column as hutchinson
from hessfig.measurements.block_norms import dense_blocks, dense_norms
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.terms import PARTS, Matrix, Part
from tests.curvature.oracle import dense_oracle
from tests.toys import ARCHITECTURES, toy_problem

MODEL = ARCHITECTURES["softmax"]


def column():
    return LinearisedNetwork(toy_problem(MODEL), MODEL).column(
        1, Matrix.W_Q, [Matrix.W_Q, Matrix.W_V]
    )


def test_norms_are_those_of_the_oracle_and_exact():
    oracle = dense_oracle(toy_problem(MODEL), 1, [Matrix.W_Q, Matrix.W_V])
    norms = dense_norms(column(), list(PARTS))
    assert set(norms) == {
        (row, part) for row in (Matrix.W_Q, Matrix.W_V) for part in PARTS
    }
    for (row, part), norm in norms.items():
        assert norm.value == pytest.approx(
            oracle[part][row, Matrix.W_Q].norm().item(), rel=1e-12
        )
        assert (norm.error, norm.num_probes) == (0.0, 0)


def test_only_the_parts_asked_for_come_back():
    assert {part for _, part in dense_norms(column(), [Part.H])} == {Part.H}


def test_small_chunks_give_the_same_matrix(monkeypatch):
    whole = dense_blocks(column())
    monkeypatch.setattr(hutchinson, "MEMORY_BOUND", 3 * column().bytes_per_probe)
    for key, block in dense_blocks(column()).items():
        torch.testing.assert_close(block, whole[key], rtol=0, atol=1e-15)
