"""Two runs of the same networks: equal is said of equals only, and a shift is found where an exact number shows it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rich.console import Console

from hessfig.analysis.comparison import against
from hessfig.analysis.comparison.against import Comparison
from hessfig.analysis.comparison.paired import Paired, compare_pairs
from hessfig.analysis.manifest import RecordedRun
from hessfig.errors import UserError
from tests.analysis.synthetic import CONFIG, config, make_table, write_sweep

Change = Callable[[pd.DataFrame], pd.DataFrame]


def exact(seeds: int = 3, **columns: Any) -> pd.DataFrame:
    return make_table(seeds=seeds).assign(error=0.0, num_probes=0, estimator="exact", **columns)


def scaled(factor: float, **columns: Any) -> Change:
    return lambda table: table.assign(value=table["value"] * factor, **columns)


def sampled(true: pd.DataFrame, seed: int, error: float = 0.05) -> pd.DataFrame:
    """Return estimates of the same numbers by probes of their own, each with its standard error."""
    noise = np.random.default_rng(seed).normal(size=len(true))
    return true.assign(
        value=true["value"] * (1 + error * noise), error=error * true["value"], num_probes=40, config=str(seed)
    )


def paired(ours: pd.DataFrame, theirs: pd.DataFrame, settings: Any = CONFIG) -> Paired:
    found = compare_pairs(RecordedRun(ours, {}, config=CONFIG), theirs, settings, reference="theirs")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("change", "verdict", "curve"),
    [
        (scaled(1.0), "identical", "identical"),
        (scaled(1 + 1e-12), "agrees", "equal to rounding"),
        (scaled(1.03), "differs", "different"),
        (scaled(1 + 1e-8), "differs", "different"),
        (scaled(1 + 1e-4, dtype="float32", config="other"), "agrees", "equal to rounding"),
        (scaled(1 + 1e-2, dtype="float32", config="other"), "differs", "different"),
    ],
)
@pytest.mark.parametrize("made", [exact, lambda: make_table(seeds=3)], ids=["exact", "same probes"])
def test_what_must_be_equal_is(made: Callable[[], pd.DataFrame], change: Change, verdict: str, curve: str) -> None:
    ours = made()
    if "float32" in str(change(ours)["dtype"].iloc[0]):
        ours = ours.assign(error=0.0)
    found = paired(ours, change(ours))
    assert found.verdict == verdict
    known = found.curves[found.curves["part"] != "H_f"] if verdict != "identical" else found.curves
    assert set(known[known["row"] == "W_V"]["verdict"]) == {curve}


def test_equal_tables_are_equal_to_the_bit_and_no_interval_is_given() -> None:
    found = paired(exact(), exact().sample(frac=1, random_state=0))
    assert found.sentence() == "identical: all 180 numbers are equal to the bit (difference 0)"
    assert (found.curves["shift"] == 0).all()
    console = Console(width=120, record=True)
    console.print(found.rich_table())
    assert "%" not in console.export_text().partition("verdict")[2]


def test_one_number_among_many_is_found() -> None:
    theirs = exact()
    theirs.loc[7, "value"] *= 1.001
    found = paired(exact(), theirs)
    assert found.verdict == "differs" and int(found.points["is_outside"].sum()) == 1
    assert list(found.curves["verdict"]).count("different") == 1
    assert "179 of 180 numbers equal to the bit; largest difference of a number 0.001" in found.sentence()


def test_a_shift_has_its_interval_over_seeds() -> None:
    ours = exact(seeds=5)
    found = paired(ours, ours.assign(value=ours["value"] / (1.03 + 0.01 * (ours["seed"] - 1236))))
    query = found.curves[(found.curves["row"] == "W_Q") & (found.curves["part"] == "H")].iloc[0]
    logs = np.log(1.03 + 0.01 * np.arange(-2, 3))
    assert query["shift"] == pytest.approx(logs.mean())
    assert query["shift_high"] - query["shift"] == pytest.approx(2.776445 * logs.std(ddof=1) / 5**0.5)


def test_other_probes_agree_within_their_errors_and_a_shift_shows() -> None:
    true = exact(seeds=10)
    ours, theirs = sampled(true, 1), sampled(true, 2)
    found = paired(ours, theirs)
    assert found.verdict == "agrees" and "different" not in set(found.curves["verdict"])
    assert found.points["z"].std() == pytest.approx(1, abs=0.15)
    assert paired(ours, scaled(1.03)(theirs)).verdict == "differs"  # no number is outside by itself
    one = sampled(true, 2)
    one.loc[0, "value"] *= 1.6
    assert paired(ours, one).points["is_outside"].sum() == 1


@pytest.mark.long
def test_equals_are_seldom_called_different() -> None:
    """Of 100 comparisons, some 1.4 by the stated rates; six or more would have a probability of 0.004."""
    true = exact(seeds=4)
    called = [paired(sampled(true, 2 * k), sampled(true, 2 * k + 1)).verdict == "differs" for k in range(100)]
    assert sum(called) < 6


def test_other_probes_without_errors_and_one_seed_decide_nothing() -> None:
    ours = exact(seeds=1).assign(error=np.nan, num_probes=20)
    found = paired(ours, ours.assign(value=1.5 * ours["value"], num_probes=40))
    assert found.verdict in ("undecided", "agrees")
    assert set(found.curves[~found.curves["verdict"].isin(["identical"])]["verdict"]) == {"undecided"}


def test_what_is_finite_on_one_side_only_is_a_difference() -> None:
    theirs = exact()
    theirs.loc[3, ["value", "status"]] = [np.nan, "nonfinite"]
    assert paired(exact(), theirs).verdict == "differs"
    assert paired(theirs, theirs).verdict == "identical"


def test_numbers_of_any_sign_and_quantity_are_compared() -> None:
    ours = exact(quantity="smallest_eigenvalue").assign(value=lambda table: -table["value"])
    assert paired(ours, ours).verdict == "identical"
    assert paired(ours, scaled(1.01)(ours)).verdict == "differs"
    across = ours.assign(value=ours["value"].where(ours["seed"] > 1234, -ours["value"]))
    assert paired(ours, across).verdict == "differs"


def test_seeds_that_only_one_side_has_are_counted() -> None:
    found = paired(exact(seeds=3), exact(seeds=3).query("seed > 1234"))
    assert found.unmatched == (60, 0) and "2 seeds on both sides" in found.notes()[0]


@pytest.mark.parametrize(
    ("theirs", "settings"),
    [
        (exact(), config(norm="pre")),
        (exact(), {**CONFIG, "task": {**CONFIG["task"], "seed": 7}}),
        (exact(seeds=2).assign(seed=7), CONFIG),
        (exact(config="other"), None),
        (exact().assign(variant="model.norm=pre"), CONFIG),
    ],
    ids=["network", "batch", "seeds", "unknown", "variant"],
)
def test_other_networks_are_not_paired(theirs: pd.DataFrame, settings: Any) -> None:
    theirs = theirs.drop_duplicates(["row", "part", "sigma", "seed"])
    assert compare_pairs(RecordedRun(exact(), {}, config=CONFIG), theirs, settings, reference="theirs") is None


def test_settings_that_name_a_file_need_the_hash_of_its_content() -> None:
    mine = config(kind="python", factory="net.py:build")
    run = RecordedRun(exact(), {}, config=mine)
    assert compare_pairs(run, exact(), mine, reference="theirs") is not None
    assert compare_pairs(run, exact(config="edited"), mine, reference="theirs") is None


def test_the_table_of_another_run_is_read_and_numbers_are_written(tmp_path: Path) -> None:
    ours, same = (write_sweep(exact(), tmp_path / name) for name in ("ours", "same"))
    found = against.compare_folder(ours, same / "table.csv")
    against.save_comparison(found, ours)
    assert isinstance(found, Paired) and found.verdict == "identical"
    assert len(pd.read_csv(ours / "paired.csv")) == 180 and len(pd.read_csv(ours / "paired_curves.csv")) == 6
    assert not list(ours.glob("comparison*"))
    other = write_sweep(exact().assign(seed=exact()["seed"] + 10), tmp_path / "other")
    assert isinstance(against.compare_folder(ours, other / "table.csv"), Comparison)
    (same / "table.csv").write_text((same / "table.csv").read_text().replace("sigma,", "sigma;", 1))
    with pytest.raises(UserError):
        against.compare_folder(ours, same / "table.csv")
