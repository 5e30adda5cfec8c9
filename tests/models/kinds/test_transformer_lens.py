"""A saved state of TransformerLens: TransformerLens's own logits, dense autodiff's blocks, or a refusal."""

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from hessfig.config.checks import check_config
from hessfig.errors import UserError
from hessfig.models.protocol import kind
from hessfig.states.point import drawn
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Sweep
from hessfig.sweep.variant import Variant
from hessfig.terms import PARTS, Block
from tests.draws import labels
from tests.models.tiny_models import (
    CONTEXT,
    VOCABULARY,
    config_of,
    dense,
    off,
    save,
    save_ids,
)

KIND = kind("transformer_lens")
PARTS = list(PARTS)
GPT2 = {
    **{
        "n_layers": 2,
        "n_heads": 2,
        "d_model": 4,
        "d_head": 3,
        "d_mlp": 6,
        "d_vocab": VOCABULARY,
    },
    **{
        "n_ctx": CONTEXT + 1,
        "act_fn": "gelu_new",
        "normalization_type": "LN",
        "attn_only": False,
    },
}
NETWORKS = {
    "gpt2": GPT2,
    "relu without norms": {**GPT2, "act_fn": "relu", "normalization_type": None},
    "attention only": {**GPT2, "attn_only": True, "attn_scale": 3.0},
}
FOLDED = {**GPT2, "normalization_type": "LNPre", "act_fn": "gelu"}


def refused(config, words):
    with pytest.raises(UserError, match=words):
        KIND.check(config)


class AsModel(nn.Module):
    """TransformerLens's own network, called as `dense` calls a model of transformers, with b_U as a parameter."""

    def __init__(self, bridge):
        super().__init__()
        self.model = bridge.original_model
        head = self.model.head.original_component
        head.bias = nn.Parameter(head._buffers.pop("bias"))

    def forward(self, input_ids, use_cache=False):
        del use_cache
        return SimpleNamespace(logits=self.model(input_ids))


def shapes_of(settings):
    """Return the shapes of HookedTransformer's parameters."""
    width = settings["d_model"]
    heads = settings["n_heads"]
    inner = settings["d_head"]
    hidden = settings["d_mlp"]
    norm = (
        {"w": (width,), "b": (width,)} if settings["normalization_type"] == "LN" else {}
    )
    layer = {f"ln1.{name}": shape for name, shape in norm.items()}
    for name in "QKV":
        layer |= {
            f"attn.W_{name}": (heads, width, inner),
            f"attn.b_{name}": (heads, inner),
        }
    layer |= {"attn.W_O": (heads, inner, width), "attn.b_O": (width,)}
    if not settings["attn_only"]:
        layer |= {f"ln2.{name}": shape for name, shape in norm.items()}
        layer |= {"mlp.W_in": (width, hidden), "mlp.b_in": (hidden,)}
        layer |= {"mlp.W_out": (hidden, width), "mlp.b_out": (width,)}
    words = settings["d_vocab"]
    return {
        "embed.W_E": (words, width),
        "pos_embed.W_pos": (settings["n_ctx"], width),
        **{
            f"blocks.{n}.{name}": shape
            for n in range(settings["n_layers"])
            for name, shape in layer.items()
        },
        **{f"ln_final.{name}": shape for name, shape in norm.items()},
        "unembed.W_U": (width, words),
        "unembed.b_U": (words,),
    }


def state(settings):
    """Return random weights by HookedTransformer's names, with its buffers."""
    generator = torch.Generator().manual_seed(0)
    shapes = shapes_of(settings)
    found = {}
    for name, shape in shapes.items():
        found[name] = 0.6 * torch.randn(shape, dtype=torch.float64, generator=generator)
    return found | {
        "blocks.0.attn.mask": torch.ones(2, 2),
        "blocks.0.attn.IGNORE": torch.tensor(-1e5),
    }


def written(folder, settings, tensors, name="state.pth"):
    folder.mkdir(exist_ok=True)
    (folder / "config.json").write_text(json.dumps(settings))
    if name.endswith(".safetensors"):
        save_file(tensors, folder / name)
    else:
        torch.save(tensors, folder / name)
    return folder


