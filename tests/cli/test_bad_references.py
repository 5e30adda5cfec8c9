"""scripts/published_values.py with files that are no results: refused by name, and nothing written."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scripts.published_values import main
from tests.analysis.authors import file_name, publish
from tests.cli.test_against_references import files_under


class Command:
    """Runs a command when unpickled by a trusting reader."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch ran",)


BAD: dict[str, tuple[Any, list[str]]] = {
    "command": ({0: {0: [Command()]}}, ["refused to load", ".system", "numbers, lists, dictionaries", "do not use"]),
    "string": ({0: {0: ["1.5"] * 20}}, ["not shaped as a result file", "a str of 3 that is not a norm", "20 norms"]),
    "huge": ({0: {0: [10**400] * 20}}, ["not shaped as a result file", "an int that is not a norm"]),
    "seven": ([7], ["not shaped as a result file", "a list of 1 in place of a dict of layers"]),
    "no repeats": ({0: {}}, ["not shaped as a result file", "no repeats"]),
    "matrix": ({0: {0: np.ones((20, 1))}}, ["refused to load a numpy.ndarray", "numpy arrays", "do not use"]),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_pickle_is_refused_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    content, words = BAD[name]
    for good in ("sigma", "layernorm"):
        publish(good, tmp_path / "results")
    path = tmp_path / "results" / file_name("layernorm", 1, "W_Q", "H_o")
    path.write_bytes(pickle.dumps(content))
    before = files_under(tmp_path)
    assert main([str(tmp_path), str(tmp_path / "published")]) == 2
    said = capsys.readouterr().err
    for expected in [path.name, *words]:
        assert expected in said, said
    assert files_under(tmp_path) == before and not Path("ran").exists()
