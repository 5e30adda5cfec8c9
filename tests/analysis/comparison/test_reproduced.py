"""A table measured again: every verdict on a number, and what decides about the table."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.comparison.reproduced import DIFFERENT, IDENTICAL, MISSING, ROUNDED, WITHIN, compare_repeat
from hessfig.analysis.manifest import RecordedRun
from hessfig.errors import UserError
from tests.analysis.comparison.test_paired import exact, sampled, scaled
from tests.analysis.synthetic import CONFIG, config, make_table

Change = Callable[[pd.DataFrame], pd.DataFrame]


def repeat(first: pd.DataFrame, second: pd.DataFrame, *, is_repeat: bool = True):
    return compare_repeat(
        RecordedRun(first, {}, config=CONFIG), RecordedRun(second, {}, config=CONFIG), is_repeat=is_repeat
    )


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


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        (scaled(1 + 1e-4, dtype="float32", config="narrow"), WITHIN),
        (scaled(1.03, dtype="float32", config="narrow"), DIFFERENT),
        (scaled(1.0, error=0.1, num_probes=20, config="probed"), IDENTICAL),
    ],
)
def test_tables_side_by_side_may_be_of_another_type_or_estimator_and_repetitions_may_not(
    change: Change, verdict: str
) -> None:
    other = change(exact())
    beside = repeat(exact(), other, is_repeat=False)
    assert set(beside.rows[beside.rows["value"] != 0]["verdict"]) == {verdict}
    again = repeat(other, exact())
    assert again.counts[DIFFERENT] == len(other) and not again.is_reproduced


FORGED: dict[str, tuple[Change, str]] = {
    "a larger error": (scaled(1.0, error=0.5), "error 0.5, again 0.1"),
    "no error": (scaled(1.0, error=0.0), "error 0, again 0.1"),
    "an error left out": (scaled(1.0, error=np.nan), "error nan, again 0.1"),
    "fewer probes": (scaled(1.0, num_probes=2), "num_probes 2, again 20"),
    "another estimator": (scaled(1.0, estimator="hutchinson"), "estimator hutchinson, again "),
    "another type": (scaled(1.0, dtype="float32"), "dtype float32, again float64"),
    "another status": (scaled(1.0, status="not_converged"), "status not_converged, again ok"),
    "a value under a large error": (scaled(1.3, error=0.9), "error 0.9, again 0.1"),
    "a value of other cells": (scaled(1.3, config="other"), ""),
    "all of it": (scaled(1.3, error=0.9, estimator="x", num_probes=2, dtype="float32", config="other"), "estimator x"),
}


@pytest.mark.parametrize(("change", "said"), FORGED.values(), ids=FORGED)
def test_a_table_that_was_edited_is_not_reproduced(change: Change, said: str) -> None:
    true = exact().query("status == 'ok'").assign(error=0.1, num_probes=20, estimator="xnystrace")
    for edited in (change(true), pd.concat([change(true[:1]), true[1:]])):
        found = repeat(edited, true)
        assert found.counts[DIFFERENT] and not found.is_reproduced
        assert said in " ".join(found.notes())


def test_residual_norms_are_of_a_size() -> None:
    assert repeat(residual(1e-9), residual(3e-12)).is_reproduced  # both negligible
    assert repeat(residual(1e-4), residual(2e-5)).is_reproduced
    assert not repeat(residual(1e-3), residual(1e-6)).is_reproduced


def test_other_probes_are_within_both_errors_and_a_common_shift_is_found() -> None:
    true = exact(seeds=10)
    ours, theirs = sampled(true, 1), sampled(true, 2)
    found = repeat(ours, theirs, is_repeat=False)
    assert found.is_reproduced and found.counts[WITHIN] == 500
    assert not repeat(ours, theirs).is_reproduced  # it would have had the same ones
    inside = found.rows[found.rows["verdict"] == WITHIN]
    both = np.hypot(inside["error"], inside["error_again"])
    assert ((inside["value"] - inside["value_again"]).abs() <= inside["allowed"]).all()
    assert (inside["allowed"] >= 1.96 * both).all()
    shifted = repeat(ours, scaled(1.03)(theirs), is_repeat=False)
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
    more = repeat(fewer, exact(seeds=3), is_repeat=False)
    assert more.is_reproduced and more.extra == 60 and "60 numbers are in the second table only" in more.notes()
    dropped = repeat(fewer, exact(seeds=3))
    assert dropped.counts[MISSING] == 60 and not dropped.is_reproduced
    assert "60 numbers that the plan has are not in the table" in dropped.notes()


def test_a_setting_that_an_older_version_lacks_needs_equal_hashes() -> None:
    older = config(kind="transformer")
    newer = {**older, "model": {**older["model"], "added_later": 0.0}}
    first = RecordedRun(exact(), {}, config=older)
    assert compare_repeat(first, RecordedRun(exact(), {}, config=newer), is_repeat=False).is_reproduced
    with pytest.raises(UserError, match="do not hold the same numbers"):
        compare_repeat(first, RecordedRun(exact(config="other"), {}, config=newer), is_repeat=False)


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
    found = compare_repeat(
        RecordedRun(exact(), {}, config=first), RecordedRun(again, {}, config=second), is_repeat=False
    )
    assert set(found.rows[found.rows["value"] != 0]["verdict"]) == {verdict}
    assert found.is_reproduced == (verdict == WITHIN)


def test_tables_of_other_networks_are_refused() -> None:
    with pytest.raises(UserError, match="do not hold the same numbers"):
        compare_repeat(
            RecordedRun(exact(), {}, config=CONFIG),
            RecordedRun(exact(config="x"), {}, config=config(norm="pre")),
            is_repeat=False,
        )
