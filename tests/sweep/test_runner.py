"""Sweeps in worker processes: what is reused, what is measured again, and what becomes of failures."""

import csv
import json
import multiprocessing
import os
import re
import shutil
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

import hessfig
from hessfig.analysis.manifest import read_run
from hessfig.config.enums import Kind, Method
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, GridConfig, ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.record import COLUMNS
from hessfig.register import publish
from hessfig.sweep import preview
from hessfig.sweep.plan import Sweep
from hessfig.sweep.preview import WORKER_START, describe_plan, reasons, summarise
from hessfig.sweep.runner import Summary, run_sweep, worker_count
from hessfig.sweep.store import CellStore, Failures
from tests.runs import rows
from tests.toys import toy_config

pytestmark = pytest.mark.usefixtures("workers")
CELLS = 4


def run(folder, **settings):
    return run_sweep(Sweep([("", toy_config(folder, **settings))]))


def table(folder):
    return rows(folder / "sigma/table.csv")


@pytest.fixture(scope="module")
def reference(tmp_path_factory, workers):
    """The folder of one finished sweep of two sigmas and two repeats, three layers each."""
    folder = tmp_path_factory.mktemp("reference")
    summary = run(folder)
    assert (summary.measured, summary.reused, summary.failed) == (CELLS, 0, 0)
    return folder


@pytest.fixture
def copied(reference, tmp_path):
    """A copy of the finished sweep, to be damaged."""
    shutil.copytree(reference, tmp_path / "copy")
    return tmp_path / "copy"


def cell_files(folder):
    return sorted(folder.glob("sigma/cells/*/*.json"))


def test_the_table_is_tidy_and_complete(reference):
    with (reference / "sigma/table.csv").open() as handle:
        assert next(csv.reader(handle)) == COLUMNS
    found = table(reference)
    assert len(found) == CELLS * 3 * 3
    assert {row["num_probes"] for row in found} == {"20"}
    assert {row["status"] for row in found if row["part"] == "H_f"} == {
        "structural_zero"
    }
    assert {row["sigma"] for row in found} == {"0.01", "10.0"}


def test_the_manifest_says_what_was_run_and_names_nobody(reference):
    text = (reference / "sigma/manifest.json").read_text()
    manifest = json.loads(text)
    assert manifest["cells"] == {"measured": CELLS, "reused": 0, "failed": 0}
    assert manifest["config"]["model"]["d_model"] == 4
    assert manifest["versions"]["torch"]
    for key in (
        "hessfig",
        "git_commit",
        "python",
        "platform",
        "threads_per_worker",
        "start",
        "end",
        "device",
    ):
        assert key in manifest
    for private in (os.uname().nodename, str(reference), str(Path.home())):
        assert private not in text


def test_a_second_run_measures_nothing(copied):
    before = (copied / "sigma/table.csv").read_bytes()
    summary = run(copied)
    assert (summary.measured, summary.reused) == (0, CELLS)
    assert (copied / "sigma/table.csv").read_bytes() == before


def test_what_another_version_wrote_is_read_and_reused(copied, monkeypatch):
    monkeypatch.setattr(hessfig, "__version__", "0.1.0")
    run(copied)
    assert (
        json.loads((copied / "sigma/manifest.json").read_text())["hessfig"] == "0.1.0"
    )
    monkeypatch.undo()
    before = (copied / "sigma/table.csv").read_bytes()
    assert len(read_run(copied / "sigma").table) == CELLS * 3 * 3
    summary = run(copied)
    assert (summary.measured, summary.reused) == (0, CELLS)
    assert (copied / "sigma/table.csv").read_bytes() == before


def test_a_larger_run_measures_what_is_new_and_keeps_the_rest(copied, reference):
    summary = run(copied, seeds=3, grid=GridConfig(points=3))
    assert (summary.measured, summary.reused) == (9 - CELLS, CELLS)
    kept = [
        row
        for row in table(copied)
        if row["sigma"] != "0.316227766017" and row["seed"] != "1236"
    ]
    assert kept == table(reference)


