"""What `hessfig clean` may remove: nothing young, of a run at work, listed, asked for, or that nobody can read."""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from hessfig.sweep.garbage import YOUNG, remove_unused, sweep_folders, unused_files
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import run_sweep
from hessfig.sweep.store import at_work, is_at_work
from tests.conftest import Cli
from tests.toys import toy_config


def files(folder: Path) -> set[Path]:
    return set((folder / "cells").glob("*/*"))


def age(paths: set[Path], seconds: float = YOUNG + 60) -> None:
    for path in paths:
        os.utime(path, (time.time() - seconds,) * 2)


@pytest.fixture(scope="module")
def twice(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, set[str]]:
    """Results of a sweep that was run twice, with other seeds, and the names of the first run's cells."""
    outputs = tmp_path_factory.mktemp("outputs")
    run_sweep(Sweep([("", toy_config(outputs, first_seed=1))]))
    (folder,) = sweep_folders(outputs)
    old = files(folder)
    age(old)
    assert unused_files(folder, None).files == []  # the table lists them
    run_sweep(Sweep([("", toy_config(outputs, first_seed=5))]))
    return outputs, {path.name for path in old}


@pytest.fixture
def replaced(twice: tuple[Path, set[str]], tmp_path: Path) -> tuple[Path, set[Path], set[Path]]:
    """A copy of the sweep's folder, its cells that no table lists any more, and the others."""
    shutil.copytree(twice[0], tmp_path / "outputs")
    (folder,) = sweep_folders(tmp_path / "outputs")
    old = {path for path in files(folder) if path.name in twice[1]}
    return folder, old, files(folder) - old


def test_only_what_nobody_uses_goes(replaced: tuple[Path, set[Path], set[Path]], tmp_path: Path) -> None:
    folder, old, new = replaced
    assert set(unused_files(folder, None).cells) == old and unused_files(folder, None).kept == len(new)
    assert unused_files(folder, [("", toy_config(tmp_path, first_seed=1))]).cells == []  # asked for now
    damaged = min(old)
    damaged.write_text("half a ce")
    left, own = (folder / "cells" / name for name in (".hessfig.ab.json.abcdefgh", ".ab.json.abcdefgh"))
    left.write_text("")
    own.write_text("mine")
    age({own}, 7200)
    assert unused_files(folder, None).leftovers == []  # another run may be writing it
    age({left}, 7200)
    found = unused_files(folder, None)
    assert list(found.leftovers) == [left] and found.size > 0
    assert remove_unused(found) == len(old)  # one cell is damaged and stays, a leftover goes
    assert files(folder) == new | {damaged} and not left.exists() and own.exists()


def test_what_is_young_stays(replaced: tuple[Path, set[Path], set[Path]]) -> None:
    folder, old, new = replaced
    young = min(old)
    age({young}, YOUNG - 60)
    found = unused_files(folder, None)
    assert set(found.cells) == old - {young} and (found.young, found.kept) == (1, len(new) + 1)
    age(old, -7200)  # a machine whose clock is fast
    assert unused_files(folder, None).cells == [] and remove_unused(found) == 0
    assert files(folder) == old | new


def test_a_run_at_work_keeps_every_cell(replaced: tuple[Path, set[Path], set[Path]]) -> None:
    folder, old, new = replaced
    found = unused_files(folder, None)
    with at_work(folder):
        while not is_at_work(folder):
            time.sleep(0.01)
        assert unused_files(folder, None).cells == [] and "at work" in unused_files(folder, None).why
        assert remove_unused(found) == 0  # it began after the files were listed
    assert files(folder) == old | new and not list(folder.glob(".running.*"))
    mark = folder / ".running.0123456789abcdef"  # of one that was killed
    mark.touch()
    assert unused_files(folder, None).cells == []
    age({mark}, 7200)
    found = unused_files(folder, None)
    assert set(found.cells) == old and list(found.leftovers) == [mark]


def cut(table: Path) -> None:
    table.write_text("".join(table.read_text().splitlines(keepends=True)[:-2]))


