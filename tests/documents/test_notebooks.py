"""The notebooks of docs/notebooks run from the first cell to the last, and show tables and figures."""

import re
from pathlib import Path

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs_and_shows_what_is_stored(path, tmp_path):
    notebooks = pytest.importorskip(
        "scripts.pages.notebooks", reason="nbclient is not installed (extra dev)"
    )
    found = notebooks.executed(path, tmp_path)
    stored = notebooks.nbformat.read(path, as_version=4)
    for cell, other in zip(found.cells, stored.cells, strict=True):
        assert words(cell) == words(other)


def words(cell):
    """Return the texts that a cell shows, without numbers; of a picture, that there is one."""
    if cell.cell_type != "code":
        return []
    found = []
    for form in _shown(cell):
        for kind, text in sorted(form.items()):
            shown = "" if kind == "image/png" else _NUMBER.sub("#", text)
            found.append((kind, shown))
    return found


# With the spaces before it: columns are as wide as their numbers.
_NUMBER = re.compile(r" *-?\b\d+(\.\d+)?(e[+-]\d+)?")


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_is_stored_with_what_its_cells_show(path):
    nbformat = pytest.importorskip(
        "nbformat", reason="nbformat is not installed (extra dev)"
    )
    count = 0
    shown = []
    for cell in nbformat.read(path, as_version=4).cells:
        if cell.cell_type == "code":
            count += 1
            assert cell.execution_count == count
            assert "error" not in {output.output_type for output in cell.outputs}
            shown += _shown(cell)
    assert "PosixPath" not in str(shown)
    assert "<th>value</th>" in str(shown)
    assert "image/png" in str(shown)
    if path.stem == "own-network":
        (bar,) = [form for form in shown if "<progress" in form.get("text/html", "")]
        assert bar["text/plain"].startswith("network: 8 of 8 cells, 0 reused, 0 failed")


def _shown(cell):
    return [output["data"] for output in cell.outputs if "data" in output]


def test_no_file_names_an_address_that_leads_nowhere():
    root = NOTEBOOKS[0].parents[2]
    files = [
        "pyproject.toml",
        "CITATION.cff",
        "SECURITY.md",
        "README.md",
        *root.glob("docs/**/*.md"),
        *NOTEBOOKS,
    ]
    assert not [
        str(path) for path in files if "example.org" in (root / path).read_text("utf-8")
    ]
