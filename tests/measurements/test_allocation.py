"""The allocation of probes: the rule on numbers with known variances, pilots apart from the sweep, end to end."""

import json
import math

import pandas as pd
import pytest
import torch

from hessfig.config.enums import Method
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig, GridConfig, ModelConfig, TaskConfig
from hessfig.measurements.allocation import (
    FEWEST_PROBES,
    PILOT_REPEATS,
    Allocation,
    pilot_share,
    probes_needed,
)
from hessfig.rng import stream
from hessfig.sweep import preview
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import run_sweep

# Columns of 289 entries: smaller ones are not probed.
TWO_LAYERS = ModelConfig(n_layers=2, d_model=17)


def config(folder="outputs", **settings):
    chosen = {
        "model": TWO_LAYERS,
        "task": TaskConfig(digits=1, batch_size=3),
        "grid": GridConfig(points=2),
        "estimator": EstimatorConfig(
            method=Method.auto, num_probes=20, variance_share=0.01, rules=1
        ),
        "blocks": ["W_Q"],
        "seeds": 2,
        "workers": 1,
        "output_dir": str(folder),
    }
    return Config(**{**chosen, **settings})


def numbers(error, spread, probes=8, repeats=4000):
    """Return rows of one block at one sigma with the given relative standard deviations."""
    draw = torch.randn(repeats, generator=stream(0, error, spread), dtype=torch.float64)
    frobs = (math.hypot(error, spread) * draw).exp().tolist()
    shared = {
        "layer": 1,
        "row_layer": 1,
        "row": "W_Q",
        "col": "W_Q",
        "part": "H",
        "sigma": 1.0,
        "status": "ok",
    }
    found = []
    for f in frobs:
        found.append({**shared, "value": f, "error": error * f, "num_probes": probes})
    return found


@pytest.mark.parametrize(
    ("error", "spread", "share"), [(0.1, 0.2, 0.1), (0.05, 0.2, 0.1), (0.1, 0.2, 0.5)]
)
def test_the_rule_gives_the_probes_at_which_error_is_its_share(error, spread, share):
    expected = max(8 * error**2 / (share * spread**2), FEWEST_PROBES)
    found = probes_needed(numbers(error, spread), share, ceiling=100)
    assert found == pytest.approx(expected, rel=0.1, abs=1)


def test_blocks_are_pooled_and_the_ceiling_holds():
    rows = numbers(0.1, 0.2)
    twice = [{**row, "layer": 2} for row in rows]
    assert probes_needed([*rows, *twice], 0.1, ceiling=100) == probes_needed(
        rows, 0.1, ceiling=100
    )
    assert probes_needed(numbers(0.3, 0.0), 0.1, ceiling=20) == 20
    assert probes_needed(rows[:1], 0.1, ceiling=20) == 20
    assert probes_needed(rows, 0.1, ceiling=3) == 3


def test_probes_are_linear_in_log_sigma_between_the_pilots():
    allocation = Allocation({"W_V": {0.01: 20, 0.1: 10}, "W_Q": {0.1: 6}})
    columns = []
    for sigma in (0.001, 0.01, 0.01**0.75 * 0.1**0.25, 0.1, 5.0):
        columns.append(allocation.at(sigma))
    assert [counts["W_V"] for counts in columns] == [20, 20, 18, 10, 10]
    assert {counts["W_Q"] for counts in columns} == {6}
    assert Allocation().at(0.1) == {}


def test_pilots_are_other_networks_and_only_for_variants_that_probe():
    cells = Sweep([("", config())]).pilots
    assert len(cells) == 2 * PILOT_REPEATS == len({cell.seed for cell in cells})
    for cell in cells:
        assert cell.seed < 0
    assert {cell.sigma for cell in cells} == {0.01, 10.0}
    assert not Sweep([("", config(model=ModelConfig(d_model=6)))]).pilots
    assert not Sweep(
        [("", config(estimator=EstimatorConfig(Method.hutchinson)))]
    ).pilots


def test_pilots_cost_at_most_a_quarter_of_the_cells():
    by_cost = EstimatorConfig(method=Method.auto, num_probes=20)
    few, many = (
        Sweep([("", config(estimator=by_cost, seeds=seeds))]) for seeds in (2, 40)
    )
    assert (
        pilot_share(few.config, few.variants[0].layout)
        > 0.25
        >= pilot_share(many.config, many.variants[0].layout)
    )
    assert not few.pilots
    assert len(many.pilots) == 2 * PILOT_REPEATS
    assert not many.notes
    assert few.notes == [
        "pilots would cost 189% of the cells, more than 25%: 20 probes without them"
    ]
    for cell in few.cells:
        assert cell.probe_counts == {}
    assert few.notes[0] in preview.describe_plan(few)


def test_a_run_without_pilots_says_so(tmp_path):
    by_cost = EstimatorConfig(method=Method.auto, num_probes=20)
    summary = run_sweep(Sweep([("", config(tmp_path, estimator=by_cost, seeds=1))]))
    manifest = json.loads((tmp_path / "sigma" / "manifest.json").read_text())
    assert summary.notes[0].startswith(manifest["variants"][0]["pilots"])
    assert manifest["variants"][0]["probes"] == 20
    assert summary.measured == 2


def test_a_run_uses_its_pilots_and_a_second_run_finds_everything_done(tmp_path):
    variants = [("", config(tmp_path))]
    assert "16 cells of other seeds, 0 done" in preview.describe_plan(Sweep(variants))
    first = run_sweep(Sweep(variants))
    again = run_sweep(Sweep(variants))
    assert (first.measured, again.measured, again.reused) == (4, 0, 4)
    [chosen] = Sweep(variants).allocations
    counts = chosen.probes["W_Q"]
    assert 12 >= counts[0.01] > counts[10.0] >= FEWEST_PROBES
    assert len(counts) == 2
    manifest = json.loads((tmp_path / "sigma" / "manifest.json").read_text())
    assert manifest["config"]["estimator"]["num_probes"] == 20
    assert manifest["variants"][0]["probes"] == {
        "W_Q": {str(sigma): count for sigma, count in counts.items()}
    }
    assert (
        f"auto, W_Q {counts[0.01]} to {counts[10.0]} probes"
        in preview.describe_plan(Sweep(variants))
    )
    written = pd.read_csv(first.table)
    lower = written[written["layer"] == 1]
    assert {
        sigma: set(rows["num_probes"]) for sigma, rows in lower.groupby("sigma")
    } == {sigma: {count} for sigma, count in counts.items()}
    assert (written["seed"] >= 0).all()


def test_only_what_is_probed_decides(tmp_path):
    """The last layer's norms are exact, without error and without probes: the rule must not see them."""
    variants = [("", config(tmp_path))]
    run_sweep(Sweep(variants))
    sweep = Sweep(variants)
    for sigma, count in sweep.allocations[0].probes["W_Q"].items():
        cells = [cell for cell in sweep.pilots if cell.sigma == sigma]
        rows = [row for cell in cells for row in sweep.store.read(cell.key) or []]
        lower = [row for row in rows if row["layer"] == 1]
        assert 0 < len(lower) < len(rows)
        assert count == probes_needed(lower, 0.01, ceiling=12)


def test_the_allocation_does_not_depend_on_the_sweep_s_own_seeds(tmp_path):
    run_sweep(Sweep([("", config(tmp_path))]))
    found = []
    for seed in (0, 1234):
        found.append(Sweep([("", config(tmp_path, first_seed=seed))]).allocations[0])
    assert found[0] == found[1] != Allocation()
    assert Sweep([("", config(tmp_path))]).cells[0].seed == 1234
