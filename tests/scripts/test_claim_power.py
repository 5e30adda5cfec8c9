"""Power of rules: a refuted line has the printed interval, and the simulation finds what the formula says."""

from __future__ import annotations

import csv

import pytest

from scripts import claim_power
from scripts.claim_power import FILE, HEADS, REFUTED


def test_the_file_has_a_line_for_each_refuted_claim_with_an_interval() -> None:
    rows = list(csv.reader(FILE.read_text().splitlines()))
    assert tuple(rows[0]) == HEADS and [row[0] for row in rows[1:]] == list(REFUTED)
    assert all(float(row[4].rstrip("%")) < 5 and float(row[5].rstrip("%")) < 5 for row in rows[1:])


def test_intervals_and_seeds_are_those_of_the_page() -> None:
    assert claim_power.printed("heads: norm") == (-0.0224, -0.0109, 20)
    assert claim_power.printed("wide-key") == (-0.0645, 0.0682, 20)


@pytest.mark.parametrize("times", [1.0, 30.0])
def test_more_noise_refutes_no_more(times: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """A true effect of the least size is refuted where the interval lies below it: in 2.5 % of draws at most."""
    low, high, seeds = claim_power.printed("heads: norm")
    monkeypatch.setattr(claim_power, "printed", lambda line: (times * low, times * high, seeds))
    found = claim_power.power("heads: norm")
    assert float(found[4].rstrip("%")) <= 3.5


def test_a_rule_that_refutes_what_is_there_is_caught(monkeypatch: pytest.MonkeyPatch) -> None:
    judge, target, least = REFUTED["heads: norm"]
    monkeypatch.setitem(REFUTED, "heads: norm", (judge, target - 2 * least, least))
    assert float(claim_power.power("heads: norm")[4].rstrip("%")) > 95
