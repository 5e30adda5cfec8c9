"""Sequences of ids from files and texts, and what is refused."""

import hashlib
import io
import tracemalloc

import numpy as np
import pytest

from hessfig.config.enums import Data
from hessfig.config.science import TaskConfig
from hessfig.errors import UserError
from hessfig.tasks.tokens import length_of, sequences


def words():
    return lambda text: [len(word) for word in text.split()]


def read(path, context=8, **settings):
    name = None if path is None else str(path)
    task = TaskConfig(
        **{"data": Data.tokens, "path": name, "batch_size": 2, **settings}
    )
    return sequences(task, vocabulary=10, context=context, encode=words)


def test_rows_are_taken_from_the_first_and_cut(tmp_path):
    ids = np.arange(12, dtype=np.int16).reshape(3, 4) % 10
    np.save(tmp_path / "ids.npy", ids)
    np.testing.assert_array_equal(read(tmp_path / "ids.npy"), ids[:2])
    np.testing.assert_array_equal(read(tmp_path / "ids.npy", length=3), ids[:2, :3])
    assert length_of(TaskConfig(path=str(tmp_path / "ids.npy")), 8) == 4


def test_a_long_row_is_cut_into_pieces(tmp_path):
    np.save(tmp_path / "ids.npy", np.arange(9))
    np.testing.assert_array_equal(
        read(tmp_path / "ids.npy", length=4), [[0, 1, 2, 3], [4, 5, 6, 7]]
    )
    with pytest.raises(UserError, match=r"task\.length is missing"):
        read(tmp_path / "ids.npy")


def test_a_text_goes_through_the_tokenizer(tmp_path):
    (tmp_path / "text.txt").write_text("a bb ccc dd e ff")
    np.testing.assert_array_equal(
        read(tmp_path / "text.txt", length=3), [[1, 2, 3], [2, 1, 2]]
    )


def test_random_ids_follow_the_seed():
    assert read(None, length=5).shape == (2, 5)
    np.testing.assert_array_equal(read(None), read(None))
    assert not np.array_equal(read(None), read(None, seed=1))
    assert read(None, batch_size=500).max() == 9


@pytest.mark.parametrize(
    ("ids", "settings", "message"),
    [
        (np.zeros((2, 4)), {}, "contains no token ids[\\s\\S]*float64"),
        (np.zeros((2, 2, 2), dtype=int), {}, "contains no token ids"),
        (np.full((2, 4), -1), {}, "vocabulary[\\s\\S]*-1"),
        (np.full((2, 4), 10), {}, "vocabulary[\\s\\S]*0 to 9"),
        (
            np.zeros((2, 9), dtype=int),
            {},
            "longer than the network's context[\\s\\S]*at most 8",
        ),
        (
            np.zeros((1, 4), dtype=int),
            {"length": 4},
            "too short[\\s\\S]*remedy:  task.batch_size=1$",
        ),
        (
            np.zeros(5, dtype=int),
            {"length": 4},
            "too short[\\s\\S]*remedy:  task.batch_size=1$",
        ),
        (
            np.zeros(5, dtype=int),
            {"length": 6},
            "too short[\\s\\S]*task.batch_size=1 task.length=5$",
        ),
        (np.zeros((2, 4), dtype=int), {"length": 1}, "no token remains"),
        (np.zeros((2, 4), dtype=int), {"first_scored": 3}, "no token remains"),
        (np.array([["a", "b"]], dtype=object), {}, "contains no token ids"),
    ],
)
def test_files_that_cannot_be_used(tmp_path, ids, settings, message):
    np.save(tmp_path / "ids.npy", ids)
    with pytest.raises(UserError, match=message):
        read(tmp_path / "ids.npy", **settings)


def test_files_that_are_none(tmp_path):
    with pytest.raises(UserError, match="no such file"):
        read(tmp_path / "ids.npy")
    (tmp_path / "ids.npy").write_text("ids")
    with pytest.raises(UserError, match="contains no token ids"):
        read(tmp_path / "ids.npy")
    (tmp_path / "text").write_bytes(b"\xff\xfe\xfa")
    with pytest.raises(UserError, match="contains no token ids"):
        read(tmp_path / "text")


def test_rows_shorter_than_the_length_are_taken_whole(tmp_path):
    ids = np.arange(12).reshape(3, 4) % 10
    np.save(tmp_path / "ids.npy", ids)
    np.testing.assert_array_equal(read(tmp_path / "ids.npy", length=64), ids[:2])
    assert length_of(TaskConfig(path=str(tmp_path / "ids.npy"), length=64), 8) == 4


