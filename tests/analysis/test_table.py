"""Reading tables and manifests: what is accepted, and what each bad file is told."""

from pathlib import Path

import pandas as pd
import pytest

from hessfig.analysis.table import read_table
from hessfig.errors import UserError
from hessfig.record import COLUMNS
from tests.analysis.synthetic import make_table, write_sweep


def test_round_trip(tmp_path):
    made = make_table(networks=[("", 1), ("model.temperature=2.0", 1)])
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    pd.testing.assert_frame_equal(table, made[COLUMNS], check_dtype=False)
    assert table["num_layers"].dtype.kind == "i"


def test_nonfinite_numbers_are_read(tmp_path):
    made = make_table()
    made.loc[0, ["value", "status"]] = [float("inf"), "nonfinite"]
    made.loc[1, ["value", "error", "status"]] = [
        float("nan"),
        float("nan"),
        "nonfinite",
    ]
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    assert (table["status"] == "nonfinite").sum() == 2


def test_weights_may_be_named_as_pandas_names_missing_values(tmp_path):
    """With the arguments that docs/table.md names, pandas alone reads them, too."""
    names = ["NA", "null", "None", "inf"]
    made = make_table()
    made.loc[made.index[:4], "row"] = names
    path = write_sweep(made, tmp_path) / "table.csv"
    alone = pd.read_csv(
        path,
        keep_default_na=False,
        na_values=["", "nan"],
        dtype={"row": str, "col": str},
    )
    assert read_table(path)["row"].tolist()[:4] == alone["row"].tolist()[:4] == names
    pd.testing.assert_series_equal(alone["value"], made["value"])


def test_missing_table_names_the_command(tmp_path):
    with pytest.raises(UserError, match=r"hessfig run sweep=sigma$"):
        read_table(tmp_path / "outputs" / "sigma" / "table.csv")
    with pytest.raises(
        UserError, match=r"hessfig run sweep=sigma output_dir=.*elsewhere"
    ):
        read_table(tmp_path / "elsewhere" / "sigma" / "table.csv")


def _change(column, value):
    def change(table):
        table = table.astype({column: object})
        table.loc[3, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns=["value", "seed"]), "lacks columns: value, seed"),
        (lambda t: t.iloc[:0], "has no rows"),
        (_change("value", ""), "line 5: value is not a number"),
        (_change("seed", "1e300"), "seed is not a number"),
        (_change("part", "H_x"), "unknown part"),
        (_change("row", ""), "a block has two sides"),
        (_change("quantity", ""), "there is no quantity"),
        (_change("sweep", "../sigma"), "the sweep is not a plain name"),
        (_change("sigma", "inf"), "sigma must be positive"),
        (_change("step", "0.5"), "line 5: step is not a number"),
        (_change("error", "-0.1"), "error must not be negative"),
        (_change("num_layers", "20000"), "num_layers is not a depth"),
        (_change("value", "inf"), "status is ok but value is not finite"),
        (_change("value", "-1"), "status is ok but value is not a norm"),
        (_change("status", "nonfinite"), "status is nonfinite but value is finite"),
        (_change("row_layer", 2), "row_layer lies outside"),
        (_change("status", "fine"), "unknown status"),
        (_change("status", "structural_zero"), "structural_zero but value is not 0"),
        (_change("config", "other"), "mixes several configurations"),
        (_change("seed", 1236), "describe the same number"),
    ],
)
def test_bad_tables(tmp_path, change, message):
    folder = write_sweep(change(make_table()), tmp_path, settings=None)
    with pytest.raises(UserError, match=message):
        read_table(folder / "table.csv")


def test_a_table_cut_short_is_not_read(tmp_path):
    path = write_sweep(make_table(), tmp_path, settings=None) / "table.csv"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(UserError, match="is not a number"):
        read_table(path)


@pytest.mark.parametrize("make", [Path.touch, Path.mkdir])
def test_an_empty_file_and_a_folder_are_not_read(make, tmp_path):
    make(tmp_path / "table.csv")
    with pytest.raises(UserError, match="cannot be read as a table"):
        read_table(tmp_path / "table.csv")


