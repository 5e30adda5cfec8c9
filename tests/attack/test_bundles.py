"""Bundles that were edited or damaged at random: none is reproduced, none ends in a traceback, none runs code."""

from __future__ import annotations

import random
import shutil
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.attack.ledger import Ledger
from tests.attack.target import Answer, command
from tests.attack.test_damage import damaged
from tests.forging import Rows, edited, with_sums

Call = Callable[..., Answer]
FORGED, DAMAGED, SUMS = "forged bundles", "damaged archives", "damaged sums and manifests of bundles"
AGAIN = ("reproduce", "sigma", "output_dir=again")
# What a cell of a table may be edited to, by column; of numbers, what they are multiplied by.
EDITS: dict[str, list[str | float]] = {
    "value": [1.3, 1 + 1e-6, 0.0, -1.0, 1e6],
    "error": [3.0, 100.0, 0.5, 0.0, ""],
    "num_probes": ["2", "400", "0"],
    "estimator": ["dense", "exact", "xtrace", ""],
    "dtype": ["float32", ""],
    "status": ["not_converged", "nonfinite"],
    "seed": ["77"],
    "sigma": [1.5],
    "part": ["H_f", ""],
}


@pytest.fixture
def packed(place: Path) -> Path:
    """The archive of the toy sweep, unpacked without its figures; and the same numbers measured again."""
    for words in (("bundle", "outputs/sigma"), ("reproduce", "sigma.zip", "output_dir=again")):
        done = command(*words, folder=place)
        assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(place / "sigma.zip") as archive:
        archive.extractall(place / "whole")
    shutil.rmtree(place / "whole/sigma/figures")
    return with_sums(place / "whole/sigma")


def at_random(dice: random.Random) -> Callable[[Rows], Rows]:
    """Return an edit of some rows: cells of one to three columns, or rows left out."""
    columns = dice.sample(list(EDITS), dice.choice([1, 1, 2, 3]))
    share, drops = dice.choice([0.02, 0.3, 1.0]), dice.random() < 0.2

    def changed(rows: Rows) -> Rows:
        chosen = {k for k, row in enumerate(rows) if row["status"] == "ok" and dice.random() < share} or {0}
        if drops:
            return [row for k, row in enumerate(rows) if k not in chosen] or rows[:1]
        return [_changed(row, columns, dice) if k in chosen else row for k, row in enumerate(rows)]

    return changed


def _changed(row: dict[str, str], columns: list[str], dice: random.Random) -> dict[str, str]:
    found = {}
    for column in columns:
        to = dice.choice(EDITS[column])
        found[column] = to if isinstance(to, str) else repr(to * float(row[column] or 0))
    return {**row, **found}


def test_forgeries(packed: Path, place: Path, call: Call, dice: random.Random, ledger: Ledger) -> None:
    for turn in range(120):
        folder = Path(shutil.copytree(packed, place / "sigma"))
        before = (folder / "table.csv").read_bytes()
        edited(folder, at_random(dice))
        is_other = (folder / "table.csv").read_bytes() != before
        answer = call(*AGAIN)
        silent = is_other and (answer.code == 0 or "\nreproduced" in answer.out)
        odd = answer.traceback if answer.code not in (0, 1, 2) else ""
        ledger.note(FORGED, traceback=odd, silent=f"turn {turn}: {answer.out[-300:]}" * silent)
        shutil.rmtree(folder)
    assert not ledger.wrong(FORGED)


def test_archives(packed: Path, place: Path, call: Call, dice: random.Random, ledger: Ledger) -> None:
    words = ("reproduce", "sigma.zip", "beside=again/sigma")
    sound = call(*words)
    assert sound.code == 0, sound.err
    for where in damaged(place / "sigma.zip", dice, 150):
        answer = call(*words)
        differs = answer.code == 0 and answer.out != sound.out
        ledger.note(DAMAGED, traceback=answer.traceback and f"{where}: {answer.traceback}", silent=where * differs)
    assert not ledger.wrong(DAMAGED)


def test_sums(packed: Path, place: Path, call: Call, dice: random.Random, ledger: Ledger) -> None:
    words = ("reproduce", str(packed), "beside=again/sigma")
    assert call(*words).code == 0
    for name in ("SHA256SUMS", "manifest.json", "table.csv", "README.md"):
        for where in damaged(packed / name, dice, 40):
            answer = call(*words)
            ledger.note(SUMS, traceback=answer.traceback, silent=where * (answer.code != 2))
    assert not ledger.wrong(SUMS)
