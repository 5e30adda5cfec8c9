"""Which cases of a parametrisation run every day; `make test-long` runs the others."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest


def daily(cases: Iterable[Any], *kept: Any) -> list[Any]:
    """Return the cases, all but those in `kept` marked as long."""
    every = list(cases)
    assert all(one in every for one in kept), "a case that is kept is none of them"
    return [
        one
        if one in kept
        else pytest.param(
            *(one if isinstance(one, tuple) else (one,)), marks=pytest.mark.long
        )
        for one in every
    ]
