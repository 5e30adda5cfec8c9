"""Sequences of ids from files and texts, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hessfig.config import Data, TaskConfig
from hessfig.errors import UserError
from hessfig.tasks.tokens import Encode, Ids, length_of, sequences


def words() -> Encode:
    return lambda text: [len(word) for word in text.split()]


def read(path: Path | None, context: int = 8, **settings: Any) -> Ids:
    name = None if path is None else str(path)
    task = TaskConfig(**{"data": Data.tokens, "path": name, "batch_size": 2, **settings})
    return sequences(task, vocabulary=10, context=context, encode=words)


def test_rows_are_taken_from_the_first_and_cut(tmp_path: Path) -> None:
    ids = np.arange(12, dtype=np.int16).reshape(3, 4) % 10
    np.save(tmp_path / "ids.npy", ids)
    np.testing.assert_array_equal(read(tmp_path / "ids.npy"), ids[:2])
    np.testing.assert_array_equal(read(tmp_path / "ids.npy", length=3), ids[:2, :3])
    assert length_of(TaskConfig(path=str(tmp_path / "ids.npy")), 8) == 4


def test_a_long_row_is_cut_into_pieces(tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.arange(9))
    np.testing.assert_array_equal(read(tmp_path / "ids.npy", length=4), [[0, 1, 2, 3], [4, 5, 6, 7]])
    with pytest.raises(UserError, match=r"task\.length is missing"):
        read(tmp_path / "ids.npy")


def test_a_text_goes_through_the_tokenizer(tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("a bb ccc dd e ff")
    np.testing.assert_array_equal(read(tmp_path / "text.txt", length=3), [[1, 2, 3], [2, 1, 2]])


def test_random_ids_follow_the_seed() -> None:
    assert read(None, length=5).shape == (2, 5)
    np.testing.assert_array_equal(read(None), read(None))
    assert not np.array_equal(read(None), read(None, seed=1))
    assert read(None, batch_size=500).max() == 9


@pytest.mark.parametrize(
    ("ids", "settings", "message"),
    [
        (np.zeros((2, 4)), {}, "holds no ids[\\s\\S]*float64"),
        (np.zeros((2, 2, 2), dtype=int), {}, "holds no ids"),
        (np.full((2, 4), -1), {}, "vocabulary[\\s\\S]*-1"),
        (np.full((2, 4), 10), {}, "vocabulary[\\s\\S]*0 to 9"),
        (np.zeros((2, 9), dtype=int), {}, "longer than the network's context[\\s\\S]*at most 8"),
        (np.zeros((1, 4), dtype=int), {}, "too little"),
        (np.zeros((2, 4), dtype=int), {"first_scored": 3}, "no token is left"),
        (np.array([["a", "b"]], dtype=object), {}, "holds no ids"),
    ],
)
def test_files_that_cannot_be_used(tmp_path: Path, ids: Any, settings: dict[str, Any], message: str) -> None:
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "ids.npy", **settings)


def test_files_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "ids.npy")
    (tmp_path / "ids.npy").write_text("ids")
    with pytest.raises(UserError, match="holds no ids"):
        read(tmp_path / "ids.npy")
    (tmp_path / "text").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="holds no ids"):
        read(tmp_path / "text")