def config(folder, ids, **changes):
    model = {"kind": "transformer_lens", **changes.pop("model", {})}
    return config_of(folder, ids, model=model, **changes)


@pytest.fixture(scope="module")
def home(tmp_path_factory):
    folder = tmp_path_factory.mktemp("lens")
    save_ids(folder / "ids.npy")
    return folder


@cache
def problem_of(name, home):
    settings = NETWORKS[name]
    folder = written(home / name.replace(" ", "_"), settings, state(settings))
    return drawn(config(folder, home / "ids.npy"), sigma=None, seed=0)


def bridge_of(settings):
    """Return TransformerLens's own network with the same weights, by its own converter."""
    from transformer_lens.config import TransformerBridgeConfig
    from transformer_lens.model_bridge import TransformerBridge
    from transformer_lens.utilities.tl_checkpoint_conversion import (
        convert_tl_checkpoint,
    )

    made = TransformerBridgeConfig(
        **settings, architecture="TransformerLensNative", device="cpu"
    )
    bridge = TransformerBridge.boot_native(made, dtype=torch.float64)
    bridge.load_state_dict(convert_tl_checkpoint(state(settings), made), strict=True)
    return bridge


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "digits"),
    [*((one, 1e-12) for one in NETWORKS.values()), (FOLDED, 1e-6)],
)
def test_the_logits_are_transformer_lens_own(settings, digits, home, tmp_path):
    """LNPre there is float32 inside, here of the network's type."""
    bridge = bridge_of(settings)
    states = {
        "hooked": state(settings),
        "bridge": bridge.state_dict(),
        "params": bridge.tl_parameters(),
    }
    for name, tensors in states.items():
        folder = written(
            tmp_path / name,
            settings,
            {key: one.detach() for key, one in tensors.items()},
        )
        network = drawn(config(folder, home / "ids.npy"), sigma=None, seed=0).network
        tokens = labels(3, CONTEXT, classes=VOCABULARY, seed=1)
        own = bridge(tokens, return_type="logits").detach()
        assert (network(tokens) - own).abs().max() < digits * own.abs().max()


@pytest.mark.long
def test_a_model_of_transformers_through_its_bridge(home, tmp_path):
    """Saved as docs/real-models.md shows, it is read; its own state has its axes in another order, and is refused."""
    from transformer_lens.model_bridge import TransformerBridge
    from transformers import GPT2LMHeadModel

    model = GPT2LMHeadModel.from_pretrained(
        save("gpt2", tmp_path / "model"), dtype=torch.float64
    ).eval()
    bridge = TransformerBridge.boot_transformers(
        str(tmp_path / "model"), hf_model=model, dtype=torch.float64, load_weights=False
    )
    blocks = re.findall(
        r"```python\n(.*?)```", Path("docs/real-models.md").read_text(), flags=re.DOTALL
    )
    (shown,) = [block for block in blocks if "tl_parameters" in block]
    folder = tmp_path / "lens"
    folder.mkdir()
    exec(
        shown.replace("DIR", str(folder)),
        {"bridge": bridge, "json": json, "torch": torch, "Path": Path},
    )
    problem = drawn(config(folder, home / "ids.npy"), sigma=None, seed=0)
    own = model(problem.batch.inputs).logits.detach()
    torch.testing.assert_close(
        problem.network(problem.batch.inputs), own, rtol=1e-10, atol=1e-12
    )
    torch.save(dict(bridge.state_dict()), folder / "state.pth")
    refused(
        config(folder, home / "ids.npy"),
        r"GPT2LMHeadModel(.|\n)*tl_parameters(.|\n)*model=huggingface",
    )


@pytest.mark.parametrize("name", NETWORKS)
@pytest.mark.long
def test_every_weight_head_and_group_is_dense_autodiffs(name, home):
    problem = problem_of(name, home)
    model = AsModel(bridge_of(NETWORKS[name]))
    parts = dense(model, problem.batch.inputs)
    weights = {(one.layer, one.name) for one in problem.layout.weights}
    groups = [
        (0, "all"),
        (1, "attention"),
        (2, "layer"),
        (1, "biases"),
        (0, "embeddings"),
    ]
    for layer, col in [*weights, *groups]:
        block = Block(layer, col, col)
        assert off(problem, parts, block, model=model.model) < 1e-10, block