def test_the_number_of_workers_changes_no_bit(reference, tmp_path):
    run(tmp_path, workers=2)
    assert table(tmp_path) == table(reference)


def test_a_damaged_cell_never_reaches_the_table(copied):
    """`status` and a plan that shares the cell only read: they count it as not measured."""
    path = cell_files(copied)[0]
    path.write_text(path.read_text()[:-20])
    assert f"{CELLS - 1} done, 1 to do" in describe_plan(
        Sweep([("", toy_config(copied))])
    )


def test_a_failing_cell_is_reported_and_the_others_are_kept(tmp_path, capfd):
    impossible = toy_config(
        tmp_path, model=ModelConfig(kind=Kind.self_attention), blocks=["W_V"]
    )
    summary = run_sweep(
        Sweep([("sound", toy_config(tmp_path)), ("impossible", impossible)])
    )
    assert (summary.measured, summary.failed) == (CELLS, CELLS)
    errors = capfd.readouterr().err
    assert errors.count("failed: impossible, n_layers=1, sigma=") == 1
    assert (
        f"failed: {CELLS - 1} more cells of sigma the same way: RuntimeError" in errors
    )
    assert summary.missing == CELLS
    assert not summary.is_complete
    assert {row["variant"] for row in table(tmp_path)} == {"sound"}


def slow_config(folder):
    """Return three cells of about half a second each."""
    return Config(
        model=ModelConfig(d_model=64),
        task=TaskConfig(digits=3, batch_size=64),
        estimator=EstimatorConfig(Method.hutchinson, num_probes=60),
        grid=GridConfig(points=3),
        seeds=1,
        workers=1,
        output_dir=str(folder),
    )


@pytest.mark.long
def test_a_killed_worker_fails_its_cell_only(tmp_path, capfd):
    killer = threading.Thread(target=_kill_a_worker, args=(tmp_path,))
    killer.start()
    summary = run_sweep(Sweep([("", slow_config(tmp_path))]))
    killer.join()
    assert (summary.measured, summary.failed) == (2, 1)
    assert (
        "its worker process died (SIGKILL, perhaps out of memory)"
        in capfd.readouterr().err
    )
    assert len({row["sigma"] for row in table(tmp_path)}) == 2
    again = run_sweep(Sweep([("", slow_config(tmp_path))]))
    assert (again.measured, again.reused, again.failed) == (1, 2, 0)


def _kill_a_worker(folder):
    deadline = time.monotonic() + 60
    while not cell_files(folder) and time.monotonic() < deadline:
        time.sleep(0.005)
    time.sleep(0.05)
    (worker,) = multiprocessing.active_children()
    os.kill(worker.pid or 0, signal.SIGKILL)


def test_two_runs_at_once_share_one_folder(tmp_path, reference):
    with ThreadPoolExecutor(2) as executor:
        both = [executor.submit(run, tmp_path) for _ in range(2)]
    summaries = [future.result() for future in both]
    assert all(s.failed == 0 and s.measured + s.reused == CELLS for s in summaries)
    assert table(tmp_path) == table(reference)


@pytest.fixture
def tiny_disk(tmp_path):
    """A file system of a few pages; skipped where mounting is not allowed."""
    folder = tmp_path / "disk"
    folder.mkdir()
    mounted = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=24k", "tmpfs", folder],
        capture_output=True,
        check=False,
    )
    if mounted.returncode:
        pytest.skip(
            "this user may not mount a file system: the disk cannot be filled for real"
        )
    yield folder
    subprocess.run(["umount", "-l", folder], check=False)


def test_a_full_disk_stops_the_run_and_keeps_what_fits(tiny_disk):
    config = toy_config(tiny_disk, seeds=20)
    with pytest.raises(UserError, match="the disk is full"):
        run_sweep(Sweep([("", config)]))
    store = CellStore(tiny_disk / "sigma/cells")
    kept = cell_files(tiny_disk)
    assert kept
    assert all(store.read(path.stem) for path in kept)
    assert not (tiny_disk / "sigma/table.csv").exists()


