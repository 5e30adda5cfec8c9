"""The figures of the two studies, tested by their artists' data."""

import pandas as pd
import pytest

from hessfig.errors import UserError
from hessfig.figures import study_figures
from hessfig.theory import studies


@pytest.fixture(scope="module")
def outputs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("outputs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(studies, "PROBLEMS", 6)
        patch.setattr(studies, "CONDITION_PROBLEMS", 3)
        patch.setattr(studies, "BOUNDS_PROBLEMS", 2)
        patch.setattr(studies, "RANDOM_SCALES", 2)
        patch.setattr(studies, "SIGMAS", (0.1, 1.0))
        studies.run_scalar(folder)
        studies.run_bounds(folder)
    return folder


@pytest.mark.parametrize("name", study_figures.DRAWN)
@pytest.mark.long
def test_all_formats_are_written(name, outputs):
    paths = study_figures.DRAWN[name](outputs)
    assert {path.name for path in paths} == {
        f"fig{name}.{kind}" for kind in ("pdf", "png", "svg", "csv")
    }
    assert all(
        path.parent == outputs / "figures" and path.stat().st_size for path in paths
    )


def test_spectrum_panel_draws_every_eigenvalue_twice(outputs):
    tables = {
        name: pd.read_csv(outputs / "scalar" / f"{name}.csv")
        for name in study_figures.TABLES
    }
    ax = study_figures.scalar_sheet(tables).axes[0]
    drawn = [line.get_ydata() for line in ax.lines if len(line.get_ydata())]
    assert sorted(y for part in drawn for y in part) == pytest.approx(
        sorted([*tables["spectrum"]["autodiff"], *tables["spectrum"]["closed_form"]])
    )


def test_sink_panels_draw_bulk_and_three_outliers_for_each_kind(outputs):
    tables = {
        name: pd.read_csv(outputs / "scalar" / f"{name}.csv")
        for name in study_figures.TABLES
    }
    for ax in study_figures.scalar_sheet(tables).axes[3:]:
        labels = [
            line.get_label()
            for line in ax.lines
            if not line.get_label().startswith("_")
        ]
        assert labels == ["bulk", "outlier 1", "outlier 2", "outlier 3"]


def test_numbers_hold_all_that_is_drawn(outputs):
    tables = {
        name: pd.read_csv(outputs / "scalar" / f"{name}.csv")
        for name in study_figures.TABLES
    }
    numbers = study_figures.numbers(tables)
    assert {"spectrum", "condition number", "GGN", "sink: value"} <= set(
        numbers["panel"]
    )
    assert len(numbers) == 2 * len(tables["spectrum"]) + 3 * len(
        tables["condition"]
    ) + len(tables["ggn"]) + len(tables["sinks"])


def test_bounds_are_drawn_against_sigma(outputs):
    table = pd.read_csv(outputs / "bounds" / "looseness.csv")
    whole = study_figures.bounds_sheet(table).axes[0]
    curves = {
        line.get_label(): line
        for line in whole.lines
        if not line.get_label().startswith("_")
    }
    assert set(curves) == {label for _, label in study_figures.WHOLE.values()}
    for line in curves.values():
        assert list(line.get_xdata()) == sorted(set(table["sigma"]))


@pytest.mark.parametrize(
    ("name", "table"), [("scalar", "spectrum.csv"), ("bounds", "looseness.csv")]
)
def test_a_missing_table_is_named(name, table, tmp_path):
    with pytest.raises(UserError, match=rf"(?s){table} is missing.*hessfig plot"):
        study_figures.DRAWN[name](tmp_path)
