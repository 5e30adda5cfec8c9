"""The scripts of examples/ run, each within a minute, and print and draw what their pages say."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from tests.pages import ROOT, text_of
from tests.runs import script

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Those that read an export: tests/test_export.py and tests/test_by_hand.py.
OF_EXPORTS = ("ten_numbers", "approximations_by_hand", "saliencies_by_hand")
ALONE = [path for path in EXAMPLES if path.stem not in OF_EXPORTS]
PRINTED = {
    "approximations": r"kfac +cosine 0\.\d+",
    "directions": r"largest_ray_curvature",
    "eigenvalues": r"H_f +largest_eigenvalue",
    "first_figure": r"W_V H +1\.5\d*e-04",
    "growth_rates": r"W_V +H_o +2\.0\d+ .* 2\.0",
    "own_training": r"largest_eigenvalue/all/H",
}
pytestmark = pytest.mark.usefixtures("workers")


@cache
def ran(example: Path, folder: Path) -> str:
    """Return what a script printed in a folder of its own."""
    (folder / example.stem).mkdir()
    done = script(example, folder=folder / example.stem)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("examples")


@pytest.mark.long
@pytest.mark.parametrize("example", ALONE, ids=lambda path: path.stem)
def test_an_example_runs(example: Path, folder: Path) -> None:
    printed = ran(example, folder)
    assert re.search(PRINTED.get(example.stem, r"\d"), printed), printed
    for name in re.findall(r"^written: (\S+\.png)$", printed, flags=re.MULTILINE):
        assert (folder / example.stem / name).read_bytes().startswith(b"\x89PNG")


@pytest.mark.long
def test_the_norm_of_the_own_network_is_that_of_torch(folder: Path) -> None:
    printed = ran(ROOT / "examples/own_network.py", folder)
    (measured, expected) = re.findall(r"(?:hessfig|torch) (\d\.\d{12})", printed)
    assert float(measured) == pytest.approx(float(expected), rel=1e-10)


def test_the_page_lists_every_example_and_there_are_at_most_ten() -> None:
    listed = re.findall(r"^\| \[(\w+\.py)\]\(\.\./examples/\1\) \|", text_of("docs/examples.md"), flags=re.MULTILINE)
    assert sorted(listed) == [path.name for path in EXAMPLES]
    assert 0 < len(EXAMPLES) <= 10
