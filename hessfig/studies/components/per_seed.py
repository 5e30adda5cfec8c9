"""Numbers per seed that the figures of components draw: gaps of exponents, and losses at tuned learning rates."""

from __future__ import annotations

import numpy as np
from pandas import DataFrame, MultiIndex, Series, to_numeric

from hessfig.analysis.axis import with_settings
from hessfig.analysis.slopes.fit import MIN_POINTS
from hessfig.analysis.slopes.printed import Window, within
from hessfig.analysis.training_runs import MOMENTUM, OPTIMISER, RATE, tuned_rates
from hessfig.record import FROBENIUS, LEFT_OUT
from hessfig.terms import Part

CENTRING, SCALE = "model.centring", "model.weight_scale"
SOFTMAX = "softmax"
RESCALED = "rescaled"
FROZEN = "frozen"
CENTRED = ("centred 0.9", "centred 1")
_SGD, _WITH_MOMENTUM = "sgd", "sgd, momentum"
_RUN = ["network", "optimiser"]


def rows_of(table: DataFrame, quantity: str, *settings: str) -> DataFrame:
    """Return the rows of a quantity that count, with a column of texts for each setting that the sweep varies."""
    counts = ~table["status"].isin(LEFT_OUT)
    return with_settings(table[counts & (table["quantity"] == quantity)], *settings)


def log_norms(table: DataFrame, *settings: str) -> DataFrame:
    """Return the positive Frobenius norms of H of diagonal blocks within a layer, as log10 in `value`."""
    rows = rows_of(table, FROBENIUS, *settings)
    is_diagonal = (rows["row"] == rows["col"]) & (rows["row_layer"] == rows["layer"])
    positive = rows[is_diagonal & (rows["part"] == Part.H) & (rows["value"] > 0)]
    return positive.assign(value=np.log10(positive["value"]))


def gaps(table: DataFrame, setting: str, *, window: Window) -> Series:
    """Return the exponent in sigma of the query block minus that of the value block, by (setting, seed).

    An exponent is the least-squares slope of log ||H|| on log sigma inside the window.
    Curves with fewer than MIN_POINTS values of sigma are left out.
    """
    norms = log_norms(table, setting)
    norms = norms[within(norms["sigma"], window)]
    slopes = []
    for weight in ("W_Q", "W_V"):
        curves = norms[norms["row"] == weight].groupby([setting, "seed"])
        slopes.append(curves[["sigma", "value"]].apply(_exponent))
    query, value = slopes
    if query.empty or value.empty:
        return Series(dtype=float)
    return (query - value).dropna()


def _exponent(curve: DataFrame) -> float:
    """Return p of value ~ sigma^p; `value` is a logarithm to base 10."""
    if curve["sigma"].nunique() < MIN_POINTS:
        return float("nan")
    return float(np.polyfit(np.log10(curve["sigma"]), curve["value"], 1)[0])


def tuned_losses(table: DataFrame) -> Series:
    """Return log10 of the last held-out loss at the tuned learning rate, by network, optimiser and seed.

    The tuned rate of a seed is the one with the least mean loss over the other seeds. A
    seed whose rate is an end of the grid is left out. A rate counts as tried, with an
    infinite loss, if every run at it diverged.
    """
    runs = _named(with_settings(table, CENTRING, SCALE, OPTIMISER, MOMENTUM, RATE))
    losses = _named(
        rows_of(table, "held_out_loss", CENTRING, SCALE, OPTIMISER, MOMENTUM, RATE)
    )
    losses = losses[losses["step"] == losses["step"].max()]
    found = {}
    for place, own in losses.groupby(_RUN):
        tried = runs[(runs["network"] == place[0]) & (runs["optimiser"] == place[1])][
            "rate"
        ]
        by_rate = own.pivot_table(index="rate", columns="seed", values="value").reindex(
            sorted(tried.unique())
        )
        for seed, loss in _at_tuned_rate(by_rate.fillna(np.inf)).items():
            found[*place, seed] = loss
    if found:
        index = MultiIndex.from_tuples(list(found), names=[*_RUN, "seed"])
    else:
        index = None
    return Series(list(found.values()), index=index, dtype=float)


def _at_tuned_rate(losses: DataFrame) -> dict[int, float]:
    """Return log10 of the loss at the tuned rate by seed, where that rate is inside the grid."""
    rates = tuned_rates(losses)
    inside = rates[(rates > losses.index.min()) & (rates < losses.index.max())]
    return {
        seed: float(np.log10(losses.loc[rate, seed])) for seed, rate in inside.items()
    }


def _named(rows: DataFrame) -> DataFrame:
    """Return the rows with `network`, `optimiser` (with its momentum in words) and `rate`."""
    networks = [
        _network(*words) for words in zip(rows[CENTRING], rows[SCALE], strict=True)
    ]
    has_momentum = (rows[OPTIMISER] == _SGD) & (rows[MOMENTUM] != "")
    optimisers = rows[OPTIMISER].where(~has_momentum, _WITH_MOMENTUM)
    return rows.assign(
        network=networks,
        optimiser=optimisers,
        rate=to_numeric(rows[RATE], errors="coerce"),
    )


def _network(centring: str, scale: str) -> str:
    if scale:
        return RESCALED if float(scale) < 1 else FROZEN
    return f"centred {float(centring):g}" if centring else SOFTMAX
