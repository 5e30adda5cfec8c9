"""The command from outside: what it imports, how it ends when it is stopped, and whom it prints to."""

import os
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hessfig.cli.main import _take_environment
from hessfig.config import machine
from hessfig.config.schema import Config
from hessfig.errors import UserError
from hessfig.sweep import pool
from tests.runs import COMMAND, TOY, here, hessfig

TRAP = "from pathlib import Path\nPath(__file__).with_suffix('.executed').touch()\nraise SystemExit('trap')\n"
FACTORY = """
import torch

def make(seed):
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2), torch.ones(4, 3), torch.zeros(4, 2), torch.nn.MSELoss()
"""
SMALL = [
    "sweep=mlp",
    "model.d_model=4",
    "model.n_layers=2",
    "task.digits=1",
    "task.batch_size=2",
    "grid.points=2",
    "estimator=exact",
    "seeds=1",
    "workers=1",
]
STOPPED = "interrupted: finished cells are kept; run the same command to go on\n"


@pytest.fixture
def trapped(tmp_path):
    """A folder whose modules have the names of the standard library's, and of hessfig itself."""
    for name in (
        "random.py",
        "sched.py",
        "queue.py",
        "torch.py",
        "hessfig/__init__.py",
    ):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(TRAP)
    return tmp_path


def executed(folder):
    return [path.name for path in folder.rglob("*.executed")]


@pytest.mark.long
def test_nothing_in_the_current_folder_is_imported(trapped):
    done = hessfig("run", *SMALL, folder=trapped)
    assert (done.returncode, executed(trapped)) == (0, []), done.stderr
    assert "2 cells measured" in done.stdout


@pytest.mark.slow
def test_nothing_in_the_current_folder_is_imported_but_the_factory(trapped):
    (trapped / "net.py").write_text(FACTORY)
    words = [
        "model=python",
        "task=python",
        "model.factory=net.py:make",
        "blocks=each",
        "seeds=1",
        "workers=1",
    ]
    done = hessfig("run", *words, "sweep.name=mine", folder=trapped)
    assert (done.returncode, executed(trapped)) == (0, []), done.stderr
    assert "1 cells measured" in done.stdout


@pytest.mark.long
def test_python_m_leaves_the_current_folder_too(trapped):
    (
        trapped / "hessfig/__init__.py"
    ).unlink()  # which python -m would take before anything of ours runs
    (trapped / "hessfig").rmdir()
    command = [sys.executable, "-m", "hessfig.cli.main", "status", *TOY]
    done = subprocess.run(
        command, cwd=trapped, capture_output=True, text=True, check=False
    )
    assert (done.returncode, executed(trapped)) == (0, []), done.stderr