def test_cells_are_measured_and_keyed_by_content(home, tmp_path):
    tensors = {name: one.contiguous() for name, one in state(GPT2).items()}
    folder = written(tmp_path / "one", GPT2, tensors, "state.safetensors")
    asked = replace(config(folder, home / "ids.npy"), blocks=["W_Q.head2", "W_V"])
    check_config(asked)
    (cell,) = Sweep([("", asked)]).cells
    rows = compute_cell(cell).rows
    assert {row["row"] for row in rows} == {"W_Q.head2", "W_V"}
    for row in rows:
        assert row["value"] > 0
    moved = written(tmp_path / "two", {**GPT2, "seed": 3}, tensors, "state.safetensors")
    model = replace(asked.model, path=str(moved / "state.safetensors"))
    assert Variant("", replace(asked, model=model)).science(
        "frobenius"
    ) == cell.variant.science("frobenius")
    written(
        moved,
        GPT2,
        {**tensors, "unembed.b_U": torch.zeros(VOCABULARY)},
        "state.safetensors",
    )
    assert Variant("", replace(asked, model=model)).science(
        "frobenius"
    ) != cell.variant.science("frobenius")


@pytest.mark.long
def test_a_state_without_a_last_bias_has_zeros(home, tmp_path):
    tensors = state(GPT2)
    del tensors["unembed.b_U"]
    folder = written(tmp_path / "bare", GPT2, tensors)
    problem = drawn(config(folder, home / "ids.npy"), sigma=None, seed=0)
    (bias,) = problem.layout.members(0, "b_U")
    assert not problem.network.get_parameter(bias.parameter).any()


SETTINGS = {
    "grouped": ({"n_key_value_heads": 1}, "n_key_value_heads"),
    "solu": ({"act_fn": "solu_ln"}, "act_fn(.|\n)*relu, gelu, gelu_new, silu"),
    "norm": ({"normalization_type": "RMS"}, "normalization_type(.|\n)*LN, LNPre, null"),
    "no width": ({"d_model": None}, "d_model(.|\n)*whole number"),
    "outputs": ({"d_vocab_out": 2}, "d_vocab_out(.|\n)*d_vocab=5"),
    "eps of zero": ({"eps": 0}, "eps(.|\n)*a number > 0"),
    "eps in words": ({"eps": "small"}, "eps(.|\n)*a finite number"),
    "scale without end": ({"attn_scale": 1e999}, "attn_scale(.|\n)*a finite number"),
}


@pytest.mark.parametrize(("changes", "message"), SETTINGS.values(), ids=SETTINGS)
def test_networks_that_are_not_served_are_named(changes, message, home, tmp_path):
    folder = written(tmp_path / "odd", {**GPT2, **changes}, state(GPT2))
    refused(config(folder, home / "ids.npy"), message)


def test_states_that_do_not_fit_are_named(home, tmp_path):
    tensors = state(GPT2)
    lacking = {name: one for name, one in tensors.items() if ".ln2." not in name}
    folder = written(
        tmp_path / "odd", GPT2, {**lacking, "blocks.1.mlp.W_in": torch.zeros(6, 4)}
    )
    message = (
        r"missing: blocks\.0\.ln2\.weight, [\s\S]*"
        r"of another shape: blocks\.1\.mlp\.in\.weight \(4, 6\) for \(6, 4\)[\s\S]*tl_parameters"
    )
    refused(config(folder, home / "ids.npy"), message)
    written(folder, GPT2, {**tensors, "blocks.0.attn.qkv.weight": torch.zeros(2)})
    refused(
        config(folder, home / "ids.npy"),
        r"blocks\.0\.attn\.qkv\.weight[\s\S]*tl_parameters",
    )
    written(folder, {**GPT2, "attn_scale": 1.0}, tensors)
    refused(config(folder, home / "ids.npy"), r"attn_scale=1\.0 with d_head=3")
    written(
        folder,
        GPT2,
        {**tensors, "unembed.b_U": torch.full((VOCABULARY,), float("nan"))},
    )
    refused(config(folder, home / "ids.npy"), r"not finite(.|\n)*unembed\.b_U")
    written(folder, GPT2, tensors, "another.pth")
    refused(
        config(folder, home / "ids.npy"),
        r"several files(.|\n)*another\.pth, state\.pth(.|\n)*model\.path=.*state\.pth",
    )


