"""Rules of claims about the ratio of query to value blocks by component: along trainings, and what SGD makes of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.growth_rules import least_squares
from hessfig.analysis.claims.rule import Evidence, claim, diagonal, in_logs, norms
from hessfig.analysis.training_runs import OPTIMISER, RATE, tuned_rates

COMPONENTS = ("model.attention", "model.attention_bias", "model.scores", "model.norm")
SCALE = "model.weight_scale"
LEAST_DECADES, LEAST_GAP, LEAST_RATE = 0.1, 0.01, 0.1
# On which side of softmax attention without a norm the theorem of mixing weights puts a component's ratio.
SIDES = {"sigmoid": -1, "qk_norm": 1, "pre": 1, "post": -1}
_SETTINGS = (*COMPONENTS, SCALE, OPTIMISER, RATE)
_PLACE = ["network", "scale", "seed"]
_BETWEEN, _RESCALED = "between components", "weights rescaled"


@claim("ratio-training")
def ratio_training(evidence: Evidence) -> judges.Finding:
    """Claim: at equal held-out loss of trained character models, components still order the ratio of query to value
    blocks as the theorem of mixing weights does for untrained ones.

    The ratio is ||H(Q, Q)||_F / ||H(V, V)||_F, averaged over layers in logarithms. A component is trained at the
    learning rate whose last held-out loss is least in the mean of the other seeds; where that is an end of the grid,
    the component is missing. The loss at which all are compared is, seed by seed, the largest of their least losses;
    between measured steps log10 of the ratio is linear in the loss. The effect is log10 of the component's ratio over
    that of softmax without a norm, counted positive on the side that the theorem gives: below for sigmoid without bias
    and post-norm, above for QK-norm and pre-norm. For a component the claim holds when the interval is above 0 with a
    mean of at least 0.1, and does not when it is below 0.1.
    """
    ratios = at_equal_loss(courses(evidence))
    known = set(ratios.index.get_level_values("network"))
    if "softmax" not in known or len(known) < 2:
        return judges.missing("ratios along trainings of softmax and another component with inner optima")
    samples = {
        name: side * (ratios[name] - ratios["softmax"]).dropna() if name in known else ()
        for name, side in SIDES.items()
    }
    return judges.by_conditions(judges.each(samples, judges.at_least(LEAST_DECADES)))


@claim("heterogeneity-gap")
def gap(evidence: Evidence) -> judges.Finding:
    """Claim: heterogeneity hampers SGD: the more query and value blocks differ, the further SGD is behind Adam.

    How much they differ is |log10| of the ratio ||H(Q, Q)||_F / ||H(V, V)||_F of the untrained network, averaged over
    layers. The gap is log10 of SGD's loss over Adam's after equally many steps, each at the rate whose loss is least in
    the mean of the other seeds; a network of which one is an end of the grid is left out, and named. Two slopes of the
    gap on the difference, seed by seed: between components, and as a control within components whose W_Q and W_K are
    drawn s times as large at temperature s^2, which changes the ratio and not the component. If the ratio is the cause,
    both are above 0; if components differ by something else, only the first. The claim holds when both intervals are
    above 0 with means of at least 0.01 decades of the loss a decade of the ratio, and does not when one is below that.
    The effect is the control.
    """
    return _explained(loss_gaps(evidence), evidence, LEAST_GAP)


@claim("heterogeneity-rates")
def rates(evidence: Evidence) -> judges.Finding:
    """Claim: the more query and value blocks differ, the smaller the largest stable learning rate of SGD next to that
    of Adam.

    A rate is stable when the last loss is finite and no larger than the first; the largest is taken over the grid, and
    a network that is stable at the last rate, or at none, is left out, and named. Slopes of log10 of Adam's largest
    stable rate over SGD's on |log10| of the untrained ratio, seed by seed: between components, and as a control within
    components with rescaled W_Q and W_K (see heterogeneity-gap). The claim holds when both intervals are
    above 0 with means of at least 0.1, and does not when one is below that. The effect is the control.
    """
    return _explained(rate_gaps(evidence), evidence, LEAST_RATE)


def loss_gaps(evidence: Evidence) -> pd.Series:
    """Return log10 of SGD's last loss over Adam's, each at its tuned rate, by network, scale and seed."""
    last = _losses(evidence, -1)
    return _tuned(last, "sgd") - _tuned(last, "adam")


def rate_gaps(evidence: Evidence) -> pd.Series:
    """Return log10 of Adam's largest stable rate over SGD's, by network, scale and seed."""
    last = _losses(evidence, -1)
    stable = last.where(last <= _losses(evidence, 0), np.inf)
    return _largest_stable(stable, "adam") - _largest_stable(stable, "sgd")


def _named(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the rows with `network` (its components), `scale` (of W_Q and W_K), `optimiser` and `rate`."""
    names = [" ".join(filter(None, one)) or "softmax" for one in zip(*(rows[key] for key in COMPONENTS), strict=True)]
    scales = [float(one or 1) for one in rows[SCALE]]
    rate = pd.to_numeric(rows[RATE], errors="coerce")
    return rows.assign(network=names, scale=scales, optimiser=rows[OPTIMISER], rate=rate)


