"""How much of a block is its functional part, and what a sweep varies beside sigma."""

from __future__ import annotations

import pandas as pd

from hessfig.analysis.table import BLOCK, NETWORK
from hessfig.terms import Part

_PLACE = [*NETWORK, *BLOCK, "sigma"]


def functional_shares(table: pd.DataFrame) -> pd.DataFrame:
    """Return mean, sem and count over seeds of ||H_f||_F / (||H_o||_F + ||H_f||_F) for every block and sigma.

    The ratio is taken seed by seed, so that what both norms share (the weights) does not blur it. Blocks for which
    one of the two was not measured are left out.
    """
    finite = table[table["status"] != "nonfinite"].set_index([*_PLACE, "seed"])
    functional, outer = (finite[finite["part"] == part]["frob"] for part in (Part.H_f, Part.H_o))
    both = functional + outer
    ratio = (functional / both.where(both > 0)).dropna().rename("share").reset_index()
    shares = ratio.groupby(_PLACE, sort=False)["share"].agg(["mean", "sem", "count"])
    return shares.reset_index()


def varied_setting(variants: list[str]) -> tuple[str, list[str]]:
    """Return the name of what the variants vary and each one's value, e.g. ('temperature', ['0.5', '1.0'])."""
    assignments = [[part.partition("=") for part in variant.split(",")] for variant in variants]
    names = dict.fromkeys(key.rpartition(".")[2] for one in assignments for key, _, _ in one)
    return ", ".join(filter(None, names)), [", ".join(value for *_, value in one) for one in assignments]


def as_numbers(values: list[str]) -> list[float] | None:
    """Return the values as numbers if all of them are, else None."""
    try:
        return [float(value) for value in values]
    except ValueError:
        return None
