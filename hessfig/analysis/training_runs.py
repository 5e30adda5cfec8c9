"""Analysis of trainings: shares of stability thresholds, races of rules, correlations, critical batch sizes."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from hessfig.analysis.axis import settings_of
from hessfig.analysis.intervals import Interval, geometric_interval, student_interval
from hessfig.errors import UserError
from hessfig.record import LEFT_OUT

Ranks = NDArray[np.float64]


def rank_correlations(one: pd.Series, other: pd.Series, *, beyond_step: bool = False) -> pd.Series:
    """Return Spearman's correlation along steps for every seed of two series indexed by (seed, step).

    With `beyond_step` it is the partial correlation given the step, and 0 if one of the two is a function of the step.
    NaN for a seed with fewer than three common steps, or if one of the two is constant.
    """
    both = pd.concat({"one": one, "other": other}, axis=1).dropna()
    correlations = {seed: _spearman(rows, beyond_step) for seed, rows in both.groupby(level="seed")}
    return pd.Series(correlations, dtype=float)


def _spearman(rows: pd.DataFrame, beyond_step: bool) -> float:
    ranks = rows.rank().to_numpy()
    if len(rows) < 3 or (np.ptp(ranks, axis=0) == 0).any():
        return math.nan
    if beyond_step:
        ranks = _residuals(ranks, rows.index.to_frame()["step"].rank().to_numpy())
        if (ranks.std(axis=0, ddof=1) <= _ROUNDING * len(rows)).any():
            return 0.0
    return float(np.corrcoef(ranks.T)[0, 1])


def _residuals(ranks: Ranks, steps: Ranks) -> Ranks:
    """Return the residuals of ranks after a linear fit in the ranks of the steps."""
    centred, around = steps - steps.mean(), ranks - ranks.mean(axis=0)
    residuals: Ranks = around - np.outer(centred, centred @ around / (centred @ centred))
    return residuals


_ROUNDING = 1e-9
THRESHOLD = "stability_threshold"
# A run is at the edge when its mean share over the last third lies within this of one; of iterates.
EDGE_TOLERANCE = 0.1
_PLACE = ["variant", "sigma", "seed", "step"]


def shares(table: pd.DataFrame, quantity: str, threshold: str = THRESHOLD) -> pd.DataFrame:
    """Return the numbers of a quantity of the whole network with `threshold` and `share` = value / threshold."""
    counted = table[~table["status"].isin(LEFT_OUT)]
    values, thresholds = (of_whole(counted, name, "H")[[*_PLACE, "value"]] for name in (quantity, threshold))
    merged = values.merge(thresholds.rename(columns={"value": "threshold"}), on=_PLACE)
    return merged.assign(share=merged["value"] / merged["threshold"])


def late_shares(table: pd.DataFrame, quantity: str) -> dict[str, Interval]:
    """Return, by variant, the interval over seeds of the mean share over the last third of the steps."""
    every = shares(table, quantity)
    late = every[every["step"] >= 2 / 3 * table["step"].max()]
    means = late.groupby(["variant", "seed"], sort=False)["share"].mean().reset_index()
    return {str(variant): student_interval(runs["share"]) for variant, runs in means.groupby("variant", sort=False)}


def of_whole(table: pd.DataFrame, quantity: str, part: str = "") -> pd.DataFrame:
    """Return the numbers of a quantity of the whole network, the first of several."""
    rows = table[(table["quantity"] == quantity) & table["row"].isin(["", "all"]) & (table["index"] <= 1)]
    return rows[rows["part"].isin(["", part])]


OPTIMISER, CURVATURE, RATE = "training.optimiser", "training.curvature", "training.learning_rate"
MOMENTUM, CLIPPING, DAMPING = "training.momentum", "training.clip_norm", "training.damping"
_RUN = ["rule", "rate", "seed"]


@dataclass(frozen=True)
class Race:
    """`losses`: rule, rate, seed, step, products, seconds, loss. `tuned`: rule, seed, rate and loss for each budget.

    `products` counts a gradient as one and a Hessian product as two. `budget` holds the numbers of gradients and
    seconds that every rule may use; `tuned.at_edge` is true if the rate is an end of the grid. `ratios` are true over
    predicted decreases by rule, rate, seed and step.
    """

    losses: pd.DataFrame
    tuned: pd.DataFrame
    budget: dict[str, float]
    ratios: pd.DataFrame


def race(table: pd.DataFrame) -> Race:
    """Return the race of a sweep over rules and learning rates.

    For a rule with varied damping, the rate is the damping. Raises UserError without costs or losses.
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
    losses = losses[[*_RUN, "step", "products", "seconds", "value"]].rename(columns={"value": "loss"})
    budget = {along: float(losses.groupby("rule")[along].max().min()) for along in ("step", "seconds")}
    tuned = [_tuned(_at(losses, along, least), along) for along, least in budget.items()]
    ratios = counted.loc[counted["quantity"] == "decrease_ratio", [*_RUN, "step", "value"]]
    return Race(losses, pd.concat(tuned, ignore_index=True), budget, ratios.rename(columns={"value": "ratio"}))


