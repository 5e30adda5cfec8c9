"""Closed streams, odd environments and limits, YAML and tables of any content."""

import os
import shlex
import subprocess
import time
from collections.abc import Callable

import pytest

from hessfig.analysis.manifest import read_run
from hessfig.errors import UserError
from tests.attack.target import SIGMA, Answer
from tests.runs import COMMAND, rows

Call = Callable[..., Answer]
CLOSED = ["2>&-", ">&-", "<&-", ">&- 2>&-", "<&- 2>&-", "<&- >&-", "<&- >&- 2>&-"]
# What cannot be written is an error.
LOST = [">/dev/full", "2>/dev/full", "1</dev/null"]
VERBS = """--help
run --help
run sweep=sigma dry_run=true
nope
status sweep=sigma
slopes sweep=sigma
check sweep=sigma
plot figure=3a
verify statement=thm31 seeds=1
report""".splitlines()
ENVIRONMENTS = """
COLUMNS=x
COLUMNS=-5
COLUMNS=0
COLUMNS=99999999999
LINES=x
TERM=evil
TERM=
NO_COLOR=1
FORCE_COLOR=1
LANG=C
LC_ALL=C
LC_ALL=evil
PYTHONIOENCODING=ascii
PYTHONUTF8=0
PYTHONWARNINGS=error
PYTHONWARNINGS=evil
PYTHONOPTIMIZE=2
HYDRA_FULL_ERROR=1
MPLBACKEND=evil
MPLBACKEND=
MPLCONFIGDIR=/dev/null/x
MPLCONFIGDIR=/proc/1
MATPLOTLIBRC=/nowhere
HOME=/nowhere
HOME=
SOURCE_DATE_EPOCH=x
SOURCE_DATE_EPOCH=-1
SOURCE_DATE_EPOCH=999999999999999999
TMPDIR=/nowhere
TMPDIR=/dev/null
OMP_NUM_THREADS=x
MKL_NUM_THREADS=-1
PWD=/nowhere
PATH=
""".strip().splitlines()


