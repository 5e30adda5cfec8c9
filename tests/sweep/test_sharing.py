"""Runs that share a folder share the work; processes that cannot be had are an error in words."""

import multiprocessing
import threading
from types import SimpleNamespace

import pytest

from hessfig.errors import UserError
from hessfig.measurements.quantity import Measured
from hessfig.sweep import measure as measuring
from hessfig.sweep import pool as pools
from hessfig.sweep.plan import Sweep
from hessfig.sweep.pool import Pool
from hessfig.sweep.store import CellStore
from tests.toys import toy_config


@pytest.fixture
def cells(tmp_path):
    """Eight cells of a toy sweep."""
    return Sweep([("", toy_config(tmp_path, seeds=4))]).cells


def test_a_cell_that_another_run_stored_meanwhile_was_met_and_is_kept(
    cells, tmp_path, monkeypatch
):
    store = CellStore(tmp_path)
    cell = cells[0]

    def slowly(cell):
        store.write(cell.key, cell.science, [{"value": 1.0}])  # the other run's
        return Measured([{"value": 2.0}])

    monkeypatch.setattr(measuring, "compute_cell", slowly)
    assert pools.measure_cell(cell, store) == ("raced", "")
    assert store.read(cell.key) == [{"value": 1.0}]
    assert pools.measure_cell(cell, store) == ("reused", "")


def test_a_run_that_meets_another_goes_on_elsewhere(cells, tmp_path, monkeypatch):
    """Without a meeting, cells come in the order of the plan, so that an early stop leaves whole curves."""
    monkeypatch.setattr(
        pools.random,
        "SystemRandom",
        lambda: SimpleNamespace(randrange=lambda size: size // 2),
    )
    assert _order(cells, CellStore(tmp_path), "measured") == [0, 1, 2, 3, 4, 5, 6, 7]
    assert _order(cells, CellStore(tmp_path), "raced", "measured") == [
        0,
        4,
        5,
        6,
        7,
        1,
        2,
        3,
    ]


def _order(cells, store, *answers):
    """Return in which order one worker is given the cells; it answers in turn, the last answer for ever."""
    ours, theirs = multiprocessing.Pipe()
    pool = Pool(0, store)
    given = []
    pool._workers = [pools._Worker(SimpleNamespace(), ours, 0)]
    keys = [cell.key for cell in cells]

    def answer(pipe):
        for turn in range(len(cells)):
            given.append(keys.index(pipe.recv().key))
            pipe.send((answers[min(turn, len(answers) - 1)], "", 0))

    thread = threading.Thread(target=answer, args=(theirs,))
    thread.start()
    assert len(list(pool.run(cells))) == len(cells)
    thread.join()
    return given


@pytest.mark.parametrize(
    "error", [EOFError(), BlockingIOError(11, "Resource temporarily unavailable")]
)
def test_processes_that_cannot_be_had_are_named(monkeypatch, error):
    """A server of processes that is killed while it starts ends the pipe; a full process table refuses."""
    tried = []

    def fails(self):
        tried.append(self)
        raise error

    monkeypatch.setattr(multiprocessing.context.ForkServerProcess, "start", fails)
    with pytest.raises(UserError, match="no worker process can be started") as caught:
        pools.start_process(print)
    assert len(tried) == 3
    assert type(error).__name__ in str(caught.value.got)
    assert "finished cells are kept" in caught.value.remedy


def test_the_environment_of_a_server_is_not_the_callers(monkeypatch):
    import os

    seen = dict[str, str]()
    server = SimpleNamespace(ensure_running=lambda: seen.update(os.environ))
    monkeypatch.setattr(pools, "_server", lambda pid: server)
    monkeypatch.setenv("PYTHONPATH", "mine")
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    pools.warm()
    assert seen["PYTHONSAFEPATH"] == seen["OMP_NUM_THREADS"] == "1"
    assert seen["PYTHONPATH"].endswith("mine")
    assert dict(os.environ) == before