def against_plain(tuned: pd.DataFrame, reference: str = "") -> pd.DataFrame:
    """Return, by budget and rule, the loss over that of its plain optimiser: geometric mean and interval over seeds.

    With a `reference`, it is the loss over that of this rule. Ratios are taken seed by seed, both at the rates that the
    other seeds choose; nan if one of the runs diverged.
    Columns: budget, rule, ratio, ratio_low, ratio_high, ratio_count. A plain optimiser has no row.
    """
    losses = tuned.set_index(["budget", "rule", "seed"])["loss"].sort_index()
    rows = []
    for budget, rule in dict.fromkeys(zip(tuned["budget"], tuned["rule"], strict=True)):
        plain = reference or rule.partition(",")[0]
        if rule == plain or (budget, plain) not in losses.index:
            continue
        ratios = (losses[budget, rule] / losses[budget, plain]).dropna()
        interval = geometric_interval(ratios if np.isfinite(ratios).all() else [math.nan])
        rows.append((budget, rule, interval.mean, interval.low, interval.high, interval.count))
    return pd.DataFrame(rows, columns=["budget", "rule", "ratio", "ratio_low", "ratio_high", "ratio_count"])


def _named(table: pd.DataFrame) -> pd.DataFrame:
    given = [settings_of(variant) for variant in table["variant"]]
    rates = [float(settings.get(DAMPING, settings.get(RATE, "nan"))) for settings in given]
    return table.assign(rule=[_rule(settings) for settings in given], rate=rates)


def _rule(given: Mapping[str, str]) -> str:
    optimiser, curvature = given.get(OPTIMISER, "").replace("_", " "), given.get(CURVATURE, "none")
    momentum = f", momentum {given[MOMENTUM]}" if MOMENTUM in given and optimiser == "sgd" else ""
    clipping = f", clipping {given[CLIPPING]}" if CLIPPING in given else ""
    return f"{optimiser}{momentum}{clipping}" + ("" if curvature == "none" else f", {curvature.replace('_', ' ')}")


def _seconds(counted: pd.DataFrame) -> pd.DataFrame:
    """Return the cost of each rule up to each step: gradients and products, and seconds by their median times."""
    of = dict(list(counted.groupby("quantity")))
    update, look = (of[name].groupby("rule")["value"].median() for name in ("update_seconds", "look_seconds"))
    looks = of["looks"].groupby(["rule", "step"])["value"].median().rename("looks").reset_index()
    seconds = looks["step"] * looks["rule"].map(update) + looks["looks"] * looks["rule"].map(look)
    counted = counted[counted["quantity"] == "hessian_products"].groupby(["rule", "step"])["value"].median()
    spent = looks.assign(seconds=seconds).join(counted.rename("products"), on=["rule", "step"])
    return spent.assign(products=spent["step"] + 2 * spent["products"])[["rule", "step", "products", "seconds"]]


def _at(losses: pd.DataFrame, along: str, place: float) -> pd.DataFrame:
    """Return the loss of every run at a place along `along`, interpolated linearly in its logarithm."""
    rows = []
    for key, run in losses.sort_values(along).groupby(_RUN):
        inside = run[along].min() <= place <= run[along].max() * (1 + 1e-9)
        log = np.interp(place, run[along], np.log(run["loss"])) if inside else np.inf
        rows.append((*key, float(np.exp(log))))
    return pd.DataFrame(rows, columns=[*_RUN, "loss"])


