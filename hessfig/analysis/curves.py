"""Means over seeds along an axis, and the functional share."""

from collections.abc import Collection

import numpy as np
from pandas import DataFrame

from hessfig.analysis.axis import POINT, SIGMA, Axis, X, along
from hessfig.analysis.intervals import student_interval
from hessfig.analysis.table import in_reading_order
from hessfig.errors import UserError, did_you_mean
from hessfig.record import BLOCK, CURVE, FROBENIUS, LEFT_OUT, NETWORK, Status
from hessfig.terms import AT_OUTPUTS, AT_SCORES, Part


def growth_curves(
    table: DataFrame,
    axis: Axis = SIGMA,
    quantity: str = FROBENIUS,
    index: int | None = None,
) -> DataFrame:
    """Return one row per curve and place x: mean, sem, count, probe_sem, num_nonfinite, num_not_converged, is_zero.

    mean = average over the seeds with status ok; sem = their standard deviation /
    sqrt(count) (nan for one seed), which includes the spread of the weights and the
    noise of the probes; probe_sem is the contribution of the probes, sqrt(sum error^2)
    / count, nan if a number has no error. `is_zero`: every number is a structural zero.
    """
    numbers = along(of_quantity(table, quantity, index), axis)
    counted = ~numbers["status"].isin(LEFT_OUT)
    rows = numbers.assign(
        value=numbers["value"].where(counted),
        variance=(numbers["error"] ** 2).where(counted),
        unknown=counted & numbers["error"].isna(),
        nonfinite=numbers["status"] == Status.nonfinite,
        not_converged=numbers["status"] == Status.not_converged,
        is_zero=numbers["status"] == Status.structural_zero,
    )
    grouped = rows.groupby(POINT, sort=True, dropna=False)
    curves = grouped.agg(
        mean=("value", "mean"),
        sem=("value", "sem"),
        count=("value", "count"),
        probe_sem=("variance", "sum"),
        unknown=("unknown", "any"),
        num_nonfinite=("nonfinite", "sum"),
        num_not_converged=("not_converged", "sum"),
        is_zero=("is_zero", "all"),
    ).reset_index()
    count = curves["count"].where((curves["count"] > 0) & ~curves.pop("unknown"))
    return in_reading_order(
        curves.assign(probe_sem=np.sqrt(curves["probe_sem"]) / count), numbers
    )


def seed_matrix(
    table: DataFrame, axis: Axis = SIGMA, quantity: str = FROBENIUS
) -> DataFrame:
    """Return the values with one row per (curve, seed) and one column per place x; nan where no value counts."""
    numbers = along(of_quantity(table, quantity), axis)
    counted = numbers["value"].where(~numbers["status"].isin(LEFT_OUT))
    wide = numbers.assign(value=counted).set_index([*CURVE, "seed", X])["value"]
    return wide.unstack(X)  # noqa: PD010 - one row a number is checked already: nothing to aggregate


def quantity_to_fit(
    table: DataFrame, asked: str | None = None, among: Collection[str] | None = None
) -> str:
    """Return the quantity whose curves are fitted: the one asked for, else frobenius, else the only one of the table.

    `among` limits the choice if the table has any of these. Raises UserError if there
    are several others and none is asked for; `of_quantity` refuses an `asked` that the
    table does not have.
    """
    measured = list(map(str, table["quantity"].unique()))
    if asked is not None:
        return asked
    left = [name for name in measured if name in (among or measured)] or measured
    if FROBENIUS not in left and len(left) > 1:
        raise UserError(
            f"{table['sweep'].iloc[0]}: the table has several quantities, and none of them is {FROBENIUS}",
            got=", ".join(left),
            allowed="one of them at a time",
            remedy=f"for example quantity={left[0]}",
        )
    return FROBENIUS if FROBENIUS in left else left[0]


def of_quantity(
    table: DataFrame, quantity: str = FROBENIUS, index: int | None = None
) -> DataFrame:
    """Return the rows of one quantity, because figures and slopes never mix two. Raises UserError if there are none."""
    chosen = table[table["quantity"] == quantity]
    measured = list(table["quantity"].unique())
    if chosen.empty:
        hint = did_you_mean(quantity, measured) or f"for example quantity={measured[0]}"
        raise UserError(
            f"{table['sweep'].iloc[0]}: the table has no numbers of this quantity",
            got=quantity,
            allowed=", ".join(measured),
            remedy=f"{hint} (in a figure: figure.options.quantity)",
        )
    return chosen if index is None else _of_index(chosen, quantity, index)


def _of_index(chosen: DataFrame, quantity: str, index: int) -> DataFrame:
    counted = sorted(chosen["index"].unique())
    if index not in counted:
        raise UserError(
            f"{quantity} has no such number",
            got=index,
            allowed=", ".join(map(str, counted)),
            remedy="figure.options.index",
        )
    return chosen[chosen["index"] == index]


_PLACE = [*NETWORK, *BLOCK, X]


def functional_shares(table: DataFrame, axis: Axis = SIGMA) -> DataFrame:
    """Return mean, sem and count over seeds of ||H_f||_F / (||H_o||_F + ||H_f||_F) for every block and place x.

    The ratio is taken seed by seed, so that the spread of the weights, which both norms
    share, does not enter. Blocks for which one of the two was not measured are left
    out.
    """
    by_seed = seed_shares(table, axis)
    shares = by_seed.groupby(_PLACE, sort=False, dropna=False)["share"].agg(
        ["mean", "sem", "count"]
    )
    return shares.reset_index()


def seed_shares(
    table: DataFrame, axis: Axis = SIGMA, split: tuple[Part, ...] = AT_OUTPUTS
) -> DataFrame:
    """Return the shares of `functional_shares` seed by seed, in columns `seed` and `share` next to block and place.

    `split`: the outer and the functional part.
    """
    numbers = along(of_quantity(table), axis)
    counted = numbers[~numbers["status"].isin(LEFT_OUT)].set_index([*_PLACE, "seed"])
    outer, functional = (counted[counted["part"] == part]["value"] for part in split)
    both = functional + outer
    return (functional / both.where(both > 0)).dropna().rename("share").reset_index()


def score_shares(table: DataFrame, axis: Axis = SIGMA) -> DataFrame:
    """Return the share ||H_fT||_F / (||H_oT||_F + ||H_fT||_F) of every block and place x.

    Columns mean, low, high (95 % interval of the mean over seeds, Student's t, within 0
    and 1) and count.
    """
    by_place = seed_shares(table, axis, AT_SCORES).groupby(
        _PLACE, sort=False, dropna=False
    )["share"]
    by_block = by_place.agg(student_interval).reset_index()
    found = DataFrame(
        [one.found for one in by_block.pop("share")],
        columns=["mean", "low", "high", "count"],
    )
    found = found.assign(low=found["low"].clip(0), high=found["high"].clip(upper=1))
    return by_block.join(found)