def shell(line, folder):
    """Run `hessfig LINE` by sh, as a user would type it; what it asks gets no answer."""
    command = f"{shlex.quote(str(COMMAND))} {line}"
    return subprocess.run(
        ["/bin/sh", "-c", command],
        cwd=folder,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def escaped(done):
    """Return what is wrong with how a command ended, if anything."""
    wrong = "Traceback" in done.stderr + done.stdout or done.returncode not in (0, 1, 2)
    return f"exit {done.returncode}: {done.stderr[-300:]}" if wrong else ""


@pytest.mark.parametrize("verb", VERBS)
def test_closed_streams(place, ledger, verb):
    kind = f"streams of {verb.split()[0]}"
    code = shell(verb, place).returncode
    for closed in [*CLOSED, *LOST]:
        done = shell(f"{verb} {closed}", place)
        other = (
            f"exit {done.returncode}"
            if closed in CLOSED and done.returncode != code
            else ""
        )
        ledger.note(
            kind,
            traceback=f"{closed}: {escaped(done)}" * bool(escaped(done)),
            silent=other,
        )
    assert not ledger.wrong(kind)


@pytest.mark.parametrize("closed", CLOSED)
def test_runs_with_closed_streams(pristine, tmp_path, ledger, closed):
    """Every cell is the same: nothing that is printed went into a file that was opened in a stream's place."""
    done = shell(f"run {shlex.join(SIGMA)} {closed}", tmp_path)
    table = tmp_path / "outputs/sigma/table.csv"
    same = table.exists() and rows(table) == rows(pristine / "outputs/sigma/table.csv")
    ledger.note("streams of run", traceback=escaped(done), silent=closed * (not same))
    assert not ledger.wrong("streams of run")


@pytest.mark.parametrize(
    "verb", ["status sweep=sigma", "slopes sweep=sigma", "plot figure=3a"]
)
def test_environments(place, ledger, verb):
    kind = f"environments of {verb.split()[0]}"
    figures = place / "outputs/figures"
    shell(verb, place)
    drawn = {
        path.name: path.read_bytes() for path in figures.glob("*.*") if path.is_file()
    }
    for setting in ENVIRONMENTS:
        done = subprocess.run(
            [COMMAND, *verb.split()],
            cwd=place,
            env={**os.environ, **dict([setting.split("=", 1)])},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        differs = {
            path.name: path.read_bytes()
            for path in figures.glob("*.*")
            if path.is_file()
        } != drawn
        failed = escaped(done) or f"exit {done.returncode}: {done.stderr[-200:]}" * (
            done.returncode != 0
        )
        ledger.note(
            kind, traceback=failed and f"{setting}: {failed}", silent=setting * differs
        )
    assert not ledger.wrong(kind)


@pytest.mark.parametrize(
    "limit",
    [
        "ulimit -n 6",
        "ulimit -n 9",
        "ulimit -n 12",
        "ulimit -n 14",
        "ulimit -S -n 12",
        "long",
    ],
)
def test_limits(tmp_path, ledger, limit):
    """A run is refused in words that help, or goes on; no worker's traceback comes first."""
    (tmp_path / ("x" * 160)).mkdir()
    before = f"export TMPDIR={tmp_path / ('x' * 160)}" if limit == "long" else limit
    line = f"{before}; {shlex.join([str(COMMAND), 'run', *SIGMA])}"
    done = subprocess.run(
        ["/bin/sh", "-c", line],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    helps = done.returncode == 0 or (
        "ulimit -n" in done.stderr or "TMPDIR=" in done.stderr.partition("remedy:")[2]
    )
    ledger.note(
        "limits",
        traceback=escaped(done) and f"{limit}: {escaped(done)}",
        unclear=f"{limit}: {done.stderr}" * (not helps),
    )
    assert not ledger.wrong("limits")


KEYS = (
    "sweep",
    "name",
    "about",
    "vary",
    "windows",
    "seeds",
    "blocks",
    "model",
    "defaults",
    "grid",
    "<<",
    "1",
    "x",
    "''",
)
VALUES = [
    *r"""
mine
1
-1
1e400
1_000
0x10
.nan
.inf
null
~
true
''
[]
{}
[[1]]
{a:1}
2001-01-01
&a
*a
${x}
${.name}
${oc.env:HOME}
???
!x
!!binary
!!set
!!python/object:os.system
[W_V,W_V]
a:b
'[31m'
"\e[31m"
"\0"
"\u202e"
{model.n_heads: [1, 2]}
a: b
!!binary aGk=
&a b
[/model: gpt2]
[override /model: x]
""".strip().splitlines(),
    "|\n  text",
    "9" * 5000,
    "[" * 300 + "]" * 300,
    "x" * 5000,
    "1" + ",1" * 500,
]


def page(dice, depth=0):
    """Return lines of YAML at random, sound ones more often than not."""
    lines = []
    for _ in range(dice.randrange(1, 5)):
        inner = depth < 3 and dice.random() < 0.4
        value = "\n" + page(dice, depth + 1) if inner else f" {dice.choice(VALUES)}"
        lines.append(
            f"{'  ' * depth}{dice.choice(KEYS)}:{value}"
            if dice.random() < 0.95
            else f"{'  ' * depth}- {value}"
        )
    return "\n".join(lines)


def test_pages_of_yaml(place, call, dice, ledger):
    (place / "own/sweep").mkdir(parents=True)
    for turn in range(400):
        head = dice.choice(
            [
                "# @package _global_\n",
                "# @package _global_\nsweep: {name: mine}\n",
                "",
                "---\n",
                "%YAML 1.1\n",
            ]
        )
        text = head + page(dice)
        (place / "own/sweep/mine.yaml").write_text(text)
        started = time.perf_counter()
        words = (
            ("run", "--help")
            if turn % 10 == 0
            else ("run", "sweep=mine", "dry_run=true")
        )
        answer = call(*words, "--config-dir=own")
        slow = "took long" * (time.perf_counter() - started > 20)
        steers = "steers" * bool(set(answer.out + answer.err) & set("\x1b\0\u202e"))
        wrong = answer.traceback or slow or steers
        ledger.note("pages of YAML", traceback=wrong and f"{wrong}: {text[:300]!r}")
    assert not ledger.wrong("pages of YAML")


CELLS = [
    "",
    "\0",
    '"',
    "a\x1b[31m",
    "9" * 400,
    "x" * 140_000,
    "\ufeff",
    "\u202e",
    "１",
    "../..",
    "${x}",
]
CELLS += [
    "nan",
    "-1",
    "1e400",
    "x",
    "1_0",
    "=1+1",
    "-0",
    "inf",
    "None",
    "1.5",
    "99999999999999999999",
]


def mangled(text, dice):
    """Return a table with an entry replaced, a row cut short, twice or too long, or its end cut off."""
    lines = [line.split(",") for line in text.splitlines()]
    row = dice.choice(lines)
    at = dice.randrange(len(row))
    kind = dice.randrange(8)
    if kind < 5:
        row[at] = dice.choice(CELLS)
    elif kind == 5:
        del row[at:]
    elif kind == 6:
        lines.append(row)
    else:
        row += ["x"] * dice.choice([1, 300])
    whole = "\n".join(map(",".join, lines)) + "\n"
    return whole[: dice.randrange(len(whole))] if dice.random() < 0.1 else whole


def test_tables_of_any_content(place, call, dice, ledger):
    """Without a manifest, so that no checksum stands before the rules of a row."""
    folder = place / "outputs/sigma"
    kind = "tables of any content"
    text = (folder / "table.csv").read_text()
    (folder / "manifest.json").unlink()
    for turn in range(400):
        (folder / "table.csv").write_text(mangled(text, dice), errors="surrogatepass")
        wrong = ""
        try:
            read_run(folder)
        except UserError as error:
            wrong = "steers" * bool(set(str(error)) & set("\x1b\0\u202e"))
        except BaseException as error:
            wrong = f"{type(error).__name__}: {error}"[:200]
        ledger.note(kind, traceback=wrong)
        if turn % 20 == 0:
            for words in (("status",), ("slopes", "sweep=sigma")):
                ledger.note(kind, traceback=call(*words).traceback)
    assert not ledger.wrong(kind)