@pytest.mark.parametrize("dtype", ["<i8", ">i8", "<u2", "|i1", ">u4"])
@pytest.mark.parametrize("order", ["C", "F"])
def test_every_order_of_bytes_and_axes(tmp_path, dtype, order):
    ids = np.arange(40).reshape(10, 4) % 10
    np.save(tmp_path / "ids.npy", np.asarray(ids, dtype=dtype, order=order))
    np.testing.assert_array_equal(read(tmp_path / "ids.npy", length=3), ids[:2, :3])
    np.testing.assert_array_equal(read(tmp_path / "ids.npy", batch_size=10), ids)


def test_random_ids_are_counted_before_they_are_drawn():
    with pytest.raises(UserError, match="longer than the network's context"):
        read(None, length=10**13)
    with pytest.raises(UserError, match=r"task\.batch_size: too many ids"):
        read(None, batch_size=10**13)


def npy(start=b"\x93NUMPY\x01\x00", data=bytes(128), text=b"", **changes):
    """Return a .npy file of (4, 4) zeros whose header says something else."""
    said = (
        text
        or repr(
            {"descr": "<i8", "fortran_order": False, "shape": (4, 4), **changes}
        ).encode()
        + b"\n"
    )
    return start + len(said).to_bytes(2, "little") + said + data


def archive():
    held = io.BytesIO()
    np.savez(held, ids=np.zeros((4, 4), dtype=int))
    return held.getvalue()


SHAPES = [
    (10**30, 4),
    (4, 10**30),
    (10**30,),
    (2**33, 4),
    (2**62, 4),
    (-4, 4),
    (-4, -4),
    (True, 4),
    (4.0, 4),
    [4, 4],
    (),
    (2, 2, 2),
    (0, 4),
]
TYPES = [
    *[
        "|O",
        "<M8[s]",
        "<m8[s]",
        "|b1",
        "|V8",
        "<U2",
        "<f8",
        "<c16",
        "nope",
        "<i99999999999",
    ],
    [("a", "<i8")],
    ("<i8", (2,)),
    None,
    3,
]
CONTENTS = [
    archive(),
    *(npy()[:cut] for cut in (0, 4, 9, 40, -1)),
    *(npy(shape=shape) for shape in SHAPES),
    *(npy(descr=descr) for descr in TYPES),
    npy(extra=1),
    npy(fortran_order=3),
    npy(text=b"{1}\n"),
    npy(text=b"{"),
    npy(text=b"(" * 9000),
    npy(text=b"\xff\xfe\x00"),
    npy(text=b"__import__('os').getpid()\n"),
    npy(text=b"[" * 60000),
    npy(b"\x93NUMPY\x03\x00"),
    npy(b"\x93NUMPY\x09\x00"),
    npy(b"\x93NUMPY\x00\x00"),
    b"\x93NUMPY\x02\x00\xff\xff\xff\xff{",
]


@pytest.mark.parametrize("content", CONTENTS, ids=len)
def test_files_of_another_form(tmp_path, content):
    (tmp_path / "ids.npy").write_bytes(content)
    for look in (read, lambda path: length_of(TaskConfig(path=str(path)), 8)):
        with pytest.raises(UserError, match="contains no token ids"):
            look(tmp_path / "ids.npy")


def test_the_whole_file_is_hashed_and_what_is_needed_is_held(tmp_path):
    path = tmp_path / "ids.npy"
    ids = np.zeros((2**20, 8), dtype=np.int32)
    np.save(path, ids)
    planned = hashlib.sha256(path.read_bytes()).hexdigest()
    tracemalloc.start()
    np.testing.assert_array_equal(read(path, sha256=planned), ids[:2])
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 8 * 2**20 < path.stat().st_size
    ids[-1, -1] = 1
    np.save(path, ids)
    with pytest.raises(UserError, match="is not what was planned"):
        read(path, sha256=planned)


def test_a_text_is_that_of_its_hash(tmp_path):
    path = tmp_path / "text.txt"
    path.write_bytes(b"a bb\r\nccc dd\re ff")
    planned = hashlib.sha256(path.read_bytes()).hexdigest()
    np.testing.assert_array_equal(
        read(path, length=3, sha256=planned), [[1, 2, 3], [2, 1, 2]]
    )
    path.write_bytes(b"a bb ccc dd e f")
    with pytest.raises(UserError, match="is not what was planned"):
        read(path, length=3, sha256=planned)
