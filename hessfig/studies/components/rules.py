"""Rules about components: how they change the gap of exponents, and what the ratio of query to value blocks does."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pandas as pd

from hessfig.analysis.claims import judges
from hessfig.analysis.claims.effects import (
    ATTENTION,
    LEAST_DECADES,
    LEAST_GAP,
    NORM,
    SMALL,
    diagonal_rows,
    gaps,
    in_logs,
    least_squares,
    norms,
)
from hessfig.analysis.claims.rule import Evidence, claim
from hessfig.analysis.training_runs import OPTIMISER, RATE, tuned_rates

REMOVED = ("model.attention=linear", "model.norm=pre", "model.norm=sandwich")
TURNED = ("model.scores=qk_norm", "model.scores=cosine")
RAISED = ("model.attention=sigmoid", "model.attention=sparsemax", "model.norm=post")
_RAISED_BY = 0.5
COMPONENTS = (ATTENTION, "model.attention_bias", "model.scores", NORM)
SCALE = "model.weight_scale"
LEAST_BEHIND = 0.01  # decades of the loss a decade of the ratio
# On which side of softmax attention without a norm the theorem of mixing weights puts a component's ratio.
SIDES = {"sigmoid": -1, "qk_norm": 1, "pre": 1, "post": -1}
_SETTINGS = (*COMPONENTS, SCALE, OPTIMISER, RATE)
_PLACE = ["network", "scale", "seed"]
_BETWEEN, _RESCALED = "between components", "weights rescaled"


@claim("heterogeneity-turned")
def turned(evidence: Evidence) -> judges.Finding:
    """Claim: normalised queries and keys turn the heterogeneity of value and query blocks round, linear attention and
    norms before or around sublayers remove it, and sigmoid, sparsemax and post-norm raise it.

    Three statements, each with a verdict, about the gap: the exponent of ||H(Q, Q)||_F in sigma minus that of
    ||H(V, V)||_F, sigma <= 0.1, seed by seed. (turned) with scores of normalised queries and keys it lies within
    0.25 of -1. (removed) with linear attention, pre- and sandwich norm it lies within 0.25 of 0. (raised) with
    sigmoid attention without bias, sparsemax and post-norm it exceeds that of the base network of the same seed by at
    least 0.5. A statement holds when the intervals of all its networks do, and does not when one is on the other side;
    the claim holds when all three do. The effect is that of the first network.
    """
    return judges.in_parts(
        {
            "turned": _of_variants(evidence, TURNED, judges.near(-1, LEAST_GAP)),
            "removed": _of_variants(evidence, REMOVED, judges.near(0, LEAST_GAP)),
            "raised": _of_variants(evidence, RAISED, judges.at_least(_RAISED_BY), less=""),
        }
    )


def _of_variants(
    evidence: Evidence, variants: tuple[str, ...], judge: judges.Judge, *, less: str | None = None
) -> judges.Finding:
    """Judge the gaps of exponents of some variants, each minus that of another of the same seed if one is named."""
    by_variant = gaps(norms(evidence), "variant", window=SMALL)
    known = dict(list(by_variant.groupby(level="variant"))) if len(by_variant) else {}
    if not {*variants, *([] if less is None else [less])} <= set(known):
        return judges.missing(f"norms of the blocks of W_Q and W_V for {', '.join(variants)} and the base")
    of = {name: gap.droplevel("variant") for name, gap in known.items()}
    samples = {name: of[name] if less is None else (of[name] - of[less]).dropna() for name in variants}
    return judges.together(judges.effects_by_name(samples, judge))


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
    both = next_to_ratios(loss_gaps(evidence), evidence)
    if both.empty:
        return judges.missing("losses of SGD and Adam with optima inside the grid, next to untrained ratios")
    absent = [f"{network} at scale {scale:g}" for network, scale in left_out(both, evidence)]
    effects = judges.effects_by_name(slopes(both), judges.at_least(LEAST_BEHIND))
    return judges.together(effects, words=f"left out: {', '.join(absent)}" if absent else "")


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
    settings = zip(*(rows[key] for key in COMPONENTS), strict=True)
    names = [" ".join(filter(None, values)) or "softmax" for values in settings]
    scales = [float(scale or 1) for scale in rows[SCALE]]
    rate = pd.to_numeric(rows[RATE], errors="coerce")
    return rows.assign(network=names, scale=scales, optimiser=rows[OPTIMISER], rate=rate)


def _log_ratios(evidence: Evidence, *keys: str) -> pd.Series:
    """Return log10 of ||H(Q, Q)|| / ||H(V, V)||, the mean over layers, by network, scale, seed and further keys."""
    rows = in_logs(diagonal_rows(_named(norms(evidence, *_SETTINGS))))
    place = [*_PLACE, *keys]
    query, value = (rows[rows["row"] == name].groupby([*place, "layer"])["value"].mean() for name in ("W_Q", "W_V"))
    return (query - value).dropna().groupby(place).mean().rename("ratio")


def courses(evidence: Evidence) -> pd.DataFrame:
    """Return `loss` (held out) and `ratio` (log10) by network, seed and step, at the tuned rate."""
    place = ["network", "seed", "rate", "step"]
    losses = _named(evidence.numbers("held_out_loss", *_SETTINGS)).groupby(place)["value"].mean().rename("loss")
    both = pd.concat([losses, _log_ratios(evidence, "rate", "step").droplevel("scale")], axis=1).dropna()
    both = both.reset_index().set_axis([*place, "loss", "ratio"], axis=1)
    chosen = [_of_tuned_rate(runs) for _, runs in both.groupby("network")]
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
    ratios = {
        (network, seed): _where(run.sort_values("step"), level[seed])
        for (network, seed), run in runs.groupby(["network", "seed"])
    }
    index = pd.MultiIndex.from_tuples(list(ratios), names=["network", "seed"])
    return pd.Series(list(ratios.values()), index=index, dtype=float)


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
    losses = at.pivot_table(index=index, columns="seed", values="value")
    every = rows.pivot_table(index=index, columns="seed", values="value")
    return losses.reindex_like(every).fillna(np.inf)


def _each(losses: pd.DataFrame, optimiser: str, of: Callable[[pd.DataFrame], pd.Series]) -> pd.Series:
    """Return a number of each network and scale from the losses (rates by seeds) of one optimiser; by seed too."""
    own = losses[losses.index.get_level_values("optimiser") == optimiser].droplevel("optimiser")
    numbers = {key: of(rates.droplevel(_PLACE[:2])) for key, rates in own.groupby(level=_PLACE[:2])}
    empty = pd.Series(dtype=float, index=pd.MultiIndex.from_arrays([[], [], []], names=_PLACE))
    return pd.concat(numbers, names=_PLACE) if numbers else empty


def _tuned(losses: pd.DataFrame, optimiser: str) -> pd.Series:
    """Return log10 of the loss at the tuned rate by network, scale and seed."""

    def of(rates: pd.DataFrame) -> pd.Series:
        logs = {seed: np.log10(rates.loc[rate, seed]) for seed, rate in _inside(rates).items()}
        return pd.Series(logs, dtype=float)

    return _each(losses, optimiser, of)


def _largest_stable(stable: pd.DataFrame, optimiser: str) -> pd.Series:
    """Return log10 of the largest rate of a finite loss by network, scale and seed, where it is not the grid's last."""

    def of(rates: pd.DataFrame) -> pd.Series:
        largest = np.isfinite(rates).mul(rates.index.to_numpy(), axis=0).max()
        return np.log10(largest[(largest > 0) & (largest < rates.index.max())])

    return _each(stable, optimiser, of)


