"""The notebooks of docs/notebooks run from the first cell to the last, and show tables and figures."""

from __future__ import annotations

import json
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


def test_notebooks_have_a_badge_whose_target_the_owner_fills_in() -> None:
    badge = "[![Open in Colab](https://colab.research.google.com/assets/colab-badge.svg)]"
    page = NOTEBOOKS[0].parents[1] / "own-training.md"
    for path in NOTEBOOKS:
        link = f"{badge}(https://example.org/hessfig/colab/{path.stem})"
        assert json.loads(path.read_text())["cells"][0]["source"][0].strip() == link
        assert link in page.read_text()


def test_notebooks_are_stored_without_outputs() -> None:
    nbformat = pytest.importorskip("nbformat", reason="nbformat is not installed (extra dev)")
    cells = [cell for path in NOTEBOOKS for cell in nbformat.read(path, as_version=4).cells]
    assert not [cell for cell in cells if cell.cell_type == "code" and (cell.outputs or cell.execution_count)]
