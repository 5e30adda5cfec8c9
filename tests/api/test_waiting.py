"""The bar of hessfig.measure: on a terminal and in a notebook after two seconds, nothing elsewhere, before or after."""

import os
import pty
import re
import subprocess
import sys
import time

import pytest
import torch

import hessfig
from hessfig.api import waiting
from hessfig.sweep import progress

PROGRAM = """
import time
import torch
import hessfig
from hessfig.api import waiting

waiting.PATIENCE = {patience}


class Slow(torch.nn.Tanh):
    def forward(self, x):
        time.sleep({pause})
        return super().forward(x)


network = torch.nn.Sequential(torch.nn.Linear(3, 2), Slow(), torch.nn.Linear(2, 2))
problem = hessfig.Problem(network, torch.eye(3), torch.tensor([0, 1, 0]))
table = hessfig.measure(problem, quantities=["frobenius", "trace"], parts="H", estimator="hutchinson", num_probes=2)
print("rows:", len(table))
"""


def on_a_terminal(program):
    """Return what a program prints on a terminal of its own."""
    mine, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    process = subprocess.Popen(
        [sys.executable, "-W", "ignore", "-c", program],
        stdout=theirs,
        stderr=theirs,
        env=environment,
    )
    os.close(theirs)
    printed = b""
    while True:
        try:
            piece = os.read(mine, 4096)
        except OSError:  # the other end is closed
            break
        if not piece:
            break
        printed += piece
    os.close(mine)
    assert process.wait() == 0, printed.decode()
    return printed.decode()


@pytest.mark.long
def test_a_terminal_shows_what_is_measured_and_is_left_clean():
    slow, fast = (
        on_a_terminal(PROGRAM.format(patience=0.05, pause=pause))
        for pause in (0.1, 0.0)
    )
    assert "checking the function" in slow
    assert re.search(r"\d/8", slow)  # four weights, two quantities
    assert re.search(r"frobenius of \S+@?\S*", slow)
    assert "trace of" in slow
    assert slow.rstrip().endswith("rows: 8")
    never = on_a_terminal(PROGRAM.format(patience=600.0, pause=0.0))
    assert never.split() == ["rows:", "8"]
    assert "rows: 8" in fast


def test_nothing_is_printed_elsewhere(capfd, monkeypatch):
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    hessfig.measure(problem())
    time.sleep(0.05)
    assert capfd.readouterr() == ("", "")


class Notebook:
    """Stands for IPython and the handle of what it shows."""

    def __init__(self):
        self.shown = []

    def display(self, form, **_):
        self.shown.append(form["text/plain"])
        return self

    def update(self, form, **_):
        self.shown.append(form["text/plain"])


def test_a_notebook_shows_columns(monkeypatch):
    notebook = Notebook()
    monkeypatch.setitem(sys.modules, "IPython", notebook)
    monkeypatch.setitem(sys.modules, "IPython.display", notebook)
    monkeypatch.setattr(progress, "in_notebook", lambda: True)
    monkeypatch.setattr(progress, "REDRAWN", 0.0)
    monkeypatch.setattr(waiting, "PATIENCE", 0.0)
    hessfig.measure(
        problem(pause=0.02), quantities=["trace"], parts="H", estimator="hutchinson"
    )
    assert notebook.shown[0] == "measure: checking the function"
    assert "measure: 3 of 4 columns, trace of 2.bias" in notebook.shown
    # The bar would say "3 of 4" when all four are measured.
    assert notebook.shown[-1] == ""


def test_an_interruption_says_what_is_kept(monkeypatch):
    def stopped(*_):
        raise KeyboardInterrupt

    given = problem()
    monkeypatch.setattr(hessfig.Problem, "_checked", stopped)
    with pytest.raises(KeyboardInterrupt) as caught:
        hessfig.measure(given)
    assert caught.value.__notes__ == [waiting.LOST]


class Slow(torch.nn.Tanh):
    def __init__(self, pause):
        super().__init__()
        self.pause = pause

    def forward(self, x):
        time.sleep(self.pause)
        return super().forward(x)


def problem(pause=0.0):
    torch.manual_seed(0)
    network = torch.nn.Sequential(
        torch.nn.Linear(3, 2), Slow(pause), torch.nn.Linear(2, 2)
    )
    return hessfig.Problem(network, torch.eye(3), torch.tensor([0, 1, 0]))
