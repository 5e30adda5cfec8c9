"""How much of a block is its functional part."""

from __future__ import annotations

import pandas as pd

from hessfig.analysis.axis import SIGMA, Axis, X, along
from hessfig.analysis.curves import of_quantity
from hessfig.record import BLOCK, LEFT_OUT, NETWORK
from hessfig.terms import Part

_PLACE = [*NETWORK, *BLOCK, X]


def functional_shares(table: pd.DataFrame, axis: Axis = SIGMA) -> pd.DataFrame:
    """Return mean, sem and count over seeds of ||H_f||_F / (||H_o||_F + ||H_f||_F) for every block and place x.

    The ratio is taken seed by seed, so that what both norms share (the weights) does not blur it. Blocks for which
    one of the two was not measured are left out.
    """
    by_seed = seed_shares(table, axis)
    shares = by_seed.groupby(_PLACE, sort=False, dropna=False)["share"].agg(["mean", "sem", "count"])
    return shares.reset_index()


def seed_shares(table: pd.DataFrame, axis: Axis = SIGMA) -> pd.DataFrame:
    """Return the shares of `functional_shares` seed by seed, in columns `seed` and `share` beside block and place."""
    numbers = along(of_quantity(table), axis)
    counted = numbers[~numbers["status"].isin(LEFT_OUT)].set_index([*_PLACE, "seed"])
    functional, outer = (counted[counted["part"] == part]["value"] for part in (Part.H_f, Part.H_o))
    both = functional + outer
    return (functional / both.where(both > 0)).dropna().rename("share").reset_index()
