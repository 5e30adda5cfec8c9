"""What is read off trainings, on synthetic tables whose answer is known."""

import itertools
import math

import pandas as pd
import pytest

from hessfig.analysis.training_runs import against_plain, late_shares, race, shares
from hessfig.errors import UserError
from tests.analysis.spectral import spectral_table

WHOLE = {"row": "", "part": ""}


def of_edge():
    """Return eigenvalues at 2 / eta from step 60 of 90 on, half as large before, seeds 2 % apart."""
    rows = []
    for rate, seed, step in itertools.product((0.5, 2.0), (1, 2), range(0, 91, 10)):
        variant = f"training.learning_rate={rate}"
        place = {"variant": variant, "seed": seed, "step": float(step)}
        value = {1: 0.99, 2: 1.01}[seed] * 2 / rate * (1 if step >= 60 else 0.5)
        rows.append({**place, "quantity": "largest_eigenvalue", "value": value})
        rows.append({**rows[-1], "part": "H_o", "value": 77.0})
        threshold = {"quantity": "stability_threshold", "value": 2 / rate}
        rows.append({**place, **WHOLE, **threshold})
    return spectral_table(rows)


def test_where_a_sharpness_settles_is_the_mean_over_the_last_third():
    found = late_shares(of_edge(), "largest_eigenvalue")
    assert [one.mean for one in found.values()] == pytest.approx([1.0, 1.0])
    assert [one.count for one in found.values()] == [2, 2]
    every = shares(of_edge(), "largest_eigenvalue")
    assert every[every["step"] == 0]["share"].mean() == pytest.approx(0.5)


def of_race(losses):
    """Return runs of 100 steps whose log loss falls linearly to the given one; an update takes 1 s, a look 50 s."""
    rows = []
    for (optimiser, curvature, rate), loss in losses.items():
        variant = f"training.optimiser={optimiser},training.curvature={curvature},training.learning_rate={rate}"
        for step in (0, 50, 100):
            looks = (step + 99) // 100 * (curvature != "none")
            numbers = {"loss": loss ** (step / 100), "looks": looks}
            numbers |= {"update_seconds": 1.0, "look_seconds": 50.0}
            rows += of_seeds(variant, step, numbers)
    return spectral_table(rows)


def of_seeds(variant, step, numbers):
    """Return the rows of three seeds, whose numbers are equal or functions of the seed."""
    rows = []
    for seed, (name, value) in itertools.product((1, 2, 3), numbers.items()):
        place = {"variant": variant, "seed": seed, "step": float(step)}
        number = value(seed) if callable(value) else value
        rows.append({**WHOLE, **place, "quantity": name, "value": number})
    return rows


def test_rules_are_raced_at_their_best_rates_with_their_looks_paid_for():
    found = race(
        of_race(
            {
                ("sgd", "none", 0.1): 0.9,
                ("sgd", "none", 1.0): 0.5,
                ("sgd", "whole", 0.1): 0.25,
                ("sgd", "whole", 1.0): 0.8,
            }
        )
    )
    assert found.budget == {"step": 100.0, "seconds": 100.0}
    by = found.tuned.groupby(["budget", "rule"])[["rate", "loss"]].mean()
    assert by.loc[("step", "sgd"), "loss"] == pytest.approx(0.5)
    assert by.loc[("step", "sgd, whole"), "loss"] == pytest.approx(0.25)
    assert by.loc[("seconds", "sgd"), "loss"] == pytest.approx(0.5)
    # after 100 s it has done 50 updates, at half the logarithm
    assert by.loc[("seconds", "sgd, whole"), "loss"] == pytest.approx(0.5)
    assert sorted(set(found.tuned["rate"])) == [0.1, 1.0]
    assert found.tuned["at_edge"].all()


def test_no_seed_is_judged_by_the_rate_it_chose_itself():
    table = of_race({("sgd", "none", 0.1): 0.5, ("sgd", "none", 1.0): 0.6})
    lucky = (
        (table["seed"] == 1)
        & table["variant"].str.endswith("rate=1.0")
        & (table["quantity"] == "loss")
    )
    lucky &= table["step"] == 100
    found = race(table.assign(value=table["value"].where(~lucky, 0.01)))
    of_seed = found.tuned[found.tuned["budget"] == "step"].set_index("seed")
    assert of_seed.loc[1, "rate"] == 0.1
    assert of_seed.loc[1, "loss"] == pytest.approx(0.5)
    assert of_seed.loc[2, "rate"] == 1.0
    assert of_seed.loc[2, "loss"] == pytest.approx(0.6)


