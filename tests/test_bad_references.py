"""`hessfig compare` with files that are no results: refused by name, and nothing written."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.analysis.authors import file_name, publish, write_toy_sweep
from tests.conftest import Cli
from tests.test_against_references import files_under


class Command:
    """Runs a command when unpickled by a trusting reader."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


BAD: dict[str, tuple[Any, list[str]]] = {
    "command": ({0: {0: [Command()]}}, ["refused to load", ".system", "numbers, dicts, lists", "do not use"]),
    "string": ({0: {0: ["1.5"] * 20}}, ["not shaped as a result file", "'1.5' is not a norm", "20 norms"]),
    "huge": ({0: {0: [10**400] * 20}}, ["refused to load an integer of 1329 bits", "do not use"]),
    "seven": ([7], ["not shaped as a result file", "a list of 1 in place of a dict of layers"]),
    "no repeats": ({0: {}}, ["not shaped as a result file", "no repeats"]),
    "array": ({0: {0: np.ones(20)}}, ["refused to load numpy._core", "numpy scalars", "do not use"]),
}


@pytest.mark.parametrize("sweep", [[], ["sweep=layernorm"]], ids=["every figure", "one sweep"])
@pytest.mark.parametrize("name", BAD)
@pytest.mark.long
def test_a_bad_pickle_is_refused_and_nothing_is_written(cli: Cli, tmp_path: Path, name: str, sweep: list[str]) -> None:
    content, words = BAD[name]
    for good in ("sigma", "layernorm"):
        write_toy_sweep(good, tmp_path / "outputs")
        publish(good, tmp_path / "results")
    path = tmp_path / "results" / file_name("layernorm", 1, "W_Q", "H_o")
    path.write_bytes(pickle.dumps(content))
    before = files_under(tmp_path)
    answer = cli("compare", "reference=results", *sweep)
    assert answer.code == 2 and "Traceback" not in answer.err
    for expected in [path.name, *words]:
        assert expected in answer.err, answer.err
    assert files_under(tmp_path) == before