def _tuned(at: pd.DataFrame, along: str) -> pd.DataFrame:
    rows = []
    for rule, runs in at.groupby("rule", sort=False):
        wide = runs.pivot_table(index="rate", columns="seed", values="loss").fillna(np.inf)
        for seed, rate in tuned_rates(wide).items():
            at_edge = rate in (wide.index[0], wide.index[-1])
            rows.append((along, rule, seed, rate, at_edge, float(wide.loc[rate, seed])))
    return pd.DataFrame(rows, columns=["budget", "rule", "seed", "rate", "at_edge", "loss"])


BATCH, RATE = "training.batch_size", "training.learning_rate"
_LEAST_SIZES = 3
_Runs = dict[tuple[float, str], pd.Series]


@dataclass(frozen=True)
class CriticalBatch:
    """The fit for the trainings of one seed: S(B) = fewest (1 + critical / B) steps to the loss `target`.

    `sizes` (number of batch sizes,) ascend; `steps` is S for each at the best of its learning rates, infinite if the
    loss is not reached. `noise_scale` is tr C / |G|^2 where the training with the largest batches reaches the loss, and
    `noise` is the whole curve of that training (index: step). NaN if the fit fails.
    """

    target: float
    sizes: np.ndarray
    steps: np.ndarray
    fewest: float
    critical: float
    noise_scale: float
    noise: pd.Series


def critical_batches(losses: pd.DataFrame, noise: pd.DataFrame) -> dict[int, CriticalBatch]:
    """Return the critical batch size of every seed with three batch sizes or more.

    Both tables have the columns seed, step, value, and the texts BATCH and RATE ("" where a variant has none).
    """
    seeds = sorted(set(losses["seed"]) & set(noise["seed"]))
    of_seed = {seed: [_runs(rows[rows["seed"] == seed]) for rows in (losses, noise)] for seed in seeds}
    batches = {seed: _critical(*runs) for seed, runs in of_seed.items()}
    return {int(seed): batch for seed, batch in batches.items() if batch is not None}


def _runs(rows: pd.DataFrame) -> _Runs:
    """Return curves along the steps by batch size and learning rate."""
    known = rows[(rows[BATCH] != "") & (rows["value"] > 0)]
    return {
        (float(size), str(rate)): one.set_index("step")["value"].sort_index()
        for (size, rate), one in known.groupby([BATCH, RATE])
    }


def _critical(losses: _Runs, noise: _Runs) -> CriticalBatch | None:
    sizes = sorted({size for size, _ in losses})
    if len(sizes) < _LEAST_SIZES:
        return None
    target = max(min(curve.min() for (batch_size, _), curve in losses.items() if batch_size == size) for size in sizes)
    best = [min((_first_at(curve, target), key) for key, curve in losses.items() if key[0] == size) for size in sizes]
    steps = np.array([count for count, _ in best])
    sides = np.stack([1 / steps, 1 / (steps * np.array(sizes))], axis=1)
    fewest, examples = np.linalg.lstsq(sides, np.ones(len(sizes)), rcond=None)[0]
    curve = noise.get(best[-1][1], pd.Series(dtype=float))
    fits = fewest > 0 and examples > 0
    scale = _between(curve, steps[-1]) if fits and len(curve) else np.nan
    critical = examples / fewest if fits else np.nan
    return CriticalBatch(target, np.array(sizes), steps, float(fewest), float(critical), float(scale), curve)


def _between(curve: pd.Series, step: float) -> float:
    """Return a curve at a step, interpolated linearly in its logarithm."""
    return float(10 ** np.interp(step, curve.index.to_numpy(float), np.log10(curve.to_numpy())))


def _first_at(curve: pd.Series, target: float) -> float:
    """Return the first step at which a loss reaches the target, interpolated in its logarithm, or infinity."""
    logs, steps = np.log(curve.to_numpy()), curve.index.to_numpy(float)
    below = np.flatnonzero(logs <= np.log(target))
    if not below.size:
        return np.inf
    k = below[0]
    return float(steps[k] if k == 0 else np.interp(-np.log(target), -logs[k - 1 : k + 1], steps[k - 1 : k + 1]))


def tuned_rates(losses: pd.DataFrame) -> pd.Series:
    """Return for each seed (a column) the rate (a row) with the smallest mean loss over the other seeds.

    With a single seed, its own losses decide. Runs that diverged have infinite losses.
    """
    several = len(losses.columns) > 1
    others = {seed: losses.drop(columns=seed) if several else losses for seed in losses.columns}
    return pd.Series({seed: float(one.mean(axis=1).idxmin()) for seed, one in others.items()}, dtype=float)
