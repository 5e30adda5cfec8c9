"""What cannot be read, or does not fit: said before anything is measured, with what is allowed."""

import json
import pickle
import shutil
import sys
from contextlib import nullcontext
from itertools import product
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

from hessfig.config.checks import check_config
from hessfig.errors import UserError
from hessfig.models.protocol import kind
from hessfig.states.point import drawn
from tests.daily import daily
from tests.models.tiny_models import (
    CONTEXT,
    config_of,
    model_of,
    save,
    save_ids,
    save_tokenizer,
)

KIND = kind("huggingface")
BIG = {"path": None, "d_model": 768, "n_heads": 12, "n_layers": 12}


def refused(config, words):
    with pytest.raises(UserError, match=words):
        KIND.check(config)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("models")
    save("gpt2", folder / "gpt2")
    save_ids(folder / "ids.npy")
    return folder


def settings(home, **changes):
    return config_of(home / "gpt2", home / "ids.npy", **changes)


def damaged(home, place, **changes):
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
        (
            {"model": {"path": None, "architecture": "gtp2"}},
            "not known here[\\s\\S]*did you mean 'gpt2'",
        ),
        (
            {"model": {"path": None, "d_model": 9, "n_heads": 2}},
            "heads do not divide the width",
        ),
        ({"task": {"batch_size": 5}}, "too short[\\s\\S]*task.batch_size=4"),
        (
            {"task": {"length": 6, "path": None}},
            f"longer than the network's context[\\s\\S]*at most {CONTEXT}",
        ),
        ({"task": {"first_scored": 3}}, "first_scored[\\s\\S]*0 to 2"),
        ({"memory": "1MB"}, "too little for one sequence[\\s\\S]*at least"),
        (
            {"model": BIG, "task": {"path": None}, "blocks": ["all"], "memory": "4GB"},
            "too little[\\s\\S]*at least",
        ),
    ],
)
def test_settings_that_cannot_be_had(home, changes, message):
    refused(settings(home, **changes), message)


def test_ids_beyond_the_vocabulary_are_named(home, tmp_path):
    np.save(tmp_path / "ids.npy", np.full((4, CONTEXT), 5))
    refused(
        config_of(home / "gpt2", tmp_path / "ids.npy"),
        "not words of the network's vocabulary\n  got:     5\n  allowed: 0 to 4",
    )


def test_folders_that_hold_something_else(home, tmp_path):
    (tmp_path / "empty").mkdir()
    refused(config_of(tmp_path / "empty", home / "ids.npy"), r"has no config\.json")
    other = damaged(home, tmp_path / "t5", model_type="t5")
    refused(
        config_of(other, home / "ids.npy"),
        "not known here\n  got:     t5\n  allowed: gpt2, gpt_neox",
    )
    for path in other.glob("*.safetensors"):
        path.unlink()
    (other / "config.json").write_text("{")
    refused(config_of(other, home / "ids.npy"), "cannot be read")
    bare = damaged(home, tmp_path / "bare")
    (bare / "model.safetensors").unlink()
    refused(config_of(bare, home / "ids.npy"), r"no weights[\s\S]*model\.random=true")


def read_alone(config):
    """Read a model as its worker does."""
    drawn(config, sigma=None, seed=0)


@pytest.mark.parametrize("read", [KIND.check, read_alone], ids=["planning", "worker"])
def test_missing_weights_and_other_shapes_are_named(home, tmp_path, read):
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
    with pytest.raises(
        UserError, match=r"of another shape: transformer\.h\.0\.mlp\.c_fc\.bias"
    ):
        read(config_of(wider, home / "ids.npy"))


def test_weights_of_another_architecture_are_named(home, tmp_path):
    save("llama", tmp_path / "llama")
    (tmp_path / "llama/config.json").write_bytes(
        (home / "gpt2/config.json").read_bytes()
    )
    message = r"missing: transformer\.h\.0\.attn\.c_attn\.bias, [\s\S]* more[\s\S]*surplus: model\.embed_tokens"
    refused(config_of(tmp_path / "llama", home / "ids.npy"), message)


