"""Weights from files: the same numbers as the network they were saved from, and no file read that does not fit."""

import json
import pickle
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from hessfig.config.enums import Method, Norm, State
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig
from hessfig.config.training_settings import StateConfig
from hessfig.errors import UserError
from hessfig.states.initialised import build_network
from hessfig.states.point import drawn
from hessfig.states.stored_states import load_weights
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell, Sweep
from hessfig.sweep.variant import Variant
from tests.toys import ARCHITECTURES, toy_task

MODEL = ARCHITECTURES["pre"]
CONFIG = Config(
    model=MODEL, task=toy_task(MODEL), estimator=EstimatorConfig(Method.dense), seeds=1
)
Save = Callable[[dict[str, Tensor], Path], None]


def saved(folder, *, suffix=".safetensors", **changed):
    """Save the network of seed 7 at sigma 0.3, some of its tensors changed or (None) left out."""
    network = build_network(CONFIG, sigma=0.3, seed=7)
    tensors = {}
    for name, tensor in {**dict(network.named_parameters()), **changed}.items():
        if tensor is not None:
            tensors[name] = tensor.detach().clone()
    path = folder / f"weights{suffix}"
    save = save_file if suffix == ".safetensors" else torch.save
    save(tensors, path)
    return path


def loaded(path):
    return replace(CONFIG, state=StateConfig(State.loaded, str(path)))


def values(config, sigma, seed):
    return [
        row["value"]
        for row in compute_cell(Cell(Variant("", config), sigma, seed)).rows
    ]


@pytest.mark.parametrize("suffix", [".safetensors", ".pt"])
def test_a_loaded_network_has_the_norms_of_the_one_that_was_saved(tmp_path, suffix):
    config = loaded(saved(tmp_path, suffix=suffix))
    assert values(config, None, 1234) == values(CONFIG, 0.3, 7)
    assert Variant("", config).sigmas() == [None]


def test_the_key_is_the_files_content_not_its_name(tmp_path):
    first = saved(tmp_path)
    other = tmp_path / "renamed.safetensors"
    other.write_bytes(first.read_bytes())
    (tmp_path / "changed").mkdir()
    changed = saved(
        tmp_path / "changed", **{"head.bias": torch.ones(12, dtype=torch.float64)}
    )
    keys = [
        Cell(Variant("", loaded(path)), None, 1).key for path in (first, other, changed)
    ]
    assert keys[0] == keys[1] != keys[2]


WIDE = torch.zeros(5, 5, dtype=torch.float64)
MISFITS = {
    "missing": ({"head.weight": None}, "missing: head.weight; surplus: none"),
    "surplus": ({"extra": WIDE}, "missing: none; surplus: extra"),
    "renamed": (
        {"head.weight": None, "hed.weight": WIDE},
        "for 'head.weight': did you mean 'hed.weight'?",
    ),
    "of another shape": (
        {"head.weight": WIDE},
        r"head.weight in (.|\n)*another shape(.|\n)*\(5, 5\)",
    ),
    "not finite": ({"head.bias": torch.full((12,), torch.nan)}, "12 of 12 not finite"),
    "of whole numbers": (
        {"head.bias": torch.ones(12, dtype=torch.int64)},
        "not of a floating-point type",
    ),
}


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_named_and_nothing_is_copied(tmp_path, misfit):
    changed, message = MISFITS[misfit]
    network = build_network(CONFIG, sigma=1.0, seed=1)
    before = {name: tensor.clone() for name, tensor in network.state_dict().items()}
    with pytest.raises(UserError, match=message) as caught:
        load_weights(network, saved(tmp_path, **changed))
    assert caught.value.got
    assert caught.value.allowed
    assert caught.value.remedy
    for name, tensor in network.state_dict().items():
        assert torch.equal(before[name], tensor)


class Evil:
    def __reduce__(self):
        return (print, ("executed",))


FILES = {
    "w.safetensors": b"not safetensors",
    "empty.safetensors": b"",
    "w.pt": b"garbage",
    "evil.pt": pickle.dumps({"w": Evil()}),
    "list.pt": pickle.dumps([1, 2]),
    "huge.safetensors": (2**62).to_bytes(8, "little") + b"{}",
    "json.safetensors": (2).to_bytes(8, "little") + json.dumps({}).encode(),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_weights_are_refused(tmp_path, name, capsys):
    (tmp_path / name).write_bytes(FILES[name])
    with pytest.raises(
        UserError, match=r"state\.path: .* cannot be read as weights"
    ) as caught:
        drawn(loaded(tmp_path / name), sigma=None, seed=1)
    assert caught.value.remedy
    assert "executed" not in capsys.readouterr().out


@pytest.mark.parametrize("misfit", MISFITS)
def test_what_does_not_fit_is_refused_when_a_run_is_planned(tmp_path, misfit):
    changed, message = MISFITS[misfit]
    with pytest.raises(UserError, match=message):
        Sweep([("", loaded(saved(tmp_path, **changed)))])


@pytest.mark.parametrize("path", [None, "nowhere.safetensors"])
def test_a_path_that_names_no_file_is_refused_before_anything_runs(path):
    config = replace(CONFIG, state=StateConfig(State.loaded, path))
    with pytest.raises(UserError, match=r"state\.path") as caught:
        Variant("", config).check()
    assert caught.value.allowed
    assert caught.value.remedy


def test_norms_are_loaded_too(tmp_path):
    gain = torch.full((4,), 1.5, dtype=torch.float64)
    path = saved(tmp_path, **{"layers.0.ln1.weight": gain})
    assert MODEL.norm == Norm.pre
    assert torch.equal(
        drawn(loaded(path), sigma=None, seed=1).network.layers[0].ln1.weight, gain
    )
