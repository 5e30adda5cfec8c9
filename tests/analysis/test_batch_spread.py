"""The spread between batches: what is on record, for which network, and what it changes."""

from __future__ import annotations

import numpy as np
import pytest

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.agreement import AgreementVerdict, Batches, batches, network_of
from hessfig.analysis.comparison.references import Reference
from hessfig.predictions.architecture import MLP, Architecture, Attention, Kind, Norm
from tests.analysis.authors import as_reference, toy_table

SOFTMAX, PRE = Architecture(), Architecture(norm=Norm.pre)
CHAIN = Architecture(attention=Attention.linear, attention_skip=False, mlp=MLP.none, square_loss=True)
LINEAR_MLP = Architecture(kind=Kind.linear_mlp, square_loss=True)


@pytest.mark.parametrize(
    ("architecture", "depth", "block", "part", "percent"),
    [
        (SOFTMAX, 1, "W_Q", "H", 1.6),
        (SOFTMAX, 1, "W_V", "H", 0.5),
        (SOFTMAX, 5, "W_Q", "H_o", 2.2),  # the deepest on record has two layers
        (PRE, 1, "W_V", "H_f", 4.3),
        (LINEAR_MLP, 3, "W", "H", 2.3),
        (CHAIN, 3, "W_Q", "H", 0.9),
        (SOFTMAX, 1, "W_K", "H", 2.2),  # a weight on no record: the largest of its network
        (Architecture(norm=Norm.post), 1, "W_Q", "H", 4.3),  # a network on no record: the largest of all
    ],
)
def test_what_is_on_record(architecture: Architecture, depth: int, block: str, part: str, percent: float) -> None:
    spread = Batches({("", depth): architecture}, scale=1.0).spread(depth, block, part)
    assert 100 * spread.curve == pytest.approx(percent, abs=0.05)
    assert spread.point >= spread.curve and spread.dof >= 7


def test_two_batches_differ_by_both_and_small_ones_by_more() -> None:
    task = {"data": "addition", "seed": 0, "batch_size": 64}
    assert batches({}, task, task).scale == 0.0
    assert batches({}, task, None).scale == batches({}, None, None).scale == 2.0
    assert batches({}, {**task, "batch_size": 16}, {**task, "batch_size": 16, "seed": 1}).scale == 8.0
    assert network_of(None) == ""


def test_figure_8_on_another_batch_agrees_though_its_seeds_hardly_spread() -> None:
    table = toy_table("mlp", seeds=20)
    generator = np.random.default_rng(0)
    reference = as_reference(table).assign(
        value=table["value"] * 1.023 * np.exp(0.02 * generator.normal(size=len(table)))
    )
    networks = {("", depth): LINEAR_MLP for depth in (1, 2)}
    verdicts = [
        against.compare(table, Reference(reference), Batches(networks, scale=scale)).verdict for scale in (0.0, 2.0)
    ]
    assert verdicts == [AgreementVerdict.differs, AgreementVerdict.agrees]
