"""Cell files: whole or not at all, and never read as data when they are not sound."""

import errno
import json
import math
import os
import threading
from pathlib import Path

import numpy
import pytest

from hessfig.errors import UserError
from hessfig.files import replacing, unwritable
from hessfig.sweep.store import CellStore, CorruptCell

KEY = "ab" * 12
OTHER = "cd" * 12
SCIENCE = {"sigma": 0.1}
ROWS = [{"value": 0.1 + 0.2, "status": "ok"}]


@pytest.fixture
def store(tmp_path):
    found = CellStore(tmp_path / "cells")
    found.write(KEY, SCIENCE, ROWS)
    return found


def test_what_is_written_is_read_to_the_last_bit(store):
    assert store.read(KEY) == ROWS


def test_what_was_never_written_is_none(store):
    assert store.read(OTHER) is None


def test_numbers_that_are_not_finite_survive(store):
    store.write(OTHER, SCIENCE, [{"value": math.inf, "error": math.nan}])
    (row,) = store.read(OTHER) or []
    assert row["value"] == math.inf
    assert math.isnan(row["error"])


@pytest.mark.parametrize("keep", [0, 1, 40, -1])
def test_a_truncated_file_is_named_and_not_read(store, keep):
    path = store.path(KEY)
    path.write_text(path.read_text()[:keep])
    with pytest.raises(CorruptCell, match=f"{KEY}.json: truncated or not a cell"):
        store.read(KEY)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"null", "truncated or not a cell"),
        (b'{"rows": []}', "truncated or not a cell"),
        (b"[" * 100_000, "truncated or not a cell"),
        (b"\xff\xfe\x00", "not text"),
    ],
)
def test_anything_but_a_cell_is_named_and_not_read(store, content, said):
    store.path(KEY).write_bytes(content)
    with pytest.raises(CorruptCell, match=said):
        store.read(KEY)


def test_an_edited_number_is_found_out(store):
    cell = json.loads(store.path(KEY).read_text())
    cell["rows"][0]["value"] = 1.0
    store.path(KEY).write_text(json.dumps(cell))
    with pytest.raises(CorruptCell, match="checksum or key does not match"):
        store.read(KEY)


def test_a_file_under_another_key_is_found_out(store):
    store.path(OTHER).parent.mkdir(parents=True)
    store.path(KEY).rename(store.path(OTHER))
    with pytest.raises(CorruptCell, match="checksum or key does not match"):
        store.read(OTHER)


def test_a_reader_never_sees_half_a_file(tmp_path):
    """One thread replaces the file two hundred times while this one reads it."""
    path = tmp_path / "file"
    texts = [letter * 100_000 for letter in "ab"]

    def write():
        for turn in range(200):
            with replacing(path) as handle:
                handle.write(texts[turn % 2])

    with replacing(path) as handle:
        handle.write(texts[0])
    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while writer.is_alive():
        seen.add(path.read_text())
    writer.join()
    assert seen <= set(texts)


def test_an_error_while_writing_leaves_the_old_file_and_nothing_else(tmp_path):
    path = tmp_path / "file"
    path.write_text("old")
    with pytest.raises(ValueError, match="half way"), replacing(path) as handle:
        handle.write("new")
        raise ValueError("half way")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_full_disk_is_said_to_be_full(tmp_path, monkeypatch, call):
    def full(*_, **__):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(
        *((os, "fsync", full) if call == "fsync" else (Path, "replace", full))
    )
    with pytest.raises(UserError, match="the disk is full") as caught:
        CellStore(tmp_path).write(KEY, SCIENCE, ROWS)
    assert "finished cells are kept" in caught.value.remedy
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "cells").write_text("a file in the way")
    with pytest.raises(UserError, match="cannot write") as caught:
        CellStore(tmp_path / "cells").write(KEY, SCIENCE, ROWS)
    assert "output_dir" in caught.value.remedy


def test_permission_denied_is_not_called_a_full_disk():
    error = unwritable(
        Path("folder"), PermissionError(errno.EACCES, "Permission denied")
    )
    assert error.what == "cannot write (Permission denied): folder"


ARRAYS = {"hessian": numpy.eye(2), "names": ["W_Q"], "sizes": [2]}
LABEL = {"variant": "", "sigma": 0.1, "seed": 7}


@pytest.fixture
def with_arrays(store):
    store.write(OTHER, SCIENCE, [], ARRAYS, LABEL)
    return store


def test_arrays_need_no_pickle_and_carry_their_label(with_arrays):
    with numpy.load(with_arrays.arrays_path(OTHER), allow_pickle=False) as arrays:
        assert arrays["names"].tolist() == ["W_Q"]
        assert arrays["hessian"].sum() == 2
        assert json.loads(str(arrays["label"])) == {"key": OTHER, **LABEL}
    assert with_arrays.finished(OTHER)
    (_, ours), (_, none) = (
        with_arrays.finished(key) or ([], "") for key in (OTHER, KEY)
    )
    assert len(ours or "") == 64
    assert none is None


def test_a_cell_vouches_for_its_arrays(with_arrays):
    """A flipped bit, another cell's file, or no file: the cell counts as not measured."""
    path = with_arrays.arrays_path(OTHER)
    sound = bytearray(path.read_bytes())
    path.write_bytes(bytes([*sound[:100], sound[100] ^ 1, *sound[101:]]))
    with pytest.raises(CorruptCell, match="its checksum does not match its cell"):
        with_arrays.finished(OTHER)
    path.unlink()
    with pytest.raises(CorruptCell, match="are missing"):
        with_arrays.finished(OTHER)


def test_a_folder_in_a_cells_place_is_damaged_not_a_crash(store):
    store.path(OTHER).mkdir(parents=True)
    with pytest.raises(CorruptCell, match="cannot be read"):
        store.read(OTHER)
