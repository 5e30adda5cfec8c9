"""The rule of SGD's lag: it holds, fails and is missing on tables made to, part by part."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hessfig.analysis.claims.judges import ClaimVerdict
from hessfig.analysis.claims.rule import Evidence
from hessfig.studies.components.rules import gap, log_ratios, tuned_losses
from scripts.claim_power import NETWORKS, OPTIMISERS, trainings
from tests.analysis.claim_tables import block, normal, of

TRIED = ("heterogeneity-gap",)  # here, on tables of its own
WHOLE = {"raised": 0.04, "own": 0.04, "lowered": 0.04, "removed": 0.04, "needed": 0.04}


def evidence(sizes: Mapping[str, float], noise: float = 0.001, **places: int) -> Evidence:
    return Evidence(trainings(sizes, noise=noise, draw=0, **places))


def initial() -> Evidence:
    """Return untrained norms of W_V and W_Q: softmax two decades below the networks with 100 times the ratio."""
    return of(
        block(name, 10 ** (decades * (name == "W_Q") + 0.01 * normal(seed, name, network)), variant=words, seed=seed)
        for network, words in NETWORKS.items()
        if network != "frozen"
        for decades in [-3.0 if network == "softmax" else -1.0]
        for seed in range(10)
        for name in ("W_Q", "W_V")
    )


def verdicts(found: Evidence) -> dict[str, ClaimVerdict]:
    return {row.name: row.counted for row in gap.judged(found).rows if not row.level}


def test_the_claim_holds_where_all_parts_do() -> None:
    found = gap.judged(evidence(WHOLE))
    assert found.verdict == ClaimVerdict.holds and found.effect == pytest.approx(0.04, abs=0.005)


@pytest.mark.parametrize("part", WHOLE)
@pytest.mark.parametrize(
    ("size", "verdict"),
    [(0.0, ClaimVerdict.does_not_hold), (0.005, ClaimVerdict.small), (-0.03, ClaimVerdict.does_not_hold)],
)
def test_each_part_fails_by_itself(part: str, size: float, verdict: ClaimVerdict) -> None:
    found = verdicts(evidence({**WHOLE, part: size}))
    assert found == {**dict.fromkeys(WHOLE, ClaimVerdict.holds), part: verdict}


def test_noise_leaves_it_undecided() -> None:
    assert gap.judged(evidence(dict.fromkeys(WHOLE, 0.008), noise=0.03)).verdict == ClaimVerdict.undecided


def test_a_network_whose_best_rate_is_an_end_is_missing() -> None:
    found = gap.judged(evidence(WHOLE, best=4))
    assert found.is_lacking and "inside the grid" in found.words


def test_rates_at_which_every_run_diverged_count_as_tried() -> None:
    found = evidence(WHOLE, best=3, diverges_from=4)
    assert gap.judged(found).verdict == ClaimVerdict.holds
    assert len(tuned_losses(found)) == 10 * (len(NETWORKS) * len(OPTIMISERS) - 2)


def test_untrained_ratios_are_read_from_the_other_sweep() -> None:
    both = Evidence(evidence(WHOLE).table, beside={"centring_initial": initial()})
    found = log_ratios(both)
    assert "rescaled -1.0, softmax -3.0" in gap.judged(both).words
    assert found.groupby("network").mean().round(1).to_dict() == {
        **dict.fromkeys(("centred 0.9", "centred 1", "rescaled"), -1.0),
        "softmax": -3.0,
    }
