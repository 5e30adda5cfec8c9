"""Bit flips and truncations of every kind of file that is read: refused or harmless, never a traceback, never silent.

A file of hessfig's own has a checksum: what is read from a damaged one is exactly what
was written, or nothing. A file of the user's has none, so a flipped digit is another
number; there it is only asked that nothing escapes.
"""

from collections.abc import Callable

import pytest

from hessfig.analysis.arrays import read_hessians
from hessfig.errors import UserError
from hessfig.sweep.store import CellStore, CorruptCell
from hessfig.theory import studies
from tests.attack.target import CSV, Answer

Call = Callable[..., Answer]
SLOPES = ("slopes", "sweep=sigma")
COMPARE = ("compare", "outputs/sigma", str(CSV))
TURNS = 80  # of a whole command
OWN = "# @package _global_\nsweep:\n  name: mine\n  vary: {model.n_heads: [1, 2]}\ngrid: {points: 3}\nblocks: [W_V]\n"


def damaged(path, dice, count):
    """Damage a file `count` times, once a turn: a flipped bit, or its end cut off; it is sound again afterwards."""
    whole = path.read_bytes()
    for turn in range(count):
        place = dice.randrange(len(whole))
        flipped = bytes([whole[place] ^ (1 << dice.randrange(8))])
        path.write_bytes(
            whole[:place]
            if turn % 8 == 0
            else whole[:place] + flipped + whole[place + 1 :]
        )
        yield f"{path.name}, byte {place}, turn {turn}"
    path.write_bytes(whole)


def test_cells(place, dice, ledger):
    store = CellStore(place / "outputs/sigma/cells")
    for path in sorted(store.folder.glob("*/*.json"))[:40]:
        sound = store.read(path.stem)
        for where in damaged(path, dice, 100):
            note(
                ledger,
                "cells (.json)",
                where,
                lambda key=path.stem: store.read(key),
                sound,
                CorruptCell,
            )
    assert not ledger.wrong("cells (.json)")


def test_arrays(place, dice, ledger):
    folder = place / "outputs/entries"
    sound = [hessian.matrix.tobytes() for hessian in read_hessians(folder)]
    for path in sorted(folder.glob("cells/*/*.npz")):
        for where in damaged(path, dice, 300):
            note(
                ledger,
                "arrays (.npz)",
                where,
                lambda: matrices(folder),
                sound,
                UserError,
            )
    assert not ledger.wrong("arrays (.npz)")


def matrices(folder):
    return [hessian.matrix.tobytes() for hessian in read_hessians(folder)]


def test_tables_of_studies(tmp_path, dice, ledger):
    studies.keep(tmp_path, {"a": "x,y\n1,2\n3,4\n", "b": "x\n" + "0.25\n" * 50})
    for path in sorted(tmp_path.glob("[!.]*")):
        for where in damaged(path, dice, 300):
            silent = (
                f"{where}: taken for whole"
                if studies.is_whole(tmp_path) and path.suffix == ".csv"
                else ""
            )
            ledger.note("tables of studies (.csv)", silent=silent)
    assert studies.is_whole(tmp_path)
    assert not ledger.wrong("tables of studies (.csv)")


@pytest.mark.parametrize("name", ["table.csv", "manifest.json", "slopes.csv"])
def test_what_a_run_left(place, call, dice, ledger, name):
    sound = call(*SLOPES)
    assert sound.code == 0, sound.err
    for where in damaged(place / "outputs/sigma" / name, dice, TURNS):
        answer = call(*SLOPES)
        differs = answer.code == 0 and answer.out != sound.out
        ledger.note(
            name,
            traceback=answer.traceback and f"{where}: {answer.traceback}",
            silent=where * differs,
        )
    assert not ledger.wrong(name)


@pytest.mark.parametrize(
    ("kind", "file", "words"),
    [
        ("table.csv without a manifest", "outputs/sigma/table.csv", SLOPES),
        ("reference CSV", CSV, COMPARE),
        (
            "YAML of the user's",
            "own/sweep/mine.yaml",
            ("run", "--config-dir=own", "sweep=mine", "dry_run=true"),
        ),
    ],
)
def test_files_of_the_users(place, call, dice, ledger, kind, file, words):
    if "manifest" in kind:
        (place / "outputs/sigma/manifest.json").unlink()
    (place / "own/sweep").mkdir(parents=True)
    (place / "own/sweep/mine.yaml").write_text(OWN)
    before = {path.name for path in place.iterdir()}
    assert call(*words).code == 0
    for where in damaged(place / file, dice, TURNS):
        answer = call(*words)
        ledger.note(kind, traceback=answer.traceback and f"{where}: {answer.traceback}")
    assert not ledger.wrong(kind)
    assert {path.name for path in place.iterdir()} == before


@pytest.mark.parametrize("form", ["safetensors", "pt"])
def test_weights(tmp_path, dice, ledger, form):
    import torch
    from safetensors.torch import save_file

    from hessfig.models.weight_files import read_weights

    path = tmp_path / f"weights.{form}"
    tensors = {"W": torch.ones(4, 4), "b": torch.zeros(4)}
    (save_file if form == "safetensors" else torch.save)(tensors, path)
    for where in damaged(path, dice, 300):
        note(
            ledger,
            f"weights (.{form})",
            where,
            lambda: read_weights(path),
            None,
            UserError,
        )
    assert not ledger.wrong(f"weights (.{form})")


def test_pictures(tmp_path, dice, ledger):
    import numpy as np

    from hessfig.tasks.digits import pictures

    path = tmp_path / "own.npz"
    images = np.random.default_rng(0).random((10, 8, 8))
    labels = np.arange(10)
    for save in (np.savez, np.savez_compressed):
        save(path, images=images, labels=labels)
        for where in damaged(path, dice, 1000):
            note(
                ledger,
                "pictures (.npz)",
                where,
                lambda: pictures(str(path)),
                None,
                UserError,
            )
    assert not ledger.wrong("pictures (.npz)")


def note(ledger, kind, where, read, sound, refusal):
    """Read a damaged file: a refusal is right, so is what was written (`sound`; None: anything)."""
    try:
        found = read()
    except refusal:
        ledger.note(kind)
    except BaseException as error:
        ledger.note(
            kind, traceback=f"{where}: {type(error).__name__}: {str(error)[:150]}"
        )
    else:
        ledger.note(kind, silent="" if sound is None or found == sound else where)
