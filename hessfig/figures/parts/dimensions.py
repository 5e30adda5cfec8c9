"""What tells the curves of a panel apart (a setting, sigma, step, layer, depth, part), and which two are seen."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from hessfig.analysis.axis import DEPTH
from hessfig.analysis.variants import as_numbers, as_variant, assignments, last_word, varied_key
from hessfig.errors import UserError
from hessfig.figures.parts.spec import FigureSpec

COLUMNS = ("layer", "num_layers", "part", "index")
MOST_DASHES = 4
_DEPTHS = (DEPTH, last_word(DEPTH))


def seen(spec: FigureSpec, curves: pd.DataFrame) -> tuple[str, str]:
    """Return what colour and dashes stand for: what the figure names, else what varies first; "" for nothing.

    Raises UserError for names of nothing that varies, and when both are the same.
    """
    named = {key: _canonical(spec, key, curves) for key in ("colour", "dashes")}
    if named["colour"] and named["colour"] == named["dashes"]:
        raise UserError(
            "figure.colour and figure.dashes are the same",
            got=named["colour"],
            allowed=", ".join(_varying(curves)) or "nothing varies here",
            remedy="leave one of them out",
        )
    free = [name for name in _varying(curves) if name not in named.values() and name != "part"]
    colour = named["colour"] or next(iter(free), "")
    few = [name for name in free if name != colour and len(ordered(values_of(curves, name))) <= MOST_DASHES]
    return colour, named["dashes"] or next(iter(few), "")


def values_of(curves: pd.DataFrame, name: str) -> pd.Series:
    """Return what `name` is for each point: a column's value, or the value of a setting as text."""
    if name in COLUMNS:
        return curves[name]
    return curves["variant"].map(lambda variant: assignments(variant).get(name, "") if name else "")


def ordered(values: pd.Series) -> list[Any]:
    """Return the different values, numbers in rising order, words as they come."""
    found = list(values.unique())
    numbers = as_numbers(map(str, found))
    return (
        found if numbers is None else [found[k] for k in sorted(range(len(found)), key=numbers.__getitem__)]
    )


def unseen(curves: pd.DataFrame, used: Sequence[str]) -> pd.DataFrame:
    """Return what else tells the points apart, in columns variant, num_layers, layer, part and index."""
    rest = {name: curves[name] if name not in used else 0 for name in COLUMNS}
    return pd.DataFrame({"variant": curves["variant"].map(lambda one: _without(one, used)), **rest})


def _canonical(spec: FigureSpec, key: str, curves: pd.DataFrame) -> str:
    word = getattr(spec, key)
    if word is None:
        return ""
    if word in (*COLUMNS, *_DEPTHS):
        return "num_layers" if word in _DEPTHS else word
    return varied_key(word, curves["variant"].unique(), asked=f"figure.{key}", others=COLUMNS)


def _varying(curves: pd.DataFrame) -> list[str]:
    keys = dict.fromkeys(key for variant in curves["variant"].unique() for key in assignments(variant))
    return [name for name in (*keys, *COLUMNS) if len(values_of(curves, name).unique()) > 1]


def _without(variant: str, used: Sequence[str]) -> str:
    return as_variant({key: value for key, value in assignments(variant).items() if key not in used})
