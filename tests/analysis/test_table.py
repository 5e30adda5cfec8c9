"""Reading tables and manifests: what is accepted, and what each bad file is told."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from hessfig.analysis.manifest import read_manifest, read_sweep, varied
from hessfig.analysis.table import COLUMNS, read_table
from hessfig.errors import UserError
from hessfig.predictions.architecture import Attention
from tests.analysis.synthetic import CONFIG, make_table, write_sweep


def test_round_trip(tmp_path: Path) -> None:
    made = make_table(networks=[("", 1), ("model.temperature=2.0", 1)])
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    pd.testing.assert_frame_equal(table, made[COLUMNS], check_dtype=False)
    assert table["num_layers"].dtype.kind == "i"


def test_nonfinite_numbers_are_read(tmp_path: Path) -> None:
    made = make_table()
    made.loc[0, ["frob", "status"]] = [float("inf"), "nonfinite"]
    made.loc[1, ["frob", "frob_sem", "status"]] = [float("nan"), float("nan"), "nonfinite"]
    table = read_table(write_sweep(made, tmp_path) / "table.csv")
    assert (table["status"] == "nonfinite").sum() == 2


def test_missing_table_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"hessfig run sweep=sigma$"):
        read_table(tmp_path / "outputs" / "sigma" / "table.csv")
    with pytest.raises(UserError, match=r"hessfig run sweep=sigma output_dir=.*elsewhere"):
        read_table(tmp_path / "elsewhere" / "sigma" / "table.csv")


def _change(column: str, value: object) -> Callable[[pd.DataFrame], pd.DataFrame]:
    def change(table: pd.DataFrame) -> pd.DataFrame:
        table = table.astype({column: object})
        table.loc[3, column] = value
        return table

    return change


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: t.drop(columns=["frob", "seed"]), "lacks columns: seed, frob"),
        (lambda t: t.iloc[:0], "has no rows"),
        (_change("frob", "x1"), "line 5: frob is not a number"),
        (_change("frob", ""), "line 5: frob is not a number"),
        (_change("seed", "1.5"), "seed is not a number"),
        (_change("sigma", -1.0), "sigma must be positive"),
        (_change("part", "H_x"), "unknown part"),
        (_change("row", "W_Z"), "unknown row"),
        (_change("status", "fine"), "unknown status"),
        (_change("frob", "nan"), "status is ok but frob"),
        (_change("status", "structural_zero"), "structural_zero but frob is not 0"),
        (_change("layer", 2), "layer lies outside"),
        (_change("config", "other"), "mixes several configurations"),
        (_change("seed", 1236), "claim to be the same number"),
    ],
)
def test_bad_tables(tmp_path: Path, change: Callable[[pd.DataFrame], pd.DataFrame], message: str) -> None:
    folder = write_sweep(change(make_table()), tmp_path, settings=None)
    with pytest.raises(UserError, match=message):
        read_table(folder / "table.csv")


def test_a_table_cut_short_is_not_read(tmp_path: Path) -> None:
    path = write_sweep(make_table(), tmp_path, settings=None) / "table.csv"
    path.write_text(path.read_text()[:-30])
    with pytest.raises(UserError, match="is not a number"):
        read_table(path)


def test_an_empty_file_is_not_read(tmp_path: Path) -> None:
    (tmp_path / "table.csv").write_text("")
    with pytest.raises(UserError, match="cannot be read as a table"):
        read_table(tmp_path / "table.csv")


def test_table_from_another_run(tmp_path: Path) -> None:
    folder = write_sweep(make_table(), tmp_path)
    made = make_table(seeds=4)
    made.to_csv(folder / "table.csv", index=False)
    with pytest.raises(UserError, match="from another config or run"):
        read_sweep(folder)


def test_bad_manifest(tmp_path: Path) -> None:
    folder = write_sweep(make_table(), tmp_path)
    for text in ("{", json.dumps({"sweep": "sigma"}), json.dumps({"config": {"model": {"kind": "cnn"}}})):
        (folder / "manifest.json").write_text(text)
        with pytest.raises(UserError, match="is not a manifest"):
            read_manifest(folder)


def test_without_manifest_nothing_is_predicted(tmp_path: Path) -> None:
    _, architectures = read_sweep(write_sweep(make_table(), tmp_path, settings=None))
    assert architectures == {}


def test_architecture_of_each_variant(tmp_path: Path) -> None:
    made = make_table(networks=[("model.attention=linear,model.attention_skip=False", 2), ("", 1)])
    _, architectures = read_sweep(write_sweep(made, tmp_path))
    first = architectures["model.attention=linear,model.attention_skip=False", 2]
    assert (first.attention, first.attention_skip, first.num_layers) == (Attention.linear, False, 2)
    assert architectures["", 1].attention == Attention.softmax


def test_varied_leaves_the_settings_alone() -> None:
    assert varied(CONFIG, "task.seed=3", num_layers=4)["model"]["n_layers"] == 4
    assert CONFIG["model"]["n_layers"] == 1
