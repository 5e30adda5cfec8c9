"""What a sweep varies: its own settings, those of the command line in their place, and what cannot be varied."""

import pytest

from hessfig.config.compose.job import checked_job
from hessfig.errors import UserError
from tests.config.composing import configs, job


def names(*words):
    return [name for name, _ in configs(*words)]


def test_variants_are_every_combination_in_order():
    found = configs(
        "sweep.vary={model.n_layers: [1, 2], model.temperature: [1.0, 2.0]}"
    )
    assert [(name, config.model.n_layers) for name, config in found] == [
        ("model.temperature=1.0", 1),
        ("model.temperature=2.0", 1),
        ("model.temperature=1.0", 2),
        ("model.temperature=2.0", 2),
    ]


@pytest.mark.parametrize(
    "word",
    [
        "sweep.vary={model.n_heads: [1, 2]}",
        "sweep.vary={model.n_heads:[1,2]}",
        "sweep.vary={model: {n_heads: [1, 2]}}",
        "sweep.vary.model.n_heads=[1,2]",
        "+sweep.vary.model.n_heads=[1,2]",
    ],
)
def test_ways_to_write_the_same(word):
    assert names(word) == ["model.n_heads=1", "model.n_heads=2"]


def test_curves_may_run_along_what_varies():
    found = job("sweep.vary={model.d_model: [8, 16]}", "sweep.axis=model.d_model")
    assert found.config.sweep.axis == "model.d_model"


def test_what_is_given_replaces_the_sweeps_own():
    found = job("sweep=depth", "sweep.vary={model.d_model: [8, 16]}")
    assert found.config.sweep.vary == {"model.d_model": [8, 16]}
    assert [config.model.n_layers for _, config in found.variants] == [1, 1]
    assert "model.n_layers" not in found.yaml()


def test_an_entry_that_is_given_joins_the_sweeps_own():
    assert len(names("sweep=depth", "sweep.vary.model.d_model=[8,16]")) == 10


def test_one_value_needs_no_list():
    assert names("sweep.vary={model.n_heads: 2}") == ["model.n_heads=2"]


def test_nothing_varied():
    assert names("sweep=depth", "sweep.vary={}") == [""]


def test_a_setting_given_by_hand_is_not_varied():
    found = job("sweep=depth", "model.n_layers=3")
    assert [config.model.n_layers for _, config in found.variants] == [3]
    assert found.config.sweep.vary == {}


def test_options_of_a_factory_can_vary():
    found = configs(
        "sweep=network",
        "model.factory=a.py:b",
        "sweep.vary={model.options.width: [3, 4]}",
    )
    assert [config.model.options for _, config in found] == [{"width": 3}, {"width": 4}]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["sweep.vary={output_dir: [a]}"], "output_dir cannot be varied"),
        (["sweep.vary={model.n_heads: []}"], "model.n_heads has no values"),
        (["sweep.vary={model.n_heads: [2, 2]}"], "a value twice"),
        (["sweep.vary={model.n_heads: [[1]]}"], "cannot name a variant"),
        (
            ["sweep.vary={model.n_heads: [1, x]}"],
            "model.n_heads must be a whole number",
        ),
        (
            ["sweep.vary={model.n_heads: 2}", "model.n_heads=4"],
            "given one value as well",
        ),
    ],
)
def test_what_cannot_be_varied(words, message):
    with pytest.raises(UserError, match=message) as caught:
        checked_job(words)
    assert caught.value.allowed
    assert caught.value.remedy or "model.n_layers" in message


def test_too_many_combinations_are_counted_not_listed():
    many = ",".join(str(0.5 + i / 1000) for i in range(300))
    with pytest.raises(UserError, match=r"sweep\.vary: 27000000 combinations"):
        configs(
            f"sweep.vary={{model.temperature: [{many}], grid.low: [{many}], estimator.variance_share: [{many}]}}"
        )
