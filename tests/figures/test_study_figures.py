"""The figures of the two studies, tested by their artists' data."""

import numpy as np
import pandas as pd
import pytest

from hessfig.errors import UserError
from hessfig.figures import study_figures
from hessfig.theory import studies
from tests.figures.conftest import heights


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


def scalar_tables(outputs):
    folder = outputs / "scalar"
    return {name: pd.read_csv(folder / f"{name}.csv") for name in study_figures.TABLES}


def named(lines):
    """Return the lines that stand in the legend."""
    return {one.get_label(): one for one in lines if one.get_label()[0] != "_"}


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
    tables = scalar_tables(outputs)
    ax = study_figures.scalar_sheet(tables).axes[0]
    drawn = np.concatenate(heights(ax.lines))
    assert sorted(drawn) == pytest.approx(
        sorted([*tables["spectrum"]["autodiff"], *tables["spectrum"]["closed_form"]])
    )


def test_sink_panels_draw_bulk_and_three_outliers_for_each_kind(outputs):
    tables = scalar_tables(outputs)
    for ax in study_figures.scalar_sheet(tables).axes[3:]:
        assert [*named(ax.lines)] == ["bulk", "outlier 1", "outlier 2", "outlier 3"]


def test_numbers_hold_all_that_is_drawn(outputs):
    tables = scalar_tables(outputs)
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
    curves = named(whole.lines)
    assert set(curves) == {label for _, label in study_figures.WHOLE.values()}
    for line in curves.values():
        assert list(line.get_xdata()) == sorted(set(table["sigma"]))


@pytest.mark.parametrize(
    ("name", "table"), [("scalar", "spectrum.csv"), ("bounds", "looseness.csv")]
)
def test_a_missing_table_is_named(name, table, tmp_path):
    with pytest.raises(UserError, match=rf"(?s){table} is missing.*hessfig plot"):
        study_figures.DRAWN[name](tmp_path)
