"""Settings that came later leave the keys of cells alone while they stand at their default."""

import pytest

from hessfig.config import keys
from hessfig.config.keys import added_defaults, as_plain, without_added
from hessfig.config.schema import Config, ModelConfig
from hessfig.config.settings import settings
from hessfig.sweep.plan import Cell, Sweep
from tests.config.composing import configs

# Keys of first cells as version 0.1 gave them: (words of the command, key of its first,
# of its last variant).
KEYS_OF_0_1 = [
    (["sweep=sigma"], "c4ebe836320e62d27e0c41d2", "c4ebe836320e62d27e0c41d2"),
    (["sweep=layernorm"], "0c1c7520d418b3423e3d1982", "0c1c7520d418b3423e3d1982"),
    (["sweep=post_layernorm"], "f0f2e4d6dfa6b1a97ed901a1", "f0f2e4d6dfa6b1a97ed901a1"),
    (["sweep=single_matrix"], "811234cbd1d6a20d1105c830", "329f169e1914cb9285366f89"),
    (["sweep=mlp"], "7a59ca3e33a0fd7c641d654a", "db78f2640a61afb3a5ecf5b8"),
    (["sweep=eq5"], "2ef77f45e0a653ce5fd2a0bc", "ed308e8bf0e50c50166bb41f"),
    (["sweep=entries"], "882342a15df85b2be485f43b", "43e58f63b56ae3ca17c0871c"),
    (
        ["sweep=sigma", "quantities=[trace]", "blocks=[W_Q]"],
        "0a842bb63f110b2b8a2628ab",
        "0a842bb63f110b2b8a2628ab",
    ),
]


@pytest.mark.parametrize(
    ("words", "first", "last"), KEYS_OF_0_1, ids=lambda words: str(words)
)
def test_cells_keep_the_keys_of_0_1(words, first, last):
    variants = Sweep(configs(*words)).variants
    ends = (variants[0], variants[-1])
    cells = [Cell(one, one.sigmas()[0], 1234, one.config.quantities[0]) for one in ends]
    assert [cell.key for cell in cells] == [first, last]


def test_cells_in_float32_are_measured_again():
    """0.1 evaluated their networks in float32, which are others where attention saturates."""
    of_0_1 = {"4ea205b9c14138d32301a984", "8f3515d7e76fac797b9b189e"}
    variants = Sweep(configs("sweep=depth")).variants
    assert not of_0_1 & {Cell(one, one.sigmas()[0], 1234).key for one in variants}
    wide = Sweep(configs("sweep=depth", "dtype=float64")).variants
    assert all("float32" not in one.science("frobenius") for one in wide)


def test_added_settings_are_settings():
    assert set(keys.ADDED) <= set(settings())


def test_an_added_setting_is_left_out_at_its_default_alone(monkeypatch):
    monkeypatch.setattr(keys, "ADDED", ("model.temperature",))
    added_defaults.cache_clear()
    try:
        default = without_added(as_plain(Config()))
        changed = without_added(as_plain(Config(model=ModelConfig(temperature=2.0))))
    finally:
        added_defaults.cache_clear()
    assert "temperature" not in default["model"]
    assert changed["model"]["temperature"] == 2.0
    assert {**changed["model"]} == {**default["model"], "temperature": 2.0}
    assert default["seeds"] == Config().seeds
