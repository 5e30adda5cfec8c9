"""Drawing as a whole: files, bytes, settings left alone, errors, imports, time."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import matplotlib as mpl
import pandas as pd
import pytest

from hessfig.analysis.comparison.points import compare
from hessfig.errors import UserError
from hessfig.figures.layouts.overlay import draw_overlay
from hessfig.figures.sheets import LAYOUTS, FigureSpec, draw
from tests.analysis.synthetic import make_table, write_sweep
from tests.analysis.test_compare import as_reference

SPEC = FigureSpec("3a", "sigma", "growth", [(None, 1.0)])


def test_four_files_the_same_bytes_on_every_run(tmp_path: Path) -> None:
    write_sweep(make_table(seeds=3), tmp_path)
    paths = draw(SPEC, tmp_path)
    assert [path.name for path in paths] == ["fig3a.pdf", "fig3a.png", "fig3a.svg", "fig3a.csv"]
    first = [path.read_bytes() for path in paths]
    assert first == [path.read_bytes() for path in draw(SPEC, tmp_path)]
    assert b"CreationDate" not in first[0] and b"<dc:date>" not in first[2]
    assert sorted(path.name for path in (tmp_path / "figures").iterdir()) == sorted(
        path.name for path in paths
    )


def test_the_drawn_numbers_are_written(tmp_path: Path) -> None:
    write_sweep(make_table(seeds=3), tmp_path)
    numbers = pd.read_csv(draw(SPEC, tmp_path)[-1])
    assert len(numbers) == 60
    assert {"sigma", "mean", "sem", "count", "slope", "slope_se", "predicted"} <= set(numbers.columns)


def test_settings_of_the_caller_stay(tmp_path: Path) -> None:
    write_sweep(make_table(seeds=2), tmp_path)
    with mpl.rc_context({"font.size": 33, "savefig.dpi": 10}):
        before = dict(mpl.rcParams)
        first = [path.read_bytes() for path in draw(SPEC, tmp_path)]
        assert dict(mpl.rcParams) == before
    assert first == [path.read_bytes() for path in draw(SPEC, tmp_path)]


def test_a_sweep_that_was_not_run_names_its_command(tmp_path: Path) -> None:
    for layout in sorted(LAYOUTS):
        with pytest.raises(UserError, match="hessfig run sweep=sigma"):
            draw(FigureSpec("3a", "sigma", layout), tmp_path / "outputs")
    assert not (tmp_path / "outputs").exists()


def test_unknown_layout(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"did you mean 'growth'\?"):
        draw(FigureSpec("3a", "sigma", "grwth"), tmp_path)


def test_a_folder_that_cannot_be_written(tmp_path: Path) -> None:
    write_sweep(make_table(seeds=2), tmp_path)
    (tmp_path / "figures").write_text("in the way")
    with pytest.raises(UserError, match="cannot write"):
        draw(SPEC, tmp_path)


def test_overlay_draws_both_sides_and_their_ratio(tmp_path: Path) -> None:
    table = make_table(seeds=4)
    reference = as_reference(table)
    paths = draw_overlay(compare(table, reference), tmp_path)
    assert [path.name for path in paths] == [
        f"figcompare_sigma.{kind}" for kind in ("pdf", "png", "svg", "csv")
    ]
    numbers = pd.read_csv(paths[-1])
    assert {"mean", "mean_published", "log_ratio", "log_ratio_se", "z"} <= set(numbers.columns)


def test_every_layout_says_how_to_read_it_and_what_it_requires() -> None:
    for layout in LAYOUTS.values():
        assert "How to read it:" in (layout.draw.__doc__ or "") and "Requires:" in (layout.draw.__doc__ or "")


def test_the_reading_wing_stands_alone() -> None:
    code = (
        "import sys, hessfig.figures.sheets, hessfig.figures.layouts.overlay;"
        "import hessfig.analysis.slopes.fit, hessfig.analysis.slopes.gate;"
        "heavy = {'torch', 'hydra', 'omegaconf', 'scipy', 'rich', 'matplotlib.pyplot'} & set(sys.modules);"
        "wings = [m for m in sys.modules if m.startswith('hessfig.') and m.split('.')[1] in"
        " ('config', 'rng', 'tasks', 'models', 'states', 'curvature', 'measurements', 'sweep')];"
        "print(sorted(heavy), wings)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[] []"
