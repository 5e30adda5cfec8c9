"""The comparison with published values number by number: what is equal, what is not, and what cannot be."""

import math

import pandas as pd
import pytest

from hessfig.analysis.comparison.one_by_one import OVERFLOWED, UNDERFLOWED, ZERO, OneByOne, compare_numbers

CONFIG = {"model": {"d_model": 128}, "state": {"draw": "published"}, "estimator": {"probes": "published"}}


def values(norms: list[float], *, first: int) -> pd.DataFrame:
    """Return a curve of one sigma over repeats."""
    place = {"num_layers": 1, "block": "W_Q", "part": "H", "layer": 1, "sigma": 0.1}
    return pd.DataFrame([{**place, "repeat": first + rank, "value": norm} for rank, norm in enumerate(norms)])


def compared(ours: list[float], theirs: list[float], **config: object) -> OneByOne:
    sides = values(ours, first=1234), values(theirs, first=0)
    return compare_numbers(*sides, {**CONFIG, **config}, sweep="sigma", reference="the published values")


def test_numbers_are_paired_by_repeat_and_counted() -> None:
    result = compared([1.0, 1.0, 1.0, 1.0], [1.0, 1.0000005, 1.0004, 1.01])
    assert result.sentence() == (
        "not equal: 3 of 4 numbers within 0.0005 (relative), 2 within 1e-06; "
        "worst 0.0099 (H of W_Q, layer 1/1, repeat 3, sigma 0.1)"
    )
    curve = result.curves.iloc[0]
    assert (curve["compared"], curve["close"], curve["within"]) == (4, 2, 3)
    assert curve["rms"] == pytest.approx(((0.0004 / 1.0004) ** 2 + (0.01 / 1.01) ** 2) ** 0.5 / 2, rel=1e-4)


def test_a_number_of_ours_that_is_not_finite_is_not_equal() -> None:
    assert compared([1.0, math.nan], [1.0, 1.0]).sentence().startswith("not equal: 1 of 2")


def test_numbers_that_float32_cannot_hold_are_left_out_with_their_reason() -> None:
    result = compared([1.0, 0.0, 3e-22, 5.3e18, 1e-18], [1.0, 0.0, 0.0, math.inf, 6e-18])
    assert result.points["reason"].tolist() == ["", ZERO, UNDERFLOWED, OVERFLOWED, UNDERFLOWED]
    assert result.sentence().startswith("equal: 1 of 1 numbers")
    assert result.notes()[1] == f"not compared: 2 {UNDERFLOWED} (sigma 0.1 to 0.1, ours 3e-22 to 1e-18)"


def test_other_probes_are_not_called_equal() -> None:
    result = compared([1.0], [1.0], estimator={"method": "auto"})
    assert result.sentence().startswith("published networks, other probes: 1 of 1")


def test_numbers_of_one_side_alone_are_counted() -> None:
    result = compared([1.0, 2.0, 3.0], [1.0])
    assert result.notes() == ["without a partner: 2 numbers of ours, 0 of the published values"]


def test_nothing_to_compare_is_undecided() -> None:
    assert compared([0.0], [0.0]).sentence() == "undecided: no number can be compared"
