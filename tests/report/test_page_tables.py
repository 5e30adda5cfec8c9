"""Tables of the report: what a reader sorts by, and names that may break into lines."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from hessfig.analysis.manifest import read_run
from hessfig.analysis.slopes.fit import fit_slopes
from hessfig.report.gathered import SweepAsked, SweepState
from hessfig.report.page_tables import any_table, slopes_table
from hessfig.report.readings import SweepFound
from tests.analysis.synthetic import make_table, write_sweep


def test_slopes_can_be_sorted_by_how_far_they_are_off(tmp_path: Path) -> None:
    run = read_run(write_sweep(make_table(seeds=2), tmp_path))
    frame = fit_slopes(run.table, run.architectures, [(None, 1.0)])
    asked = SweepAsked("sigma", "", [(None, 1.0)], "arithmetic", "", [], True)
    table = slopes_table(SweepFound(asked, SweepState.complete, "", "", slopes=frame))
    assert table is not None
    place = list(table.titles).index("off by")
    shown = [row[place].value for row in table.rows]
    known = (frame["prediction"] == "exponent") & ~frame["is_zero"]
    expected = (frame["slope"] - frame["predicted"]).abs().where(known)
    assert shown == ["" if pd.isna(off) else f"{off:.10g}" for off in expected]
    assert any(shown) and "" in shown and table.numeric[place]


def test_variants_may_break_between_their_settings() -> None:
    """A long name in one line pushed the verdicts off a page of 1 200 px."""
    frame = pd.DataFrame({"variant": ["model.options.activation=relu,model.options.width=128"], "value": [1.0]})
    assert any_table("numbers", "Numbers", frame).rows[0][0].text == "activation=relu, width=128"