def _log_ratios(evidence: Evidence, *keys: str) -> pd.Series:
    """Return log10 of ||H(Q, Q)|| / ||H(V, V)||, the mean over layers, by network, scale, seed and further keys."""
    rows = in_logs(diagonal(_named(norms(evidence, *_SETTINGS))))
    place = [*_PLACE, *keys]
    query, value = (rows[rows["row"] == name].groupby([*place, "layer"])["value"].mean() for name in ("W_Q", "W_V"))
    return (query - value).dropna().groupby(place).mean().rename("ratio")


def courses(evidence: Evidence) -> pd.DataFrame:
    """Return `loss` (held out) and `ratio` (log10) by network, seed and step, at the tuned rate."""
    place = ["network", "seed", "rate", "step"]
    losses = _named(evidence.numbers("held_out_loss", *_SETTINGS)).groupby(place)["value"].mean().rename("loss")
    both = pd.concat([losses, _log_ratios(evidence, "rate", "step").droplevel("scale")], axis=1).dropna()
    both = both.reset_index().set_axis([*place, "loss", "ratio"], axis=1)
    chosen = [_of_tuned_rate(one) for _, one in both.groupby("network")]
    return pd.concat([both.iloc[:0], *chosen], ignore_index=True)


def _of_tuned_rate(runs: pd.DataFrame) -> pd.DataFrame:
    last = runs[runs["step"] == runs["step"].max()].pivot_table(index="rate", columns="seed", values="loss")
    inside = _inside(last.reindex(sorted(runs["rate"].unique())).fillna(np.inf))
    return runs[runs["rate"] == runs["seed"].map(inside)]


def _inside(losses: pd.DataFrame) -> pd.Series:
    """Return, by seed, the tuned rate; none where it is an end of the grid, or every run diverged."""
    rates = tuned_rates(losses)
    return rates[(rates > losses.index.min()) & (rates < losses.index.max())]


def components(evidence: Evidence) -> list[str]:
    """Return the components whose held-out loss the table has, in its order."""
    return list(_named(evidence.numbers("held_out_loss", *_SETTINGS))["network"].unique())


def equal_losses(runs: pd.DataFrame) -> pd.Series:
    """Return the loss that all networks of a seed reach, by seed."""
    return runs.groupby(["network", "seed"])["loss"].min().groupby("seed").max()


def at_equal_loss(runs: pd.DataFrame) -> pd.Series:
    """Return log10 of the ratio where the loss first reaches what all networks of a seed reach, by network and seed."""
    level = equal_losses(runs)
    found = {
        (network, seed): _where(run.sort_values("step"), level[seed])
        for (network, seed), run in runs.groupby(["network", "seed"])
    }
    index = pd.MultiIndex.from_tuples(list(found), names=["network", "seed"])
    return pd.Series(list(found.values()), index=index, dtype=float)


