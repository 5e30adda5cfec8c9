"""One thread, shapes checked at run time, and toy runs of the installed command that start beside the other tests."""

from __future__ import annotations

import os

# One thread, or as many as `make test-processors` asks for.
os.environ.update(
    dict.fromkeys(
        ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"),
        os.environ.get("HESSFIG_TEST_THREADS", "1"),
    )
)

import gc
import importlib
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import jaxtyping
import pytest

from tests import runs
from tests.checked import CHECKED, TYPECHECKER, begin, jaxtyped

warnings.filterwarnings("ignore", category=FutureWarning, module="torch.jit")
# A shell's background jobs start with SIGINT ignored, and so would their children:
# commands could not be stopped.
signal.signal(signal.SIGINT, signal.default_int_handler)
jaxtyping.jaxtyped = jaxtyped  # as the modules that the hook loads call it
jaxtyping.install_import_hook(CHECKED, TYPECHECKER)


class _LibrariesFirst(MetaPathFinder):
    """Finds nothing, but imports the large libraries before the first checked module asks for them.

    While the hook executes a module, whatever that imports is compiled anew instead of
    being read from its bytecode: fifteen seconds a process.
    """

    found = False

    def find_spec(self, name: str, path: object, target: object = None) -> None:
        if name in CHECKED and not self.found:
            self.found = True  # to leave the list of finders now would have Python skip the one behind this
            for library in (
                "beartype.door",
                "curvlinops",
                "transformer_lens.model_bridge.sources.native",
            ):
                importlib.import_module(library)


sys.meta_path.insert(0, _LibrariesFirst())

# Objects that are made before the young ones are collected; with 700, as usual, that took some 3 % of the time.
_YOUNG = 20_000
gc.disable()  # while modules are imported: a fifth of that time were collections that find nothing


def pytest_collection_finish() -> None:
    """Keep what was imported out of every later collection."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG)
    gc.enable()


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Have all calls checked in long tests, and a share of them in those of every day."""
    begin(is_thorough=item.get_closest_marker("long") is not None)


def pytest_unconfigure() -> None:
    """Let libraries find at their exit that nothing of theirs was left."""
    gc.unfreeze()


RUNS = {"undisturbed": runs.undisturbed, "disturbed": runs.disturbed}
Background = dict[str, Future[Any]]


@pytest.fixture(scope="session", autouse=True)
def background(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Background]:
    """Start what some test will wait for: the toy runs, one after the other, and the workers' slow imports."""
    wanted = {
        name
        for item in request.session.items
        for name in getattr(item, "fixturenames", ())
    }
    folder = _shared_folder(tmp_path_factory)
    folder.mkdir(exist_ok=True)
    if "workers" in wanted:
        from hessfig.sweep.pool import warm

        warm()
    with ThreadPoolExecutor(max_workers=1) as executor:
        started = {
            name: partial(executor.submit, runs.once, run, folder / name)
            for name, run in RUNS.items()
            if name in wanted
        }
        yield {name: start() for name, start in started.items()}


@pytest.fixture(scope="session")
def runs_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder that holds the folders of the toy runs."""
    return _shared_folder(tmp_path_factory)


@pytest.fixture(scope="session")
def undisturbed(background: Background, runs_folder: Path) -> Path:
    """The folder of a toy sweep run in one go."""
    finished: subprocess.CompletedProcess[str] = background["undisturbed"].result()
    assert finished.returncode == 0, finished.stderr
    return runs_folder / "undisturbed"


@pytest.fixture(scope="session")
def disturbed(background: Background, runs_folder: Path) -> tuple[Path, int]:
    """The folder of the same sweep, interrupted, killed and finished; the exit code of the interrupted run."""
    interrupted, finished = background["disturbed"].result()
    assert finished.returncode == 0, finished.stderr
    return runs_folder / "disturbed", interrupted


@pytest.fixture(scope="session")
def workers() -> None:
    """Worker processes of this process start at once: their imports began with the session."""


def _shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder that the processes of pytest-xdist share: each toy run is made by one of them."""
    base = tmp_path_factory.getbasetemp()
    return (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "toy_runs"


@dataclass(frozen=True)
class Answer:
    """What a call of the command line left behind."""

    code: object
    out: str
    err: str


Cli = Callable[..., Answer]


@pytest.fixture
def cli(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> Cli:
    """Call the command line in this process, in an empty folder."""
    from hessfig.cli.main import main

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["hessfig"])

    def call(*arguments: str) -> Answer:
        with pytest.raises(SystemExit) as exit:
            main(list(arguments))
        return Answer(exit.value.code, *capfd.readouterr())

    return call
