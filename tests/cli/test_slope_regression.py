"""CI's regression on slopes: a small exact run of the main sweep passes the gate, a wrong exponent does not."""

from __future__ import annotations

from pathlib import Path

import pandas as pd
import pytest

from hessfig.analysis.slopes import gate
from tests.runs import here

SMALL = ["sweep=sigma", "estimator=exact", "model.d_model=16", "seeds=4", "grid.high=0.3", "grid.points=6"]
TOLERANCE = 0.25


@pytest.fixture(scope="module")
def outputs(tmp_path_factory: pytest.TempPathFactory, workers: None) -> Path:
    folder = tmp_path_factory.mktemp("slopes")
    assert here("run", *SMALL, f"output_dir={folder}", folder=folder).returncode == 0
    return folder


def test_small_run_passes_the_gate(outputs: Path) -> None:
    done = here("check", "sweep=sigma", f"tolerance={TOLERANCE}", f"output_dir={outputs}", folder=outputs)
    assert done.returncode == 0, done.stderr
    assert "6 slopes checked, 6 pass, 0 outside" in done.stdout


@pytest.mark.parametrize("part", ["H_o", "H_f"])
def test_wrong_exponent_fails_and_is_named(outputs: Path, part: str) -> None:
    here("slopes", "sweep=sigma", f"output_dir={outputs}", folder=outputs)
    frame = pd.read_csv(outputs / "sigma" / "slopes.csv")
    query = (frame.row == "W_Q") & (frame.part == part)
    frame.loc[query, "predicted"] = {"H_o": 5.0, "H_f": 6.0}[part]
    (violation,) = gate.violations(frame, TOLERANCE)
    assert "W_Q" in violation and part in violation


def test_gate_exits_1_naming_every_slope_outside(outputs: Path) -> None:
    done = here("check", "sweep=sigma", "tolerance=0.0001", f"output_dir={outputs}", folder=outputs)
    assert done.returncode == 1
    assert all(name in done.stdout for name in ("W_Q", "W_V", "H_o"))
