"""Networks of transformers, loaded as a user would: every block is dense autodiff's, whatever batch or route."""

import json
import shutil
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

import hessfig
from hessfig.config.enums import Method
from hessfig.config.schema import Config
from hessfig.config.science import EstimatorConfig
from hessfig.curvature.losses import IGNORED
from hessfig.models.protocol import kind
from hessfig.states.point import drawn
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.sweep.variant import Variant
from hessfig.terms import PARTS, Block
from tests.daily import daily, thinned
from tests.models.tiny_models import (
    CONTEXT,
    SETTINGS,
    config_of,
    dense,
    model_of,
    off,
    save,
    save_ids,
    save_tokenizer,
)

PARTS = list(PARTS)
KIND = kind("huggingface")
# What a float64 network of these gives: transformers takes their softmax and RMS norms
# in float32.
IN_FLOAT32 = {
    "gpt_neox": "attention",
    "llama": "self_attn",
    "qwen2": "self_attn",
    "mistral": "self_attn",
}


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    return tmp_path_factory.mktemp("models")


@cache
def saved(name, home):
    """Return the settings that measure a saved model on saved ids."""
    return config_of(
        save(name, home / name.replace(" ", "_")), save_ids(home / "ids.npy")
    )


@cache
def truth(name, home, only=""):
    problem = drawn(saved(name, home), sigma=None, seed=0)
    rounding = 1e-5 if name in IN_FLOAT32 else 1e-11
    return problem, dense(
        model_of(problem.network), problem.batch.inputs, only, rounding
    )


@pytest.mark.timeout(
    900
)  # ten seconds of one idle core: every weight is held against dense autodiff
@pytest.mark.parametrize("name", ["gpt2", "gpt2 untied"])
@pytest.mark.long
def test_every_weight_head_group_and_pair_is_dense_autodiffs(name, home):
    problem, parts = truth(name, home)
    whole = Block(0, "all", "all")
    assert off(problem, parts, whole) < 1e-10
    blocks = [
        Block(1, "attention", "attention"),
        Block(2, "layer", "layer"),
        Block(2, "norms", "norms"),
        Block(0, "norms", "norms"),
        Block(0, "embeddings", "embeddings"),
    ]
    for layer, col in {(w.layer, w.name) for w in problem.layout.weights}:
        blocks.append(Block(layer, col, col))
        blocks.append(Block(layer, "W_out", col, 1))
        blocks.append(Block(layer, "W_K.head2", col, 2))
    for block in blocks:
        assert off(problem, parts, block) < 1e-10, block


@pytest.mark.parametrize("name", IN_FLOAT32)
@pytest.mark.long
def test_rotary_gated_and_grouped_networks_up_to_the_float32_inside_them(name, home):
    only = IN_FLOAT32[name]
    problem, parts = truth(name, home, only)
    names = ["W_Q", "W_K", "W_V", "W_Q.head2", "W_K.head2", "W_O.head1", "attention"]
    if "b_V" in problem.layout.others:
        names.append("b_V")
    for col in names:
        assert off(problem, parts, Block(1, col, col), only) < 2e-5, col


def test_a_layer_is_its_weights_and_not_their_heads_again(home):
    layout = saved("gpt2", home) and KIND.layout(saved("gpt2", home))
    held = {weight.parameter for weight in layout.weights if weight.layer == 1}
    assert layout.size(1, "layer") == sum(
        w.size for w in layout.parameters if w.parameter in held
    )
    assert layout.size(1, "W_Q") == 2 * layout.size(1, "W_Q.head1") == 16
    assert layout.names == [
        "W_E+W_U",
        "W_pos",
        "W_Q",
        "W_K",
        "W_V",
        "W_O",
        "W_in",
        "W_out",
    ]
    assert layout.num_layers == 2


@pytest.mark.parametrize("sequences", daily([1, 3], 3))
def test_micro_batches_weigh_what_they_hold(home, sequences):
    config = saved("gpt2", home)
    from hessfig.models.kinds.huggingface import STORED
    from hessfig.models.stored.loaded_model import drawn as split

    found = split(
        config,
        0,
        STORED.sizes(config),
        KIND.layout(config),
        STORED.ids(config),
        sequences,
    )
    assert [len(batch.inputs) for batch in (found.batch, *found.more)] == (
        [1] * 4 if sequences == 1 else [3, 1]
    )
    _, parts = truth("gpt2", home)
    assert off(found, parts, Block(0, "all", "all")) < 1e-10