def stopped(folder, number, *, delay, times=1):
    """Send a signal to the whole group after `delay` seconds; return exit code and what was said but how far it was."""
    run = subprocess.Popen(
        [COMMAND, "run", *TOY, "seeds=400"],
        cwd=folder,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    time.sleep(delay)
    for _ in range(times):
        os.killpg(run.pid, number)
        time.sleep(0.02)
    code = run.wait(timeout=30)
    said = run.communicate()[1]
    return code, "".join(
        line
        for line in said.splitlines(keepends=True)
        if not line.startswith("sigma: ")
    )


@pytest.mark.parametrize("delay", [1.0, 2.5])
@pytest.mark.long
def test_ctrl_c_twice_in_the_first_seconds_says_one_line(tmp_path, delay):
    """While the settings are composed, and while the workers import."""
    assert stopped(tmp_path, signal.SIGINT, delay=delay, times=2) == (130, STOPPED)


def test_sigterm_says_what_ctrl_c_says(tmp_path):
    assert stopped(tmp_path, signal.SIGTERM, delay=1.5) == (143, STOPPED)


def into(stdout, *words, folder):
    run = subprocess.Popen(
        [COMMAND, *words], cwd=folder, stdout=stdout, stderr=subprocess.PIPE, text=True
    )
    os.close(stdout)
    said = run.communicate(timeout=60)[1]
    return run.returncode, said


@pytest.mark.parametrize(
    "words", [("--help",), ("run", "--help"), ("run", "dry_run=true", "seeds=1")]
)
def test_a_reader_who_has_left_is_no_error(words, tmp_path):
    reader, writer = os.pipe()
    os.close(reader)
    assert into(writer, *words, folder=tmp_path) == (0, "")


CLOSED = """
import os, sys
from hessfig.cli.terminal import take_streams
take_streams()
print("said"), print("said", file=sys.stderr, flush=True), sys.stderr.isatty(), sys.stdin.isatty()
lowest = os.open("own", os.O_CREAT | os.O_WRONLY)
os.write(lowest, str(lowest).encode())
os.system("echo of a child; echo of a child >&2")
"""


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-"])
def test_what_the_shell_closed_leads_nowhere(closed, tmp_path):
    """Not into the next file that is opened, which would take its number; children find it open, too."""
    command = f'"$0" -c "$1" {closed}'
    done = subprocess.run(
        ["sh", "-c", command, sys.executable, CLOSED],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0
    assert "Traceback" not in done.stderr
    assert int((tmp_path / "own").read_text()) > 2
    for name, text in {">&-": done.stdout, "2>&-": done.stderr}.items():
        assert sorted(text.split()) == (
            [] if name in closed.split() else ["a", "child", "of", "said"]
        )


def test_figures_hear_nothing_of_the_environment(monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "evil")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "x")
    _take_environment()
    assert os.environ["MPLBACKEND"] == "agg"
    assert "SOURCE_DATE_EPOCH" not in os.environ


def test_a_matplotlibrc_that_cannot_be_read_is_named(tmp_path):
    (tmp_path / "matplotlibrc").write_bytes(b"font.size: \xff")
    program = "import hessfig.figures"
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "UserError: matplotlib cannot read its settings\n" in done.stderr


def test_limits_of_the_machine_are_named_before_a_worker_meets_them(monkeypatch):
    changed = []
    monkeypatch.setattr(
        machine.resource, "setrlimit", lambda _, limits: changed.append(limits)
    )
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (12, 12))
    with pytest.raises(
        UserError,
        match=r"open files(.|\n)*too low(.|\n)*at most 12(.|\n)*ulimit -n 1024",
    ):
        machine.check_machine(Config(workers=1))
    monkeypatch.setattr(machine.resource, "getrlimit", lambda _: (12, 4096))
    machine.check_machine(Config(workers=1))
    assert changed == [(36, 4096)]
    long = pool._unstarted(OSError("AF_UNIX path too long"))
    assert "TMPDIR" in str(long.got)
    assert long.remedy.startswith("TMPDIR=")


@pytest.mark.skipif(
    not Path("/dev/full").exists(), reason="no device that is always full"
)
def test_output_that_is_lost_is_an_error_in_words(tmp_path):
    code, said = into(os.open("/dev/full", os.O_WRONLY), "--help", folder=tmp_path)
    assert code == 2
    assert said.startswith(
        "error: the output cannot be written (No space left on device)\n  got:"
    )
    assert "Traceback" not in said
    assert "ignored" not in said


