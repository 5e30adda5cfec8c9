"""Comparison with published values: agreement, shifts, units, bad references."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from hessfig.analysis.comparison import points as compare
from hessfig.analysis.comparison.points import Verdict
from hessfig.analysis.comparison.reference import read_reference
from hessfig.errors import UserError
from hessfig.figures.layouts.overlay import draw_overlay
from tests.analysis.synthetic import make_table, write_sweep


def as_reference(table: pd.DataFrame, *, factor: float = 1.0, seed: int = 1) -> pd.DataFrame:
    """Return a table's values as a published file, redrawn: other seeds' factors and other noise."""
    generator = np.random.default_rng(seed)
    repeat = table["seed"] - 1234
    tilt = np.exp(0.2 * generator.normal(size=repeat.nunique()))[repeat]
    value = table["frob"] * tilt * np.exp(0.02 * generator.normal(size=len(table))) * factor
    names = {"block": table["row"], "part": table["part"], "layer": table["layer"], "repeat": repeat}
    return pd.DataFrame({**names, "sigma": table["sigma"], "value": value, "num_layers": table["num_layers"]})


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(seeds=12, wander=0.0)


def test_same_distribution_agrees(table: pd.DataFrame) -> None:
    found = compare.compare(table, as_reference(table))
    assert found.verdict == Verdict.agrees
    assert found.share_within_3 > 0.97
    assert len(found.points) == 60 and len(found.curves) == 6


def test_the_table_of_another_run_is_a_reference(table: pd.DataFrame, tmp_path: Path) -> None:
    folder = write_sweep(make_table(seeds=12, wander=0.1), tmp_path)
    reference = read_reference(folder / "table.csv", table, {})
    found = compare.compare(table, reference)
    assert len(found.points) == 60 and len(reference) == len(table)


def test_a_shift_is_found_and_sized(table: pd.DataFrame) -> None:
    found = compare.compare(table, as_reference(table, factor=2.0))
    assert found.verdict == Verdict.differs
    shifts = found.curves["shift"].dropna()
    assert np.allclose(shifts, -np.log(2), atol=4 * found.curves["shift_se"].max())


def test_z_is_the_difference_of_log_means_in_standard_errors(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    points = compare.compare(table, reference).points
    row = points[(points["block"] == "W_Q") & (points["part"] == "H")].iloc[3]
    ours = np.log(
        table[(table["row"] == "W_Q") & (table["part"] == "H") & (table["sigma"] == row["sigma"])]["frob"]
    )
    at = (reference["block"] == "W_Q") & (reference["part"] == "H") & (reference["sigma"] == row["sigma"])
    theirs = np.log(reference[at]["value"])
    error = np.hypot(ours.std() / 12**0.5, theirs.std() / 12**0.5)
    assert row["z"] == pytest.approx((ours.mean() - theirs.mean()) / error)


def test_the_error_of_a_shift_knows_that_points_of_a_seed_wander_together() -> None:
    shifts, errors = [], []
    table = make_table(seeds=12, wander=0.0, blocks=[("W_Q", "W_Q")], parts=["H"])
    for seed in range(40):
        (curve,) = compare.compare(table, as_reference(table, seed=seed)).curves.to_dict("records")
        shifts.append(curve["shift"])
        errors.append(curve["shift_se"])
    assert np.mean(errors) == pytest.approx(np.std(shifts, ddof=1), rel=3 / 80**0.5)


def test_zero_on_both_sides_and_on_one(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    assert compare.compare(table, reference).verdict == Verdict.agrees
    is_zero = (reference["block"] == "W_V") & (reference["part"] == "H_f")
    reference.loc[is_zero, "value"] = 1e-3
    found = compare.compare(table, reference)
    assert found.verdict == Verdict.differs
    assert found.share_within_3 > 0.97


def test_points_with_an_overflow_carry_no_z(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    reference.loc[reference["sigma"].idxmax(), "value"] = np.inf
    found = compare.compare(table, reference)
    assert found.points["z"].isna().sum() == 10 + 1
    assert found.verdict == Verdict.agrees


def test_sigma_is_matched_to_a_millionth(table: pd.DataFrame) -> None:
    reference = as_reference(table)
    near = reference.assign(sigma=reference["sigma"] * (1 + 5e-7))
    assert len(compare.compare(table, near).points) == 60
    with pytest.raises(UserError, match="no point in common"):
        compare.compare(table, reference.assign(sigma=reference["sigma"] * (1 + 1e-4)))


def test_run_reads_a_file_and_writes_points_curves_and_figure(tmp_path: Path, table: pd.DataFrame) -> None:
    folder = write_sweep(table, tmp_path)
    as_reference(table).drop(columns="num_layers").to_csv(tmp_path / "reference.csv", index=False)
    found = compare.run(folder, tmp_path / "reference.csv")
    draw_overlay(found, tmp_path / "figures")
    assert len(pd.read_csv(folder / "comparison.csv")) == 60
    assert len(pd.read_csv(folder / "comparison_curves.csv")) == 6
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    assert written == {f"figcompare_sigma.{kind}" for kind in ("pdf", "png", "svg", "csv")}
    console = Console(width=80, record=True)
    console.print(found.rich_table())
    assert "both are zero" in console.export_text()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"value": None}, "lacks columns: value"),
        ({"value": "much"}, "value is not a number"),
        ({"sigma": np.nan}, "sigma is not a number"),
        ({"block": "W_X"}, "unknown block"),
        ({"part": "G"}, "unknown part"),
        ({"repeat": 0}, "claim to be the same number"),
    ],
)
def test_bad_references(tmp_path: Path, table: pd.DataFrame, change: dict[str, Any], message: str) -> None:
    folder = write_sweep(table, tmp_path)
    bad = as_reference(table).assign(**change).drop(columns=[k for k, v in change.items() if v is None])
    bad.to_csv(tmp_path / "bad.csv", index=False)
    with pytest.raises(UserError, match=message):
        compare.run(folder, tmp_path / "bad.csv")
    assert not (folder / "comparison.csv").exists()


def test_missing_and_empty_references(tmp_path: Path, table: pd.DataFrame) -> None:
    folder = write_sweep(table, tmp_path)
    with pytest.raises(UserError, match="no such file or folder"):
        compare.run(folder, tmp_path / "nowhere.csv")
    (tmp_path / "empty.csv").write_text("")
    with pytest.raises(UserError, match="cannot be read as a table"):
        compare.run(folder, tmp_path / "empty.csv")
    (tmp_path / "header.csv").write_text("block,part,layer,repeat,sigma,value\n")
    with pytest.raises(UserError, match="has no rows"):
        compare.run(folder, tmp_path / "header.csv")


def test_several_depths_need_their_column(tmp_path: Path) -> None:
    deep = make_table(networks=[("", 1), ("", 2)])
    as_reference(deep).to_csv(tmp_path / "with.csv", index=False)
    reference = read_reference(tmp_path / "with.csv", deep, {})
    assert set(compare.compare(deep, reference).curves["num_layers"]) == {1, 2}
    as_reference(deep).drop(columns="num_layers").to_csv(tmp_path / "without.csv", index=False)
    with pytest.raises(UserError, match="needs a column num_layers"):
        read_reference(tmp_path / "without.csv", deep, {})


def with_values(table: pd.DataFrame, values: dict[float, float]) -> pd.DataFrame:
    """Return the reference of `table` with one repeat of W_Q's H replaced at some sigmas."""
    reference = as_reference(table)
    one = (reference["block"] == "W_Q") & (reference["part"] == "H") & (reference["repeat"] == 0)
    new = reference.loc[one, "sigma"].map(values)
    return reference.assign(value=new.reindex(reference.index).combine_first(reference["value"]))


