"""Comparisons number by number: what is equal, within errors, different, lost, and left out."""

import numpy as np
import pytest

from hessfig.analysis.comparison import FLOAT32_FLOOR, compared, numbers_at
from hessfig.errors import UserError
from tests.analysis.synthetic import as_text, make_table, write_sweep


def published(table):
    """Return the numbers of a table in the form of the published files."""
    columns = {"block": table["row"], "repeat": table["seed"] - 1234}
    return table.assign(**columns)[
        ["block", "part", "layer", "repeat", "sigma", "value"]
    ]


def test_a_table_equals_itself_to_the_bit():
    table = make_table()
    found = compared(table, table)
    assert set(found.counts.values()) == {len(table)}
    assert (found.lost, found.more, len(found.different(0.0))) == (0, 0, 0)


@pytest.mark.parametrize(
    ("factor", "agree"),
    [
        (1 + 1e-8, [0, 5, 5, 5, 5]),
        (1 + 1e-4, [0, 0, 5, 5, 5]),
        (1.1, [0, 0, 0, 5, 5]),
        (1.2, [0, 0, 0, 0, 5]),
    ],
)
def test_numbers_are_counted_by_how_closely_they_agree(factor, agree):
    # Errors of 5 % on both sides.
    table = make_table(blocks=[("W_V", "W_V")], parts=["H"], sigma=[0.1])
    other = table.assign(value=table["value"] * factor)
    assert list(compared(table, other).counts.values()) == agree


@pytest.mark.parametrize("value", [np.inf, np.nan])
def test_numbers_that_are_not_finite_count_in_no_line(value):
    table = make_table()
    table.loc[3, ["value", "status"]] = [value, "nonfinite"]
    found = compared(table, table)
    assert set(found.counts.values()) == {len(table) - 1} == {len(found.judged)}
    assert len(found.pairs) == len(table)
    assert found.different(0.0).empty


def test_one_changed_number_is_found_with_its_place():
    table = make_table()
    other = table.copy()
    other.loc[7, "value"] *= 1.001
    (row,) = compared(table, other).different(5e-4).to_dict("records")
    assert row["value_other"] == other.loc[7, "value"]
    assert row["seed"] == other.loc[7, "seed"]
    assert compared(table, other).different(0.01).empty


def test_another_status_differs_whatever_the_value():
    table = make_table()
    other = table.copy()
    other.loc[0, "status"] = "not_converged"
    assert len(compared(table, other).different(0.5)) == 1


def test_numbers_of_one_side_alone_are_counted():
    table = make_table()
    found = compared(table[10:], table[:-3])
    assert (found.lost, found.more) == (3, 10)


def test_published_values_are_those_of_seed_1234_plus_repeat(tmp_path):
    table = make_table()
    published(table).to_csv(tmp_path / "sigma.csv", index=False)
    found = compared(table, numbers_at(tmp_path / "sigma.csv"))
    assert len(found.pairs) == len(table)
    assert found.different(1e-12).empty
    other = table.assign(seed=table["seed"] + 100)
    with pytest.raises(UserError, match="no number in common"):
        compared(other, numbers_at(tmp_path / "sigma.csv"))


@pytest.mark.parametrize(
    ("value", "reason"), [(np.inf, "overflowed"), (FLOAT32_FLOOR / 2, "underflowed")]
)
def test_what_float32_cannot_hold_is_left_out(tmp_path, value, reason):
    table = make_table()
    values = published(table)
    values.loc[0, "value"] = value
    values.to_csv(tmp_path / "sigma.csv", index=False)
    found = compared(table, numbers_at(tmp_path / "sigma.csv"))
    assert list(found.pairs.loc[found.pairs["left_out"] != "", "left_out"]) == [reason]
    assert found.different(1e-12).empty


def test_several_numbers_of_one_place_are_refused(tmp_path):
    deep = make_table(networks=[("", 1), ("", 2)])
    published(deep).to_csv(tmp_path / "depth.csv", index=False)  # without num_layers
    with pytest.raises(UserError, match="several numbers have the same place"):
        compared(deep, numbers_at(tmp_path / "depth.csv"))


@pytest.mark.parametrize(
    "content",
    ["", "x,y\n1,2\n", "block,part,layer,sigma,value\nW_V,H,one,0.1,2\n", "\x00\x01"],
)
def test_other_files_are_refused(tmp_path, content):
    (tmp_path / "values.csv").write_text(content)
    with pytest.raises(UserError, match="is not a table to compare"):
        numbers_at(tmp_path / "values.csv")


def test_a_table_changed_after_its_manifest_is_refused(tmp_path):
    folder = write_sweep(make_table(), tmp_path)
    as_text(make_table(noise=0.1)).to_csv(folder / "table.csv", index=False)
    for place in (folder, folder / "table.csv"):
        with pytest.raises(UserError, match="another config or run than the manifest"):
            numbers_at(place)
