"""The problem of a stored network is opened once for the cells of a process, and anew where anything of it changed."""

import shutil
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hessfig.config.science import ModelConfig
from hessfig.config.training_settings import StateConfig
from hessfig.models.own.witnessing import Witnessing
from hessfig.models.stored import kept_problem
from hessfig.states.point import drawn
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from tests.daily import daily
from tests.draws import labels
from tests.models.kinds import test_transformer_lens as lens
from tests.models.tiny_models import CONTEXT, SEQUENCES, config_of, save, save_ids


@pytest.fixture
def opened(monkeypatch):
    """The comparisons with a network itself, in a process that keeps no problem yet."""
    counted = list[Witnessing]()
    measured = Witnessing.measured

    def counting(self, real):
        counted.append(self)
        return measured(self, real)

    monkeypatch.setattr(Witnessing, "measured", counting)
    monkeypatch.setattr(kept_problem.KEPT, "_last", None)
    return counted


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("kept")
    save("gpt2", folder / "gpt2")
    lens.written(folder / "lens", lens.GPT2, lens.state(lens.GPT2))
    save_ids(folder / "ids.npy")
    return folder


def gpt2(home, **changes):
    return config_of(home / "gpt2", home / "ids.npy", **changes)


def of_lens(home, **changes):
    return lens.config(home / "lens", home / "ids.npy", **changes)


def draw(config, seed=0):
    return drawn(config, sigma=None, seed=seed)


def values_of(cells):
    found = {}
    for cell in cells:
        found[cell.quantity] = [
            (row["row"], row["part"], row["value"]) for row in compute_cell(cell).rows
        ]
    return found


@pytest.mark.parametrize(
    "config_in", daily([gpt2, of_lens], gpt2), ids=["gpt2", "lens"]
)
def test_cells_of_one_network_compare_it_once_and_have_the_numbers_of_single_cells(
    config_in, home, opened, monkeypatch
):
    config = config_in(home, quantities=["loss", "frobenius", "trace"])
    cells = Sweep([("", config)]).cells
    together = values_of(cells)
    assert len(opened) == 1
    alone = {}
    for cell in cells:
        monkeypatch.setattr(kept_problem.KEPT, "_last", None)
        alone |= values_of([cell])
    assert len(opened) == 1 + len(cells) == 4
    assert together == alone
    assert list(together) == ["loss", "frobenius", "trace"]


@pytest.mark.parametrize(
    "config_in", daily([gpt2, of_lens], gpt2), ids=["gpt2", "lens"]
)
def test_other_data_and_types_are_compared_anew(config_in, home, opened, tmp_path):
    config = config_in(home)
    save_ids(tmp_path / "other.npy")
    other = replace(config.task, path=str(tmp_path / "other.npy"))
    fewer = replace(config.task, batch_size=SEQUENCES - 1)
    first = draw(config)
    for number, changed in enumerate(
        (
            replace(config, task=fewer),
            replace(config, dtype="float32"),
            replace(config, task=replace(config.task, first_scored=1)),
            replace(config, task=other),
        ),
        start=2,
    ):
        draw(changed)
        assert len(opened) == number
    assert draw(config) is not first


def test_a_folder_with_other_weights_is_compared_anew(home, opened, tmp_path):
    folder = shutil.copytree(home / "gpt2", tmp_path / "gpt2")
    config = config_of(folder, home / "ids.npy")
    first = draw(config)
    assert draw(config) is first
    weights = load_file(folder / "model.safetensors")
    save_file(
        {name: 2 * one for name, one in weights.items()},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    second = draw(config)
    assert len(opened) == 2
    pairs = zip(first.network.parameters(), second.network.parameters(), strict=True)
    for one, other in pairs:
        assert torch.equal(2 * one, other)


def test_random_weights_of_another_seed_are_another_network(home, opened):
    sizes = {"n_layers": 1, "n_heads": 2, "d_model": 4, "vocabulary": 5}
    task = {"length": CONTEXT, "path": None}
    config = gpt2(home, task=task)
    model = ModelConfig(kind="huggingface", architecture="gpt2", path=None, **sizes)
    config = replace(config, model=model)
    first = draw(config, seed=1)
    assert draw(config, seed=1) is first
    assert draw(config, seed=2) is not first
    assert len(opened) == 2


def test_a_network_that_a_measurement_changed_in_place_is_opened_again(home, opened):
    first = draw(gpt2(home))
    weight = next(first.network.parameters())
    before = weight.detach().clone()
    with torch.no_grad():
        weight.add_(1)
    second = draw(gpt2(home))
    assert len(opened) == 2
    assert torch.equal(next(second.network.parameters()), before)


def test_a_network_whose_weights_are_replaced_is_its_callers_alone(home, opened):
    config = gpt2(home)
    first = draw(config)
    trained = replace(config, state=StateConfig(kind="trained"))
    content = (0, torch.zeros(1, 1).numpy(), 1, None)
    assert kept_problem.opening(config, *content) is not None
    assert kept_problem.opening(trained, *content) is None
    other = kept_problem.KEPT.problem(None, lambda: first)
    assert other is first
    assert kept_problem.KEPT._last is None
    assert draw(config) is not first


def test_a_large_network_is_not_kept(home, opened, monkeypatch):
    monkeypatch.setattr(kept_problem, "MOST_BYTES", 100)
    assert draw(gpt2(home)) is not draw(gpt2(home))
    assert len(opened) == 2
    assert kept_problem.KEPT._last is None


def test_as_many_words_as_positions_need_no_word_about_the_axis_of_classes(
    opened, tmp_path
):
    """The package's own cross-entropy reads classes along the last axis, whatever else fits."""
    settings = {**lens.GPT2, "n_ctx": lens.VOCABULARY}
    folder = lens.written(tmp_path / "lens", settings, lens.state(settings))
    ids = labels(SEQUENCES, lens.VOCABULARY, classes=lens.VOCABULARY)
    np.save(tmp_path / "ids.npy", ids.numpy())
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        problem = draw(lens.config(folder, tmp_path / "ids.npy"))
    outputs = problem.network(problem.batch.inputs)
    assert outputs.shape == (SEQUENCES, lens.VOCABULARY, lens.VOCABULARY)
    assert len(opened) == 1