def test_published_zeros_infinities_and_nan_are_counted_and_not_averaged(table: pd.DataFrame) -> None:
    sigma = sorted(table["sigma"].unique())
    bad = {sigma[0]: 0.0, sigma[1]: 1e-25, sigma[-2]: np.inf, sigma[-1]: np.inf}
    reference = with_values(table, bad)
    reference.loc[reference.index[-1], "value"] = np.nan
    found = compare.compare(table, reference)
    (line,) = found.left_out_lines()
    assert line.startswith("left out of the published numbers at n_layers=1: ")
    for words in (
        "1 zero (sigma 0.01 to 0.01)",
        "1 underflowed (sigma 0.0215",
        "2 infinite (sigma 4.64 to 10)",
        "1 NaN",
    ):
        assert words in line
    assert found.verdict == Verdict.agrees
    lost = found.points[(found.points["block"] == "W_Q") & (found.points["part"] == "H")]
    assert lost["mean_published"].isna().sum() >= 4
    assert np.isfinite(found.points["mean_published"].dropna()).all()


def test_numbers_of_ours_that_are_not_finite_are_counted(table: pd.DataFrame) -> None:
    worst = (table["sigma"] == table["sigma"].max()) & (table["row"] == "W_Q")
    found = compare.compare(table.assign(frob=table["frob"].where(~worst, np.inf)), as_reference(table))
    assert found.left_out_lines() == ["left out of ours at n_layers=1: 36 infinite (sigma 10 to 10)"]


def test_what_float32_cannot_hold_is_zero_on_both_sides(table: pd.DataFrame) -> None:
    tiny = (table["row"] == "W_V") & (table["part"] == "H")
    ours = table.assign(frob=table["frob"].where(~tiny, 1e-30))
    reference = as_reference(table)
    is_tiny = (reference["block"] == "W_V") & (reference["part"] == "H")
    found = compare.compare(ours, reference.assign(value=reference["value"].where(~is_tiny, 0.0)))
    assert found.verdict == Verdict.agrees and found.left_out_lines() == []


def test_one_repeat_decides_nothing() -> None:
    alone = make_table(seeds=1)
    found = compare.compare(alone, as_reference(alone))
    assert found.verdict == Verdict.undecided
    assert "no point has standard errors on both sides" in found.sentence()


def test_the_sentence_says_what_the_verdict_rests_on(table: pd.DataFrame) -> None:
    assert compare.compare(table, as_reference(table)).sentence().startswith("agrees: ")
    reference = as_reference(table, factor=2.0)
    is_zero = (reference["block"] == "W_V") & (reference["part"] == "H_f")
    sentence = compare.compare(
        table, reference.assign(value=reference["value"].where(~is_zero, 1e-3))
    ).sentence()
    for words in ("differs: ", "largest shift -5", "zero on one side only: H_f of W_V in layer 1/1"):
        assert words in sentence
