"""Large and swollen files from elsewhere: every reader stays under 500 MB and says what is wrong."""

import gzip
import json

import pytest

from tests.attack.ledger import MOST_MEMORY
from tests.attack.target import CSV, weighed

SLOPES = ("slopes", "sweep=sigma")
COMPARE = ("compare", "outputs/sigma", str(CSV))
OWN = ("run", "--config-dir=own", "sweep=mine", "dry_run=true")


def bomb(path):
    path.write_bytes(gzip.compress(b"0" * 200_000_000, 1))


def long_line(path):
    path.write_bytes(
        b"sigma,num_layers,block,part,layer,repeat,value\n" + b"1" * 60_000_000
    )


def many_rows(path):
    path.write_bytes(path.read_bytes() + b"0.1,1,W_V,H,1,0,1.0\n" * 3_000_000)


def huge_integers(path):
    path.write_text(
        "sigma,num_layers,block,part,layer,repeat,value\n"
        + f"0.1,1,W_V,H,1,{'9' * 5000},1\n"
    )


def deep(path):
    path.write_text("[" * 20_000_000)


def wide(path):
    path.write_text(json.dumps({"config": {"x": "y" * 100_000_000}}))


def anchors(path):
    names = [
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9) if n else '1'}]"
        for n in range(12)
    ]
    path.write_text(
        "sweep: {name: mine}\nmodel:\n  options:\n"
        + "".join(f"    {name}\n" for name in names)
    )


FILES = {
    "gzip as CSV": (CSV, bomb, COMPARE),
    "a line of 60 MB": (CSV, long_line, COMPARE),
    "millions of rows": (CSV, many_rows, COMPARE),
    "integers of 5000 digits": (CSV, huge_integers, COMPARE),
    "deep manifest": ("outputs/sigma/manifest.json", deep, SLOPES),
    "a manifest of 100 MB": ("outputs/sigma/manifest.json", wide, SLOPES),
    "gzip as table": ("outputs/sigma/table.csv", bomb, SLOPES),
    "a billion laughs in YAML": ("own/sweep/mine.yaml", anchors, OWN),
}


@pytest.mark.parametrize("name", FILES)
def test_readers_need_little_memory(place, ledger, name):
    file, swell, words = FILES[name]
    (place / "own/sweep").mkdir(parents=True)
    swell(place / file)
    code, errors, peak = weighed(*words, folder=place)
    ledger.weigh(name, peak)
    refused = code == 2 and "Traceback" not in errors and "remedy" in errors
    ledger.note(
        "swollen files",
        traceback="" if refused else f"{name}: exit {code}: {errors[-300:]}",
    )
    assert refused, errors[-500:]
    assert peak < MOST_MEMORY, f"{peak / 2**20:.0f} MiB"
