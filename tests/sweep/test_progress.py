"""What a run says: lines where nobody watches, a bar in a notebook, one line a kind of failure."""

import sys
import time
from types import SimpleNamespace

import pytest

from hessfig.sweep.pool import CellOutcome
from hessfig.sweep.progress import Reporter


def outcome(kind, cause=""):
    return CellOutcome(SimpleNamespace(), kind, cause)


def test_a_piped_run_tells_how_it_goes(capsys):
    with Reporter("toy", 10, 4, every=0.05) as reporter:
        for _ in range(3):
            reporter.show(outcome("measured"))
        time.sleep(0.2)
        for number in range(3):
            reporter.show(outcome("failed", f"ValueError: 0.{number}5 is no number"))
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "toy: 6 of 10 cells to measure"
    assert any(
        "7 of 10 cells, 4 reused, 0 failed" in line and line.endswith("left")
        for line in lines
    )
    assert sum("failed: namespace()" in line for line in lines) == 1
    assert (
        "failed: 2 more cells of toy the same way: ValueError: 0.05 is no number"
        in lines
    )
    assert lines[-1].startswith("toy: done: 10 of 10 cells, 4 reused, 3 failed")


@pytest.fixture
def clock(monkeypatch):
    """Return the time that the reporter reads, in a list of one number to set."""
    now = [0.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    return now


def test_the_time_left_does_not_count_trainings_before_the_cells(capsys, clock):
    with Reporter("toy", 12, 0, every=0.02) as reporter:
        clock[0] = 1000.0
        reporter.show(outcome("trained", "trained to step 10"))
        clock[0] = 1010.0
        for _ in range(2):
            reporter.show(outcome("measured"))
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert (
        "toy: 2 of 12 cells, 0 reused, 0 failed, 0.20 cells/s, about 50 s left" in lines
    )


def test_the_time_left_is_that_of_measured_cells_where_trainings_failed_before(
    capsys, clock
):
    with Reporter("toy", 100, 0, every=0.02) as reporter:
        for _ in range(50):
            reporter.show(outcome("failed", "its training diverged"))
        reporter.show(outcome("trained", "trained to step 10"))
        clock[0] = 10.0
        reporter.show(outcome("measured"))
        time.sleep(0.1)
    lines = capsys.readouterr().err.splitlines()
    assert (
        "toy: 51 of 100 cells, 0 reused, 50 failed, 0.10 cells/s, about 8 min left"
        in lines
    )


def test_nothing_is_said_where_nothing_is_to_do(capsys):
    with Reporter("toy", 4, 4, every=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""


class Shown:
    """Stands for IPython and for the handle of what a notebook shows: keeps every state of it."""

    def __init__(self, monkeypatch):
        self.states = []
        shell = SimpleNamespace(get_ipython=lambda: SimpleNamespace(kernel="one"))
        monkeypatch.setitem(sys.modules, "IPython", shell)
        monkeypatch.setitem(
            sys.modules, "IPython.display", SimpleNamespace(display=self.display)
        )

    def display(self, form, *, raw, display_id):
        assert raw
        assert display_id
        self.states.append(form)
        return self

    def update(self, form, *, raw):
        assert raw, "nothing to update"
        assert self.states, "nothing to update"
        self.states.append(form)


def test_a_notebook_has_a_bar(capsys, monkeypatch):
    """It is redrawn in its place, at most a few times a second, and ends with what was done."""
    shown = Shown(monkeypatch)
    with Reporter("toy<1>", 100, 4) as reporter:
        for number in range(96):
            reporter.show(
                outcome(
                    "failed" if number == 90 else "measured",
                    "ValueError: no number" * (number == 90),
                )
            )
    first, *_, last = shown.states
    assert first["text/plain"] == "toy<1>: 4 of 100 cells, starting"
    assert (
        '<progress max="100" value="100"></progress> toy&lt;1&gt;: 100 of 100 cells, 4 reused'
        in last["text/html"]
    )
    assert "1 failed" in last["text/plain"]
    assert "left" not in last["text/plain"]
    assert len(shown.states) < 10
    assert capsys.readouterr().err.count("\n") == 1  # the failure


def test_a_notebooks_bar_says_what_is_left(monkeypatch):
    shown = Shown(monkeypatch)
    with Reporter("toy", 3, 0) as reporter:
        time.sleep(0.25)
        reporter.show(outcome("measured"))
    assert "1 of 3 cells" in shown.states[-1]["text/plain"]
    assert shown.states[-1]["text/plain"].endswith(" s left")


def test_a_notebook_shows_no_bar_of_no_cells(monkeypatch):
    shown = Shown(monkeypatch)
    with Reporter("toy: pilot", 0, 0):
        pass
    assert not shown.states
