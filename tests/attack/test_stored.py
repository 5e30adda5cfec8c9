"""Stored Hessians belong to their settings: other runs, other grids and swapped files are never drawn for them."""

import shutil

from hessfig.analysis.arrays import read_hessians
from tests.attack.target import ENTRIES, command

KIND = "stored Hessians of other settings"


def drawn(folder):
    return [
        hessian.matrix.tobytes()
        for hessian in read_hessians(folder / "outputs/entries")
    ]


def run(folder, *words):
    done = command("run", *ENTRIES, *words, folder=folder)
    assert done.returncode == 0, done.stderr


def test_another_run_between(place, ledger):
    first = drawn(place)
    run(place, "task.seed=7")
    other = drawn(place)
    run(place)
    ledger.note(KIND, silent="" if drawn(place) == first != other else "task.seed=7")
    run(place, "grid.values=[2,10]")
    assert [hessian.sigma for hessian in read_hessians(place / "outputs/entries")] == [
        2.0,
        2.0,
    ]
    run(place)
    ledger.note(KIND, silent="" if drawn(place) == first else "grid.values=[2,10]")
    assert not ledger.wrong(KIND)


def test_swapped_files_are_refused_and_measured_again(place, ledger):
    sound = drawn(place)
    one, two = sorted((place / "outputs/entries/cells").glob("*/*.npz"))
    shutil.copy(one, place / "kept")
    shutil.copy(two, one)
    shutil.copy(place / "kept", two)
    done = command("plot", "figure=1", folder=place)
    refused = (
        done.returncode == 2
        and "swapped" in done.stderr
        and "hessfig run sweep=entries" in done.stderr
    )
    ledger.note(
        KIND,
        silent=""
        if refused
        else f"swapped files: exit {done.returncode}: {done.stderr[-200:]}",
    )
    run(place)
    assert drawn(place) == sound
    assert command("plot", "figure=1", folder=place).returncode == 0
    assert not ledger.wrong(KIND)