def test_a_deleted_current_folder_is_named(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    command = f"cd {shlex.quote(str(gone))} && rmdir ../gone && {shlex.quote(str(COMMAND))} status"
    done = subprocess.run(
        ["sh", "-c", command], capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: the current folder no longer exists\n")


ABSURD = {
    "seeds=1000000000": [
        "this sweep has 20000000000 cells",
        "seeds=1000000000",
        "at most 200000",
    ],
    "model.d_model=1000000": [
        "12000051000012 weights take 96.0 TB",
        "96000408000096 bytes",
    ],
    "task.batch_size=1000000000": [
        "a batch of 1000000000 sequences of 18 tokens",
        "bytes",
    ],
    "task.digits=1000000000": [
        "task.digits: a batch of 64 sequences of 3000000003 tokens",
        "bytes",
    ],
    "model.n_layers=100000000": ["model.n_layers is too large", "1 to 2000"],
    f"sweep.vary={{model.n_heads:[{','.join(map(str, range(1, 502)))}]}}": [
        "501 combinations",
        "at most 500",
    ],
    "blocks=[[W_V@*,W_Q@*]] model.n_layers=1000": ["1000000 blocks", "at most 20000"],
    "first_seed=99999999999999999999": [
        "no table can contain these seeds",
        "9007199254740992",
    ],
}
EQUAL = {
    "grid.values=[1,2,1.0]": ["grid.values: each is named once", "[1.0,2.0,1.0]"],
    "grid.low=1 grid.high=1.00000000000001": [
        "two values of sigma are equal, to 12 digits"
    ],
    "parts=[H,H]": ["each is named once", "[H,H]"],
    "quantities=[]": ["error: quantities is empty", "quantities=[frobenius,trace]"],
    "quantities=[trace,trace]": ["quantities: each is named once"],
    "model=": ["there is no model ''", "remedy:  for example model="],
    "sweep.vary={model.n_layers:[1,'+1']}": [
        "two variants are the same",
        "1 layers, twice",
    ],
}


@pytest.mark.parametrize(
    "verb", [("run",), ("run", "dry_run=true"), ("status",)], ids=" ".join
)
@pytest.mark.parametrize("words", [*ABSURD, *EQUAL])
@pytest.mark.long
def test_what_could_never_be_measured_or_read_is_refused_at_once(
    cli, words, verb, tmp_path, monkeypatch
):
    monkeypatch.setattr("hessfig.config.machine.memory", lambda: 64 * 10**9)
    start = time.process_time()
    answer = cli(*verb, *words.split())
    # Of the processor, the first imports included: other work does not count.
    assert time.process_time() - start < 10
    assert answer.code == 2
    for expected in {**ABSURD, **EQUAL}[words]:
        assert expected in answer.err, answer.err
    assert list(tmp_path.rglob("*")) == []


def test_workers_beyond_the_cores_are_for_those_who_insist(cli):
    many = machine.cores() + 1
    refused = cli("run", f"workers={many}", "dry_run=true")
    assert refused.code == 2
    assert f"remedy:  workers=auto, or force_workers=true workers={many}" in refused.err
    assert cli("run", f"workers={many}", "force_workers=true", "dry_run=true").code == 0


@pytest.mark.parametrize("verb", ["run", "status"])
@pytest.mark.parametrize("folder", ["/dev/null", "x" * 300, "/dev/null/x"])
def test_a_place_that_can_be_no_folder_is_found_first(cli, verb, folder):
    answer = cli(verb, f"output_dir={folder}", "blocks=[W_V]", "estimator=exact")
    assert answer.code == 2
    assert answer.err.startswith("error: cannot write (")
    assert answer.err.count("\n") == 4


@pytest.mark.parametrize("word", ["state.path", "model.factory"])
def test_a_name_that_is_too_long_is_no_file(cli, word):
    kinds = {
        "state.path": ["state=loaded"],
        "model.factory": ["model=python", "task=python"],
    }
    ending = {"state.path": "", "model.factory": ".py:make"}[word]
    answer = cli("status", *kinds[word], f"{word}={'x' * 300}{ending}")
    assert answer.code == 2
    assert f"{word}: there is no such file" in answer.err


def test_got_is_the_last_of_equal_keys(cli):
    assert (
        "got:     workers=2\n" in cli("slopes", "seeds=1", "workers=1", "workers=2").err
    )


@pytest.mark.long
def test_slice_measures_and_draws_one_network_at_once(tmp_path):
    asked = [
        "state=initialised",
        "state.step=null",
        "model.d_model=4",
        "task.digits=1",
        "task.batch_size=3",
    ]
    words = [
        *asked,
        "workers=1",
        "directions.along=[largest,gradient]",
        "directions.plane=[largest,random]",
    ]
    done = here("slice", *words, folder=tmp_path)
    assert done.returncode == 0, done.stderr
    table = (tmp_path / "outputs/slices/table.csv").read_text()
    assert all(f",{name}_ray_curvature," in table for name in ("largest", "gradient"))
    drawn = {
        path.suffix
        for path in (tmp_path / "outputs/figures").iterdir()
        if path.name.startswith("figslices")
    }
    assert {".png", ".pdf", ".csv"} <= drawn
    again = here("slice", *words, folder=tmp_path)
    assert again.returncode == 0
    assert "0 cells measured" in again.stdout


def test_slice_refuses_a_direction_that_there_is_not(tmp_path):
    done = here("slice", "directions.along=[largest,sideways]", folder=tmp_path)
    assert done.returncode == 2
    assert "sideways" in done.stderr
    assert "directions.along" in done.stderr
    assert not any(tmp_path.iterdir())