class Logits(nn.Module):
    """What a user writes around a model for the Python interface."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, tokens):
        return self.model(input_ids=tokens, use_cache=False).logits[:, :-1]


@pytest.mark.filterwarnings("ignore:.*curvlinops' product is off:RuntimeWarning")
@pytest.mark.long
def test_the_command_and_the_python_interface_agree(home):
    blocks = ["W_Q", "W_V.head2", ["W_Q", "W_V"], "W_out"]
    config = replace(
        saved("gpt2", home),
        estimator=EstimatorConfig(method=Method.dense),
        blocks=blocks,
        quantities=["frobenius"],
    )
    (cell,) = Sweep([("", config)]).cells
    rows = {}
    for r in compute_cell(cell).rows:
        rows[(r["layer"], r["row"], r["col"], r["part"])] = r["value"]
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(
        config.model.path, dtype=torch.float64
    ).eval()
    ids = torch.tensor(np.load(str(config.task.path)))
    fused = "model.transformer.h.{}.attn.c_attn.weight"
    weights = {}
    for layer in (1, 2):
        path = fused.format(layer - 1)
        weights |= {
            f"W_Q@{layer}": (path, np.s_[:, :4]),
            f"W_V@{layer}": (path, np.s_[:, 8:]),
            f"W_V.head2@{layer}": (path, np.s_[:, 10:]),
            f"W_out@{layer}": f"model.transformer.h.{layer - 1}.mlp.c_proj.weight",
        }
    problem = hessfig.Problem(Logits(model), ids, ids[:, 1:], "cross_entropy", weights)
    table = hessfig.measure(problem, blocks=blocks, estimator="dense")
    assert len(table) == len(rows) == 24
    for row in table.itertuples():
        assert row.value == pytest.approx(
            rows[row.layer, row.row, row.col, row.part], rel=1e-10
        ), row


def test_random_weights_follow_the_seed(home):
    sized = {"n_layers": 1, "n_heads": 2, "d_model": 4, "vocabulary": 7}
    config = config_of(home, save_ids(home / "ids.npy"), model={**sized, "path": None})
    config = replace(config, task=replace(config.task, path=None, length=CONTEXT))
    first, again, other = (
        drawn(config, sigma=None, seed=seed).network.get_parameter("lm_head.weight")
        for seed in (3, 3, 4)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert KIND.axes(config) == {"seed"}
    assert KIND.axes(saved("gpt2", home)) == frozenset()
    whole = saved("gpt2", home)
    drawn_anew = replace(whole, model=replace(whole.model, random=True))
    read, anew = (
        drawn(one, sigma=None, seed=0).network.get_parameter("transformer.wte.weight")
        for one in (whole, drawn_anew)
    )
    assert read.shape == anew.shape
    assert not torch.equal(read, anew)


def test_a_key_knows_the_content_of_files_and_not_their_place(home, tmp_path):
    config = saved("gpt2", home)
    key = Variant("", config).science("frobenius")
    shutil.copytree(str(config.model.path), tmp_path / "elsewhere")
    shutil.copy(str(config.task.path), tmp_path / "other.npy")
    model = replace(config.model, path=str(tmp_path / "elsewhere"))
    moved = replace(
        config, model=model, task=replace(config.task, path=str(tmp_path / "other.npy"))
    )
    assert Variant("", moved).science("frobenius") == key
    assert Variant("", replace(moved, memory="9GB")).science("frobenius") == key
    np.save(tmp_path / "other.npy", np.zeros((4, CONTEXT), dtype=int))
    assert Variant("", moved).science("frobenius") != key
    save("gpt2 untied", tmp_path / "elsewhere")
    assert Variant("", replace(config, model=model)).science("frobenius") != key


def test_other_kinds_keep_their_keys():
    plain = Variant("", Config()).science("frobenius")
    assert not {"path", "random", "download", "architecture", "vocabulary"} & set(
        plain["model"]
    )
    assert not {"path", "length", "first_scored"} & set(plain["task"])


def test_a_text_goes_through_the_tokenizer_of_the_folder(home, tmp_path):
    shutil.copytree(str(saved("gpt2", home).model.path), tmp_path / "model")
    (tmp_path / "text.txt").write_text("a b c d d c b a a a a a b b b b")
    config = config_of(
        tmp_path / "model", tmp_path / "text.txt", task={"length": CONTEXT}
    )
    with pytest.raises(
        hessfig.errors.UserError, match="needs the tokenizer of the model's folder"
    ):
        KIND.check(config)
    save_tokenizer(tmp_path / "model", "abcd")
    KIND.check(config)
    found = drawn(config, sigma=None, seed=0).batch
    assert found.inputs.tolist() == [
        [0, 1, 2, 3],
        [3, 2, 1, 0],
        [0, 0, 0, 0],
        [1, 1, 1, 1],
    ]
    assert found.targets.tolist() == [
        [*row[1:], IGNORED] for row in found.inputs.tolist()
    ]
    before = KIND.source(config)
    save_tokenizer(tmp_path / "model", "dcba")
    assert KIND.source(config) != before  # other ids of the same text are other data


@pytest.mark.parametrize("name", thinned(SETTINGS, 4))
@pytest.mark.parametrize("dtype", daily(["float64", "float32"], "float64"))
def test_the_logits_are_those_of_from_pretrained(name, dtype, home):
    from transformers import AutoModelForCausalLM

    config = replace(saved(name, home), dtype=dtype)
    network = model_of(drawn(config, sigma=None, seed=0).network)
    kind_of = getattr(torch, dtype)
    model = AutoModelForCausalLM.from_pretrained(
        str(config.model.path), dtype=kind_of, attn_implementation="eager"
    )
    held = dict(model.named_parameters())
    for key, weight in network.named_parameters():
        assert torch.equal(weight, held[key]), key
    tokens = torch.tensor(np.load(str(config.task.path)))
    assert torch.equal(
        network(input_ids=tokens).logits, model.eval()(input_ids=tokens).logits
    )


def test_the_words_of_padding_have_derivatives_like_any_other(home, tmp_path):
    """transformers' embedding withholds them: the Hessian of W_E would not be that of the loss."""
    values = []
    shutil.copytree(str(saved("llama", home).model.path), tmp_path / "padded")
    path = tmp_path / "padded/config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "pad_token_id": 0}))
    for place in (str(saved("llama", home).model.path), str(tmp_path / "padded")):
        config = dense_of(config_of(Path(place), home / "ids.npy"), ["W_E"])
        (cell,) = Sweep([("", config)]).cells
        values += [row["value"] for row in compute_cell(cell).rows]
    assert values[:3] == values[3:]