def next_to_ratios(values: pd.Series, evidence: Evidence) -> pd.DataFrame:
    """Return some values as `y` next to `x`, |log10| of the untrained ratio, by network, scale and seed."""
    return pd.concat({"x": _log_ratios(evidence.other("ratio_initial")).abs(), "y": values}, axis=1).dropna()


def left_out(both: pd.DataFrame, evidence: Evidence) -> list[tuple[str, float]]:
    """Return network and scale of those that the trainings have and `both` has not."""
    trained, known = (set(rows.index.droplevel([*rows.index.names[2:]])) for rows in (_losses(evidence, -1), both))
    return sorted(trained - known)


def slopes(both: pd.DataFrame) -> dict[str, pd.Series]:
    """Return the slopes of y on x, seed by seed, within components whose weights are rescaled, and between them."""
    centred = both - both.groupby(["network", "seed"]).transform("mean")
    plain = both[both.index.get_level_values("scale") == 1.0]
    return {_RESCALED: _slopes(centred), _BETWEEN: _slopes(plain)}


def _slopes(both: pd.DataFrame) -> pd.Series:
    """Return the slope of y on x of every seed that has three points or more."""
    of_seeds = {
        seed: least_squares(points["x"].to_numpy(), points["y"].to_numpy())
        for seed, points in both.groupby("seed")
        if len(points) > 2
    }
    return pd.Series(of_seeds, dtype=float).dropna()
