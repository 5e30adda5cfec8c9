"""Mean levels in windows: known plateaus, errors over seeds, exponents in a varied setting, printed lines."""

import math

import numpy as np
import pytest

from hessfig.analysis.slopes.levels import run, window_levels
from hessfig.analysis.slopes.printed import chosen, rich_table
from hessfig.errors import UserError
from tests.analysis.synthetic import config, make_table, write_sweep

ONE = {"blocks": [("W_Q", "W_Q")], "parts": ["H"]}


def test_a_plateau_and_its_error_over_seeds():
    table = make_table(
        **ONE,
        sigma=[0.01, 0.1, 1.0, 10.0],
        law=lambda b, p, a, s: 7.0 if s < 1 else 1.0,
        seeds=4,
    )
    low, every = window_levels(table, [(None, 0.5), (None, None)]).to_dict("records")
    of_seeds = table[table["sigma"] < 0.5].groupby("seed")["value"].mean()
    assert low["level"] == pytest.approx(of_seeds.mean())
    assert low["level_se"] == pytest.approx(of_seeds.sem())
    # T(0.975, 3).
    assert low["ci_high"] - low["level"] == pytest.approx(
        3.182446 * of_seeds.sem(), rel=1e-6
    )
    assert (low["num_points"], low["num_seeds"], every["num_points"]) == (2, 4, 4)
    geometric = window_levels(table, [(None, None)], average="geometric").iloc[0]
    logs = np.log(table["value"]).groupby(table["seed"]).mean()
    assert geometric["level"] == pytest.approx(math.exp(logs.mean()))
    assert geometric["level_se"] == pytest.approx(math.exp(logs.mean()) * logs.sem())


def test_seeds_that_lack_a_number_and_places_without_any():
    table = make_table(**ONE, sigma=[0.1, 1.0], law=lambda b, p, a, s: 1.0, seeds=3)
    table.loc[
        (table["seed"] == 1234) & (table["sigma"] == 0.1), ["value", "status"]
    ] = [math.inf, "nonfinite"]
    assert window_levels(table, [(None, None)])["num_seeds"].tolist() == [2]
    table.loc[table["sigma"] == 0.1, ["value", "status"]] = [math.inf, "nonfinite"]
    (level,) = window_levels(table, [(None, None)]).to_dict("records")
    assert (level["num_seeds"], level["num_points"]) == (3, 1)
    single = window_levels(make_table(**ONE, seeds=1), [(None, None)])
    assert single["level_se"].isna().all()
    assert single["ci_low"].isna().all()


def test_the_level_goes_with_a_varied_setting(tmp_path):
    networks = [(f"model.d_mlp={width}", 1) for width in (8, 16, 32)]
    table = make_table(
        **ONE,
        networks=networks,
        settings=config(d_mlp=8),
        law=lambda b, p, a, s: 2.0,
        noise=0,
        wander=0.3,
        seeds=3,
    )
    width = table["variant"].str.partition("=")[2].astype(float)
    folder = write_sweep(
        table.assign(value=table["value"] * width**1.5), tmp_path, settings=None
    )
    levels, trends = run(folder, [(None, 1.0)])
    assert levels["level"].is_monotonic_increasing
    assert len(levels) == 3
    (trend,) = trends.to_dict("records")
    assert trend["setting"] == "model.d_mlp"
    assert trend["exponent"] == pytest.approx(1.5)
    assert trend["exponent_se"] < 0.5
    assert trend["num_values"] == 3
    assert {path.name for path in folder.glob("*.csv")} == {
        "table.csv",
        "levels.csv",
        "trends.csv",
    }
    assert rich_table(levels).row_count == 3
    assert rich_table(trends).row_count == 1


def test_lines_of_some_rows_and_parts():
    levels = window_levels(make_table(seeds=2), [(None, None)])
    assert len(chosen(levels)) == 6
    some = chosen(levels, rows="W_Q", parts=["H_o", "H"])
    assert set(some["row"]) == {"W_Q"}
    assert set(some["part"]) == {"H_o", "H"}
    with pytest.raises(
        UserError, match=r"rows: no line is of W_Qs[\s\S]*did you mean 'W_Q'"
    ):
        chosen(levels, rows=["W_Qs"])
