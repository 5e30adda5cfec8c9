"""Rules about directions on synthetic tables: what a source says, its contrary, and nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from hessfig.analysis.claims.along_rules import NORM_OF
from hessfig.analysis.claims.judges import ClaimVerdict
from hessfig.analysis.claims.ledger import claim_of
from hessfig.analysis.claims.rule import Evidence
from hessfig.studies.removal.row_names import INFLUENCES
from tests.analysis import claim_tables as tables

DRAWS, MOST = 60, 0.1  # an interval of 95 % may be wrong on one side in 2.5 %, and what that varies by
POSITIVE = {
    *(ClaimVerdict.holds, ClaimVerdict.within, ClaimVerdict.holds_only_if),
    ClaimVerdict.small,
    ClaimVerdict.less,
}
STEPS = (20.0, 50.0, 100.0, 200.0, 400.0)
Row = dict[str, Any]


def whole(quantity: str, value: float, part: str = "H", **place: Any) -> Row:
    return {"quantity": quantity, "value": value, "part": part, "row": "all", "col": "all", **place}


def exponents(alphas: Mapping[str, float], noise: float = 0.1, draw: int = 0) -> Evidence:
    """Return exponents of six convolutions, four weights of attention and W_in, alike for H and H_o."""

    def rows() -> Iterator[Row]:
        weights = [("cnn", "W", layer, alphas["conv"]) for layer in range(1, 7)]
        weights += [("vit", name, 1, alphas["attention"]) for name in ("W_Q", "W_K", "W_V", "W_O")]
        weights += [("vit", "W_in", 1, alphas["W_in"])]
        for seed in range(10 * draw, 10 * draw + 5):
            for kind, name, layer, alpha in weights:
                value = alpha + noise * tables.normal(seed, kind, name, layer)
                place = {"variant": f"model.kind={kind}", "seed": seed, "step": 300.0}
                for part in ("H", "H_o"):
                    yield tables.block(
                        name, value, layer=layer, row_layer=layer, quantity="curvature_exponent", part=part, **place
                    )

    return tables.of(rows())


def updates(ratio: float, noise: float = 0.05, draw: int = 0, *, faster: float = 1.0) -> Evidence:
    """Return curvatures that fall with the loss, AdamW's a factor larger; Muon's loss is that of later steps."""

    def rows() -> Iterator[Row]:
        for seed in range(10 * draw, 10 * draw + 5):
            for rule, factor, speed in (("adamw", ratio, 1.0), ("muon", 1.0, faster)):
                for step in STEPS:
                    loss = (1 + speed * step / 50) ** -0.5
                    place = {"variant": f"training.optimiser={rule}", "seed": seed, "step": step}
                    yield {**place, "quantity": "loss", "value": loss, "row": "", "col": "", "part": ""}
                    value = factor * loss**2 * 10 ** (noise * tables.normal(seed, rule, step))
                    yield whole(f"{rule}_update_curvature", value, **place)
                    yield whole(f"{rule}_update_within_layers", value / 2, **place)

    return tables.of(rows())


def paths(language: float, vision: float, noise: float = 0.05, draw: int = 0) -> Evidence:
    """Return log10 |H_o g| / |H_f g| in a language model and in two vision networks."""

    def rows(variant: str, mean: float) -> Iterator[Row]:
        for seed in range(10 * draw, 10 * draw + 5):
            for step in STEPS:
                log = mean + noise * tables.normal(seed, variant, step)
                place = {"variant": variant, "seed": seed, "step": step}
                yield whole("gradient_direction_product", 10.0**log, "H_o", **place)
                yield whole("gradient_direction_product", 1.0, "H_f", **place)

    seen = [row for kind in ("vit", "cnn") for row in rows(f"model.kind={kind}", vision)]
    return tables.of(rows("training.optimiser=adamw", language), along_vision=tables.of(seen))


def edges(response: float, above: float = 1.1, noise: float = 0.02, draw: int = 0) -> Evidence:
    """Return curvatures that answer to the rate with a power, at so many times 2 / eta of the middle rate."""

    def rows() -> Iterator[Row]:
        for rule, norm in NORM_OF.items():
            for rate in (0.5, 1.0):
                for seed in range(10 * draw, 10 * draw + 3):
                    for step in (0.0, 500.0, 700.0, 1000.0):
                        middle = above * 2 / 0.5**0.5
                        value = (
                            middle
                            * (0.5**0.5 / rate) ** response
                            * 10 ** (noise * tables.normal(seed, rule, rate, step))
                        )
                        place = {
                            "variant": f"training.optimiser={rule},training.learning_rate={rate}",
                            "seed": seed,
                            "step": step,
                        }
                        yield whole(f"{norm}_sharpness", value, **place)
                        yield {**whole("sharpness_edge", 2 / rate, "", **place), "row": "", "col": ""}

    return tables.of(rows())


def ranks(quadratic: float, fisher: float, noise: float = 0.1, draw: int = 0) -> Evidence:
    """Return rank correlations of predictions at 4 bits, and others at 3."""

    def rows() -> Iterator[Row]:
        for seed in range(10 * draw, 10 * draw + 5):
            for name, middle in (("quadratic", quadratic), ("fisher", fisher), ("hawq", 0.0)):
                value = float(np.tanh(np.arctanh(middle) + noise * tables.normal(seed, name)))
                place = {"quantity": f"{name}_rank_correlation", "seed": seed, "row": "", "col": "", "part": ""}
                yield {**place, "index": 4, "value": value}
                yield {**place, "index": 3, "value": -value}

    return tables.of(rows())


def subspaces(ratio: float, share: float, noise: float = 1e-3, draw: int = 0) -> Evidence:
    """Return variances in subspaces and in all weights: their ratio, and the share of what all weights add to 1."""

    def rows() -> Iterator[Row]:
        for seed in range(10 * draw, 10 * draw + 5):
            for spread, added in (("0.0001", 0.01), ("0.001", 0.02)):
                place = {"variant": f"landscape.spread={spread}", "seed": seed, "row": "", "col": "", "part": ""}
                bent = {"full_quadratic": added, **dict.fromkeys(("top_quadratic", "random_quadratic"), share * added)}
                for name, value in {"start": 0.0, "full": added, "top": ratio * (1 + added) - 1, **bent}.items():
                    off = 0.0 if name == "start" else noise * tables.normal(seed, name, spread)
                    for index in (1, 4, 16) if name.startswith(("top", "random")) else (None,):
                        number = {"quantity": f"landscape_{name}", "index": index, "value": 1 + value + off}
                        yield {**place, **number}

    return tables.of(rows())


def influences(slope: float, noise: float = 0.05, draw: int = 0) -> Evidence:
    """Return errors 0, 0.2, ... 1 of six matrices, and scores that fall with them."""

    def rows() -> Iterator[Row]:
        for seed in range(10 * draw, 10 * draw + 5):
            for place, name in enumerate(INFLUENCES):
                score = 0.5 - slope * place / 5 + noise * tables.normal(seed, name)
                for number, value in (("error", place / 5), ("score", score)):
                    yield whole(f"{name}_influence_{number}", value, "", seed=seed, step=200.0)

    return tables.of(rows())


PAPER = {"conv": 1.93, "attention": 1.0, "W_in": 0.7}
CASES: list[tuple[str, Evidence, ClaimVerdict]] = [
    ("curvature-exponent", exponents(PAPER), ClaimVerdict.holds),
    ("curvature-exponent", exponents({**PAPER, "W_in": 1.5}), ClaimVerdict.does_not_hold),
    ("curvature-exponent", exponents(PAPER, noise=2.0), ClaimVerdict.undecided),
    ("muon-sharpness", updates(2.0), ClaimVerdict.holds),
    ("muon-sharpness", updates(2.0, faster=2.0), ClaimVerdict.holds),
    ("muon-sharpness", updates(1.15, 0.005), ClaimVerdict.small),
    ("muon-sharpness", updates(0.5), ClaimVerdict.does_not_hold),
    ("logit-path", paths(0.5, -0.5), ClaimVerdict.holds),
    ("logit-path", paths(0.5, 0.5), ClaimVerdict.does_not_hold),
    ("norm-edge", edges(1.0), ClaimVerdict.holds),
    ("rounding-predictor", ranks(0.8, 0.1), ClaimVerdict.holds),
    ("rounding-predictor", ranks(0.8, 0.8), ClaimVerdict.does_not_hold),
    ("rounding-predictor", ranks(0.5, 0.5, 0.8), ClaimVerdict.undecided),
    ("norm-edge", edges(1.0, above=0.3), ClaimVerdict.does_not_hold),
    ("influence-error", influences(0.4), ClaimVerdict.holds),
    ("influence-error", influences(-0.4), ClaimVerdict.does_not_hold),
    ("influence-error", influences(0.1, 0.2), ClaimVerdict.undecided),
    ("top-subspace", subspaces(1.0, 0.5), ClaimVerdict.holds),
    ("top-subspace", subspaces(0.8, 0.5), ClaimVerdict.does_not_hold),
    ("top-subspace", subspaces(1.0, 0.5, 0.1), ClaimVerdict.undecided),
    ("top-subspace-share", subspaces(1.0, 0.8, 1e-4), ClaimVerdict.holds),
    ("top-subspace-share", subspaces(1.0, 0.3, 1e-4), ClaimVerdict.small),
    ("top-subspace-share", subspaces(1.0, 0.0, 1e-4), ClaimVerdict.does_not_hold),
]
# Nothing there: exponents 0 or alike, one curvature for both rules, equal paths everywhere, a curvature that is blind.
NULLS: dict[str, list[Callable[[int], Evidence]]] = {
    "curvature-exponent": [
        lambda draw: exponents(dict.fromkeys(PAPER, 0.0), 0.3, draw),
        lambda draw: exponents(dict.fromkeys(PAPER, 1.5), 0.3, draw),
    ],
    "muon-sharpness": [lambda draw: updates(1.0, 0.2, draw), lambda draw: updates(1.0, 0.2, draw, faster=3.0)],
    "logit-path": [lambda draw: paths(0.0, 0.0, 0.2, draw), lambda draw: paths(0.5, 0.5, 0.2, draw)],
    "rounding-predictor": [lambda draw: ranks(0.0, 0.0, 0.3, draw), lambda draw: ranks(0.6, 0.6, 0.3, draw)],
    "influence-error": [lambda draw: influences(0.0, noise=0.1, draw=draw), lambda draw: influences(0.0, draw=draw)],
    "top-subspace": [lambda draw: subspaces(0.8, 0.5, 0.05, draw), lambda draw: subspaces(1.2, 0.5, 0.05, draw)],
    "top-subspace-share": [lambda draw: subspaces(1.0, 0.0, 1e-4, draw), lambda draw: subspaces(1.0, 0.0, 1e-2, draw)],
    "norm-edge": [lambda draw: edges(0.0, 2.0, 0.02, draw), lambda draw: edges(0.0, 2.0, 0.2, draw)],
}


@pytest.mark.parametrize(("name", "evidence", "verdict"), CASES)
def test_verdicts(name: str, evidence: Evidence, verdict: ClaimVerdict) -> None:
    found = claim_of(name).rule(evidence).verdict
    assert (ClaimVerdict.holds if found == ClaimVerdict.within else found) == verdict


@pytest.mark.parametrize(
    ("name", "place"), [(name, place) for name, nulls in NULLS.items() for place in range(len(nulls))]
)
@pytest.mark.long
def test_nothing_holds_where_there_is_nothing(name: str, place: int) -> None:
    found = [claim_of(name).rule(NULLS[name][place](draw)) for draw in range(DRAWS)]
    assert sum(one.verdict in POSITIVE for one in found) <= MOST * DRAWS
    assert not any(one.is_lacking for one in found)


@pytest.mark.parametrize("name", NULLS)
def test_a_table_without_the_numbers_says_so(name: str) -> None:
    assert claim_of(name).rule(tables.of([])).is_lacking


def test_updates_without_a_positive_curvature_are_missing_numbers() -> None:
    bare = updates(2.0)
    negative = bare.table["quantity"].str.endswith("_update_curvature")
    table = bare.table.assign(value=bare.table["value"].where(~negative, -1.0))
    assert claim_of("muon-sharpness").rule(Evidence(table)).is_lacking
