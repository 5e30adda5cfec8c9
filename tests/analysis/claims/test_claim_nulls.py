"""Rules on tables that `hessfig run` wrote: each finds its rows in its own sweeps, and holds on none without effect."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hessfig.analysis.claims.ledger import all_claims
from hessfig.analysis.claims.rule import Claim, Evidence
from hessfig.record import TABLE

sys.path.append(str(Path(__file__).parents[3] / "scripts"))
import claim_nulls

# Claims whose sweeps are measured in seconds; those of the others take minutes together.
QUICK = {"softmax-heterogeneity", "similar-tokens", "wide-key", "heterogeneity-turned"}
EVERY = [
    pytest.param(one, id=one.id, marks=[] if one.id in QUICK else pytest.mark.slow) for one in all_claims().values()
]
TABLES = 12


@pytest.fixture(scope="session")
def miniatures(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of miniature sweeps, measured when a claim first needs them."""
    return tmp_path_factory.mktemp("miniatures")


def measured(claim: Claim, folder: Path) -> Evidence:
    for sweep in claim.sweeps:
        if not (folder / sweep / TABLE).is_file():
            assert claim_nulls.measured(sweep, folder) in (0, 1), sweep  # 1: cells at sigma = 5 may fail, by name
    return claim_nulls.evidence_of(claim, folder)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("claim", EVERY)
def test_a_rule_finds_its_rows_in_its_own_sweeps_and_holds_on_no_null(
    claim: Claim, miniatures: Path, workers: None
) -> None:
    evidence = measured(claim, miniatures)
    finding = claim.rule(evidence)
    assert not finding.is_lacking, finding.words
    several = claim_nulls.of_seeds(claim, evidence)
    for line in claim_nulls.lines_of(claim):
        kinds = claim_nulls.NULLS.get(line, claim_nulls.EVERY)
        draws = [(kind, draw) for kind in kinds for draw in range(TABLES // len(kinds))]
        held = [claim_nulls.held_on(claim, line, several, *draw) for draw in draws]
        assert sum(held) <= 2, (line, held)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("claim", [one for one in EVERY if one.values[0].beside])
def test_a_sweep_without_numbers_is_said_to_be_missing(claim: Claim, miniatures: Path, workers: None) -> None:
    evidence = measured(claim, miniatures)
    for sweep, one in evidence.beside.items():
        empty = replace(one, table=one.table.iloc[:0], hessians=tuple)
        lacking = claim.rule(replace(evidence, beside={**evidence.beside, sweep: empty}))
        assert lacking.is_lacking, f"{sweep}: {lacking.words}"
