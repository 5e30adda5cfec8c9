"""CI's regression on slopes: a small exact run of the main sweep passes the gate, a wrong exponent does not."""

import io
import json

import pandas as pd
import pytest

from hessfig.analysis.slopes import gate
from tests.runs import here

SMALL = [
    "sweep=sigma",
    "estimator=exact",
    "model.d_model=16",
    "seeds=4",
    "grid.high=0.3",
    "grid.points=6",
]
TOLERANCE = 0.25


@pytest.fixture(scope="module")
def outputs(tmp_path_factory, workers):
    folder = tmp_path_factory.mktemp("slopes")
    assert here("run", *SMALL, f"output_dir={folder}", folder=folder).returncode == 0
    return folder


def test_small_run_passes_the_gate(outputs):
    done = here(
        "check",
        "sweep=sigma",
        f"tolerance={TOLERANCE}",
        f"output_dir={outputs}",
        folder=outputs,
    )
    assert done.returncode == 0, done.stderr
    assert "6 slopes checked, 6 pass, 0 outside" in done.stdout


@pytest.mark.parametrize("part", ["H_o", "H_f"])
def test_wrong_exponent_fails_and_is_named(outputs, part):
    here("slopes", "sweep=sigma", f"output_dir={outputs}", folder=outputs)
    frame = pd.read_csv(outputs / "sigma" / "slopes.csv")
    query = (frame.row == "W_Q") & (frame.part == part)
    frame.loc[query, "predicted"] = {"H_o": 5.0, "H_f": 6.0}[part]
    (violation,) = gate.violations(frame, TOLERANCE)
    assert "W_Q" in violation
    assert part in violation


def test_gate_exits_1_naming_every_slope_outside(outputs):
    done = here(
        "check",
        "sweep=sigma",
        "tolerance=0.0001",
        f"output_dir={outputs}",
        folder=outputs,
    )
    assert done.returncode == 1
    assert all(name in done.stdout for name in ("W_Q", "W_V", "H_o"))


def test_programs_read_verdicts_slopes_and_progress_as_json(outputs):
    place = ("sweep=sigma", f"output_dir={outputs}")
    checked = here("check", *place, "tolerance=0.0001", "format=json", folder=outputs)
    found = json.loads(checked.stdout)
    assert checked.returncode == 1
    assert not found["passes"]
    assert found["tolerance"] == 0.0001
    assert len(found["slopes"]) == 6
    assert found["slopes"][0]["window_low"] is None
    rows = json.loads(
        here("slopes", *place, "rows=W_Q", "format=json", folder=outputs).stdout
    )["rows"]
    assert {row["row"] for row in rows} == {"W_Q"}
    printed = pd.read_csv(
        io.StringIO(here("slopes", *place, "format=csv", folder=outputs).stdout)
    )
    pd.testing.assert_frame_equal(
        printed, pd.read_csv(outputs / "sigma" / "slopes.csv")
    )
    progress = json.loads(
        here(
            "status", *SMALL, f"output_dir={outputs}", "format=json", folder=outputs
        ).stdout
    )
    assert (progress["done"], progress["to_do"], progress["failed"]) == (
        progress["cells"],
        0,
        0,
    )


def test_levels_are_in_files_of_their_own(outputs):
    done = here(
        "slopes",
        "sweep=sigma",
        "levels=true",
        "format=csv",
        f"output_dir={outputs}",
        folder=outputs,
    )
    assert done.returncode == 2
    assert "format=csv" in done.stderr
