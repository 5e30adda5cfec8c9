"""Interrupted, killed and finished later: the table is the one of an undisturbed run, bit for bit."""

from concurrent.futures import ThreadPoolExecutor

import pytest

from hessfig.sweep.store import CellStore
from tests.runs import CELLS, TOY, cell_files, hessfig, killed_anywhere, rows

pytestmark = pytest.mark.long


def test_an_interrupted_and_killed_run_ends_in_the_same_table(undisturbed, disturbed):
    """The undisturbed run has one worker; the last of the disturbed ones has two."""
    folder, _ = disturbed
    expected, found = (
        rows(f / "outputs/sigma/table.csv") for f in (undisturbed, folder)
    )
    assert len(expected) == CELLS * 6
    assert found == expected


def test_an_interrupt_has_its_own_exit_code(disturbed):
    assert disturbed[1] == 130


def test_every_cell_is_there_and_nothing_is_half_written(disturbed):
    """The interrupted run had more seeds than the toy sweep; whatever it finished must be sound too."""
    folder, _ = disturbed
    status = hessfig("status", *TOY, folder=folder)
    assert f"{CELLS} done, 0 to do" in status.stdout
    assert "nothing to do" in status.stdout.splitlines()
    store = CellStore(folder / "outputs/sigma/cells")
    assert all(len(store.read(path.stem) or []) == 6 for path in cell_files(folder))


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_twenty_kills_anywhere_in_its_life(undisturbed, tmp_path):
    killed_anywhere(tmp_path, kills=20, longest=14.0, seed=2)
    finished = hessfig("run", *TOY, "workers=2", "force_workers=true", folder=tmp_path)
    assert finished.returncode == 0, finished.stderr
    assert rows(tmp_path / "outputs/sigma/table.csv") == rows(
        undisturbed / "outputs/sigma/table.csv"
    )


@pytest.mark.slow
def test_two_commands_at_once_share_one_folder(undisturbed, tmp_path):
    with ThreadPoolExecutor(2) as executor:
        both = [
            executor.submit(hessfig, "run", *TOY, "workers=1", folder=tmp_path)
            for _ in range(2)
        ]
    assert [run.result().returncode for run in both] == [0, 0]
    assert rows(tmp_path / "outputs/sigma/table.csv") == rows(
        undisturbed / "outputs/sigma/table.csv"
    )
