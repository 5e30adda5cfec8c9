"""Reference files as CSV: what is read, and what is refused with the line it stands on."""

from __future__ import annotations

import bz2
import gzip
import os
from collections.abc import Callable
from pathlib import Path

import pandas as pd
import pytest

from hessfig.analysis.comparison import references
from hessfig.analysis.comparison.references import Reference, read_reference, reference_file
from hessfig.errors import UserError
from tests.analysis.authors import as_reference
from tests.analysis.synthetic import make_table, write_sweep

HEADER = "block,part,layer,repeat,sigma,value"


@pytest.fixture(scope="module")
def table() -> pd.DataFrame:
    return make_table(seeds=3)


def read(path: Path, table: pd.DataFrame) -> Reference:
    return read_reference(reference_file(path, "sigma"), table)


def written(path: Path, *rows: str, header: str = HEADER) -> Path:
    path.write_text("\n".join([header, *rows, ""]), encoding="utf-8")
    return path


def test_published_values_are_read_with_or_without_a_byte_order_mark(tmp_path: Path, table: pd.DataFrame) -> None:
    values = as_reference(table)
    for encoding in ("utf-8", "utf-8-sig"):
        values.to_csv(tmp_path / "x.csv", index=False, encoding=encoding)
        found = read(tmp_path / "x.csv", table)
        pd.testing.assert_frame_equal(found.values[values.columns.tolist()], values, check_dtype=False)
    assert found.name == "the published values" and found.config is None


def test_the_table_of_a_run_is_read_and_the_rest_of_it_counted(tmp_path: Path, table: pd.DataFrame) -> None:
    more = table.assign(variant="model.norm=pre")
    folder = write_sweep(pd.concat([table, more], ignore_index=True), tmp_path)
    found = read(folder / "table.csv", table)
    assert len(found.values) == found.aside == len(table)
    assert found.name == f"the run in {folder}" and found.config is not None and found.config["task"]["seed"] == 0


BAD_CELLS = {
    "value": ["", "much", "-1", "-1e-9", "True", "1" * 400, "1_0", "0x10", "-inf", "1,5"],
    "sigma": ["0", "-1", "nan", "inf", "", "True"],
    "layer": ["1.5", "-1", "nan", "True", "99999999999999999999", "1e300"],
    "repeat": ["", "-1", "0.5", "1" * 5000],
    "block": ["", "x" * 101, "\x1b[2J", "a\u202eb"],
}
CELLS = [(name, cell) for name, cells in BAD_CELLS.items() for cell in cells]


@pytest.mark.parametrize(("name", "cell"), CELLS, ids=[f"{name}={cell[:12]!r}" for name, cell in CELLS])
def test_a_bad_cell_is_refused_with_its_line(tmp_path: Path, table: pd.DataFrame, name: str, cell: str) -> None:
    good = {"block": "W_Q", "part": "H", "layer": "1", "repeat": "0", "sigma": "0.1", "value": "1.5"}
    rows = [",".join(good.values()), ",".join({**good, "repeat": "1", name: cell}.values())]
    with pytest.raises(UserError, match=r"line 3 cannot be used") as caught:
        read(written(tmp_path / "x.csv", *rows), table)
    assert "\x1b" not in str(caught.value) and len(str(caught.value)) < 1000
    assert caught.value.got and caught.value.allowed and caught.value.remedy


@pytest.mark.parametrize("cell", ["inf", "nan", "NaN", "0", "1e-60", "+2.5"])
def test_numbers_that_can_be_counted_are_let_through(tmp_path: Path, table: pd.DataFrame, cell: str) -> None:
    found = read(written(tmp_path / "x.csv", f"W_Q,H,1,0,0.1,{cell}"), table)
    assert len(found.values) == 1


@pytest.mark.parametrize(
    ("rows", "header", "message"),
    [
        (["W_Q,H,1,0,0.1,1", "W_Q,H,1,0,0.1,2"], HEADER, "claim to be the same number"),
        (["W_Q,G,1,0,0.1,1"], HEADER, "unknown part"),
        (["W_Q,H,1,0,0.1"], HEADER, "line 2 cannot be used"),
        (["W_Q,H,1,0,0.1,1,7"], HEADER, "line 2 cannot be used"),
        (["W_Q,H,1,0,0.1"], "block,part,layer,repeat,sigma", "lacks columns: value"),
        (["W_Q,H,1,0,0.1,1,1"], f"{HEADER},value", "two columns of one name"),
        ([], HEADER, "has no rows"),
        (['W_Q,H,1,0,0.1,"1'], HEADER, "cannot be read as a table"),
        (["W_Q,H,1,0,0.1," + "1" * 20_000], HEADER, "line 2 cannot be used"),
    ],
)
def test_bad_files(tmp_path: Path, table: pd.DataFrame, rows: list[str], header: str, message: str) -> None:
    with pytest.raises(UserError, match=message):
        read(written(tmp_path / "x.csv", *rows, header=header), table)


def compressed(pack: Callable[[bytes], bytes]) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(pack(b"0" * 10**6))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (compressed(gzip.compress), "is compressed"),
        (compressed(bz2.compress), "is compressed"),
        (lambda path: path.write_text(""), "cannot be read as a table"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00block"), "cannot be read as a table"),
        (lambda path: None, "no such file or folder"),
        (lambda path: os.mkfifo(path), "is not a file"),
    ],
    ids=["gzip", "bzip2", "empty", "not text", "missing", "pipe"],
)
@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz"])
def test_files_that_are_no_text(
    tmp_path: Path, table: pd.DataFrame, make: Callable[[Path], object], message: str, name: str
) -> None:
    make(tmp_path / name)
    with pytest.raises(UserError, match=message):
        read(tmp_path / name, table)


def test_long_and_large_files_are_refused(tmp_path: Path, table: pd.DataFrame, monkeypatch: pytest.MonkeyPatch) -> None:
    path = written(tmp_path / "x.csv", *[f"W_Q,H,1,{k},0.1,1" for k in range(20)])
    monkeypatch.setattr(references, "MOST_ROWS", 19)
    with pytest.raises(UserError, match="is too long"):
        read(path, table)
    monkeypatch.setattr(references, "LARGEST_FILE", 100)
    with pytest.raises(UserError, match="is too large"):
        read(path, table)


def test_several_depths_need_their_column(tmp_path: Path) -> None:
    deep = make_table(networks=[("", 1), ("", 2)])
    as_reference(deep).to_csv(tmp_path / "with.csv", index=False)
    assert set(read(tmp_path / "with.csv", deep).values["num_layers"]) == {1, 2}
    as_reference(deep).drop(columns="num_layers").to_csv(tmp_path / "without.csv", index=False)
    with pytest.raises(UserError, match="needs a column num_layers"):
        read(tmp_path / "without.csv", deep)