def test_weights_without_the_base_models_name_are_the_same(home, tmp_path):
    bare = damaged(home, tmp_path / "bare")
    tensors = load_file(bare / "model.safetensors")
    short = {}
    for name, tensor in tensors.items():
        short[name.removeprefix("transformer.")] = tensor
    save_file(short, bare / "model.safetensors", metadata={"format": "pt"})
    config = config_of(bare, home / "ids.npy")
    KIND.check(config)
    network = drawn(config, sigma=None, seed=0).network
    whole = drawn(settings(home), sigma=None, seed=0).network
    assert torch.equal(
        *(one.get_parameter("transformer.wte.weight") for one in (network, whole))
    )


@pytest.mark.parametrize("keep", [0, 4, 40, -8])
def test_files_that_are_cut_short_are_named(home, tmp_path, keep):
    cut = damaged(home, tmp_path / "cut")
    path = cut / "model.safetensors"
    path.write_bytes(path.read_bytes()[:keep])
    refused(
        config_of(cut, home / "ids.npy"),
        r"model\.safetensors cannot be read as weights[\s\S]*save_file",
    )


def test_pickles_are_read_as_tensors_or_not_at_all(home, tmp_path):
    old = damaged(home, tmp_path / "old")
    tensors = load_file(old / "model.safetensors")
    (old / "model.safetensors").unlink()
    torch.save(tensors, old / "pytorch_model.bin")
    config = config_of(old, home / "ids.npy")
    KIND.check(config)
    assert drawn(config, sigma=None, seed=0).network
    (old / "pytorch_model.bin").write_bytes(pickle.dumps(Path, protocol=2))
    refused(config, r"cannot be read as weights[\s\S]*more than tensors")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"activation_function": "nope"}, "transformers cannot create this model"),
        ({"resid_pdrop": "much"}, "transformers cannot create this model"),
        (
            {"quantization_config": {"load_in_8bit": True}},
            "quantization_config is not served",
        ),
        (
            {"transformers_weights": "other.safetensors"},
            "transformers_weights is not served",
        ),
        ({"num_hidden_layers": 3}, "n_layer has two values\n  got:     2 and 3"),
    ],
)
@pytest.mark.parametrize("is_random", [False, True])
def test_configurations_that_make_no_network_are_refused_when_planned(
    home, tmp_path, changes, message, is_random
):
    odd = damaged(home, tmp_path / "odd", **changes)
    refused(config_of(odd, home / "ids.npy", model={"random": is_random}), message)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layer": 10**9}, "more layers and heads than are served"),
        ({"num_hidden_layers": 10**9}, "n_layer has two values"),
        ({"vocab_size": 10**12}, "vocab_size[\\s\\S]*1 to 2147483648"),
        ({"vocab_size": 10**9}, "memory: too little|of another shape"),
        ({"num_labels": 10**9, "id2label": None}, ""),
    ],
)
@pytest.mark.parametrize("is_random", [False, True])
@pytest.mark.timeout(60)  # without a bound: minutes, and all memory
def test_sizes_are_bounded_before_anything_of_that_size_is_made(
    home, tmp_path, changes, message, is_random
):
    config = config_of(
        damaged(home, tmp_path / "vast", **changes),
        home / "ids.npy",
        model={"random": is_random},
    )
    with pytest.raises(UserError, match=message) if message else nullcontext():
        KIND.check(config)


def test_rotary_positions_stay_within_a_head(home, tmp_path):
    save("gpt_neox", tmp_path / "neox")
    path = tmp_path / "neox/config.json"
    path.write_text(
        json.dumps(
            {**json.loads(path.read_text()), "rotary_pct": 1e9, "rope_parameters": None}
        )
    )
    refused(config_of(tmp_path / "neox", home / "ids.npy"), "partial_rotary_factor")


