"""Change the core in thirty ways, one at a time, and print which suite notices each change.

    python scripts/mutations.py [NAME ...] [--json FILE]

Every mutation of mutations.toml is tried in a copy of the committed tree. The tests
that stand nearest to the changed module run first, and a suite stops at its first
failure, so that only what nothing notices costs the whole of both suites. Exits with 1
when one of the mutations is noticed by neither, and with 2 when one fits no place, or
several.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
EVERY_DAY = "not long and not slow and not browser"
LONG = "long and not slow and not browser"
SUITES = {"make test": EVERY_DAY, "make test-long": LONG}


def main() -> None:
    """Try the mutations that are named, or all; print a row each."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    mutations = tomllib.loads((ROOT / "scripts" / "mutations.toml").read_text())
    chosen = {name: mutations[name] for name in options.names or mutations}
    misfits = [
        name
        for name, one in chosen.items()
        if (ROOT / one["path"]).read_text().count(one["old"]) != 1
    ]
    if misfits:
        print(
            f"the text to change does not stand exactly once in its file: {', '.join(misfits)}",
            file=sys.stderr,
        )
        raise SystemExit(2)
    rows = [tried(name, mutation) for name, mutation in chosen.items()]
    if options.json:
        options.json.write_text(json.dumps(rows, indent=1) + "\n")
    raise SystemExit(0 if all(row["suite"] for row in rows) else 1)


def tried(name: str, mutation: Mapping[str, Any]) -> dict[str, Any]:
    """Return which suite notices one mutation, by which test, after how many seconds."""
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder) / "tree"
        subprocess.run(
            ["git", "worktree", "add", "--detach", "--quiet", str(tree)],
            cwd=ROOT,
            check=True,
        )
        try:
            path = tree / mutation["path"]
            path.write_text(path.read_text().replace(mutation["old"], mutation["new"]))
            suite, test = noticed(tree, mutation["near"])
        finally:
            subprocess.run(
                ["git", "worktree", "remove", "--force", str(tree)],
                cwd=ROOT,
                check=True,
            )
    seconds = round(time.perf_counter() - started)
    print(
        f"{name} ({mutation['kind']}, {mutation['path']}): {suite or 'NOT NOTICED'}, {test}, {seconds} s",
        flush=True,
    )
    return {"name": name, **mutation, "suite": suite, "test": test, "seconds": seconds}


def noticed(tree: Path, near: list[str]) -> tuple[str, str]:
    """Return the first suite that fails in `tree` and its first failing test; empty where none does."""
    for suite, marked in SUITES.items():
        for where in (near, []):
            if test := first_failure(tree, marked, where):
                return suite, test
    return "", ""


def first_failure(tree: Path, marked: str, where: list[str]) -> str:
    """Return the first test that fails, of those with these marks at these places (everywhere if there are none)."""
    workers = [] if where else ["-n", "auto", "--maxprocesses", "4"]
    command = [
        sys.executable,
        "-m",
        "pytest",
        "-x",
        "-m",
        marked,
        "--tb=no",
        "-rfE",
        *workers,
        *where,
    ]
    environment = {**os.environ, "PYTHONPATH": str(tree), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        command, cwd=tree, env=environment, capture_output=True, text=True, check=False
    )
    failures = re.findall(r"^(?:FAILED|ERROR) (\S+)", done.stdout, flags=re.MULTILINE)
    if done.returncode in (0, 5):  # 5: no test has these marks
        return ""
    return failures[0] if failures else f"pytest ended with {done.returncode}"


if __name__ == "__main__":
    main()
