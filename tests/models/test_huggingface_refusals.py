"""What cannot be read, or does not fit: said before anything is measured, with what is allowed."""

from __future__ import annotations

import json
import pickle
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hessfig.config import Config
from hessfig.config.checks import check
from hessfig.errors import UserError
from hessfig.models.huggingface.batches import bytes_of
from hessfig.models.registry import kind
from hessfig.states.point import drawn
from tests.models.tiny_models import CONTEXT, config_of, save, save_ids

KIND = kind("huggingface")
BIG = {"path": None, "d_model": 768, "n_heads": 12, "n_layers": 12}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    save("gpt2", folder / "gpt2")
    save_ids(folder / "ids.npy")
    return folder


def settings(home: Path, **changes: Any) -> Config:
    return config_of(home / "gpt2", home / "ids.npy", **changes)


def damaged(home: Path, place: Path, **changes: Any) -> Path:
    """Return a copy of the model whose config.json says something else."""
    place.mkdir()
    for path in (home / "gpt2").iterdir():
        (place / path.name).write_bytes(path.read_bytes())
    found = json.loads((place / "config.json").read_text())
    (place / "config.json").write_text(json.dumps({**found, **changes}))
    return place


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": {"path": "nowhere"}}, "no such folder[\\s\\S]*save_pretrained"),
        ({"model": {"options": {"n_layer": 3}}}, "model.options are for random weights"),
        ({"model": {"options": {"attn_implementation": "sdpa"}}}, "double backward[\\s\\S]*eager"),
        ({"model": {"path": None, "architecture": "gtp2"}}, "not known here[\\s\\S]*did you mean 'gpt2'"),
        ({"model": {"path": None, "d_model": 9, "n_heads": 2}}, "heads do not divide the width"),
        ({"task": {"path": "nowhere.npy"}}, "task.path: there is no such file"),
        ({"task": {"batch_size": 5}}, "holds too little[\\s\\S]*task.batch_size=4"),
        (
            {"task": {"length": 6, "path": None}},
            f"longer than the network's context[\\s\\S]*at most {CONTEXT}",
        ),
        ({"task": {"first_scored": 3}}, "first_scored[\\s\\S]*0 to 2"),
        ({"task": {"scored": "answer"}}, "task.scored=all"),
        ({"memory": "lots"}, "memory[\\s\\S]*memory=8GB"),
        ({"memory": "1MB"}, "too little for one sequence[\\s\\S]*at least"),
        (
            {"model": BIG, "task": {"path": None}, "blocks": ["all"], "memory": "4GB"},
            "too little[\\s\\S]*at least",
        ),
    ],
)
def test_settings_that_cannot_be_had(home: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=message):
        KIND.check(settings(home, **changes))


def test_ids_beyond_the_vocabulary_are_named(home: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "ids.npy", np.full((4, CONTEXT), 5))
    with pytest.raises(
        UserError, match="no words of the network's vocabulary\n  got:     5\n  allowed: 0 to 4"
    ):
        KIND.check(config_of(home / "gpt2", tmp_path / "ids.npy"))


def test_folders_that_hold_something_else(home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"has no config\.json"):
        KIND.check(config_of(tmp_path / "empty", home / "ids.npy"))
    other = damaged(home, tmp_path / "bert", model_type="bert")
    with pytest.raises(UserError, match="not known here\n  got:     bert\n  allowed: gpt2, gpt_neox"):
        KIND.check(config_of(other, home / "ids.npy"))
    for path in other.glob("*.safetensors"):
        path.unlink()
    (other / "config.json").write_text("{")
    with pytest.raises(UserError, match="cannot be read"):
        KIND.check(config_of(other, home / "ids.npy"))
    bare = damaged(home, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"no weights[\s\S]*model\.random=true"):
        KIND.check(config_of(bare, home / "ids.npy"))


def read_alone(config: Config) -> None:
    """Read a model as its worker does."""
    drawn(config, sigma=None, seed=0)


