"""The notebooks of docs/notebooks run from the first cell to the last, and show tables and figures."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

NOTEBOOKS = sorted((Path(__file__).parents[2] / "docs" / "notebooks").glob("*.ipynb"))


@pytest.mark.long
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_a_notebook_runs(path: Path, tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="nbclient is not installed (extra dev)")
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra dev)")
    pytest.importorskip("ipykernel", reason="ipykernel is not installed (extra dev)")
    notebook = nbformat.read(path, as_version=4)
    nbclient.NotebookClient(notebook, timeout=240, resources={"metadata": {"path": str(tmp_path)}}).execute()
    shown = [form for cell in notebook.cells if cell.cell_type == "code" for form in _shown(cell)]
    assert any("<th>value</th>" in form.get("text/html", "") for form in shown)
    assert any("image/png" in form for form in shown)
    if path.stem == "own-network":
        (bar,) = [form for form in shown if "<progress" in form.get("text/html", "")]
        assert bar["text/plain"].startswith("network: 8 of 8 cells, 0 reused, 0 failed")


def _shown(cell: Any) -> list[dict[str, Any]]:
    return [output["data"] for output in cell.outputs if "data" in output]


def test_no_file_names_an_address_that_leads_nowhere() -> None:
    root = NOTEBOOKS[0].parents[2]
    files = ["pyproject.toml", "CITATION.cff", "SECURITY.md", "README.md", *root.glob("docs/**/*.md"), *NOTEBOOKS]
    assert not [str(path) for path in files if "example.org" in (root / path).read_text("utf-8")]


def test_notebooks_are_stored_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra dev)")
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    assert not [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
