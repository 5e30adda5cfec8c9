"""The scripts of examples/ run, each within a minute, and print and draw what their pages say."""

import re

import pytest

from tests import runs
from tests.pages import ROOT, text_of

EXAMPLES = sorted((ROOT / "examples").glob("*.py"))
# Those that read an export: tests/cli/test_export.py and
# tests/documents/test_by_hand.py.
OF_EXPORTS = ("ten_numbers", "approximations_by_hand", "saliencies_by_hand")
ALONE = [path for path in EXAMPLES if path.stem not in OF_EXPORTS]
PRINTED = {
    "approximations": r"kfac +cosine 0\.\d+",
    "directions": r"largest_ray_curvature",
    "eigenvalues": r"H_f +largest_eigenvalue",
    "first_figure": r"W_V H +1\.5\d*e-04",
    "growth_rates": r"W_V +H_o +2\.0\d+ .* 2\.0",
    "bridge": r"hessfig (\d\.\d{10}).*torch \1",
    "own_training": r"largest_eigenvalue/all/H",
}


@pytest.mark.long
@pytest.mark.usefixtures("workers")
@pytest.mark.parametrize("script", ALONE, ids=lambda path: path.stem)
def test_an_example_runs(script, tmp_path):
    printed = runs.script(str(script), folder=tmp_path)
    assert re.search(PRINTED.get(script.stem, r"\d"), printed), printed
    for name in re.findall(r"^written: (\S+\.png)$", printed, flags=re.MULTILINE):
        assert (tmp_path / name).read_bytes().startswith(b"\x89PNG")
    if script.stem == "own_network":  # its norm is that of torch
        (measured, expected) = re.findall(r"(?:hessfig|torch) (\d\.\d{12})", printed)
        assert float(measured) == pytest.approx(float(expected), rel=1e-10)


def test_the_page_lists_every_example_and_there_are_at_most_eleven():
    listed = re.findall(
        r"^\| \[(\w+\.py)\]\(\.\./examples/\1\) \|",
        text_of("docs/tutorial.md"),
        flags=re.MULTILINE,
    )
    assert sorted(listed) == [path.name for path in EXAMPLES]
    assert 0 < len(EXAMPLES) <= 11