@pytest.mark.parametrize("read", [KIND.check, read_alone], ids=["planning", "worker"])
def test_missing_weights_and_other_shapes_are_named(
    home: Path, tmp_path: Path, read: Callable[[Config], None]
) -> None:
    lacking = damaged(home, tmp_path / "lacking")
    tensors = load_file(lacking / "model.safetensors")
    kept = {name: tensor for name, tensor in tensors.items() if ".ln_1." not in name}
    kept |= {"transformer.h.0.ln_1.gamma": torch.ones(4)}
    save_file(kept, lacking / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(
        UserError,
        match=r"missing: transformer.h.0.ln_1.bias, [\s\S]*surplus: transformer.h.0.ln_1.gamma[\s\S]*save_pretrained",
    ):
        read(config_of(lacking, home / "ids.npy"))
    wider = damaged(home, tmp_path / "wider", n_inner=8)
    with pytest.raises(UserError, match=r"of another shape: transformer\.h\.0\.mlp\.c_fc\.bias"):
        read(config_of(wider, home / "ids.npy"))


def test_weights_of_another_architecture_are_named(home: Path, tmp_path: Path) -> None:
    save("llama", tmp_path / "llama")
    (tmp_path / "llama/config.json").write_bytes((home / "gpt2/config.json").read_bytes())
    message = (
        r"missing: transformer\.h\.0\.attn\.c_attn\.bias, [\s\S]* more[\s\S]*surplus: model\.embed_tokens"
    )
    with pytest.raises(UserError, match=message):
        KIND.check(config_of(tmp_path / "llama", home / "ids.npy"))


def test_weights_without_the_base_models_name_are_the_same(home: Path, tmp_path: Path) -> None:
    bare = damaged(home, tmp_path / "bare")
    tensors = load_file(bare / "model.safetensors")
    short = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    save_file(short, bare / "model.safetensors", metadata={"format": "pt"})
    config = config_of(bare, home / "ids.npy")
    KIND.check(config)
    network = drawn(config, sigma=None, seed=0).network
    whole = drawn(settings(home), sigma=None, seed=0).network
    assert torch.equal(network.unembedding, whole.unembedding)  # type: ignore[arg-type]


@pytest.mark.parametrize("keep", [0, 4, 40, -8])
def test_files_that_are_cut_short_are_named(home: Path, tmp_path: Path, keep: int) -> None:
    cut = damaged(home, tmp_path / "cut")
    path = cut / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    with pytest.raises(UserError, match=r"model\.safetensors cannot be read as weights[\s\S]*save_file"):
        KIND.check(config_of(cut, home / "ids.npy"))


def test_pickles_are_read_as_tensors_or_not_at_all(home: Path, tmp_path: Path) -> None:
    old = damaged(home, tmp_path / "old")
    tensors = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    config = config_of(old, home / "ids.npy")
    KIND.check(config)
    assert drawn(config, sigma=None, seed=0).network
    (old / "pytorch_model.bin").write_bytes(pickle.dumps(Path, protocol=2))
    with pytest.raises(UserError, match=r"cannot be read as weights[\s\S]*more than tensors"):
        KIND.check(config)


@pytest.mark.parametrize("changes", [{"activation_function": "nope"}, {"activation_function": 3}])
def test_what_transformers_refuses_is_told_in_its_words(
    home: Path, tmp_path: Path, changes: dict[str, Any]
) -> None:
    odd = damaged(home, tmp_path / "odd", **changes)
    with pytest.raises(UserError, match=r"transformers cannot make this model"):
        drawn(config_of(odd, home / "ids.npy"), sigma=None, seed=0)


def test_a_folder_that_asks_for_a_fused_kernel_gets_the_eager_one(home: Path, tmp_path: Path) -> None:
    fused = damaged(home, tmp_path / "fused", attn_implementation="sdpa", _attn_implementation="sdpa")
    network = drawn(config_of(fused, home / "ids.npy"), sigma=None, seed=0).network
    assert network.model.config._attn_implementation == "eager"  # type: ignore[union-attr]


def test_sequences_of_a_file_that_are_too_long(home: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "long.npy", np.zeros((4, CONTEXT + 2), dtype=int))
    with pytest.raises(UserError, match=rf"longer than the network's context[\s\S]*task\.length={CONTEXT}"):
        KIND.check(config_of(home / "gpt2", tmp_path / "long.npy"))
    KIND.check(config_of(home / "gpt2", tmp_path / "long.npy", task={"length": CONTEXT}))


def test_the_memory_that_is_said_to_be_needed_is_enough(home: Path) -> None:
    words: dict[str, Any] = {"model": BIG, "task": {"path": None}, "blocks": ["all"]}
    with pytest.raises(UserError) as refused:
        KIND.check(settings(home, memory="4GB", **words))
    needed = refused.value.remedy.partition(",")[0].removeprefix("memory=")
    KIND.check(settings(home, memory=needed, **words))


def test_tokens_and_huggingface_belong_together(home: Path) -> None:
    config = settings(home)
    check(config)
    config.task.data = "addition"  # type: ignore[assignment]
    with pytest.raises(UserError, match=r"tokens with huggingface[\s\S]*remedy: *task=tokens"):
        check(config)


def test_bytes() -> None:
    assert [bytes_of(text) for text in ("16GB", "1.5 gb", "512MiB")] == [16e9, 1.5e9, 2**29]


def test_a_smaller_bound_makes_more_micro_batches(home: Path) -> None:
    model = {"path": None, "d_model": 96, "n_heads": 12, "n_layers": 12, "vocabulary": 512}
    task = {"path": None, "length": 64, "batch_size": 64}
    found = [KIND.about(settings(home, model=model, task=task, memory=m)) for m in ("100GB", "2GB", "1GB")]
    assert found[0].startswith("64 sequences at once")
    assert "micro-batches" in found[1] and "micro-batches" in found[2] and found[1] != found[2]
    last = settings(home, model=model, task=task, memory="2GB", blocks=["W_V@12"])
    assert _held(KIND.about(last)) > _held(found[1])  # the suffix only


def _held(about: str) -> int:
    """Return how many sequences are held at once: those of a micro-batch, or all."""
    found = re.search(r"micro-batches of (\d+)", about) or re.match(r"(\d+) sequences at once", about)
    assert found is not None
    return int(found[1])
