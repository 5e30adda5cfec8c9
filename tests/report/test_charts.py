"""The numbers of a picture as a chart: what is a panel, a curve, a place and a cell, and what hovering says."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from hessfig.analysis.intervals import band
from hessfig.errors import UserError
from hessfig.figures.parts.chart_encoding import CURVES_OF_TABLE, ChartEncoding, MapEncoding
from hessfig.report.charts import chart_of, library
from tests.report.outputs import fill, report

SIGMA = [0.01, 0.1, 1.0]


def grown(**columns: Any) -> pd.DataFrame:
    """Return curves of sigma^5 and sigma^3 in one block, as a growth sheet leaves them."""
    rows = [
        {
            **{"variant": "", "num_layers": 1, "layer": 1, "row_layer": 1, "row": "W_Q", "col": "W_Q", "part": part},
            **{"quantity": "frobenius", "sigma": s, "mean": s**power, "sem": 0.1 * s**power, "count": 4},
            **{"slope": power + 0.02, "slope_se": 0.01, "predicted": power, "prediction": "exponent"},
            **{"window_low": np.nan, "window_high": 0.5, **columns},
        }
        for part, power in (("H_o", 5.0), ("H_f", 3.0))
        for s in SIGMA
    ]
    return pd.DataFrame(rows)


def site_files(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def chart(numbers: pd.DataFrame, encoding: ChartEncoding | MapEncoding = CURVES_OF_TABLE) -> dict[str, Any]:
    return dict(json.loads(chart_of(numbers, encoding)))


def test_a_curve_has_values_intervals_seeds_and_its_slope() -> None:
    found = chart(grown())
    assert found["panels"] == ["W_Q"] and found["keys"] == [{"title": "part", "values": ["H_o", "H_f"]}]
    assert found["x"] == {"title": "σ", "log": True} and found["y"]["log"]
    outer, functional = found["curves"]
    assert (outer["at"], functional["at"]) == ([0], [1])
    np.testing.assert_allclose(functional["y"], np.array(SIGMA) ** 3, rtol=1e-5)
    low, high = band(functional["y"], 0.1 * np.array(functional["y"]), np.full(3, 4), logs=True)
    np.testing.assert_allclose(functional["low"], low, rtol=1e-4)
    np.testing.assert_allclose(functional["high"], high, rtol=1e-4)
    assert functional["seeds"] == [4, 4, 4] and functional["slope"] == "slope 3.02 ± 0.01, predicted 3"


def test_predicted_powers_go_through_the_window() -> None:
    guides = {guide["name"]: guide for guide in chart(grown())["guides"]}
    assert set(guides) == {"predicted power 5", "predicted power 3"}
    for power in (5, 3):
        one = guides[f"predicted power {power}"]
        np.testing.assert_allclose(one["y"], np.array(one["x"]) ** power, rtol=1e-4)


def test_many_curves_put_parts_side_by_side() -> None:
    numbers = pd.concat([grown(layer=layer, row_layer=layer) for layer in (1, 2)])
    found = chart(numbers)
    assert found["panels"] == ["W_Q, H_o", "W_Q, H_f"]
    assert found["keys"] == [{"title": "layer", "values": ["1", "2"]}]


def test_a_name_that_says_no_more_is_no_key() -> None:
    named = [grown(variant=f"model.temperature={t:g}", line=f"T = {t:g}") for t in (1.0, 2.0)]
    found = chart(pd.concat(named), ChartEncoding(series=("line",)))
    assert [key["title"] for key in found["keys"]] == ["line"]


def test_names_along_an_axis_are_those_of_legends() -> None:
    named = [grown(variant=variant).head(1).drop(columns="sigma") for variant in ("", "model.norm=pre")]
    (curve,) = chart(pd.concat(named, ignore_index=True))["curves"]
    assert curve["x"] == ["as set", "norm=pre"]


@pytest.mark.parametrize(
    ("sigma", "is_log"), [([0.01, 0.1, 1.0], True), (np.linspace(0.1, 1, 10), False), ([0.0, 1.0, 10.0], False)]
)
def test_an_axis_is_logarithmic_where_its_places_are(sigma: Any, is_log: bool) -> None:
    numbers = pd.DataFrame({"sigma": sigma, "mean": np.arange(len(sigma)) + 1.0})
    assert chart(numbers)["x"]["log"] is is_log


def test_blocks_of_one_place_are_a_map_whose_halves_mirror_each_other() -> None:
    pairs = [("W_Q", "W_Q", 1.0), ("W_Q", "W_V", 2.0), ("W_V", "W_V", 0.0)]
    numbers = pd.DataFrame(pairs, columns=["row", "col", "mean"]).assign(layer=1, row_layer=1, sigma=0.1)
    (found,) = chart(numbers)["maps"]
    assert found == {"x": ["W_Q", "W_V"], "y": ["W_Q", "W_V"], "z": [[1, 2], [2, 0]]}


def test_cells_of_a_map_say_their_interval_and_seeds() -> None:
    numbers = pd.DataFrame({"one": ["a", "a"], "other": ["a", "b"], "one_layer": 1, "other_layer": 1})
    distances = MapEncoding(("one", "one_layer"), ("other", "other_layer"), "mean", "distance")
    (found,) = chart(numbers.assign(mean=[0.0, 0.5], sem=[0.0, 0.01], count=3), distances)["maps"]
    assert found["z"] == [[0, 0.5]]
    assert found["words"][0][1].startswith("95 % interval 0.45") and found["words"][0][1].endswith("3 seeds")


def test_a_page_says_which_columns_are_places_values_and_ends() -> None:
    numbers = pd.DataFrame({"rate": [1.0, 2.0], "median": [3.0, 4.0], "q25": [2.0, 3.0], "q75": [5.0, 6.0]})
    assert chart_of(numbers) == ""
    (curve,) = chart(numbers, ChartEncoding("rate", "median", "q25", "q75", "quartiles"))["curves"]
    assert curve == {"panel": 0, "at": [], "x": [1, 2], "y": [3, 4], "low": [2, 3], "high": [5, 6]}


def test_what_has_no_number_is_no_chart() -> None:
    assert chart_of(pd.DataFrame()) == ""
    assert chart_of(grown().assign(mean=np.nan)) == ""
    assert chart_of(pd.DataFrame({"note": ["a", "b"]})) == ""


def test_holes_are_null_and_nothing_ends_the_script() -> None:
    text = chart_of(grown(variant="</script><b>").assign(sem=np.nan))
    assert "<" not in text and "NaN" not in text and "null" not in json.dumps(json.loads(text)["curves"][0]["y"])


def test_a_missing_plotly_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    monkeypatch.setattr("hessfig.report.charts.find_spec", lambda name: None)
    assert library(None) is None and library(False) is None
    with pytest.raises(UserError, match="interactive=true") as found:
        library(True)
    assert found.value.remedy == "pip install 'hessfig[interactive]'"


def test_one_script_serves_the_site_and_without_it_nothing_changes(tmp_path: Path) -> None:
    pytest.importorskip("plotly")
    outputs = fill(tmp_path / "outputs")
    assert report(outputs, "interactive=false") == 0
    plain = site_files(outputs / "report")
    assert not [name for name in plain if "plotly" in name or "explore" in name]
    assert report(outputs, "interactive=true") == 0
    lively = site_files(outputs / "report")
    assert set(lively) - set(plain) >= {"assets/plotly.min.js", "assets/explore.js", "assets/explore.css"}
    page = lively["sweeps/sigma.html"].decode()
    assert page.count('<script type="application/json">') == 1 and page.count("plotly.min.js") == 1
    assert lively["sweeps/sigma/fig3a.svg"] == plain["sweeps/sigma/fig3a.svg"] and "<picture>" in page