def dense_of(config, blocks):
    method = EstimatorConfig(method=Method.dense)
    return replace(config, estimator=method, blocks=blocks, quantities=["frobenius"])


def weights_changed(model):
    path = model / "model.safetensors"
    found = load_file(path)
    save_file(
        {name: 1.25 * one for name, one in found.items()},
        path,
        metadata={"format": "pt"},
    )


def settings_changed(model):
    path = model / "config.json"
    path.write_text(
        json.dumps({**json.loads(path.read_text()), "layer_norm_epsilon": 0.5})
    )


REPLACED = {
    "weights": weights_changed,
    "config.json": settings_changed,
    "tokenizer": lambda model: save_tokenizer(model, "dcba"),
    "ids": lambda model: np.save(model / "ids.npy", np.arange(16).reshape(4, 4) % 3),
    "text": lambda model: (model / "text.txt").write_text("d c b a " * 4),
}


@pytest.mark.long
@pytest.mark.parametrize("what", daily(REPLACED, "weights"))
def test_a_file_replaced_after_planning_fails_its_cell_and_is_measured_under_another_key(
    what, home, tmp_path
):
    model = tmp_path / "model"
    shutil.copytree(str(saved("gpt2", home).model.path), model)
    save_tokenizer(model, "abcd")
    save_ids(model / "ids.npy")
    (model / "text.txt").write_text("a b c d a a b b c c d d a c a d")
    task = "ids.npy" if what == "ids" else "text.txt"
    config = dense_of(config_of(model, model / task, task={"length": CONTEXT}), ["W_V"])
    (cell,) = Sweep([("", config)]).cells
    key = cell.key
    before = values_of(cell)
    REPLACED[what](model)
    with pytest.raises(hessfig.errors.UserError, match="is not what was planned"):
        compute_cell(cell)
    (again,) = Sweep([("", config)]).cells
    shutil.copytree(model, tmp_path / "fresh")
    fresh = replace(config.model, path=str(tmp_path / "fresh"))
    path = replace(config.task, path=str(tmp_path / "fresh" / task))
    (right,) = Sweep([("", replace(config, model=fresh, task=path))]).cells
    assert again.key == right.key != key
    assert values_of(again) == values_of(right) != before


def values_of(cell):
    return [row["value"] for row in compute_cell(cell).rows]
