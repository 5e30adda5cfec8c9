"""Rules of trained encoders: each holds and fails on tables made to."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from hessfig.analysis.claims.judges import ClaimVerdict
from hessfig.analysis.claims.rule import Claim
from hessfig.analysis.claims.sublayer_rules import encoder_keys_values as keys_values
from hessfig.analysis.claims.sublayer_rules import encoder_order as order
from hessfig.analysis.claims.sublayer_rules import encoder_values as values_largest
from tests.analysis.claim_tables import ENCODER_ORDER, SAME, block, encoders, of


@pytest.mark.parametrize(
    ("claim", "trained", "random", "verdict", "words"),
    [
        (values_largest, {**SAME, "W_V": 1}, {**SAME, "W_V": 1}, ClaimVerdict.holds, ""),
        (values_largest, {**SAME, "W_V": 1}, SAME, ClaimVerdict.holds_only_if, "bert, trained"),
        (values_largest, {**SAME, "W_V": 1, "W_O": 2}, SAME, ClaimVerdict.does_not_hold, ""),
        (values_largest, {**SAME, "W_V": 1, "W_in": 2}, {**SAME, "W_V": 1}, ClaimVerdict.holds, ""),
        (keys_values, {**SAME, "W_V": 1, "W_K": 1}, {**SAME, "W_V": 1, "W_K": 1}, ClaimVerdict.holds, ""),
        (keys_values, {**SAME, "W_V": 1}, {**SAME, "W_V": 1}, ClaimVerdict.does_not_hold, ""),
        (keys_values, {**SAME, "W_V": 1, "W_K": 1, "W_in": 2}, SAME, ClaimVerdict.does_not_hold, ""),
    ],
)
def test_which_block_is_the_largest(
    claim: Claim, trained: Mapping[str, float], random: Mapping[str, float], verdict: ClaimVerdict, words: str
) -> None:
    found = claim.judged(encoders(trained, random))
    assert found.verdict == verdict
    assert words in found.words


def test_the_order_of_groups_by_mean_diagonal_entry() -> None:
    holds = order.rule(encoders(ENCODER_ORDER, dict.fromkeys(ENCODER_ORDER, 0.0), "trace"))
    assert holds.verdict == ClaimVerdict.holds
    assert holds.effect == pytest.approx(1.0, abs=0.02)
    turned = order.rule(encoders({**ENCODER_ORDER, "W_in": 0.5, "W_out": 0.5}, ENCODER_ORDER, "trace"))
    assert turned.verdict == ClaimVerdict.does_not_hold
    told = order.judged(encoders(ENCODER_ORDER, ENCODER_ORDER, "trace"))
    assert told.verdict == ClaimVerdict.not_tested and "at this scale: holds" in told.words


@pytest.mark.parametrize("claim", [values_largest, keys_values, order])
def test_a_table_without_the_numbers_is_named(claim: Claim) -> None:
    assert claim.rule(of([block("W_Q", 1.0, variant="model.path=a/bert,model.random=False")])).is_lacking