def _where(run: pd.DataFrame, level: float) -> float:
    losses, ratios = run["loss"].to_numpy(), run["ratio"].to_numpy()
    k = int(np.argmax(losses <= level))
    between = slice(k - 1, k + 1) if k else slice(0, 1)
    return float(np.interp(-level, -losses[between], ratios[between]))


def _losses(evidence: Evidence, place: int) -> pd.DataFrame:
    """Return losses at the first (0) or last (-1) step: seeds by network, scale, optimiser and rate; inf: diverged."""
    rows = _named(evidence.numbers("loss", *_SETTINGS))
    at = rows[rows["step"] == evidence.steps()[place]] if len(rows) else rows
    index = [*_PLACE[:2], "optimiser", "rate"]
    found = at.pivot_table(index=index, columns="seed", values="value")
    every = rows.pivot_table(index=index, columns="seed", values="value")
    return found.reindex_like(every).fillna(np.inf)


def _each(losses: pd.DataFrame, optimiser: str, of: Callable[[pd.DataFrame], pd.Series]) -> pd.Series:
    """Return a number of each network and scale from the losses (rates by seeds) of one optimiser; by seed too."""
    own = losses[losses.index.get_level_values("optimiser") == optimiser].droplevel("optimiser")
    found = {key: of(one.droplevel(_PLACE[:2])) for key, one in own.groupby(level=_PLACE[:2])}
    empty = pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []], names=_PLACE))
    return pd.concat(found, names=_PLACE) if found else empty


def _tuned(losses: pd.DataFrame, optimiser: str) -> pd.Series:
    """Return log10 of the loss at the tuned rate by network, scale and seed."""

    def of(one: pd.DataFrame) -> pd.Series:
        logs = {seed: np.log10(one.loc[rate, seed]) for seed, rate in _inside(one).items()}
        return pd.Series(logs, dtype=float)

    return _each(losses, optimiser, of)


def _largest_stable(stable: pd.DataFrame, optimiser: str) -> pd.Series:
    """Return log10 of the largest rate of a finite loss by network, scale and seed, where it is not the grid's last."""

    def of(one: pd.DataFrame) -> pd.Series:
        largest = np.isfinite(one).mul(one.index.to_numpy(), axis=0).max()
        return np.log10(largest[(largest > 0) & (largest < one.index.max())])

    return _each(stable, optimiser, of)


def _explained(values: pd.Series, evidence: Evidence, least: float) -> judges.Finding:
    """Judge the slopes of some values on |log10| of the untrained ratio, between and within components."""
    both = next_to_ratios(values, evidence)
    if both.empty:
        return judges.missing("losses of SGD and Adam with optima inside the grid, next to untrained ratios")
    absent = [f"{network} at scale {scale:g}" for network, scale in left_out(both, evidence)]
    effects = judges.alike(slopes(both), judges.at_least(least))
    return judges.together(effects, words=f"left out: {', '.join(absent)}" if absent else "")


def next_to_ratios(values: pd.Series, evidence: Evidence) -> pd.DataFrame:
    """Return some values as `y` next to `x`, |log10| of the untrained ratio, by network, scale and seed."""
    return pd.concat({"x": _log_ratios(evidence.other("ratio_initial")).abs(), "y": values}, axis=1).dropna()


def left_out(both: pd.DataFrame, evidence: Evidence) -> list[tuple[str, float]]:
    """Return network and scale of those that the trainings have and `both` has not."""
    asked, there = (set(one.index.droplevel([*one.index.names[2:]])) for one in (_losses(evidence, -1), both))
    return sorted(asked - there)


def slopes(both: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the slopes of y on x, seed by seed, within components whose weights are rescaled, and between them."""
    centred = both - both.groupby(["network", "seed"]).transform("mean")
    plain = both[both.index.get_level_values("scale") == 1.0]
    return {_RESCALED: _slopes(centred), _BETWEEN: _slopes(plain)}


def _slopes(both: pd.DataFrame) -> pd.Series:
    """Return the slope of y on x of every seed that has three points or more."""
    found = {
        seed: least_squares(one["x"].to_numpy(), one["y"].to_numpy())
        for seed, one in both.groupby("seed")
        if len(one) > 2
    }
    return pd.Series(found, dtype=float).dropna()
