"""What a run says where nobody watches: a start, a line now and then, one line a kind of failure, an end."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import pytest

from hessfig.sweep.pool import Outcome
from hessfig.sweep.progress import Reporter


def outcome(kind: Any, cause: str = "") -> Outcome:
    return Outcome(SimpleNamespace(), kind, cause)  # type: ignore[arg-type]


def test_a_piped_run_tells_how_it_goes(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter("toy", 10, 4, every=0.05) as reporter:
        for _ in range(3):
            reporter.show(outcome("measured"))
        time.sleep(0.2)
        for number in range(3):
            reporter.show(outcome("failed", f"ValueError: 0.{number}5 is no number"))
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "toy: starting workers; 6 of 10 cells to measure"
    assert any("7 of 10 cells, 4 reused, 0 failed" in line and line.endswith("left") for line in lines)
    assert sum("failed: namespace()" in line for line in lines) == 1
    assert "failed: 2 more cells of toy the same way: ValueError: 0.05 is no number" in lines
    assert lines[-1].startswith("toy: done: 10 of 10 cells, 4 reused, 3 failed")


def test_nothing_is_said_where_nothing_is_to_do(capsys: pytest.CaptureFixture[str]) -> None:
    with Reporter("toy", 4, 4, every=0.01):
        time.sleep(0.05)
    assert capsys.readouterr().err == ""
