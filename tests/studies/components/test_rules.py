"""Rules of the ratio of query to value blocks: each holds, fails and is missing on tables made to."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from hessfig.analysis.claims.judges import ClaimVerdict
from hessfig.analysis.claims.rule import Evidence
from hessfig.studies.components.rules import gap, rate_gaps, ratio_training
from tests.analysis.claim_tables import Row, block, normal, of

SEEDS, RATES, OPTIMISERS = range(5), (0.01, 0.1, 1.0, 10.0), ("sgd", "adam")
SETTINGS = {"sigmoid": "model.attention", "qk_norm": "model.scores", "pre": "model.norm", "post": "model.norm"}
RATIOS = {"": -2.0, "sigmoid": -4.0, "qk_norm": 1.0, "pre": -0.5, "post": -3.0}  # in decades
SCALES = (1.0, 4.0, 0.25)
TRIED = ("ratio-training", "heterogeneity-gap")  # here, on tables of their own
Course = Callable[[str], float]


def variant(name: str, scale: float = 1.0, **words: object) -> str:
    own = [f"{SETTINGS[name]}={name}"] if name else []
    scaled = [f"model.scaled_weight=query_key,model.weight_scale={scale}"] if scale != 1 else []
    return ",".join([*own, *scaled, *(f"training.{key}={value}" for key, value in words.items())])


def norms(name: str, decades: float, seed: int, **place: object) -> list[Row]:
    noise = 0.02 * normal(seed, name, decades)
    return [block("W_Q", 10 ** (decades + noise), seed=seed, **place), block("W_V", 1.0, seed=seed, **place)]


def untrained() -> Evidence:
    """Return ratios of every component, and 1 / s^2 of them where W_Q and W_K are s times as large."""
    return of(
        row
        for name, decades in RATIOS.items()
        for scale in SCALES
        for seed in SEEDS
        for row in norms(name, _decades(decades, scale), seed, variant=variant(name, scale))
    )


def _decades(decades: float, scale: float) -> float:
    return decades + {1.0: 0.0, 4.0: -1.2, 0.25: 1.2}[scale]


def races(
    behind: Callable[[str, float], float], stable: Callable[[str, float], float], best: float = 0.1, spread: float = 0.0
) -> Evidence:
    """Return losses of both optimisers: SGD `behind` at the best rate, diverging beyond its `stable` one.

    `spread` is that of the slope over seeds; `behind` and it are in tenths of decades of the loss.
    """
    rows: list[Row] = []
    for name, decades in RATIOS.items():
        for scale in SCALES:
            apart = _decades(decades, scale)
            for optimiser in OPTIMISERS:
                is_sgd = optimiser == "sgd"
                for rate in RATES:
                    named = variant(name, scale, optimiser=optimiser, learning_rate=rate)
                    lost = abs(RATES.index(rate) - RATES.index(best)) + (behind(name, apart) if is_sgd else 0.0)
                    last = 10 ** (0.1 * lost) if rate <= (stable(name, apart) if is_sgd else 1.0) else 100.0
                    for seed in SEEDS:
                        slope = 0.1 * spread * normal(seed, "slope") * is_sgd
                        noise = 10 ** (0.001 * normal(seed, named) + slope * abs(apart))
                        place = {"variant": named, "seed": seed, "quantity": "loss", "part": ""}
                        rows += [{**place, "step": 0.0, "value": 10.0}, {**place, "step": 9.0, "value": last * noise}]
    return of(rows, ratio_initial=untrained())


def apart(name: str, decades: float) -> float:
    del name
    return abs(decades)


def by_name(name: str, decades: float) -> float:
    """Return what follows the component alone, whatever its weights are scaled by."""
    del decades
    return abs(RATIOS[name])


def never(name: str, decades: float) -> float:
    del name, decades
    return 0.0


def one(name: str, decades: float) -> float:
    del name, decades
    return 1.0


@pytest.mark.parametrize(
    ("behind", "verdict"),
    [(apart, ClaimVerdict.holds), (by_name, ClaimVerdict.does_not_hold), (never, ClaimVerdict.does_not_hold)],
)
def test_the_gap_must_follow_the_ratio_in_the_control_too(
    behind: Callable[[str, float], float], verdict: ClaimVerdict
) -> None:
    found = gap.judged(races(behind, one))
    assert found.verdict == verdict, found.words
    assert found.effect == pytest.approx(0.1 if behind is apart else 0.0, abs=0.01)
    assert not found.is_lacking


def slightly(name: str, decades: float) -> float:
    del name
    return 0.05 * abs(decades)


def test_a_gap_may_be_small_or_undecided() -> None:
    assert gap.judged(races(slightly, one)).verdict == ClaimVerdict.small
    assert gap.judged(races(apart, one, spread=3.0)).verdict == ClaimVerdict.undecided


def test_optima_at_an_end_of_the_grid_leave_a_network_out() -> None:
    found = gap.judged(races(apart, one, best=0.01))
    assert found.is_lacking and "optima inside the grid" in found.words


def falls(name: str, decades: float) -> float:
    del name
    return 1.0 if abs(decades) < 2 else 0.1


def test_the_largest_stable_rate_is_read_off_the_losses() -> None:
    rates = rate_gaps(races(never, falls)).groupby(level=["network", "scale"]).mean()
    for (network, scale), gap_of_rates in rates.items():
        decades = _decades(RATIOS["" if network == "softmax" else str(network)], float(scale))
        assert gap_of_rates == pytest.approx(0.0 if abs(decades) < 2 else 1.0)
    assert len(rates) == len(RATIOS) * len(SCALES)


def test_a_rate_that_is_stable_at_the_end_of_the_grid_is_no_largest_one() -> None:
    rates = rate_gaps(races(never, lambda name, decades: 10.0 if name == "post" else falls(name, decades))).dropna()
    assert "post" not in set(rates.index.get_level_values("network")) and len(rates)


def test_without_untrained_ratios_nothing_is_judged() -> None:
    assert gap.judged(Evidence(races(apart, falls).table)).is_lacking


def trainings(ratios: Mapping[str, float], best: Mapping[str, float] | None = None) -> Evidence:
    """Return ratios that move from those untrained to `ratios` while the loss halves; all but one rate are worse."""
    rows: list[Row] = []
    for name in RATIOS:
        for rate in RATES:
            named = variant(name, learning_rate=rate)
            worse = abs(RATES.index(rate) - RATES.index((best or {}).get(name, 0.1)))
            for step, share in ((0, 0.0), (10, 0.5), (20, 1.0)):
                decades = RATIOS[name] + share * (ratios[name] - RATIOS[name])
                loss = (4 + worse) * 0.5**share
                for seed in SEEDS:
                    place = {"variant": named, "step": float(step)}
                    rows += norms(name, decades, seed, **place)
                    rows.append({**place, "seed": seed, "quantity": "held_out_loss", "part": "", "value": loss})
    return of(rows)


@pytest.mark.parametrize(
    ("ratios", "verdict"),
    [
        (RATIOS, ClaimVerdict.holds),
        (dict.fromkeys(RATIOS, -1.0), ClaimVerdict.does_not_hold),
        ({**RATIOS, "qk_norm": -2.0}, ClaimVerdict.holds_only_if),
    ],
)
def test_the_order_of_components_at_equal_loss(ratios: Mapping[str, float], verdict: ClaimVerdict) -> None:
    found = ratio_training.judged(trainings(ratios))
    assert found.verdict == verdict, found.words


def test_a_component_whose_best_rate_is_an_end_is_missing() -> None:
    found = ratio_training.judged(trainings(RATIOS, {"post": 10.0}))
    assert found.is_lacking and {row.name for row in found.rows if row.word == "missing"} == {"post"}
    assert ratio_training.judged(trainings(RATIOS, dict.fromkeys(RATIOS, 0.01))).is_lacking