@pytest.mark.parametrize("where", ["file", "file/below"])
def test_a_file_in_the_way_is_found_before_anything_runs(tmp_path, where):
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match="a file is in the way"):
        run(tmp_path / where)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_folder_without_permission_is_found_before_anything_runs(tmp_path):
    tmp_path.chmod(0o500)
    with pytest.raises(UserError, match="permission denied"):
        run(tmp_path)
    tmp_path.chmod(0o700)


def test_workers_are_never_more_than_cells():
    assert worker_count(Config(workers=8), 3) == 3
    assert worker_count(Config(workers=2), 3) == 2
    assert worker_count(Config(), 10_000) == len(os.sched_getaffinity(0))
    assert worker_count(Config(workers=0), 3) == worker_count(Config(), 0) == 0


def test_the_preview_counts_and_estimates(copied):
    lines = describe_plan(Sweep([("", toy_config(copied, seeds=3))])).splitlines()
    assert any(
        "6 (seeds x sigmas x variants): 4 done, 2 to do" in line for line in lines
    )
    assert any("from the cells done" in line for line in lines)
    fresh = describe_plan(Sweep([("", toy_config(copied / "fresh"))]))
    assert "time: not known before a cell is done" in fresh


def test_the_start_of_a_worker_counts_only_where_one_starts(copied):
    """Toy cells take milliseconds: what is left of the time is the start."""
    said = {}
    for workers in (0, 1):
        sweep = Sweep([("", toy_config(copied, seeds=3, workers=workers))])
        found = re.search(r"time: about ([\d.]+) s with", describe_plan(sweep))
        said[workers] = float(found[1])
    assert said[1] - said[0] == pytest.approx(WORKER_START, abs=0.1)
    assert said[0] < 1


@pytest.mark.parametrize(
    ("sizes", "said"),
    [
        (
            [10.9, 10.2],
            "about 10.2 GiB (width 10.2) to 10.9 GiB (width 10.9) per worker",
        ),
        ([0.31, 0.33], "about 0.3 GiB (width 0.31) per worker"),
        ([None], "not known for this network"),
    ],
)
def test_the_preview_says_what_the_smallest_and_the_largest_network_take(
    sizes, said, monkeypatch
):
    monkeypatch.setattr(preview, "expected_memory", lambda size: size and size * 2**30)
    monkeypatch.setattr(preview, "_network", lambda size: f"width {size}")
    (line,) = preview._memory_lines(sizes)
    assert said in line


@pytest.mark.parametrize(
    ("blocks", "said"),
    [
        (["W@2"], "; W@2; "),
        (["W@1", "W@3", "W_E"], "; W_E, W@1,3; "),
        (["W", ["W@1", "W@3"]], "; W, (W@1,W@3) of every layer; "),
        (["W"], "; W of every layer; "),
        (["W_E"], "; W_E; "),
    ],
)
def test_the_preview_names_layers_as_they_are(tmp_path, blocks, said):
    assert (
        said
        in describe_plan(
            Sweep([("", toy_config(tmp_path, blocks=blocks))])
        ).splitlines()[1]
    )


def test_the_preview_counts_one_as_one(tmp_path):
    config = toy_config(tmp_path, workers=1)
    said = describe_plan(
        Sweep([("", replace(config, grid=replace(config.grid, values=[0.5])))])
    )
    assert "n_layers=3: sigma 0.5; " in said
    assert said.count("with 1 worker\n") == 1


def test_the_closing_line_names_the_table(tmp_path):
    (tmp_path / "table.csv").touch()
    line = summarise(Summary(3, 2, 1, 12.3, 2**30, tmp_path / "table.csv"))
    counts = "3 cells measured, 2 reused, 1 failed"
    assert (
        line
        == f"{counts} in 12.3 s, at most 1.00 GiB per worker; table: {tmp_path}/table.csv"
    )


