"""The rule about updates on synthetic tables: what the source says, its contrary, and nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest

from hessfig.analysis.claims.judges import FULL, ClaimVerdict
from hessfig.analysis.claims.ledger import claim_of
from hessfig.analysis.claims.rule import Evidence
from tests.analysis import claim_tables as tables

DRAWS, MOST = 60, 0.1  # an interval of 95 % may be wrong on one side in 2.5 %, and what that varies by
POSITIVE = {*FULL, ClaimVerdict.holds_only_if, ClaimVerdict.small}
STEPS = (20.0, 50.0, 100.0, 200.0, 400.0)
Row = dict[str, Any]


def whole(quantity: str, value: float, part: str = "H", **place: Any) -> Row:
    return {"quantity": quantity, "value": value, "part": part, "row": "all", "col": "all", **place}


def updates(ratio: float, noise: float = 0.05, draw: int = 0, *, faster: float = 1.0) -> Evidence:
    """Return curvatures that fall with the loss, AdamW's a factor larger; Muon's loss is that of later steps."""

    def rows() -> Iterator[Row]:
        for seed in range(10 * draw, 10 * draw + 5):
            for rule, factor, speed in (("adamw", ratio, 1.0), ("muon", 1.0, faster)):
                for step in STEPS:
                    loss = (1 + speed * step / 50) ** -0.5
                    place = {"variant": f"training.optimiser={rule}", "seed": seed, "step": step}
                    yield {**place, "quantity": "loss", "value": loss, "row": "", "col": "", "part": ""}
                    value = factor * loss**2 * 10 ** (noise * tables.normal(seed, rule, step))
                    yield whole(f"{rule}_update_curvature", value, **place)
                    yield whole(f"{rule}_update_within_layers", value / 2, **place)

    return tables.of(rows())


CASES: list[tuple[Evidence, ClaimVerdict]] = [
    (updates(2.0), ClaimVerdict.holds),
    (updates(2.0, faster=2.0), ClaimVerdict.holds),
    (updates(1.15, 0.005), ClaimVerdict.small),
    (updates(0.5), ClaimVerdict.does_not_hold),
]
# Nothing there: one curvature for both rules.
NULLS: list[Callable[[int], Evidence]] = [
    lambda draw: updates(1.0, 0.2, draw),
    lambda draw: updates(1.0, 0.2, draw, faster=3.0),
]
TRIED = ("muon-sharpness",)  # here, on tables of its own


@pytest.mark.parametrize(("evidence", "verdict"), CASES)
def test_verdicts(evidence: Evidence, verdict: ClaimVerdict) -> None:
    assert claim_of("muon-sharpness").rule(evidence).verdict == verdict


@pytest.mark.parametrize("place", range(len(NULLS)))
@pytest.mark.long
def test_nothing_holds_where_there_is_nothing(place: int) -> None:
    findings = [claim_of("muon-sharpness").rule(NULLS[place](draw)) for draw in range(DRAWS)]
    assert sum(finding.verdict in POSITIVE for finding in findings) <= MOST * DRAWS
    assert not any(finding.is_lacking for finding in findings)


def test_a_table_without_the_numbers_says_so() -> None:
    assert claim_of("muon-sharpness").rule(tables.of([])).is_lacking


def test_updates_without_a_positive_curvature_are_missing_numbers() -> None:
    bare = updates(2.0)
    negative = bare.table["quantity"].str.endswith("_update_curvature")
    table = bare.table.assign(value=bare.table["value"].where(~negative, -1.0))
    assert claim_of("muon-sharpness").rule(Evidence(table)).is_lacking
