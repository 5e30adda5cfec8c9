"""Pickles made of any opcodes in any order: the script reads them as numbers or refuses them, and runs nothing."""

import pickle
import pickletools
import struct
import time

import pytest
from hypothesis import HealthCheck, given, seed, settings
from hypothesis import strategies as some

from hessfig.errors import UserError
from scripts.published_values import load
from tests.attack.conftest import SEED
from tests.attack.ledger import LEDGER
from tests.attack.target import RESULTS, SCRIPT, STEM, script, weighed

KIND = "hostile pickles"
NAMES = [
    "os system",
    "builtins eval",
    "builtins exec",
    "subprocess Popen",
    "numpy._core.multiarray scalar",
]
NAMES += [
    "numpy dtype",
    "numpy._core.multiarray _reconstruct",
    "collections OrderedDict",
    "builtins list",
]


def argument(kind):
    """Return bytes that an opcode's argument may be, near the ends of its range as well."""
    if kind is None:
        return some.just(b"")
    small = some.integers(0, 40)
    wide = some.sampled_from([0, 1, 2, 255, 2**16, 2**28, 2**31 - 1])
    number = some.one_of(small, wide)
    lines = some.sampled_from(
        [name.replace(" ", "\n").encode() + b"\n" for name in NAMES]
    )
    text = some.binary(max_size=12).map(lambda b: b.replace(b"\n", b""))
    return {
        "uint1": small.map(lambda n: bytes([n])),
        "uint2": number.map(lambda n: struct.pack("<H", n % 2**16)),
        "int4": number.map(lambda n: struct.pack("<i", n)),
        "uint4": number.map(lambda n: struct.pack("<I", n)),
        "uint8": number.map(lambda n: struct.pack("<Q", n)),
        "float8": some.floats().map(lambda x: struct.pack(">d", x)),
        "stringnl_noescape_pair": lines,
    }.get(
        kind,
        some.one_of(
            text.map(lambda b: bytes([len(b)]) + b), text.map(lambda b: b + b"\n")
        ),
    )


def one(opcode):
    return argument(opcode.arg and opcode.arg.name).map(
        lambda rest: opcode.code.encode("latin-1") + rest
    )


CALLS = some.sampled_from(NAMES).map(
    lambda n: b"c" + n.replace(" ", "\n").encode() + b"\n(V/x\ntR"
)
STEPS = some.one_of(*map(one, pickletools.opcodes), CALLS)
PICKLES = some.lists(STEPS, max_size=40).map(
    lambda steps: b"\x80\x04" + b"".join(steps) + b"."
)
FAMOUS = {
    "nine bytes": bytes.fromhex("80044e7200000010") + b"\x2e",
    "shared lists": b"\x80\x04]"
    + b"".join(b"q" + bytes([n]) + b"](h" + bytes([n]) * 2 + b"e" for n in range(50)),
    "deep tuple": b"\x80\x04N" + b"\x85" * 200_000 + b".",
    "deep tuple as a key": b"\x80\x04}N" + b"\x85" * 200_000 + b"K\x01s.",
    "shared tuples as a key": b"\x80\x04}(K\x01t" + b"2\x86" * 60 + b"K\x01s.",
    "large integer": pickle.dumps({0: {0: [10**400] * 20}}),
    "many lists": b"\x80\x04(" + b"]" * 3_000_000 + b"l.",
    "seven": pickle.dumps([7]),
    "empty dict": pickle.dumps({0: {}}),
    "a claim of 4 GB": b"\x80\x04B\xff\xff\xff\xff.",
    "a command": b"cos\nsystem\n(Vtouch canary\ntR.",
}


@seed(SEED)
@settings(
    max_examples=6000,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    database=None,
)
@given(content=PICKLES)
def test_any_opcodes(tmp_path_factory, content):
    path = tmp_path_factory.getbasetemp() / "hostile.pickle"
    path.write_bytes(content)
    started = time.perf_counter()
    wrong = ""
    try:
        load(path)
    except UserError:
        pass
    except BaseException as error:
        wrong = f"{content!r}: {error!r}"[:300]
    slow = f"{content!r} took long"[:300] if time.perf_counter() - started > 2 else ""
    LEDGER.note(KIND, traceback=wrong, silent=slow)
    assert not wrong
    assert not slow


@pytest.mark.parametrize("name", FAMOUS)
def test_famous_ones_by_the_script(place, ledger, name):
    """As the file of a result folder: refused in a line, and with little memory."""
    (place / RESULTS / f"{STEM}_v_outer.pickle").write_bytes(FAMOUS[name])
    code, errors, peak = weighed(RESULTS, "published", folder=place, program=SCRIPT)
    ledger.weigh(f"pickle: {name}", peak)
    refused = code == 2 and "Traceback" not in errors and "remedy" in errors
    ledger.note(
        KIND, traceback="" if refused else f"{name}: exit {code}: {errors[-200:]}"
    )
    assert refused
    assert peak < 500 * 2**20
    assert not list(place.rglob("canary"))


def test_many_by_the_script(place, ledger):
    # Each is a process of its own.
    for content in (bytes([code]) for code in range(0, 256, 8)):
        (place / RESULTS / f"{STEM}_v_outer.pickle").write_bytes(
            b"\x80\x04" + content * 3 + b"."
        )
        ledger.note(
            KIND, traceback=_traceback(script(RESULTS, "published", folder=place))
        )
    assert not ledger.wrong(KIND)


def _traceback(done):
    refused = done.returncode == 2 and "Traceback" not in done.stderr
    return (
        ""
        if refused or not done.returncode
        else f"exit {done.returncode}: {done.stderr[-200:]}"
    )