def test_what_may_be_empty(tmp_path):
    made = make_table(
        sigma=None, steps=[0, 10], indices=[0, 1, 2], seeds=1, parts=["H"]
    ).astype({"value": float})
    made.loc[:, "error"] = float("nan")
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    assert table["sigma"].isna().all()
    assert table["error"].isna().all()
    assert sorted(table["index"].unique()) == [0, 1, 2]
    assert sorted(table["step"].unique()) == [0, 10]


def test_open_names_quantities_and_numbers_of_no_block(tmp_path):
    blocks = [("blocks.0.attn.qkv", "all"), ("$a_{b", "[x] 'y'")]
    made = make_table(blocks=blocks, networks=[("", 0)], seeds=1, parts=["H"])
    loss = made.iloc[:2].assign(row="", col="", part="", quantity="loss", value=-0.5)
    trace = made.assign(quantity="trace", value=-1.0)
    trace = trace.assign(config="settings of its own")
    table = read_table(
        write_sweep(pd.concat([made, loss, trace], ignore_index=True), tmp_path)
        / "table.csv"
    )
    assert set(table["quantity"]) == {"frobenius", "loss", "trace"}
    assert set(table["row"]) == {"blocks.0.attn.qkv", "$a_{b", ""}
    assert set(table["layer"]) == {0}


def test_a_status_that_did_not_converge_may_have_any_value(tmp_path):
    made = make_table().astype({"value": float})
    made.loc[0, ["status", "value"]] = ["not_converged", float("nan")]
    made.loc[1, ["status", "value"]] = ["not_converged", -3.0]
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    assert (table["status"] == "not_converged").sum() == 2


def test_two_numbers_without_sigma_may_not_claim_to_be_one(tmp_path):
    made = make_table(sigma=None)
    folder = write_sweep(
        pd.concat([made, made.iloc[:1]], ignore_index=True), tmp_path, settings=None
    )
    with pytest.raises(UserError, match="describe the same number"):
        read_table(folder / "table.csv")


def test_a_table_of_the_first_version_names_what_it_lacks(tmp_path):
    old = (
        make_table()
        .rename(columns={"value": "frob", "error": "frob_sem"})
        .drop(columns=["quantity"])
    )
    with pytest.raises(
        UserError,
        match=r"lacks columns: quantity, value, error[\s\S]*hessfig run sweep=sigma",
    ):
        read_table(write_sweep(old, tmp_path, settings=None) / "table.csv")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"variant": "\x1b[31m"}, "a variant that cannot be a name"),
        ({"row": "W\u202eV", "col": "W\u202eV"}, "a row that cannot be a name"),
        ({"estimator": "x" * 2000}, "an estimator|a estimator that cannot be a name"),
    ],
)
def test_rows_of_a_foreign_table(tmp_path, change, message):
    folder = write_sweep(make_table(seeds=1, sigma=[0.1]), tmp_path, settings=None)
    pd.read_csv(folder / "table.csv", dtype=str).assign(**change).to_csv(
        folder / "table.csv", index=False
    )
    with pytest.raises(UserError, match=message) as refused:
        read_table(folder / "table.csv")
    assert refused.value.got
    assert refused.value.allowed
    assert refused.value.remedy


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("seconds,config", "value,config", "lacks columns: seconds"),
        (
            "seconds,config",
            "seconds,config,value",
            "has columns twice: value|cannot be read",
        ),
        (",config1\n", "\n", "cut short"),
    ],
)
def test_columns_of_a_foreign_table(tmp_path, old, new, message):
    folder = write_sweep(make_table(seeds=1, sigma=[0.1]), tmp_path, settings=None)
    text = (folder / "table.csv").read_text()
    assert old in text
    (folder / "table.csv").write_text(text.replace(old, new))
    with pytest.raises(UserError, match=message):
        read_table(folder / "table.csv")


def test_norms_of_weights_have_no_part(tmp_path):
    made = make_table()
    made = made[made["part"] == "H"].assign(part="", quantity="weight_norm")
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    assert set(table["part"]) == {""}
