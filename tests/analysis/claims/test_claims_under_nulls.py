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
from hessfig.analysis.claims.training_rules import STAND_INS
from tests.analysis import claim_tables as tables

DRAWS = 60
MOST = 0.1  # an interval of 95 % may be wrong on one side in 2.5 %, and what that varies by over 60 draws
POSITIVE = {ClaimVerdict.holds, ClaimVerdict.within, ClaimVerdict.holds_only_if}


def constant(draw: int) -> Evidence:
    """Return a constant curvature with 10 % of noise at every step."""
    return tables.along_steps(lambda seed, step: 1.0, 0.043, seeds=range(10 * draw, 10 * draw + 10))


def power_law(draw: int) -> Evidence:
    """Return (1 + step / s0)^p without phases, s0 and p of each seed's own, with 10 % of noise."""

    def log(seed: int, step: float) -> float:
        size, power = 10 ** (2 * tables.normal(seed, "size")), 1 + 0.5 * tables.normal(seed, "power")
        return float(power * np.log10(1 + 10**step / size))

    return tables.along_steps(log, 0.043, seeds=range(10 * draw, 10 * draw + 10))


def common_drift(draw: int) -> Evidence:
    """Return stand-ins and a curvature that share a drift along the training, up and down, and nothing else."""

    def rows() -> Iterator[dict[str, Any]]:
        for seed in range(10 * draw, 10 * draw + 10):
            for step in range(20):
                drift = step / 5 + 2 * np.sin(step / 4)
                place = {"seed": seed, "step": float(step)}
                yield {**place, "value": 2.0 ** (drift + 0.5 * tables.normal(seed, step, "curvature"))}
                value = 100 + drift + 0.5 * tables.normal(seed, step, "stand-in")
                yield {**place, "row": "", "part": "", "quantity": STAND_INS[0], "value": value}

    return tables.of(rows(), language_course=tables.of(rows()))


def spread_alone(draw: int) -> Evidence:
    """Return ratios H_o / H that are 1 but for a spread over seeds, which is far larger in transformers."""

    def rows() -> Iterator[dict[str, Any]]:
        for kind, spread in (("transformer", 1.9), ("mlp", 0.02)):
            for seed in range(10 * draw, 10 * draw + 10):
                for sigma in (0.05, 0.07, 0.5, 0.7, 2.0, 3.0, 4.0, 5.0):
                    place = {"variant": f"model.kind={kind},model.attention=softmax", "seed": seed, "sigma": sigma}
                    yield {**place, "part": "H", "value": 3.0}
                    off = spread * tables.normal(seed, kind, sigma)
                    yield {**place, "part": "H_o", "value": 3.0 * float(np.exp(off))}

    return tables.of(rows())


def clocks(draw: int) -> Evidence:
    """Return stand-ins and a curvature that only grow with the step, each with noise of its own."""

    def rows() -> Iterator[dict[str, Any]]:
        for seed in range(10 * draw, 10 * draw + 10):
            for step in range(20):
                place = {"seed": seed, "step": float(step)}
                yield {**place, "value": 2.0 ** (step + tables.normal(seed, step, "curvature"))}
                value = 100 + step + tables.normal(seed, step, "stand-in")
                yield {**place, "row": "", "part": "", "quantity": STAND_INS[0], "value": value}

    return tables.of(rows(), language_course=tables.of(rows()))


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


def flat_batches(draw: int) -> Evidence:
    """Return a sharpness and an accuracy that batch sizes do not change, with noise."""

    def rows() -> Iterator[dict[str, Any]]:
        for seed in range(5 * draw, 5 * draw + 5):
            for size in (16, 64, 256, 1437):
                place = {"variant": f"training.batch_size={size}", "seed": seed, "step": 9.0}
                yield {**place, "value": float(np.exp(tables.normal(seed, size)))}
                accuracy = 0.9 + 0.02 * tables.normal(seed, size, "accuracy")
                yield {**place, "row": "", "part": "", "quantity": "accuracy", "value": accuracy}

    return tables.of(rows())


NULLS: dict[str, list[Callable[[int], Evidence]]] = {
    "phases": [constant, power_law],
    "proxies": [common_drift, clocks],
    "size-spectrum": [no_sizes],
    "dispersed": [factor_alone],
    "sharpness-batch": [flat_batches],
    "gauss-newton-worse": [spread_alone],
}


@pytest.mark.parametrize(("name", "null"), [(name, null) for name, nulls in NULLS.items() for null in nulls])
@pytest.mark.long
def test_nothing_holds_where_there_is_nothing(name: str, null: Callable[[int], Evidence]) -> None:
    found = [claim_of(name).rule(null(draw)) for draw in range(DRAWS)]
    assert sum(one.verdict in POSITIVE for one in found) <= MOST * DRAWS
    assert not any(one.is_lacking for one in found)
