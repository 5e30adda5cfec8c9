"""The seed of the attack, the toy results it damages, and the summary it prints."""

from __future__ import annotations

import os
import random
import shutil

import pytest

from tests.attack import target
from tests.attack.ledger import LEDGER

SEED = int(os.environ.get("ATTACK_SEED", "0"))


def pytest_collection_modifyitems(items):
    """Everything in this folder is slow."""
    for item in items:
        if "attack" in item.path.parts:
            item.add_marker(pytest.mark.slow)
            item.add_marker(pytest.mark.timeout(600))


def pytest_terminal_summary(terminalreporter):
    """Print the counts."""
    if LEDGER.tried:
        terminalreporter.section(f"attack (ATTACK_SEED={SEED})")
        for line in LEDGER.lines():
            terminalreporter.write_line(line)


@pytest.fixture
def ledger():
    """The counts of the whole session."""
    return LEDGER


@pytest.fixture
def dice(request):
    """The test's own stream of random numbers, the same for the same ATTACK_SEED."""
    return random.Random(f"{SEED} {request.node.name}")


@pytest.fixture(scope="session")
def pristine(tmp_path_factory):
    """Results of the toy sweeps, made once; nobody writes here."""
    folder = tmp_path_factory.mktemp("pristine")
    for words in (target.SIGMA, target.ENTRIES):
        done = target.command("run", *words, folder=folder)
        assert done.returncode == 0, done.stderr
    target.write_references(folder)
    return folder


@pytest.fixture
def place(pristine, tmp_path, monkeypatch):
    """A copy of the results that a test may damage, and the current directory."""
    copy = tmp_path / "place"
    shutil.copytree(pristine, copy)
    monkeypatch.chdir(copy)
    return copy


@pytest.fixture
def call(monkeypatch, capfd):
    """Call the command line in this process; whatever escapes it is a traceback."""
    monkeypatch.setattr("sys.argv", ["hessfig"])
    yield lambda *words: target.called(words, capfd)
