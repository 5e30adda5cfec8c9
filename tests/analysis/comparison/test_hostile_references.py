"""Files made to exhaust or mislead: refused with an error, in bounded memory and time, one process for them all."""

from __future__ import annotations

import json
import os
import pickle
import struct
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hessfig.errors import UserError
from scripts.published_values import LARGEST_FILE, read_norms

ROOT = Path(__file__).parents[3]
HEAD, MIB = b"\x80\x04", 2**20
READER = r"""
import json, re, sys, time
from pathlib import Path
from hessfig.analysis.comparison.references import read_reference
from hessfig.errors import UserError
from scripts.published_values import GRIDS, read_norms
import pandas as pd
table = pd.DataFrame({"sigma": [0.1], "num_layers": [1]})
for path in map(Path, sys.argv[1:]):
    start, said = time.perf_counter(), ""
    try:
        read_reference(path, table) if path.suffix == ".csv" else list(read_norms(path, 1, GRIDS["log"]))
    except UserError as error:
        said = str(error)
    peak = int(re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())[1]) // 1024
    print(json.dumps([path.stem, said, time.perf_counter() - start, peak]))
"""


def shared_lists(depth: int) -> bytes:
    thing: Any = [1.0]
    for _ in range(depth):
        thing = [thing, thing]
    return pickle.dumps(thing, protocol=4)


def shared_tuples(depth: int) -> bytes:
    thing: Any = (1.0,)
    for _ in range(depth):
        thing = (thing, thing)
    return pickle.dumps({0: thing}, protocol=4)


def itself() -> bytes:
    thing: list[Any] = []
    thing.append(thing)
    return pickle.dumps(thing)


def text(head: bytes, size: int, letter: bytes = b"a", tail: bytes = b".") -> bytes:
    return HEAD + head + struct.pack("<I", size) + letter * size + tail


PICKLES: dict[str, bytes] = {
    "memo index of 4 GiB": bytes.fromhex("80044e72000000102e"),
    "memo index as text": b"I1\np268435456\n.",
    "shared lists": shared_lists(40),
    "shared tuples": shared_tuples(40),
    "a list in itself": itself(),
    "deep list": HEAD + b"]" * 200_000 + b"a" * 199_999 + b".",
    "deep tuple": HEAD + b")" + b"\x85" * 200_000 + b".",
    "deep tuple as a key": HEAD + b"}(" + b")" + b"\x85" * 200_000 + b"K\x01u.",
    "list as a key": HEAD + b"}]K\x01s.",
    "claims 4 GiB of text": HEAD + b"X\xff\xff\xff\xff" + b"abc.",
    "claims a frame of 2**63": HEAD + b"\x95" + b"\xff" * 7 + b"\x7f" + b"]" * 10 + b"a" * 8 + b".",
    "long text": text(b"X", 8 * MIB),
    "long bytes": text(b"B", 8 * MIB),
    "long name": b"c" + b"x" * 8 * MIB + b"\nx\n.",
    "many digits": b"I" + b"1" * 8 * MIB + b"\n.",
    "huge integer": pickle.dumps([10**400]),
    "huge integer as text": pickle.dumps([10**4000], protocol=0),
    "ten million dicts": HEAD + b"(" + b"}" * 10 * MIB + b"l.",
    "eight million integers": HEAD + b"(" + b"K\x01" * 7 * MIB + b"t.",
    "a gigabyte": b"",  # a sparse file
    "persistent name": b"Pposix.system\n.",
    "instance": b"(iposix\nsystem\n.",
    "extension": HEAD + b"\x82\x01.",
    "set": HEAD + b"\x8f(K\x01\x90.",
    "call of a number": HEAD + b"K\x01)R.",
    "state of a list": HEAD + b"]}b.",
    "mark as a value": HEAD + b"(\x85.",
    "mark remembered": HEAD + b"(\x94h\x00h\x00" + b"l.",
    "nothing": b"",
    "two things": HEAD + b"K\x01K\x02.",
    "other protocol": b"\x80\xff.",
    "escape in a name": b"c\x1b[2J\nx\n.",
}
HEADER = "block,part,layer,repeat,sigma,value\n"
TABLES: dict[str, str] = {
    "many rows": HEADER + "W,H,1,1,1,1\n" * 5 * MIB,
    "long line": HEADER + "1," * 30 * MIB,
    "long cell": HEADER + 'W,H,1,1,1,"' + "\n" * 30 * MIB,
    "many columns": ",".join(map(str, range(10 * MIB))),
    "huge integers": HEADER + f"W,H,1,1,1,{'9' * 5000}\n",
}


def sized(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    if path.stem == "a gigabyte":
        os.truncate(path, 2**30)
    return path


@pytest.fixture(scope="module")
def read(tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, float, int]]:
    """Read every file in one fresh process; return what it said, its seconds and the peak memory in MB so far."""
    folder = tmp_path_factory.mktemp("hostile")
    paths = [sized(folder / f"{name}.pickle", content) for name, content in PICKLES.items()]
    paths += [sized(folder / f"{name}.csv", content.encode()) for name, content in TABLES.items()]
    command = [sys.executable, "-c", READER, *map(str, paths)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=250, cwd=ROOT)
    assert done.returncode == 0, done.stderr
    answers = [json.loads(line) for line in done.stdout.splitlines()]
    return {name: (said, seconds, peak) for name, said, seconds, peak in answers}


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize("name", [*PICKLES, *TABLES])
@pytest.mark.long
def test_a_hostile_file_is_refused_in_words(read: dict[str, tuple[str, float, int]], name: str) -> None:
    said, seconds, peak = read[name]
    for label in ("got: ", "allowed: ", "remedy: "):
        assert label in said
    assert len(said) < 2000 and "\x1b" not in said
    assert seconds < 30
    assert peak < 500


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.long
def test_every_cut_and_every_flipped_byte_is_read_or_refused(tmp_path: Path, protocol: int) -> None:
    content = {0: {0: [np.float32(1.5), 2.5, 3], 1: np.ones(3, "f4"), 2: [np.float64(2), True, None]}}
    good = pickle.dumps(content, protocol=protocol)
    path = tmp_path / "x.pickle"
    for place in range(len(good)):
        for bad in (good[:place], good[:place] + bytes([good[place] ^ 0x41]) + good[place + 1 :]):
            read_or_refused(path, bad)


OPCODES = st.sampled_from([bytes([code]) for code in range(256)])


@settings(max_examples=300, deadline=None)
@given(st.lists(st.one_of(OPCODES, st.sampled_from([b"K\x01", b"h\x00", b"q\x00", b"\x85", b"(", b"]"])), max_size=30))
def test_any_opcodes_are_read_or_refused(tmp_path_factory: pytest.TempPathFactory, words: list[bytes]) -> None:
    path = tmp_path_factory.getbasetemp() / "opcodes.pickle"
    read_or_refused(path, HEAD + b"".join(words) + b".")


def read_or_refused(path: Path, content: bytes) -> None:
    path.write_bytes(content)
    try:
        list(read_norms(path, 1, np.ones(3)))
    except UserError as error:
        assert error.got and error.allowed and error.remedy


def test_the_bounds_leave_room_for_the_largest_published_file() -> None:
    numbers = 5 * 20 * 20  # five layers, repeats and sigmas
    assert 20 * 40 * numbers < LARGEST_FILE
