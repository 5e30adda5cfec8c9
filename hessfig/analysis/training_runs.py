"""Readings of trainings: shares of the threshold of stability, races of rules."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from pandas import DataFrame, Series, concat

from hessfig.analysis.axis import settings_of
from hessfig.analysis.intervals import Interval, geometric_interval, student_interval
from hessfig.errors import UserError
from hessfig.record import LEFT_OUT

THRESHOLD = "stability_threshold"
# A run is at the edge when its mean share over the last third lies within this of one;
# of iterates.
EDGE_TOLERANCE = 0.1
_PLACE = ["variant", "sigma", "seed", "step"]


def shares(table: DataFrame, quantity: str) -> DataFrame:
    """Return the numbers of a quantity of the whole network with `threshold` and `share` = value / threshold."""
    counted = table[~table["status"].isin(LEFT_OUT)]
    values, thresholds = (
        of_whole(counted, name, "H")[[*_PLACE, "value"]]
        for name in (quantity, THRESHOLD)
    )
    merged = values.merge(thresholds.rename(columns={"value": "threshold"}), on=_PLACE)
    return merged.assign(share=merged["value"] / merged["threshold"])


def late_shares(table: DataFrame, quantity: str) -> dict[str, Interval]:
    """Return, by variant, the interval over seeds of the mean share over the last third of the steps."""
    every = shares(table, quantity)
    late = every[every["step"] >= 2 / 3 * table["step"].max()]
    means = late.groupby(["variant", "seed"], sort=False)["share"].mean().reset_index()
    return {
        str(variant): student_interval(runs["share"])
        for variant, runs in means.groupby("variant", sort=False)
    }


def of_whole(table: DataFrame, quantity: str, part: str = "") -> DataFrame:
    """Return the numbers of a quantity of the whole network, the first of several."""
    rows = table[
        (table["quantity"] == quantity)
        & table["row"].isin(["", "all"])
        & (table["index"] <= 1)
    ]
    return rows[rows["part"].isin(["", part])]


OPTIMISER = "training.optimiser"
CURVATURE = "training.curvature"
RATE = "training.learning_rate"
MOMENTUM = "training.momentum"
CLIPPING = "training.clip_norm"
DAMPING = "training.damping"
_RUN = ["rule", "rate", "seed"]


@dataclass(frozen=True)
class Race:
    """`losses`: rule, rate, seed, step, products, seconds, loss. `tuned`: rule, seed, rate and loss for each budget.

    `products` counts a gradient as one and a Hessian product as two. `budget` holds the
    numbers of gradients and seconds that every rule may use; `tuned.at_edge` is true if
    the rate is an end of the grid. `ratios` are true over predicted decreases by rule,
    rate, seed and step.
    """

    losses: DataFrame
    tuned: DataFrame
    budget: dict[str, float]
    ratios: DataFrame


def race(table: DataFrame) -> Race:
    """Return the race of a sweep over rules and learning rates.

    For a rule with varied damping, the rate is the damping. Raises UserError without
    costs or losses.
    """
    counted = _named(table[~table["status"].isin(LEFT_OUT)])
    losses = counted[counted["quantity"] == "loss"]
    if losses.empty or not (counted["quantity"] == "update_seconds").any():
        raise UserError(
            "a race needs losses and costs",
            got=", ".join(table["quantity"].unique()),
            allowed="quantities=[loss,training_cost]",
            remedy="hessfig run sweep=steps",
        )
    timed = _seconds(counted)
    losses = losses.drop(columns="seconds").merge(timed, on=["rule", "step"])
    losses = losses[[*_RUN, "step", "products", "seconds", "value"]].rename(
        columns={"value": "loss"}
    )
    budget = {
        along: float(losses.groupby("rule")[along].max().min())
        for along in ("step", "seconds")
    }
    tuned = [
        _tuned(_at(losses, along, least), along) for along, least in budget.items()
    ]
    ratios = counted.loc[
        counted["quantity"] == "decrease_ratio", [*_RUN, "step", "value"]
    ]
    return Race(
        losses,
        concat(tuned, ignore_index=True),
        budget,
        ratios.rename(columns={"value": "ratio"}),
    )


def against_plain(tuned: DataFrame, reference: str = "") -> DataFrame:
    """Return, by budget and rule, the loss over that of its plain optimiser: geometric mean and interval over seeds.

    With a `reference`, it is the loss over that of this rule. Ratios are taken seed by
    seed, both at the rates that the other seeds choose; nan if one of the runs
    diverged. Columns: budget, rule, ratio, ratio_low, ratio_high, ratio_count. A plain
    optimiser has no row.
    """
    losses = tuned.set_index(["budget", "rule", "seed"])["loss"].sort_index()
    rows = []
    for budget, rule in dict.fromkeys(zip(tuned["budget"], tuned["rule"], strict=True)):
        plain = reference or rule.partition(",")[0]
        if rule == plain or (budget, plain) not in losses.index:
            continue
        ratios = (losses[budget, rule] / losses[budget, plain]).dropna()
        interval = geometric_interval(
            ratios if np.isfinite(ratios).all() else [math.nan]
        )
        ends = (interval.mean, interval.low, interval.high)
        rows.append((budget, rule, *ends, interval.count))
    return DataFrame(
        rows,
        columns=["budget", "rule", "ratio", "ratio_low", "ratio_high", "ratio_count"],
    )


def _named(table: DataFrame) -> DataFrame:
    every = [settings_of(variant) for variant in table["variant"]]
    rates = [float(one.get(DAMPING, one.get(RATE, "nan"))) for one in every]
    return table.assign(rule=list(map(_rule, every)), rate=rates)


def _rule(given: Mapping[str, str]) -> str:
    optimiser = given.get(OPTIMISER, "").replace("_", " ")
    curvature = given.get(CURVATURE, "none")
    words = [optimiser]
    if MOMENTUM in given and optimiser == "sgd":
        words.append(f"momentum {given[MOMENTUM]}")
    if CLIPPING in given:
        words.append(f"clipping {given[CLIPPING]}")
    if curvature != "none":
        words.append(curvature.replace("_", " "))
    return ", ".join(words)


def _seconds(counted: DataFrame) -> DataFrame:
    """Return the cost of each rule up to each step: gradients and products, and seconds by their median times."""
    each = counted.groupby(["quantity", "rule"])["value"].median()
    place = ["rule", "step"]
    looks, products = (
        counted[counted["quantity"] == name].groupby(place)["value"].median()
        for name in ("looks", "hessian_products")
    )
    looks = looks.rename("looks").reset_index()
    rule, step = looks["rule"], looks["step"]
    updating = step * rule.map(each["update_seconds"])
    looking = looks["looks"] * rule.map(each["look_seconds"])
    spent = looks.assign(seconds=updating + looking)
    spent = spent.join(products.rename("products"), on=place)
    spent["products"] = spent["step"] + 2 * spent["products"]
    return spent[[*place, "products", "seconds"]]


def _at(losses: DataFrame, along: str, place: float) -> DataFrame:
    """Return the loss of every run at a place along `along`, interpolated linearly in its logarithm."""
    rows = []
    for key, run in losses.sort_values(along).groupby(_RUN):
        inside = run[along].min() <= place <= run[along].max() * (1 + 1e-9)
        log = np.interp(place, run[along], np.log(run["loss"])) if inside else np.inf
        rows.append((*key, float(np.exp(log))))
    return DataFrame(rows, columns=[*_RUN, "loss"])


def _tuned(at: DataFrame, along: str) -> DataFrame:
    rows = []
    for rule, runs in at.groupby("rule", sort=False):
        wide = runs.pivot_table(index="rate", columns="seed", values="loss").fillna(
            np.inf
        )
        for seed, rate in tuned_rates(wide).items():
            at_edge = rate in (wide.index[0], wide.index[-1])
            rows.append((along, rule, seed, rate, at_edge, float(wide.loc[rate, seed])))
    return DataFrame(
        rows, columns=["budget", "rule", "seed", "rate", "at_edge", "loss"]
    )


def tuned_rates(losses: DataFrame) -> Series:
    """Return for each seed (a column) the rate (a row) with the smallest mean loss over the other seeds.

    With a single seed, its own losses decide. Runs that diverged have infinite losses.
    """
    rates = {}
    for seed in losses.columns:
        others = losses
        if len(losses.columns) > 1:
            others = losses.drop(columns=seed)
        rates[seed] = float(others.mean(axis=1).idxmin())
    return Series(rates, dtype=float)
