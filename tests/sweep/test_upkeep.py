"""What `hessfig clean` may remove: nothing that a table lists, a current sweep asks for, or nobody can read."""

from __future__ import annotations

import os
import time
from pathlib import Path

from hessfig.sweep.engine import run_sweep
from hessfig.sweep.upkeep.unused import remove, sweep_folders, unused
from tests.toys import toy_config


def files(folder: Path) -> set[Path]:
    return set((folder / "cells").glob("*/*"))


def test_only_what_nobody_uses_goes(tmp_path: Path) -> None:
    first, second = (toy_config(tmp_path, first_seed=seed) for seed in (1, 5))
    run_sweep([("", first)])
    (folder,) = sweep_folders(tmp_path)
    old = files(folder)
    assert unused(folder, None).files == []  # the table lists them
    run_sweep([("", second)])
    new = files(folder) - old
    assert set(unused(folder, None).cells) == old and unused(folder, None).kept == len(new)
    assert unused(folder, [("", first)]).cells == []  # asked for now
    damaged = min(old)
    damaged.write_text("half a ce")
    left = folder / "cells" / ".ab.json.abcdefgh"
    left.write_text("")
    assert unused(folder, None).leftovers == []  # another run may be writing it
    os.utime(left, (time.time() - 7200,) * 2)
    found = unused(folder, None)
    assert list(found.leftovers) == [left] and found.size > 0
    remove(found)
    assert files(folder) == new | {damaged} and not left.exists()


def test_a_run_that_never_ended_has_no_table_and_keeps_what_its_settings_ask_for(tmp_path: Path) -> None:
    config = toy_config(tmp_path)
    run_sweep([("", config)])
    (folder,) = sweep_folders(tmp_path)
    (folder / "table.csv").unlink()
    assert unused(folder, [("", config)]).cells == []
    assert len(unused(folder, None).cells) == 4
