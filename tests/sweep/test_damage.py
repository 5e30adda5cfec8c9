"""What happens to files while nobody watches, or during a run: found, named, measured again, never passed over."""

import json
import os
import shutil
import threading
import time

import pytest

from hessfig import files
from hessfig.analysis.manifest import read_run
from hessfig.cli.experiment import run_verb
from hessfig.errors import UserError
from hessfig.files import remove_leftovers, write_together
from hessfig.register import REGISTER
from hessfig.sweep import launchers, runner
from hessfig.sweep.plan import Sweep
from hessfig.sweep.preview import summarise
from hessfig.sweep.runner import run_sweep
from hessfig.sweep.store import CellStore, CorruptCell
from tests.runs import rows
from tests.toys import toy_config

pytestmark = pytest.mark.usefixtures("workers")
CELLS = 8  # two sigmas, two repeats, two quantities
BOTH = ["frobenius", "hessian"]


def run(folder):
    return run_sweep(Sweep([("", toy_config(folder, quantities=BOTH))]))


@pytest.fixture(scope="module")
def reference(tmp_path_factory, workers):
    """The folder of one finished sweep of norms and whole Hessians."""
    folder = tmp_path_factory.mktemp("reference")
    assert run(folder).measured == CELLS
    return folder


@pytest.fixture
def copied(reference, tmp_path):
    """A copy of it, to be damaged."""
    shutil.copytree(reference, tmp_path / "copy")
    return tmp_path / "copy"


def found(folder, ending):
    return sorted(folder.glob(f"sigma/cells/*/*.{ending}"))


def _directory(path):
    path.unlink()
    path.mkdir()
    (path / "mine").write_text("kept")


def _loop(path):
    path.unlink()
    path.symlink_to(path.name)


def _flipped(path):
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 4
    path.write_bytes(bytes(content))


DAMAGES = {
    "a directory": _directory,
    "a loop of links": _loop,
    "deep": lambda path: path.write_text("[" * 200_000),
    "empty": lambda path: path.write_bytes(b""),
    "cut": lambda path: path.write_bytes(path.read_bytes()[:-30]),
    "a flipped bit": _flipped,
    "another's": lambda path: shutil.copyfile(
        next(p for p in path.parents[1].rglob("*" + path.suffix) if p != path), path
    ),
    "no text": lambda path: path.write_bytes(b"\xff\xfe"),
}


EVERY = list(DAMAGES)
FIRST = list(DAMAGES)[:4]
SECOND = list(DAMAGES)[4:]


@pytest.mark.parametrize(
    ("ending", "damages"), [("json", EVERY), ("npz", FIRST), ("npz", SECOND)]
)
def test_damaged_files_are_named_and_their_cells_measured_again(
    copied, reference, ending, damages, capfd
):
    paths = found(copied, ending)[: len(damages)]
    for path, damage in zip(paths, damages, strict=True):
        DAMAGES[damage](path)
    summary = run(copied)
    said = capfd.readouterr().err
    assert (summary.measured, summary.failed, summary.missing) == (len(damages), 0, 0)
    assert [path for path in paths if path.name not in said] == []
    assert all(path.is_file() and not path.is_symlink() for path in paths)
    assert rows(copied / "sigma/table.csv") == rows(reference / "sigma/table.csv")
    kept = [place.read_text() for place in copied.rglob("mine")]
    assert kept == ["kept"] * damages.count("a directory")


@pytest.mark.parametrize("text", ['"abc"', "[3]", '[{"nonsense": 1}]', "null"])
def test_rows_that_are_none_are_found_out_whatever_their_checksum(copied, text):
    from hessfig.sweep.store import _checksum

    path = found(copied, "json")[0]
    payload = {"science": {}, "rows": json.loads(text), "arrays": None}
    path.write_text(
        json.dumps({"key": path.stem, "checksum": _checksum(payload), **payload})
    )
    with pytest.raises(CorruptCell, match="does not match its content"):
        CellStore(copied / "sigma/cells").read(path.stem)


