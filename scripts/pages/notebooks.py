"""Run the notebooks of docs/notebooks and store what their cells show.

python scripts/pages/notebooks.py
"""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbclient
import nbformat

FOLDER = Path(__file__).parents[2] / "docs" / "notebooks"


def executed(path: Path, folder: Path) -> Any:
    """Return the notebook of a file, run in `folder`, without what depends on this machine: times, warnings, versions.

    The bar of a slow `hessfig.measure` is removed at its end, which leaves an empty
    output.
    """
    notebook = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(folder)}}
    nbclient.NotebookClient(
        notebook, timeout=240, record_timing=False, resources=where
    ).execute()
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [output for output in cell.outputs if _is_shown(output)]
    notebook.metadata.pop("language_info")
    return notebook


def _is_shown(output: Any) -> bool:
    """Whether an output is neither a warning nor a bar that was removed."""
    if output.output_type == "stream":
        return bool(output.name != "stderr")
    return bool(output.data.get("text/plain") != "")


if __name__ == "__main__":
    for path in sorted(FOLDER.glob("*.ipynb")):
        with TemporaryDirectory() as temporary:
            nbformat.write(executed(path, Path(temporary)), path)
