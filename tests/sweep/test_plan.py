"""From settings to cells and their keys."""

from dataclasses import replace

import pytest

from hessfig.config.enums import DType, Method, Products, State
from hessfig.config.schema import Config, FigureConfig, SweepConfig
from hessfig.config.science import (
    EstimatorConfig,
    GridConfig,
    ModelConfig,
    SpectrumConfig,
    TaskConfig,
)
from hessfig.config.training_settings import StateConfig
from hessfig.measurements.quantity import columns
from hessfig.record import digest
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.variant import Variant
from tests.toys import ARCHITECTURES


def keys(config):
    return [cell.key for cell in Sweep([("", config)]).cells]


def key(**settings):
    return Cell(Variant("", Config(**settings)), 0.1, 1234).key


def test_cells_come_repeat_by_repeat():
    cells = Sweep([("", Config(seeds=2, grid=GridConfig(points=3)))]).cells
    assert [(cell.seed, cell.sigma) for cell in cells] == [
        (seed, sigma) for seed in (1234, 1235) for sigma in (0.01, 0.316227766017, 10.0)
    ]


def test_more_seeds_and_more_sigmas_keep_the_cells_there_are():
    small = keys(Config(seeds=2, grid=GridConfig(points=3)))
    assert keys(Config(seeds=3, grid=GridConfig(points=3)))[:6] == small
    assert set(small) <= set(keys(Config(seeds=2, grid=GridConfig(points=5))))


CHANGES_NOTHING = [
    {"output_dir": "elsewhere"},
    {"workers": 7},
    {"dry_run": True},
    {"tolerance": 0.5},
    {"seeds": 3},
    {"first_seed": 7},
    {"figure": FigureConfig(name="3a")},
    {"sweep": SweepConfig(name="other", about="words", windows=[[None, None]])},
    {"grid": GridConfig(points=3)},
    {"model": ModelConfig(d_head=128, d_mlp=512)},
    {"parts": ["H", "H_f", "H_o"]},
]
CHANGES_THE_NUMBER = [
    {"dtype": DType.float32},
    {"device": "cuda"},
    {"blocks": ["W_V"]},
    {"parts": ["H"]},
    {"task": TaskConfig(seed=1)},
    {"task": TaskConfig(batch_size=63)},
    {"model": ModelConfig(n_layers=2)},
    {"model": ModelConfig(temperature=2.0)},
    {"estimator": EstimatorConfig(num_probes=21)},
    {"estimator": EstimatorConfig(method=Method.dense)},
    {"estimator": EstimatorConfig(products=Products.curvlinops)},
    {"state": StateConfig(State.loaded, __file__)},
]


@pytest.mark.parametrize(
    "settings", CHANGES_NOTHING, ids=lambda settings: next(iter(settings))
)
def test_the_key_ignores_what_does_not_change_the_number(settings):
    assert key(**settings) == key()


@pytest.mark.parametrize("settings", CHANGES_THE_NUMBER, ids=str)
def test_the_key_sees_what_changes_the_number(settings):
    assert key(**settings) != key()


def test_probes_do_not_matter_to_an_exact_method():
    one, other = (
        key(estimator=EstimatorConfig(method=Method.dense, num_probes=k))
        for k in (9, 20)
    )
    assert one == other


def test_a_single_start_of_an_eigenvalue_has_a_key_of_its_own():
    """Two starts, the default, are in no key: cells of versions without the setting are reused."""
    cells = {
        starts: Cell(
            Variant("", Config(spectrum=SpectrumConfig(starts=starts))),
            0.1,
            1234,
            "largest_eigenvalue",
        )
        for starts in (1, 2)
    }
    assert cells[1].key != cells[2].key
    assert "starts" not in str(cells[2].variant.science("largest_eigenvalue"))


def test_whose_products_matters_to_the_dense_method_too():
    keys = {
        key(estimator=EstimatorConfig(method=Method.dense, products=p))
        for p in Products
    }
    assert len(keys) == len(Products)


def test_sigma_and_seed_are_part_of_the_key():
    cell = Cell(Variant("", Config()), 0.1, 1234)
    assert (
        len({cell.key, replace(cell, sigma=0.2).key, replace(cell, seed=1235).key}) == 3
    )


def test_a_digest_does_not_depend_on_the_order_of_keys():
    assert (
        digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1}) != digest({"a": 2, "b": 1})
    )


def test_columns_share_their_products():
    config = Config(blocks=["W_V", ["W_Q", "W_V"], "W_Q"])
    found = [
        (layer, col, [b.row for b in members])
        for layer, col, members in columns(Variant("", config).blocks)
    ]
    assert found == [(1, "W_V", ["W_V", "W_Q"]), (1, "W_Q", ["W_Q"])]


def test_every_layer_has_its_blocks_and_shared_weights_none():
    config = Config(
        model=ARCHITECTURES["two layers"], blocks=["W_V", "W_E", ["W_E", "W_V"]]
    )
    found = [(b.layer, b.row, b.col) for b in Variant("", config).blocks]
    assert found == [
        (0, "W_E", "W_E"),
        (1, "W_V", "W_V"),
        (1, "W_E", "W_V"),
        (2, "W_V", "W_V"),
        (2, "W_E", "W_V"),
    ]


def test_a_cell_says_where_it_is():
    assert (
        str(Cell(Variant("model.norm=pre", Config()), 0.1, 7))
        == "model.norm=pre, n_layers=1, sigma=0.1, seed=7"
    )


@pytest.mark.parametrize(
    ("predictions", "named"),
    [
        ({"W_Q": {"H": 5}, "W_V": {"H_f": "zero"}}, []),
        ({"W_Q": {"H": 5}, "W_K": {"H": 5}}, ["W_K: H"]),
        ({"W_V,W_Q": {"H_o": 4, "H": 3}}, ["W_V,W_Q: H_o", "W_V,W_Q: H"]),
        ({"W_Q": {"H_oT": 5}}, ["W_Q: H_oT"]),
    ],
)
def test_a_stated_exponent_of_what_is_not_measured_is_noted(predictions, named):
    config = Config(blocks=["W_Q", "W_V"], sweep=SweepConfig(predictions=predictions))
    notes = Sweep([("", config)]).unread
    assert [note.partition(" is not")[0] for note in notes] == [
        f"sweep.predictions: {name}" for name in named
    ]