def test_cells_that_vanish_during_a_run_are_missing_and_named(
    copied, monkeypatch, capfd
):
    """One is removed, one damaged, and one loses its arrays, after they were measured and before the table is made."""
    measure = runner.measure_cells
    arrays = found(copied, "npz")
    norms = [
        path for path in found(copied, "json") if path.with_suffix(".npz") not in arrays
    ]

    def then_damage(sweep, name, cells, launch):
        reporter = measure(sweep, name, cells, launch)
        if cells:
            norms[0].unlink()
            norms[1].write_text("{}")
            arrays[0].unlink()
        return reporter

    monkeypatch.setattr(runner, "measure_cells", then_damage)
    summary = run(copied)
    assert (summary.failed, summary.missing, summary.is_complete) == (0, 3, False)
    assert any(
        "3 of 8 cells are not in the table (n_layers=3, sigma=" in note
        for note in summary.notes
    )
    assert "3 cells are missing" in summarise(summary)
    manifest = json.loads((copied / "sigma/manifest.json").read_text())
    assert (manifest["missing_cells"], len(manifest["arrays"])) == (3, 3)
    monkeypatch.undo()
    assert (again := run(copied)).is_complete
    assert again.measured == 3


def test_a_short_table_is_exit_code_1(copied, monkeypatch):
    class Asked:
        first = config = toy_config(copied, quantities=BOTH)
        variants = [("", first)]  # noqa: RUF012
        words = ()
        own = None
        asked = ()

    monkeypatch.setattr(launchers, "title", lambda job: "a toy sweep")
    assert run_verb(Asked()) == 0
    write = CellStore.finished
    lost = found(copied, "json")[0].stem
    monkeypatch.setattr(Sweep, "unfinished", lambda self, cells: [])
    monkeypatch.setattr(
        CellStore,
        "finished",
        lambda self, key: None if key == lost else write(self, key),
    )
    assert run_verb(Asked()) == 1


def test_leftovers_of_killed_writers_are_swept_once_they_are_old(copied):
    cell = found(copied, "json")[0]
    names = (
        f".hessfig.{cell.name}.a1b2c3d4",
        f".hessfig.{cell.name}.e5f6a7b8",
        f".{cell.name}.a1b2c3d4",
    )
    old, new, own = (cell.with_name(name) for name in names)
    for path in (old, new, own, copied / "sigma/.hessfig.table.csv.abcd_f12"):
        path.write_text("half")
    for path in (old, own, copied / "sigma/.hessfig.table.csv.abcd_f12"):
        os.utime(path, (time.time() - 7200, time.time() - 7200))
    remove_leftovers(copied / "sigma")
    assert {path.name for path in copied.rglob(".*")} == {new.name, own.name, REGISTER}
    new.unlink()
    os.utime(cell, (0, 0))
    run(copied)
    assert cell.exists()


def test_files_that_belong_together_are_on_disk_before_the_first_appears(
    tmp_path, monkeypatch
):
    appear = files._appear
    seen = []

    def watched(temporary, path):
        seen.append(sorted(one.read_text() for one in tmp_path.iterdir()))
        appear(temporary, path)

    monkeypatch.setattr(files, "_appear", watched)
    write_together({tmp_path / "a": "A", tmp_path / "b": "B"})
    assert seen == [["A", "B"], ["A", "B"]]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]


def test_if_the_second_cannot_be_written_the_first_does_not_appear(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="cannot write"):
        write_together({tmp_path / "a": "A", tmp_path / "file/b": "B"})
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_reader_waits_out_the_moment_between_table_and_manifest(copied):
    folder = copied / "sigma"
    table, manifest = (
        (folder / name).read_text() for name in ("table.csv", "manifest.json")
    )
    shorter = "\n".join(table.splitlines()[:-1]) + "\n"
    (folder / "table.csv").write_text(shorter)
    threading.Timer(0.1, (folder / "table.csv").write_text, [table]).start()
    assert len(read_run(folder).table) == len(table.splitlines()) - 1
    (folder / "table.csv").write_text(shorter)
    with pytest.raises(UserError, match="a table from another config or run"):
        read_run(folder)
    assert (folder / "manifest.json").read_text() == manifest


def test_ages_are_told_by_the_clock_of_the_folder(copied, monkeypatch):
    """On a shared folder, files of other machines are dated by its server: a machine two hours ahead removes none."""
    path = found(copied, "json")[0]
    fresh = path.with_name(f".hessfig.{path.name}.abcdefgh")
    fresh.write_text("{")
    ahead = time.time() + 7200
    monkeypatch.setattr(time, "time", lambda: ahead)
    remove_leftovers(copied / "sigma")
    assert fresh.exists()
