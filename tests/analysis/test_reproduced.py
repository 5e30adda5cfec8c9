"""A table measured again: every verdict on a number, and what decides about the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.comparison.reproduced import DIFFERENT, IDENTICAL, MISSING, ROUNDED, WITHIN, compare_repeat
from hessfig.analysis.manifest import Run
from hessfig.errors import UserError
from tests.analysis.synthetic import CONFIG, config, make_table
from tests.analysis.test_paired import exact, sampled, scaled

Change = Callable[[pd.DataFrame], pd.DataFrame]


def repeat(first: pd.DataFrame, second: pd.DataFrame):
    return compare_repeat(Run(first, {}, config=CONFIG), Run(second, {}, config=CONFIG), is_repeat=True)


def residual(error: float) -> pd.DataFrame:
    return exact(quantity="largest_eigenvalue").assign(value=1.0, status="ok", error=error, estimator="lanczos")


@pytest.mark.parametrize(
    ("made", "change", "verdict"),
    [
        (exact(), scaled(1.0), IDENTICAL),
        (exact(), scaled(1 + 1e-12), ROUNDED),
        (exact(), scaled(1 + 1e-8), DIFFERENT),
        (make_table(seeds=3), scaled(1.03), DIFFERENT),  # the same test vectors: their error covers nothing
        (make_table(seeds=3), scaled(1 + 1e-12), ROUNDED),
        (exact(), scaled(1 + 1e-4, dtype="float32", config="narrow"), WITHIN),
        (exact(), scaled(1.03, dtype="float32", config="narrow"), DIFFERENT),
        (exact(), scaled(1.0, error=0.1, num_probes=20, config="probed"), IDENTICAL),
        (residual(1e-6), scaled(1 + 1.9e-6), WITHIN),  # both residual norms
        (residual(1e-6), scaled(1 + 2.1e-6), DIFFERENT),
        (exact(), lambda table: table.assign(status="not_converged"), DIFFERENT),
    ],
)
def test_each_number_has_a_verdict(made: pd.DataFrame, change: Change, verdict: str) -> None:
    found = repeat(made, change(made))
    counted = found.rows[found.rows["value"] != 0] if verdict != IDENTICAL else found.rows
    counted = counted[counted["status"] != "structural_zero"] if verdict != DIFFERENT else counted
    assert set(counted["verdict"]) == {verdict}
    assert found.is_reproduced == (verdict != DIFFERENT)


def test_other_probes_are_within_both_errors_and_a_common_shift_is_found() -> None:
    true = exact(seeds=10)
    ours, theirs = sampled(true, 1), sampled(true, 2)
    found = repeat(ours, theirs)
    assert found.is_reproduced and found.counts[WITHIN] == 500
    inside = found.rows[found.rows["verdict"] == WITHIN]
    both = np.hypot(inside["error"], inside["error_again"])
    assert ((inside["value"] - inside["value_again"]).abs() <= inside["allowed"]).all()
    assert (inside["allowed"] >= 1.96 * both).all()
    shifted = repeat(ours, scaled(1.03)(theirs))
    assert shifted.counts[DIFFERENT] == 0 and shifted.shifted and not shifted.is_reproduced
    assert any(note.startswith("shifted as a whole") for note in shifted.notes())


def test_a_number_without_a_stated_error_is_covered_by_none() -> None:
    ours = exact(seeds=2).assign(error=np.nan, num_probes=20)
    assert repeat(ours, ours.assign(value=1.01 * ours["value"], num_probes=40)).counts[DIFFERENT] > 0


def test_numbers_without_a_partner_are_missing_or_counted() -> None:
    fewer = exact(seeds=3).query("seed > 1234")
    found = repeat(exact(seeds=3), fewer)
    assert found.counts[MISSING] == 60 and not found.is_reproduced
    assert len(found.rows) == 180 and "60 missing" in found.sentence()
    more = repeat(fewer, exact(seeds=3))
    assert more.is_reproduced and more.extra == 60 and "60 numbers are in the second table only" in more.notes()


def test_a_setting_that_an_older_version_lacks_needs_equal_hashes() -> None:
    older = config(kind="transformer")
    newer = {**older, "model": {**older["model"], "added_later": 0.0}}
    first = Run(exact(), {}, config=older)
    assert compare_repeat(first, Run(exact(), {}, config=newer), is_repeat=False).is_reproduced
    with pytest.raises(UserError, match="do not hold the same numbers"):
        compare_repeat(first, Run(exact(config="other"), {}, config=newer), is_repeat=False)


@pytest.mark.parametrize(
    ("types", "factor", "verdict"),
    [
        (("float64", "float32"), 1 + 1e-5, WITHIN),
        (("float32", "float64"), 1 + 1e-5, WITHIN),
        (("float64", "float32"), 1.03, DIFFERENT),
        (("float32", "float32"), 1 + 1e-5, DIFFERENT),  # the same rounded weights
        (("float64", "float64"), 1 + 1e-5, DIFFERENT),
    ],
)
def test_exact_norms_of_rounded_weights_are_within_single_precision(
    types: tuple[str, str], factor: float, verdict: str
) -> None:
    """Their own dtype is float64 whatever the setting: only the manifests say that the weights were rounded."""
    first, second = ({**CONFIG, "dtype": dtype} for dtype in types)
    again = scaled(factor, config="of other weights")(exact())
    found = compare_repeat(Run(exact(), {}, config=first), Run(again, {}, config=second), is_repeat=False)
    assert set(found.rows[found.rows["value"] != 0]["verdict"]) == {verdict}
    assert found.is_reproduced == (verdict == WITHIN)


def test_tables_of_other_networks_are_refused() -> None:
    with pytest.raises(UserError, match="do not hold the same numbers"):
        compare_repeat(
            Run(exact(), {}, config=CONFIG), Run(exact(config="x"), {}, config=config(norm="pre")), is_repeat=False
        )
