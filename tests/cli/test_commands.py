"""The command line: quick where it must be, helpful everywhere, and Hydra's own features where they are expected."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from graphlib import TopologicalSorter
from importlib import import_module
from pathlib import Path

import pytest
import yaml

import hessfig as hessfig_package
from hessfig import __version__
from hessfig.cli.help import candidates
from hessfig.config.presets import choices
from hessfig.config.schema import GROUPS
from hessfig.config.settings import settings
from hessfig.theory.statement import Dims
from hessfig.verbs import VERBS
from tests.runs import CELLS, COMMAND, TOY, here, hessfig, rows

HEAVY = {
    "torch",
    "hydra",
    "omegaconf",
    "numpy",
    "pandas",
    "matplotlib",
    "scipy",
    "transformer_lens",
    "rich",
}


def imported(*arguments):
    """Return the top-level modules a call of the command imports."""
    found = subprocess.run(
        [sys.executable, "-X", "importtime", COMMAND, *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return {
        line.rpartition("|")[2].strip().partition(".")[0]
        for line in found.stderr.splitlines()
        if "|" in line
    }


@pytest.mark.parametrize(
    "arguments", [(), ("--help",), ("--version",)], ids=["none", "help", "version"]
)
def test_the_overview_is_quick_and_light(arguments, tmp_path):
    assert not imported(*arguments) & HEAVY
    seconds = []
    for _ in range(3):
        start = time.perf_counter()
        found = hessfig(*arguments, folder=tmp_path)
        seconds.append(time.perf_counter() - start)
    assert found.returncode == 0
    assert min(seconds) < 1.0


@pytest.mark.parametrize("arguments", [("run", "--help")])
def test_help_does_without_torch_and_hydra(arguments):
    assert not imported(*arguments) & {
        "torch",
        "hydra",
        "omegaconf",
        "transformer_lens",
    }


@pytest.mark.parametrize(
    "words", [["status", *TOY], ["slopes", *TOY], ["plot", "figure=3a"], ["predict"]]
)
@pytest.mark.long
def test_reading_verbs_do_without_torch(words, undisturbed, tmp_path):
    outputs = tmp_path / "outputs"
    shutil.copytree(undisturbed / "outputs", outputs)
    modules = imported(*words, *[f"output_dir={outputs}"] * (words != ["predict"]))
    assert not modules & {"torch", "transformer_lens", "curvlinops"}


def test_the_overview_names_every_verb(cli):
    answer = cli()
    assert answer.code == 0
    assert all(f"  {verb} " in answer.out for verb in VERBS)
    assert cli("--help").out == cli("-h").out == answer.out


def test_the_version_is_the_packages(cli):
    assert cli("--version").out == f"hessfig {__version__}\n"


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_explains_itself(cli, verb):
    answer = cli(verb, "--help")
    assert answer.code == 0
    assert answer.out.startswith(f"hessfig {verb}: {VERBS[verb].about}")
    assert "example:" in answer.out
    assert ("--config-dir FOLDER" in answer.out) == VERBS[verb].composed


@pytest.mark.parametrize("verb", VERBS.values(), ids=VERBS)
def test_a_verbs_record_names_what_there_is(verb):
    module, _, name = verb.does.partition(":")
    assert callable(getattr(import_module(module), name))
    if verb.composed:
        known = {*GROUPS, *settings()}
        assert {*verb.reads, *verb.ignores} <= known
        assert {*verb.groups} <= set(GROUPS)
        assert all(verb.takes(group) for group in verb.groups)


def test_the_record_of_verify_names_its_settings():
    assert set(VERBS["verify"].reads) == {
        "statement",
        "output_dir",
        "seeds",
        "dtype",
        *vars(Dims()),
    }


def test_no_module_of_the_command_line_imports_in_a_circle():
    folder = Path(hessfig_package.__file__).parent / "cli"
    arrows = {
        path.stem: set(re.findall(r"hessfig\.cli\.(\w+)", path.read_text()))
        for path in folder.glob("*.py")
    }
    assert list(TopologicalSorter(arrows).static_order())


def test_the_help_of_run_lists_sweeps_and_settings(cli):
    out = cli("run", "--help").out
    for name, about in choices("sweep").items():
        assert f"  {name} " in out
        assert about in out
    for key, setting in settings().items():
        assert (f"  {key} " in out) == VERBS["run"].takes(key), key
        assert setting.about in out or not VERBS["run"].takes(key)
    assert "float64|float32" in out


def test_cfg_job_prints_the_settings_and_runs_nothing(cli, tmp_path):
    answer = cli("run", "sweep=layernorm", "seeds=3", "--cfg", "job")
    settings = yaml.safe_load(answer.out)
    assert (
        settings["seeds"],
        settings["model"]["norm"],
        settings["sweep"]["name"],
    ) == (3, "pre", "layernorm")
    assert list(tmp_path.rglob("*")) == []


def test_a_dry_run_says_what_there_is_to_do_and_writes_nothing(cli, tmp_path):
    answer = cli("run", "sweep=depth", "seeds=2", "grid.points=3", "dry_run=true")
    assert answer.code == 0
    assert "30 (seeds x sigmas x variants): 0 done, 30 to do" in answer.out
    assert "n_layers=5" in answer.out
    assert "time: not known before a cell is done, with " in answer.out
    (memory,) = (
        line for line in answer.out.splitlines() if line.startswith("memory: ")
    )
    sizes = [float(size) for size in re.findall(r"([\d.]+) GiB", memory)]
    assert "1 layer, batch 64) to " in memory
    assert "5 layers, batch 64) per worker" in memory
    assert sizes[0] < sizes[1] < 2
    assert list(tmp_path.rglob("*")) == []


def test_a_setting_in_the_place_of_a_verb(cli):
    for word in ("--sweep=sigma", "sweep=sigma"):
        answer = cli(word)
        assert answer.code == 2
        assert "hessfig run sweep=sigma" in answer.err


def test_a_finished_run_leaves_table_and_manifest_and_no_stray_file(undisturbed):
    assert len(rows(undisturbed / "outputs/sigma/table.csv")) == CELLS * 6
    assert {path.name for path in undisturbed.iterdir()} == {"outputs"}
    assert {"table.csv", "manifest.json", "cells"} <= {
        p.name for p in (undisturbed / "outputs/sigma").iterdir()
    }
    manifest = json.loads((undisturbed / "outputs/sigma/manifest.json").read_text())
    assert manifest["cells"] == {"measured": CELLS, "reused": 0, "failed": 0}


def test_a_piped_run_says_start_plan_and_end(undisturbed):
    again = here("run", *TOY, folder=undisturbed)
    assert again.returncode == 0
    first, *plan, summary, written = again.stdout.splitlines()
    assert first.startswith("start: hessfig run sweep=sigma")
    assert plan[-1] == "nothing to do"
    assert f"0 cells measured, {CELLS} reused, 0 failed" in summary
    assert written == "written: outputs/sigma/table.csv, outputs/sigma/manifest.json"
    assert again.stderr == ""


def test_status_counts(cli, undisturbed):
    finished = cli("status", *TOY, f"output_dir={undisturbed}/outputs")
    assert f"{CELLS} (seeds x sigmas x variants): {CELLS} done, 0 to do" in finished.out
    assert (
        f"table: {undisturbed}/outputs/sigma/table.csv, {CELLS * 6} rows, of 20"
        in finished.out
    )
    assert finished.out.endswith("made with these settings\n")
    more = cli("status", *TOY, "seeds=5", f"output_dir={undisturbed}/outputs")
    assert f"{CELLS} done, 5 to do" in more.out
    assert more.out.endswith("made with seeds=4 (now 5)\n")
    none = cli("status", *TOY)
    assert none.out.endswith("table: none yet (outputs/sigma/table.csv)\n")


@pytest.mark.usefixtures("workers")
def test_a_failed_cell_makes_exit_code_one(cli, monkeypatch):
    from hessfig.sweep import runner
    from hessfig.sweep.pool import CellOutcome

    monkeypatch.setattr(
        runner.Pool,
        "run",
        lambda self, cells: (CellOutcome(cell, "failed", "why") for cell in cells),
    )
    answer = cli("run", "seeds=1", "grid.points=2", "workers=1")
    assert answer.code == 1
    assert "2 failed" in answer.out
    assert "failed: n_layers=1, sigma=0.01, seed=1234: why" in answer.err


@pytest.mark.parametrize(
    ("verb", "word", "expected"),
    [
        ("ru", "ru", "run"),
        ("run", "see", "seeds="),
        ("run", "sweep=lay", "sweep=layernorm"),
        ("plot", "figure=", "figure=3a"),
        ("run", "model.norm=", "model.norm=pre"),
        ("run", "model.", "model.d_model="),
        ("run", "--c", "--config-dir"),
        ("verify", "sta", "statement="),
    ],
)
def test_completion_offers(verb, word, expected):
    line = [word] if verb == word else [verb, word]
    assert expected in candidates(line)


def test_completion_leaves_out_what_a_verb_does_not_read():
    offered = candidates(["plot", ""])
    assert "figure=" in offered
    assert not {"sweep=", "workers=", "tolerance="} & set(offered)


@pytest.mark.skipif(not Path("/bin/bash").exists(), reason="needs bash")
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("hessfig run sweep=lay", ["layernorm"]),
        ("hessfig run --config-dir my sweep=layers", ["layers_of_mine"]),
        ("hessfig run --config-dir=my sweep=layers", ["layers_of_mine"]),
        ("hessfig run --config-dir m", ["my/"]),
        ("hessfig run --config-d", ["--config-dir"]),
        ("hessfig st", ["status"]),
    ],
)
@pytest.mark.long
def test_completion_works_in_bash(tmp_path, line, expected):
    """What pressing Tab at the end of `line` offers."""
    (tmp_path / "my/sweep").mkdir(parents=True)
    (tmp_path / "my/sweep/layers_of_mine.yaml").write_text(
        "sweep: {name: layers_of_mine}\n"
    )
    script = (
        f'eval "$(register-python-argcomplete hessfig)"; COMP_LINE="{line}"; COMP_POINT=${{#COMP_LINE}};'
        "COMP_TYPE=9; _python_argcomplete hessfig 2>/dev/null; echo ${COMPREPLY[@]}"
    )
    path = f"{COMMAND.parent}:{os.environ['PATH']}"
    found = subprocess.run(
        ["/bin/bash", "-c", script],
        env={**os.environ, "PATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout.split() == expected


def test_a_reader_that_stops_early_sees_no_traceback(tmp_path):
    found = subprocess.run(
        f"'{COMMAND}' run --help | head -n 1",
        shell=True,
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stderr == ""


def test_the_manifest_holds_the_command_line(undisturbed):
    manifest = json.loads(
        (undisturbed / "outputs" / "sigma" / "manifest.json").read_text()
    )
    assert manifest["command"].startswith(
        "hessfig run sweep=sigma estimator=hutchinson model.d_model=32"
    )


@pytest.mark.parametrize(
    "word",
    ["figure.width=1.5", "figure.width=21", "figure.formats=[]", "figure.panels=[a,a]"],
)
def test_a_page_that_cannot_be_is_refused(cli, word):
    answer = cli("plot", "figure=3a", word)
    assert answer.code == 2
    assert answer.err.startswith(f"error: {word.partition('=')[0]}")


@pytest.mark.parametrize("content", ["sweep\n" + "x" * 200_000 + "\n", "\0", "a\nb\n"])
def test_status_of_a_table_that_is_none(cli, tmp_path, content):
    (tmp_path / "outputs/sigma").mkdir(parents=True)
    (tmp_path / "outputs/sigma/table.csv").write_text(content)
    answer = cli("status")
    assert answer.code == 0
    assert "table: outputs/sigma/table.csv, " in answer.out
    assert ("cannot be read" in answer.out) == (len(content) > 10)


EVIL = "evil \x1b[31m\x1b]0;x\x07\x9b1m\u202e"
OWN_SWEEP = f"""# @package _global_
sweep:
  name: mine
  about: {json.dumps(EVIL)}
  vary: {{task.base: [{json.dumps(EVIL)}]}}
"""


SPOKEN = [
    ("run", "--help"),
    ("run", "sweep=mine", "sweep.vary={}", "dry_run=true"),
    ("run", "sweep=mine"),
    ("run", "sweep=mine", "--cfg", "job"),
    ("status", "sweep=mine", "sweep.vary={}"),
]


@pytest.mark.parametrize("words", SPOKEN, ids=" ".join)
def test_words_of_foreign_files_steer_no_terminal(cli, tmp_path, words):
    (tmp_path / "own/sweep").mkdir(parents=True)
    (tmp_path / "own/sweep/mine.yaml").write_text(OWN_SWEEP)
    folder = tmp_path / "outputs/mine"
    folder.mkdir(parents=True)
    (folder / "table.csv").write_text("x\n")
    (folder / "manifest.json").write_text(json.dumps({"config": EVIL}))
    answer = cli(*words, "--config-dir=own")
    said = answer.out + answer.err
    assert "evil" in said
    assert not set(said) & set("\x1b\x07\x9b\u202e")
