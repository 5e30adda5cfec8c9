"""Comparison with a reference: agreement, shifts, their errors, and numbers that are counted and not compared."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.against import Comparison
from hessfig.analysis.comparison.agreement import AgreementVerdict, Batches
from hessfig.analysis.comparison.references import Reference
from hessfig.errors import UserError
from tests.analysis.authors import as_reference
from tests.analysis.synthetic import make_table

SAME_BATCH = Batches({}, scale=0.0)


def compare(table: pd.DataFrame, values: pd.DataFrame, batches: Batches = SAME_BATCH) -> Comparison:
    return against.compare(table, Reference(values), batches)


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(seeds=12, wander=0.0)


def test_same_distribution_agrees(table: pd.DataFrame) -> None:
    found = compare(table, as_reference(table))
    assert found.verdict == AgreementVerdict.agrees
    assert found.share_within_3 > 0.97
    assert len(found.points) == 60 and len(found.curves) == 6


def test_a_shift_is_found_and_sized(table: pd.DataFrame) -> None:
    found = compare(table, as_reference(table, factor=2.0))
    assert found.verdict == AgreementVerdict.differs
    shifts = found.curves["shift"].dropna()
    assert np.allclose(shifts, -np.log(2), atol=4 * found.curves["shift_se"].max())


def test_the_difference_of_a_point_is_that_of_log_means_with_a_common_spread(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    points = compare(table, reference).points
    row = points[(points["block"] == "W_Q") & (points["part"] == "H")].iloc[3]
    here = (table["row"] == "W_Q") & (table["part"] == "H") & (table["sigma"] == row["sigma"])
    there = (reference["block"] == "W_Q") & (reference["part"] == "H") & (reference["sigma"] == row["sigma"])
    ours, theirs = np.log(table[here]["value"]), np.log(reference[there]["value"])
    error = np.sqrt((ours.var() + theirs.var()) / 2 * (2 / 12) + 1e-6)
    assert row["log_ratio"] == pytest.approx(ours.mean() - theirs.mean())
    assert row["log_ratio_se"] == pytest.approx(error)
    assert row["dof"] == pytest.approx(22, rel=0.02)
    assert abs(row["z"]) < abs(row["log_ratio"]) / error


@pytest.mark.parametrize("count", [16, pytest.param(40, marks=pytest.mark.slow)])
@pytest.mark.long
def test_the_error_of_a_shift_knows_that_points_of_a_seed_wander_together(count: int) -> None:
    shifts, errors = [], []
    table = make_table(seeds=12, wander=0.0, blocks=[("W_Q", "W_Q")], parts=["H"])
    for seed in range(count):
        (curve,) = compare(table, as_reference(table, seed=seed)).curves.to_dict("records")
        shifts.append(curve["shift"])
        errors.append(curve["shift_se"])
    # Of the seeds' 0.2 the table's side has none, and half of their common variance is the reference's.
    assert np.mean(errors) == pytest.approx(np.std(shifts, ddof=1), rel=3 / (2 * count) ** 0.5)


def test_zero_on_both_sides_and_on_one(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    assert compare(table, reference).verdict == AgreementVerdict.agrees
    is_zero = (reference["block"] == "W_V") & (reference["part"] == "H_f")
    reference.loc[is_zero, "value"] = 1e-3
    found = compare(table, reference)
    assert found.verdict == AgreementVerdict.differs
    assert found.share_within_3 > 0.97


def test_points_with_an_overflow_carry_no_z(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    reference.loc[reference["sigma"].idxmax(), "value"] = np.inf
    found = compare(table, reference)
    assert found.points["z"].isna().sum() == 10 + 1
    assert found.verdict == AgreementVerdict.agrees


def test_sigma_is_matched_to_a_millionth_and_no_two_become_one(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    near = reference.assign(sigma=reference["sigma"] * (1 + 5e-7))
    assert len(compare(table, near).points) == 60
    with pytest.raises(UserError, match="no point in common"):
        compare(table, reference.assign(sigma=reference["sigma"] * (1 + 1e-4)))
    with pytest.raises(UserError, match="two sigmas that are one"):
        compare(table, pd.concat([reference, near]))


def test_only_norms_of_diagonal_blocks_are_compared_and_the_rest_is_counted(table: pd.DataFrame) -> None:
    other = [
        table.assign(quantity="trace"),
        table.assign(row="W_K"),
        table.assign(row_layer=0),
        table.assign(variant="model.norm=pre"),
        table.assign(step=3.0),
        table.assign(sigma=np.nan),
        table.assign(status="not_converged"),
    ]
    found = compare(pd.concat([table, *other]), as_reference(table))
    assert found.aside == (7 * len(table), 0)
    assert len(found.points) == 60 and (found.points["count"] == 12).all()


def test_points_without_a_partner_are_counted_on_each_side(table: pd.DataFrame) -> None:
    low, high = table["sigma"].min(), table["sigma"].max()
    reference = as_reference(table[table["sigma"] > low])
    more = reference[reference["block"] == "W_Q"].assign(block="mine")
    found = compare(table[table["sigma"] < high], pd.concat([reference, more]))
    assert found.unmatched == (6, 6 + 27)
    assert found.notes()[0] == "without a partner: 6 points of ours, 33 of the published values"


def with_values(table: pd.DataFrame, values: dict[float, float]) -> pd.DataFrame:
    """Return the reference of `table` with one repeat of W_Q's H replaced at some sigmas."""
    reference = as_reference(table)
    one = (reference["block"] == "W_Q") & (reference["part"] == "H") & (reference["repeat"] == 0)
    new = reference.loc[one, "sigma"].map(values)
    return reference.assign(value=new.reindex(reference.index).combine_first(reference["value"]))