def test_weights_that_are_no_finite_floating_point_numbers(home, tmp_path):
    name = "transformer.h.0.attn.c_attn.bias"
    for kind_of, message in {
        "int32": rf"missing: {name}; [\s\S]*of another type: {name} \(int32\)",
        "nan": rf"not finite in torch.float64[\s\S]*{name}",
        "wide": rf"not finite in torch.float32[\s\S]*{name}",
    }.items():
        place = damaged(home, tmp_path / kind_of)
        tensors = load_file(place / "model.safetensors")
        if kind_of == "int32":
            tensors[name] = tensors[name].to(torch.int32)
        else:
            tensors[name][0] = float("nan") if kind_of == "nan" else 1e300
        save_file(tensors, place / "model.safetensors", metadata={"format": "pt"})
        dtype = "float32" if kind_of == "wide" else "float64"
        refused(config_of(place, home / "ids.npy", dtype=dtype), message)


def test_masks_beside_the_weights_are_left_alone(home, tmp_path):
    place = damaged(home, tmp_path / "masked")
    masks = {"transformer.h.0.attn.bias": torch.ones(1, 1, 4, 4, dtype=torch.bool)}
    save_file(
        {**load_file(place / "model.safetensors"), **masks}, place / "model.safetensors"
    )
    KIND.check(config_of(place, home / "ids.npy"))


def shards(place):
    """Cut the weights of a folder into two files with an index, and return the index."""
    tensors = load_file(place / "model.safetensors")
    (place / "model.safetensors").unlink()
    names = sorted(tensors)
    index = place / "model.safetensors.index.json"
    parts = {"model-1.safetensors": names[::2], "model-2.safetensors": names[1::2]}
    for file, held in parts.items():
        save_file(
            {name: tensors[name] for name in held},
            place / file,
            metadata={"format": "pt"},
        )
    where = {name: file for file, held in parts.items() for name in held}
    index.write_text(json.dumps({"metadata": {}, "weight_map": where}))
    return index


def test_what_is_hashed_is_what_transformers_would_read(home, tmp_path):
    place = damaged(home, tmp_path / "one")
    save_file({"other": torch.ones(2)}, place / "adapter.safetensors")
    whole = settings(home)
    # Another file is never read.
    assert KIND.source(config_of(place, home / "ids.npy")) == KIND.source(whole)
    index = shards(place)
    torch.save({"transformer.wte.weight": torch.zeros(2)}, place / "pytorch_model.bin")
    config = config_of(place, home / "ids.npy")
    KIND.check(config)
    mine, own = (
        drawn(one, sigma=None, seed=0).network.state_dict() for one in (config, whole)
    )
    assert mine.keys() == own.keys()
    for name in mine:
        assert torch.equal(mine[name], own[name])
    before = KIND.source(config)
    tensors = load_file(place / "model-2.safetensors")
    save_file(
        {name: one + 1 for name, one in tensors.items()}, place / "model-2.safetensors"
    )
    assert KIND.source(config) != before
    shutil.copy(place / "model-2.safetensors", place / "model-1.safetensors")
    refused(config, "a weight is contained in two files")
    (tmp_path / "evil.safetensors").write_bytes(
        (home / "gpt2/model.safetensors").read_bytes()
    )
    evil = tmp_path / "evil.safetensors"
    for name in (
        "../evil.safetensors",
        str(evil),
        "a\\b.safetensors",
        "a.bin",
        -1,
        None,
        "c:x.safetensors",
    ):
        index.write_text(
            json.dumps({"metadata": {}, "weight_map": {"transformer.wte.weight": name}})
        )
        refused(config, r"is not an index of weights[\s\S]*files in the same folder")
    for text in ("[]", "{}", '{"weight_map": []}', '{"weight_map": {}}', "null", "{"):
        index.write_text(text)
        refused(config, r"index\.json (is no|cannot be read)")
    index.write_text(
        json.dumps({"weight_map": {"transformer.wte.weight": "gone.safetensors"}})
    )
    refused(config, r"lacks files that model\.safetensors\.index\.json names")


