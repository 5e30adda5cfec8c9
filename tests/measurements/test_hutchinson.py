"""Hutchinson's estimator: exact with identity probes and over all sign vectors, the same bits every time."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import product

import pytest
import torch
from torch import Tensor

from hessfig.config.science import TaskConfig
from hessfig.curvature import column as module
from hessfig.curvature.column import SPLIT, chunks, completed, squared_norms
from hessfig.curvature.problem import rademacher
from hessfig.measurements.block_norms import dense_norms, hutchinson
from hessfig.models.tape.columns import LinearisedNetwork
from hessfig.rng import stream
from hessfig.terms import PARTS, Matrix, Part
from tests.toys import ARCHITECTURES, toy_problem

PARTS = list(PARTS)


@dataclass
class MatrixColumn:
    """Two blocks given as matrices."""

    blocks: dict[tuple[Matrix, Part], Tensor]
    bytes_per_probe: int = 8
    dtype: torch.dtype = torch.float64
    weight: tuple[int, int] | None = None
    like = torch.empty(0, dtype=torch.float64)

    @property
    def dim(self):
        return next(iter(self.blocks.values())).shape[1]

    @property
    def shape(self):
        return torch.Size(self.weight or (self.dim, 1))

    def split_matmat(self, probes, parts=SPLIT):
        both = {key: block @ probes for key, block in self.blocks.items()}
        return completed(both, parts)


def random_column(dim):
    generator = stream(0, "column", dim)
    rows = {Matrix.W_Q: dim, Matrix.W_V: 3}
    draw = lambda n: torch.randn(n, dim, dtype=torch.float64, generator=generator)  # noqa: E731
    return MatrixColumn(
        {
            (row, part): draw(n)
            for row, n in rows.items()
            for part in (Part.H_o, Part.H_f)
        }
    )


def real_column(name, col, rows):
    model = ARCHITECTURES[name]
    return LinearisedNetwork(toy_problem(model), model).column(1, col, rows)


def true_norms(column):
    return {key: norm.value for key, norm in dense_norms(column, PARTS).items()}


def test_identity_probes_give_the_norm_exactly():
    column = real_column("softmax", Matrix.W_Q, [Matrix.W_Q, Matrix.W_V])
    samples = squared_norms(column, PARTS, torch.eye(column.dim, dtype=torch.float64))
    for key, norm in dense_norms(column, PARTS).items():
        assert samples[key].values.sum().sqrt().item() == pytest.approx(
            norm.value, rel=1e-13
        )


def test_the_mean_over_all_sign_vectors_is_the_squared_norm():
    column = random_column(9)
    signs = torch.tensor(list(product([-1.0, 1.0], repeat=9)), dtype=torch.float64).T
    samples = squared_norms(column, PARTS, signs)
    for key, frob in true_norms(column).items():
        assert samples[key].values.mean().sqrt().item() == pytest.approx(
            frob, rel=1e-13
        )


def test_the_three_parts_share_their_probes():
    """||(H_o + H_f) v|| <= ||H_o v|| + ||H_f v|| holds probe by probe only when the probes are shared."""
    column = random_column(40)
    samples = squared_norms(
        column, PARTS, rademacher(40, 200, generator=stream(1), dtype=torch.float64)
    )
    for row in (Matrix.W_Q, Matrix.W_V):
        whole, outer, functional = (
            samples[row, part].values.sqrt() for part in (Part.H, Part.H_o, Part.H_f)
        )
        assert (whole <= outer + functional + 1e-12).all()


def test_the_estimate_is_within_its_own_error():
    column = random_column(30)
    estimate = hutchinson(column, PARTS, 4000, generator=stream(2))
    for key, frob in true_norms(column).items():
        assert abs(estimate[key].value - frob) < 4 * estimate[key].error
        assert estimate[key].error < 0.01 * frob


def test_the_same_stream_gives_the_same_bits():
    column = real_column("pre", Matrix.W_V, [Matrix.W_V, Matrix.W_Q])
    first, second = (
        hutchinson(column, PARTS, 12, generator=stream(5)) for _ in range(2)
    )
    assert first == second


def test_more_probes_keep_the_first_ones():
    """Whole chunks of probes are untouched by how many follow, so their squared norms are too, bit for bit."""
    column = real_column("softmax", Matrix.W_Q, [Matrix.W_Q])
    few, many = (
        rademacher(column.dim, k, generator=stream(7), dtype=column.dtype)
        for k in (10, 25)
    )
    first = [
        squared_norms(column, PARTS, chunk)
        for chunk in chunks(few, column, module.PROBES_AT_ONCE)
    ]
    second = [
        squared_norms(column, PARTS, chunk)
        for chunk in chunks(many, column, module.PROBES_AT_ONCE)
    ]
    for before, after in zip(first, second, strict=False):
        for key in before:
            assert torch.equal(before[key].values, after[key].values)


def test_chunks_depend_on_the_problem_alone(monkeypatch):
    column = random_column(4)
    probes = torch.ones(4, 12, dtype=torch.float64)
    assert [c.shape[1] for c in chunks(probes, column, 5)] == [5, 5, 2]
    monkeypatch.setattr(module, "MEMORY_BOUND", 3 * column.bytes_per_probe)
    assert [c.shape[1] for c in chunks(probes, column, 5)] == [3, 3, 3, 3]
    monkeypatch.setattr(module, "MEMORY_BOUND", 1)
    assert [c.shape[1] for c in chunks(probes, column, 5)] == [1] * 12


@pytest.mark.parametrize("size", [1, 2, 3, 7])
def test_the_size_of_a_chunk_changes_a_norm_by_rounding_only(size, monkeypatch):
    column = real_column("two layers", Matrix.W_V, [Matrix.W_V, Matrix.W_Q])
    reference = hutchinson(column, PARTS, 15, generator=stream(5))
    monkeypatch.setattr(module, "PROBES_AT_ONCE", size)
    for key, norm in hutchinson(column, PARTS, 15, generator=stream(5)).items():
        assert math.isclose(norm.value, reference[key].value, rel_tol=1e-13)


def test_probe_memory_grows_with_the_batch():
    model = ARCHITECTURES["softmax"]
    small, large = (
        LinearisedNetwork(
            toy_problem(model, TaskConfig(digits=1, batch_size=size)), model
        )
        .column(1, Matrix.W_Q, [Matrix.W_Q])
        .bytes_per_probe
        for size in (2, 20)
    )
    assert large == 10 * small > 0