def test_a_run_that_was_lost_counts_as_the_worst():
    table = of_race({("sgd", "none", 0.1): 0.5, ("sgd", "none", 1.0): 0.1})
    kept = ~((table["seed"] == 2) & table["variant"].str.endswith("rate=1.0"))
    tuned = race(table[kept]).tuned
    assert set(tuned[tuned["seed"] != 2]["rate"]) == {0.1}


def test_a_race_without_costs_is_refused():
    with pytest.raises(UserError, match="losses and costs"):
        race(spectral_table([{**WHOLE, "quantity": "loss", "value": 1.0, "step": 0.0}]))


def of_rules():
    """Return a race of 10 steps: Newton with two dampings and 30 products a look, AdamW, clipped descent."""
    losses = {"optimiser=gd,training.clip_norm=0.1,training.learning_rate=3": 0.8}
    for k in (1, 2):
        losses[f"optimiser=newton,training.learning_rate=1,training.damping={k}"] = (
            0.1 * k
        )
        losses[f"optimiser=adamw,training.learning_rate={k}"] = 0.4 * k
    rows = []
    for (rule, loss), step in itertools.product(losses.items(), (0, 10)):
        looks = step * ("newton" in rule)
        numbers = {"loss": loss ** (step / 10), "looks": looks}
        numbers |= {"hessian_products": 30 * looks, "update_seconds": 1.0}
        numbers |= {"look_seconds": 9.0, "decrease_ratio": lambda seed: 0.5 + seed}
        rows += of_seeds(f"training.{rule}", step, numbers)
    return spectral_table(rows)


def test_rules_with_a_damping_are_tuned_over_it_and_pay_for_products():
    found = race(of_rules())
    assert found.budget == {"step": 10.0, "seconds": 10.0}
    by = found.tuned.groupby(["budget", "rule"])[["rate", "loss"]].mean()
    assert by.loc[("step", "newton"), "rate"] == 1.0
    assert by.loc[("step", "newton"), "loss"] == pytest.approx(0.1)
    last = (
        found.losses[found.losses["step"] == 10]
        .groupby("rule")[["products", "seconds"]]
        .first()
    )
    assert last.loc["newton"].tolist() == [10 + 2 * 300, 100.0]
    assert last.loc["adamw"].tolist() == [10.0, 10.0]
    assert by.loc[("seconds", "newton"), "loss"] == pytest.approx(0.1 ** (10 / 100))
    assert by.loc[("step", "gd, clipping 0.1"), "loss"] == pytest.approx(0.8)
    ratios = against_plain(found.tuned, "adamw").set_index(["budget", "rule"])["ratio"]
    assert ratios["step", "newton"] == pytest.approx(0.1 / 0.4)
    assert ("step", "adamw") not in ratios.index
    assert found.ratios.groupby("seed")["ratio"].unique().to_dict() == {
        1: [1.5],
        2: [2.5],
        3: [3.5],
    }


def test_rules_are_paired_with_their_plain_optimiser():
    plain = [1.0, 0.1, 0.01]
    rows = [
        ("step", rule, seed, 0.1, False, loss * factor)
        for rule, factor in (
            ("sgd", 1.0),
            ("sgd, whole", 2.0),
            ("sgd, blocks", math.inf),
            ("adamw, whole", 1.0),
        )
        for seed, loss in enumerate(plain)
    ]
    found = against_plain(
        pd.DataFrame(
            rows, columns=["budget", "rule", "seed", "rate", "at_edge", "loss"]
        )
    )
    assert list(found["rule"]) == ["sgd, whole", "sgd, blocks"]
    twice = found.iloc[0]
    assert [twice["ratio"], twice["ratio_low"], twice["ratio_high"]] == pytest.approx(
        [2.0] * 3
    )
    assert math.isnan(found["ratio"].iloc[1])  # a run that diverged has no ratio
