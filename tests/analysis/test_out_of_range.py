"""Numbers beyond floating point: recorded, said at the end of the run with their sigmas, and no failure."""

import csv

import pytest

from hessfig.analysis.manifest import read_run
from hessfig.analysis.out_of_range import out_of_range
from tests.analysis.synthetic import config, make_table, write_sweep

DEEP = [
    "sweep=softmax",
    "model.n_layers=7",
    "model.d_model=4",
    "task.digits=1",
    "task.batch_size=2",
    "grid.high=10",
]


def lines(tmp_path, bad):
    """Return what is said of a table in which W_Q's H of two layers has these (status, value) at these sigmas."""
    table = make_table(
        networks=[("", 1), ("", 2)], seeds=2, sigma=[0.01, 0.1, 1.0, 4.8329]
    )
    for sigma, (status, value) in bad.items():
        rows = (
            (table["sigma"] == sigma)
            & (table["num_layers"] == 2)
            & (table["row"] == "W_Q")
        )
        table.loc[rows & (table["part"] == "H"), ["status", "value"]] = status, value
    return out_of_range(write_sweep(table, tmp_path) / "table.csv")


def test_a_sound_table_is_passed_in_silence(tmp_path):
    assert lines(tmp_path, {}) == []


@pytest.mark.parametrize(
    ("sigma", "where"),
    [
        ([4.8329], "sigma >= 4.83"),
        ([1.0, 4.8329], "sigma >= 1"),
        ([0.01], "sigma <= 0.01"),
        ([0.1, 4.8329], "sigma 0.1, 4.83"),
        ([0.01, 0.1, 1.0, 4.8329], "every sigma"),
    ],
)
def test_what_is_not_finite_is_counted_and_placed(tmp_path, sigma, where):
    (line,) = lines(tmp_path, dict.fromkeys(sigma, ("nonfinite", float("nan"))))
    count = 4 * len(sigma)
    assert line == (
        f"{count} numbers of 144 are not finite: {where} (n_layers=2): recorded as such and left out of means"
    )


def test_an_underflow_is_no_structural_zero(tmp_path):
    (line,) = lines(tmp_path, {0.01: ("ok", 0.0)})
    assert line.startswith(
        "4 numbers of 144 are 0 where theory knows no zero: sigma <= 0.01 (n_layers=2): "
    )


def test_nobody_knows_the_zeros_of_a_users_own_network(tmp_path):
    table = make_table(seeds=1, sigma=None, networks=[("", 0)]).assign(
        value=0.0, status="ok"
    )
    assert len(said(tmp_path, table)) == 1
    assert said(tmp_path, table, settings=config(kind="python")) == []


def said(tmp_path, table, **options):
    return out_of_range(write_sweep(table, tmp_path, **options) / "table.csv")


def test_other_quantities_overflow_but_may_be_0(tmp_path):
    traces = make_table(quantity="trace", seeds=1, sigma=[0.1, 1.0]).astype(
        {"value": float}
    )
    traces["status"] = "ok"
    assert said(tmp_path, traces) == []
    traces.loc[traces["sigma"] == 1.0, ["status", "value"]] = [
        "nonfinite",
        float("inf"),
    ]
    (line,) = said(tmp_path, traces)
    assert line.startswith(
        "6 numbers of 12 are not finite: sigma >= 1 (n_layers=1, trace): "
    )


def test_what_did_not_converge_is_said(tmp_path):
    table = make_table(seeds=1, sigma=[0.1, 1.0])
    table.loc[table["sigma"] == 0.1, "status"] = "not_converged"
    (line,) = said(tmp_path, table)
    assert (
        line
        == "6 numbers of 12 did not converge: sigma <= 0.1 (n_layers=1): recorded and left out of means"
    )


def test_places_without_sigma(tmp_path):
    table = make_table(seeds=1, sigma=None, steps=[0, 10, 100]).astype({"value": float})
    table.loc[table["step"] == 100, ["status", "value"]] = ["nonfinite", float("nan")]
    (line,) = said(tmp_path, table)
    assert "6 numbers of 18 are not finite: step >= 100 (n_layers=1)" in line
    table = make_table(seeds=1, sigma=None).astype({"value": float})
    table.loc[0, ["status", "value"]] = ["nonfinite", float("nan")]
    (line,) = said(tmp_path, table)
    assert (
        "1 numbers of 6 are not finite: at the one point measured (n_layers=1)" in line
    )


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_a_network_too_deep_for_float64_runs_to_its_end(cli, tmp_path):
    done = cli("run", *DEEP, "seeds=1", "grid.points=3", "workers=1")
    assert done.code == 0, done.err
    lines = done.out.splitlines()
    measured = [
        place
        for place, line in enumerate(lines)
        if "3 cells measured, 0 reused, 0 failed" in line
    ]
    said = lines[measured[0] + 1 :]
    assert (
        "numbers of 126 are not finite: sigma >= 1 (n_layers=7): recorded as such"
        in said[0]
    )
    assert (
        "numbers of 126 are 0 where theory knows no zero: sigma <= 0.1 (n_layers=7)"
        in said[1]
    )
    with (tmp_path / "outputs/softmax/table.csv").open() as handle:
        assert {row["status"] for row in csv.DictReader(handle)} == {
            "ok",
            "nonfinite",
            "structural_zero",
        }
    assert len(read_run(tmp_path / "outputs/softmax").table) == 126