def left_out(found: Comparison) -> list[str]:
    return [line for line in found.notes() if line.startswith("left out")]


def test_zeros_infinities_and_nan_are_counted_and_not_averaged(table: pd.DataFrame) -> None:
    sigma = sorted(table["sigma"].unique())
    bad = {sigma[0]: 0.0, sigma[1]: 1e-25, sigma[-2]: np.inf, sigma[-1]: np.inf}
    reference = with_values(table, bad)
    reference.loc[reference.index[-1], "value"] = np.nan
    found = compare(table, reference)
    (line,) = left_out(found)
    assert line.startswith("left out of the published values at n_layers=1: ")
    for words in (
        "1 zero (sigma 0.01 to 0.01)",
        "1 underflowed (sigma 0.0215",
        "2 infinite (sigma 4.64 to 10)",
        "1 NaN",
    ):
        assert words in line
    assert found.verdict == AgreementVerdict.agrees
    lost = found.points[(found.points["block"] == "W_Q") & (found.points["part"] == "H")]
    assert lost["mean_reference"].isna().sum() >= 4
    assert np.isfinite(found.points["mean_reference"].dropna()).all()


def test_numbers_of_ours_that_are_not_finite_are_counted(table: pd.DataFrame) -> None:
    worst = (table["sigma"] == table["sigma"].max()) & (table["row"] == "W_Q")
    found = compare(table.assign(value=table["value"].where(~worst, np.inf)), as_reference(table))
    assert left_out(found) == ["left out of ours at n_layers=1: 36 infinite (sigma 10 to 10)"]


def test_what_float32_cannot_hold_is_zero_on_both_sides(table: pd.DataFrame) -> None:
    tiny = (table["row"] == "W_V") & (table["part"] == "H")
    ours = table.assign(value=table["value"].where(~tiny, 1e-30))
    reference = as_reference(table)
    is_tiny = (reference["block"] == "W_V") & (reference["part"] == "H")
    found = compare(ours, reference.assign(value=reference["value"].where(~is_tiny, 0.0)))
    assert found.verdict == AgreementVerdict.agrees and left_out(found) == []
