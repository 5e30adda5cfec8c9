"""Rules of claims on tables in which there is nothing: trends, noise and laws alone must not become a verdict."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from hessfig.analysis.claims.judges import ClaimVerdict
from hessfig.analysis.claims.ledger import claim_of
from hessfig.analysis.claims.rule import Evidence
from tests.analysis import claim_tables as tables

DRAWS = 60
MOST = 0.1  # an interval of 95 % may be wrong on one side in 2.5 %, and what that varies by over 60 draws
POSITIVE = {ClaimVerdict.holds, ClaimVerdict.within, ClaimVerdict.holds_only_if}


def no_sizes(draw: int) -> Evidence:
    """Return both ends of spectra that vary over seeds and sizes, lognormally, and depend on neither."""

    def rows(name: str) -> Iterator[dict[str, Any]]:
        for seed in range(5 * draw, 5 * draw + 5):
            for n in (1, 2, 4, 8, 16):
                place = {"num_layers": n} if name == "depth" else {"variant": f"model.d_model={n}"}
                for end, sign in (("largest", 1), ("smallest", -1)):
                    value = sign * float(np.exp(tables.normal(seed, name, n, end)))
                    yield {**place, "seed": seed, "quantity": f"{end}_eigenvalue", "value": value}

    return replace(tables.of(rows("width")), beside={"model_size_depth": tables.of(rows("depth"))})


def factor_alone(draw: int) -> Evidence:
    """Return query blocks of H_o that go as 1 / t^2 beside value blocks that do not change, with noise."""
    return tables.of(
        tables.block(
            row,
            float(np.exp(tables.normal(seed, row, t))) / (t**2 if row == "W_Q" else 1),
            **{"part": "H_o", "seed": seed, "variant": f"model.temperature={t}"},
        )
        for seed in range(6 * draw, 6 * draw + 6)
        for row in ("W_Q", "W_V")
        for t in (0.1, 1.0, 10.0)
    )


NULLS: dict[str, Callable[[int], Evidence]] = {"size-spectrum": no_sizes, "dispersed": factor_alone}


@pytest.mark.parametrize(("name", "null"), NULLS.items())
@pytest.mark.long
def test_nothing_holds_where_there_is_nothing(name: str, null: Callable[[int], Evidence]) -> None:
    found = [claim_of(name).rule(null(draw)) for draw in range(DRAWS)]
    assert sum(one.verdict in POSITIVE for one in found) <= MOST * DRAWS
    assert not any(one.is_lacking for one in found)
