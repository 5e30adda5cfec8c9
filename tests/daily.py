"""Which cases of a parametrisation run every day; `make test-long` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def daily(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the cases, all but those in `kept` marked as long."""
    every = list(cases)
    assert all(one in every for one in kept), "a case that is kept is none of them"
    return [one if one in kept else _long(one) for one in every]


def thinned(cases: Iterable[Any], number: int) -> list[Any]:
    """Return the cases, all but the first of every `number` marked as long."""
    return [_long(one) if place % number else one for place, one in enumerate(cases)]


def _long(case: Any) -> Any:
    return pytest.param(
        *(case if isinstance(case, tuple) else (case,)), marks=pytest.mark.long
    )