def test_a_run_without_a_finished_cell_leaves_no_table(tmp_path):
    impossible = toy_config(
        tmp_path, model=ModelConfig(kind=Kind.self_attention), blocks=["W_V"]
    )
    summary = run_sweep(Sweep([("", impossible)]))
    assert (summary.failed, summary.missing) == (CELLS, CELLS)
    assert not summary.table.exists()
    assert "no table: no cell is finished" in summarise(summary)


def test_a_run_without_a_finished_cell_keeps_the_table_there_was(copied):
    before = (copied / "sigma/table.csv").read_bytes()
    impossible = toy_config(
        copied, model=ModelConfig(kind=Kind.self_attention), blocks=["W_V"]
    )
    summary = run_sweep(Sweep([("", impossible)]))
    assert (copied / "sigma/table.csv").read_bytes() == before
    assert any("is left as it was" in note for note in summary.notes)


def test_what_was_derived_from_another_table_goes_with_it(copied):
    publish(
        {
            copied / "sigma" / name: "derived"
            for name in ("slopes.csv", "levels.csv", "trends.csv")
        },
        "fit",
    )
    (copied / "sigma/levels.csv").write_text("mine")
    assert run(copied).notes == []
    assert (copied / "sigma/slopes.csv").exists()
    note, kept = run(copied, seeds=3).notes
    assert "made with other settings and is replaced" in note
    assert "levels.csv is not as hessfig left it" in kept
    assert (copied / "sigma/levels.csv").read_text() == "mine"
    assert not list((copied / "sigma").glob("slopes.csv"))
    assert not list((copied / "sigma").glob("trends.csv"))


def test_one_quantity_more_measures_no_other_again(copied):
    before = table(copied)
    summary = run(copied, quantities=["frobenius", "trace"])
    assert (summary.measured, summary.reused) == (CELLS, CELLS)
    assert [row for row in table(copied) if row["quantity"] == "frobenius"] == before
    assert {row["quantity"] for row in table(copied)} == {"frobenius", "trace"}


def test_arrays_are_listed_with_what_they_are_of(tmp_path):
    model = ModelConfig(d_model=4, d_mlp=6)
    config = toy_config(
        tmp_path,
        model=model,
        quantities=["frobenius", "hessian"],
        blocks=["W_V"],
        seeds=1,
    )
    run_sweep(Sweep([("", config)]))
    listed = json.loads((tmp_path / "sigma/manifest.json").read_text())["arrays"]
    assert [(one["sigma"], one["seed"], one["quantity"]) for one in listed] == [
        (0.01, 1234, "hessian"),
        (10.0, 1234, "hessian"),
    ]
    assert all((tmp_path / "sigma" / one["file"]).is_file() for one in listed)


def test_status_says_why_cells_failed(tmp_path):
    variants = [("", toy_config(tmp_path))]
    cells = Sweep(variants).cells
    folder = tmp_path / "sigma/failures"
    folder.mkdir(parents=True)
    for number, cell in enumerate(cells[:3]):
        (folder / f"{cell.key}.txt").write_text(
            f"ValueError: {number}.5 is\n  no number"
        )
    (folder / f"{cells[3].key}.txt").write_bytes(b"its worker died\xff" + b"x" * 10**6)
    (folder / "of-another-plan.txt").write_text("nothing")
    said = describe_plan(Sweep(variants))
    assert "failed when last tried: 4 of these cells" in said
    assert f"  3 cells, such as {cells[0]}: ValueError: 0.5 is\n      no number" in said
    assert f"  1 cells, such as {cells[3]}: its worker died" in said
    assert len(said) < 3000
    for number, cell in enumerate(cells):
        (folder / f"{cell.key}.txt").write_text(f"cause {'abcdefgh'[number] * 3}")
    assert "failed" not in describe_plan(
        Sweep([("", toy_config(tmp_path, first_seed=50))])
    )
    assert len(reasons(Failures(folder), cells)) == len(cells)