def test_folders_that_hold_no_state(home, tmp_path):
    ids = home / "ids.npy"
    refused(
        config(tmp_path, ids, model={"path": None}),
        r"model\.path is missing(.|\n)*model\.path=DIR",
    )
    refused(
        config(tmp_path, ids),
        r"no weights(.|\n)*\*\.safetensors, \*\.pth(.|\n)*state_dict",
    )
    (tmp_path / "state.pth").write_text("no tensors")
    refused(
        config(tmp_path, ids),
        r"has no config\.json(.|\n)*TransformerLens's configuration",
    )
    (tmp_path / "config.json").write_text(json.dumps(GPT2))
    refused(
        config(tmp_path, ids), r"model\.path: .*state\.pth cannot be read as weights"
    )
    refused(config(tmp_path / "nowhere", ids), r"there is no such folder")


@pytest.mark.parametrize(
    "changes", [{"random": True}, {"download": True}, {"options": {"n_layer": 2}}]
)
def test_settings_of_another_kind_are_refused(changes, home, tmp_path):
    folder = written(tmp_path / "gpt2", GPT2, state(GPT2))
    with pytest.raises(
        UserError,
        match=rf"model\.{next(iter(changes))}: kind=transformer_lens (does not read|reads)",
    ):
        check_config(config(folder, home / "ids.npy", model=changes))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"n_layers": 10**9}, "more layers and heads than are served"),
        ({"n_heads": 10**9}, "more layers and heads than are served"),
        ({"d_vocab": 10**12}, "d_vocab[\\s\\S]*1 to 2147483648"),
        ({"d_vocab": 2**31}, "memory: too little|of another shape"),
        (
            {"d_model": 2**31, "d_head": 3},
            r"W_Q' has shape \(2, 4, 3\), expected \(2, 2147483648, 3\)",
        ),
        ({"n_ctx": 2**15}, "of another shape: pos_embed"),
    ],
)
@pytest.mark.timeout(60)  # without a bound: minutes, and all memory
def test_sizes_are_bounded_before_anything_of_that_size_is_made(
    home, tmp_path, changes, message
):
    folder = written(tmp_path / "vast", {**GPT2, **changes}, state(GPT2))
    refused(config(folder, home / "ids.npy"), message)


@pytest.mark.parametrize(
    "odd",
    [
        torch.zeros(2, 4, 3, dtype=torch.int32),
        torch.zeros(2, 4, 3, dtype=torch.float8_e4m3fn),
        torch.full((2, 4, 3), 1e300, dtype=torch.float64),
        torch.zeros(2, 4, 3).to_sparse(),
        torch.zeros(1, 1, 1).expand(2, 4, 3),
        torch.zeros(2, 4, 3, device="meta"),
        torch.zeros(2, 4, 3, dtype=torch.complex64),
    ],
    ids=lambda odd: f"{odd.layout} {odd.dtype} {odd.device}",
)
def test_tensors_that_are_no_weights(home, tmp_path, odd):
    name = "blocks.0.attn.W_Q"
    folder = written(tmp_path / "odd", GPT2, {**state(GPT2), name: odd})
    message = rf"not of a floating-point type[\s\S]*{name}|{name} is not stored entry by entry"
    refused(config(folder, home / "ids.npy", dtype="float32"), message)


@pytest.mark.parametrize(
    "content",
    [b"", b"PK\x05\x06" + bytes(18), b"\x80\x02}q\x00.", b"\x80\x02K\x01.", b"\x80"],
)
def test_pickles_of_nothing(home, tmp_path, content):
    folder = written(tmp_path / "odd", GPT2, state(GPT2))
    (folder / "state.pth").write_bytes(content)
    refused(
        config(folder, home / "ids.npy"),
        r"state\.pth cannot be read as weights\n  got:     \S",
    )