@pytest.mark.long
def test_cells_of_own_code_stay_and_it_is_not_run(cli: Cli, tmp_path: Path) -> None:
    """Whatever the table lists stays, without the folder that names the code, and when the code is gone."""
    (tmp_path / "my/sweep").mkdir(parents=True)
    (tmp_path / "my/net.py").write_text(FACTORY)
    (tmp_path / "my/sweep/gate.yaml").write_text(GATE)
    words = ("run", "--config-dir", "my", "sweep=gate", "workers=1")
    assert cli(*words).code == 0
    assert cli("run", "sweep=network", "model.factory=my/net.py:make", "blocks=[weight]", "workers=1").code == 0
    listed = {name: files(tmp_path / "outputs" / name) for name in ("gate", "network")}
    assert all(listed.values())
    age(set().union(*listed.values()))
    (tmp_path / "my/net.py").rename(tmp_path / "net.txt")
    for flags in ((), ("--config-dir", "my")):
        answer = cli("clean", "yes=true", *flags)
        assert answer.code == 0 and "nothing to remove" in answer.out, answer.err
        assert {name: files(tmp_path / "outputs" / name) for name in listed} == listed
    (tmp_path / "net.txt").rename(tmp_path / "my/net.py")
    (tmp_path / "ran").unlink()
    assert cli("clean", "yes=true", "--config-dir", "my").code == 0 and not (tmp_path / "ran").exists()
    assert "0 cells measured" in cli(*words).out


FACTORY = """
from pathlib import Path
import torch

def make(seed):
    Path("ran").touch()
    torch.manual_seed(seed)
    return torch.nn.Linear(3, 2), torch.ones(5, 3), torch.zeros(5, dtype=torch.long), "cross_entropy"
"""
GATE = """# @package _global_
defaults:
  - override /model: python
  - override /task: python
sweep: {name: gate}
model: {factory: net.py:make}
seeds: 2
blocks: [weight]
"""


BROKEN: dict[str, Callable[[Path], None]] = {
    "gone": Path.unlink,
    "empty": lambda table: table.write_text(""),
    "cut short at a line": cut,
    "of other columns": lambda table: table.write_text("a,b\n1,2\n"),
    "of no numbers": lambda table: table.write_text("config,sigma,seed\nx,y,z\n"),
    "no text": lambda table: table.write_bytes(b"\xff\xfe\0"),
    "of a field without end": lambda table: table.write_text(f"config,sigma,seed\n{'x' * 200_000},1,1\n"),
    "a folder": lambda table: (table.unlink(), table.mkdir()),  # type: ignore[dict-item, return-value]
    "a pipe": lambda table: (table.unlink(), os.mkfifo(table)),  # type: ignore[dict-item, return-value]
    "a link to nowhere": lambda table: (table.unlink(), table.symlink_to("x")),  # type: ignore[dict-item, return-value]
    "without a manifest": lambda table: table.with_name("manifest.json").unlink(),
    "of a broken manifest": lambda table: table.with_name("manifest.json").write_text("[" * 9999),  # type: ignore[dict-item, return-value]
}


@pytest.mark.parametrize("kind", BROKEN)
def test_a_table_that_cannot_be_trusted_keeps_every_cell(
    replaced: tuple[Path, set[Path], set[Path]], kind: str
) -> None:
    folder, old, new = replaced
    BROKEN[kind](folder / "table.csv")
    found = unused_files(folder, None)
    assert found.cells == [] and found.kept == len(old | new) and "is not known" in found.why


def test_a_run_that_never_ended_has_no_table_and_keeps_what_its_settings_ask_for(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    run_sweep(Sweep([("", config)]))
    (folder,) = sweep_folders(tmp_path)
    (folder / "table.csv").unlink()
    (folder / "manifest.json").unlink()
    assert (unused_files(folder, None).cells, unused_files(folder, None).young) == ([], 4)
    age(files(folder))
    assert unused_files(folder, [("", config)]).cells == []
    assert len(unused_files(folder, None).cells) == 4