@pytest.mark.parametrize(
    ("key", "kernel"),
    daily(
        product(
            ["attn_implementation", "_attn_implementation", "_experts_implementation"],
            ["sdpa", "flash_attention_2", "kernels-community/flash-attn"],
        ),
        ("attn_implementation", "flash_attention_2"),
    ),
)
def test_a_folder_that_asks_for_a_kernel_gets_the_eager_one(
    home, tmp_path, monkeypatch, key, kernel
):
    asked = []
    monkeypatch.setattr(
        "transformers.modeling_utils.lazy_import_flash_attention",
        lambda *a, **k: asked.append(a),
    )
    monkeypatch.setattr(
        "transformers.modeling_utils.is_kernels_available", lambda: True
    )
    config = config_of(
        damaged(home, tmp_path / "fused", **{key: kernel}), home / "ids.npy"
    )
    KIND.check(config)
    for is_random in (False, True):
        config.model.random = is_random
        network = drawn(config, sigma=None, seed=0).network
        assert model_of(network).config._attn_implementation == "eager"
    assert asked == []
    assert "kernels" not in sys.modules


def test_code_in_a_folder_is_never_run(home, tmp_path):
    """auto_map of model and tokenizer, a tokenizer's class, its file and its settings elsewhere."""
    mark = tmp_path / "ran"
    code = f"open({str(mark)!r}, 'w').close()\nclass Mine: pass\n"
    wanted = dict.fromkeys(("AutoConfig", "AutoModelForCausalLM"), "mine.Mine")
    place = damaged(
        home,
        tmp_path / "coded",
        auto_map={**wanted, "AutoTokenizer": ["mine.Mine", None]},
    )
    (place / "mine.py").write_text(code)
    save_tokenizer(place, "abcd")
    path = place / "tokenizer_config.json"
    asked = {
        "auto_map": {"AutoTokenizer": ["mine.Mine", "mine.Mine"]},
        "tokenizer_file": "/etc/passwd",
    }
    path.write_text(json.dumps({**json.loads(path.read_text()), **asked}))
    (tmp_path / "text.txt").write_text("a b c d " * 4)
    config = config_of(place, tmp_path / "text.txt", task={"length": CONTEXT})
    KIND.check(config)
    assert drawn(config, sigma=None, seed=0).batch.inputs.tolist() == [[0, 1, 2, 3]] * 4
    path.write_text(json.dumps({"tokenizer_class": "Mine", **asked}))
    KIND.check(config)
    assert not mark.exists()


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b"{}", b"\xff", b'{"version": "1.0", "model": 3}']
)
def test_tokenizers_that_are_none(home, tmp_path, content):
    place = damaged(home, tmp_path / "odd")
    (place / "tokenizer.json").write_bytes(content)
    (tmp_path / "text.txt").write_text("a b c d")
    refused(
        config_of(place, tmp_path / "text.txt", task={"length": 2, "batch_size": 2}),
        "a text needs the tokenizer of the model's folder",
    )


def test_sequences_of_a_file_that_are_too_long(home, tmp_path):
    np.save(tmp_path / "long.npy", np.zeros((4, CONTEXT + 2), dtype=int))
    refused(
        config_of(home / "gpt2", tmp_path / "long.npy"),
        rf"longer than the network's context[\s\S]*task\.length={CONTEXT}",
    )
    KIND.check(
        config_of(home / "gpt2", tmp_path / "long.npy", task={"length": CONTEXT})
    )


def test_the_memory_that_is_said_to_be_needed_is_enough(home):
    words = {"model": BIG, "task": {"path": None}, "blocks": ["all"]}
    with pytest.raises(UserError) as refused:
        KIND.check(settings(home, memory="4GB", **words))
    needed = refused.value.remedy.partition(",")[0].removeprefix("memory=")
    KIND.check(settings(home, memory=needed, **words))


def test_tokens_and_huggingface_belong_together(home):
    config = settings(home)
    check_config(config)
    config.task.data = "addition"
    with pytest.raises(
        UserError, match=r"tokens with huggingface[\s\S]*remedy: *task=tokens"
    ):
        check_config(config)


def test_a_smaller_bound_makes_more_micro_batches(home):
    model = {
        "path": None,
        "d_model": 96,
        "n_heads": 12,
        "n_layers": 12,
        "vocabulary": 512,
    }
    task = {"path": None, "length": 64, "batch_size": 64}
    found = []
    for m in ("100GB", "2GB", "1GB"):
        found.append(KIND.about(settings(home, model=model, task=task, memory=m)))
    assert found[0].startswith("64 sequences at once")
    assert "micro-batches" in found[1]
    assert "micro-batches" in found[2]
    assert found[1] != found[2]
