"""Folders of models and files of ids, damaged and hostile: refused when planned, nothing written, or read whole."""

import json
import pickle
import shutil
import struct

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.models.kinds.test_transformer_lens import GPT2, state, written
from tests.models.tiny_models import save, save_ids, save_tokenizer

FOLDERS = "hostile folders of models"
DAMAGED = "damaged files of models"
IDS = "damaged ids and texts"
WORDS = (
    "run",
    "task=tokens",
    "sweep.name=mine",
    "blocks=each",
    "seeds=1",
    "dry_run=true",
)
WEIGHTS = "model.safetensors"
INDEX = "model.safetensors.index.json"
FLIPS = 60  # of every file


@pytest.fixture(scope="module")
def sound(tmp_path_factory):
    """Models of both kinds with ids and a text; nobody writes here."""
    home = tmp_path_factory.mktemp("sound")
    save("gpt2", home / "gpt2")
    save_tokenizer(home / "gpt2", "abcd")
    shutil.copytree(home / "gpt2", home / "old")
    (home / "old" / WEIGHTS).unlink()
    torch.save(load_file(home / "gpt2" / WEIGHTS), home / "old/pytorch_model.bin")
    written(home / "lens", GPT2, state(GPT2))
    save_ids(home / "ids.npy")
    (home / "text.txt").write_text("a b c d " * 4)
    return home


def plan(call, home, folder="gpt2", ids="ids.npy"):
    kind = "transformer_lens" if folder == "lens" else "huggingface"
    length = "task.length=4"  # a text has none of its own
    return call(
        *WORDS,
        f"model={kind}",
        f"model.path={home / folder}",
        f"task.path={home / ids}",
        length,
    )


def test_hostile_folders(sound, tmp_path, monkeypatch, call, ledger):
    monkeypatch.chdir(tmp_path)
    mark = tmp_path / "ran"
    for name, wanted, hurt in hostile(mark):
        home = tmp_path / "home"
        shutil.copytree(sound, home)
        hurt(home / "gpt2")
        answer = plan(call, home)
        shutil.rmtree(home)
        written_too = [path.name for path in tmp_path.iterdir()]
        odd = f"{name}: exit {answer.code}, wrote {written_too}" * (
            answer.code != 2 or written_too != []
        )
        unclear = f"{name}: lacks {wanted!r}: {answer.err[-300:]!r}" * (
            wanted not in answer.err
        )
        ledger.note(FOLDERS, traceback=answer.traceback, silent=odd, unclear=unclear)
    assert not ledger.wrong(FOLDERS)


def hostile(mark):
    """Yield names, words of the refusal, and what is done to a folder."""
    for key, value, wanted in (
        ("n_layer", 10**9, "more layers and heads"),
        ("n_layer", 10**300, "n_layer"),
        ("n_layer", -1, "n_layer"),
        ("n_layer", True, "n_layer"),
        ("n_layer", "2", "n_layer"),
        ("num_hidden_layers", 10**9, "two values"),
        ("n_head", 10**9, "heads do not divide the width"),
        ("vocab_size", 10**12, "vocab_size"),
        ("activation_function", "nope", "cannot create this model"),
        ("activation_function", ["gelu"], "cannot create this model"),
        ("layer_norm_epsilon", "x", "cannot create this model"),
        ("model_type", "t5", "not known here"),
        ("model_type", ["gpt2"], "not known here"),
        ("quantization_config", {"quant_method": "gptq"}, "quantization_config"),
        ("transformers_weights", "../evil.safetensors", "transformers_weights"),
        ("per_layer_config", {"0": {}}, "per_layer_config"),
        ("add_cross_attention", True, "crossattention"),
    ):
        yield (
            f"config.json {key}={str(value)[:20]}",
            wanted,
            lambda at, k=key, v=value: said(at, **{k: v}),
        )
    for place in (
        "../evil.safetensors",
        "/etc/passwd",
        "..",
        "a\\b.safetensors",
        "x.bin",
        "a\0.safetensors",
        3,
    ):
        yield (
            f"index to {place!r}",
            "is not an index of weights",
            lambda at, p=place: indexed(at, {"a": p}),
        )
    yield (
        "index to itself",
        "is not an index of weights",
        lambda at: indexed(at, {"a": INDEX}),
    )
    yield (
        "index to nothing",
        "lacks files",
        lambda at: indexed(at, {"a": "gone.safetensors"}),
    )
    yield (
        "index without a map",
        "is not an index of weights",
        lambda at: indexed(at, []),
    )
    for kind in (torch.int32, torch.bool, torch.complex64, torch.float8_e5m2):
        yield (
            f"weights {kind}",
            "of another type",
            lambda at, k=kind: changed(at, lambda one: one.to(k)),
        )
    for number in (float("nan"), float("inf"), float("-inf")):
        yield (
            f"weights {number}",
            "not finite",
            lambda at, n=number: changed(at, lambda one: one * 0 + n),
        )
    yield (
        "a smaller weight",
        "of another shape",
        lambda at: changed(at, lambda one: one[:-1].clone()),
    )
    for name, header in headers().items():
        yield (
            f"header {name}",
            "cannot be read as weights",
            lambda at, h=header: framed(at, h),
        )
    for name, content in {
        "a pickle that runs": pickle.dumps(Runs(mark), protocol=2),
        "a pickle of numbers": pickle.dumps([1, 2], protocol=2),
        "nothing": b"",
        "an empty archive": b"PK\x05\x06" + bytes(18),
    }.items():
        yield (
            f"pytorch_model.bin, {name}",
            "cannot be read as weights",
            lambda at, c=content: old(at, c),
        )


class Runs:
    """A pickle that opens a file for writing when it is read by pickle itself."""

    def __init__(self, mark):
        self.mark = mark

    def __reduce__(self):
        return open, (str(self.mark), "w")


def said(at, **changes):
    path = at / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def indexed(at, where):
    (at / WEIGHTS).rename(at.parent / "evil.safetensors")
    (at / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": where}))


def changed(at, change):
    tensors = load_file(at / WEIGHTS)
    name = "transformer.h.0.attn.c_attn.bias"
    save_file({**tensors, name: change(tensors[name])}, at / WEIGHTS)


def headers():
    one = {"dtype": "F64", "shape": [4], "data_offsets": [0, 32]}
    return {
        "deep": b"[" * 100_000,
        "of no text": b"\xff\xfe{",
        "a list": [],
        "of long digits": b'{"a":' + b"9" * 6000 + b"}",
        "shape 1e30": {"a": {**one, "shape": [10**30]}},
        "shape below zero": {"a": {**one, "shape": [-4]}},
        "shape times": {"a": {**one, "shape": [2**32, 2**32]}},
        "shape of truths": {"a": {**one, "shape": [True]}},
        "offsets back": {"a": {**one, "data_offsets": [32, 0]}},
        "offsets of words": {"a": {**one, "data_offsets": "ab"}},
        "offsets beyond": {"a": {**one, "data_offsets": [0, 10**18]}},
        "type unknown": {"a": {**one, "dtype": "X9"}},
        "type a list": {"a": {**one, "dtype": [1]}},
        "entry a list": {"a": [1]},
        "overlaps": {"a": one, "b": one},
        "gaps": {"a": {**one, "data_offsets": [32, 64]}},
        "nothing": {},
        "longer than the file": None,
    }


def framed(at, header):
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    length = 2**63 if header is None else len(text)
    (at / WEIGHTS).write_bytes(struct.pack("<Q", length) + text + bytes(32))


def old(at, content):
    (at / WEIGHTS).unlink()
    (at / "pytorch_model.bin").write_bytes(content)


@pytest.mark.parametrize(
    ("folder", "file", "ids"),
    [
        ("gpt2", WEIGHTS, "ids.npy"),
        ("gpt2", "config.json", "ids.npy"),
        ("gpt2", "tokenizer.json", "text.txt"),
        ("gpt2", "tokenizer_config.json", "text.txt"),
        ("old", "pytorch_model.bin", "ids.npy"),
        ("lens", "state.pth", "ids.npy"),
        ("lens", "config.json", "ids.npy"),
        ("", "ids.npy", "ids.npy"),
        ("", "text.txt", "text.txt"),
    ],
)
def test_damage(sound, tmp_path, monkeypatch, call, ledger, dice, folder, file, ids):
    """Bytes are changed, cut out and put in: the file is refused, or what it then says is planned."""
    monkeypatch.chdir(tmp_path)
    home = tmp_path / "home"
    shutil.copytree(sound, home)
    path = home / folder / file
    kind = DAMAGED if folder else IDS
    content = path.read_bytes()
    for turn in range(FLIPS):
        path.write_bytes(damaged(content, dice))
        answer = plan(call, home, folder or "gpt2", ids)
        left = [one.name for one in tmp_path.iterdir() if one != home]
        silent = f"{file}, turn {turn}: wrote {left}" * bool(left)
        unclear = f"{file}, turn {turn}: {answer.err[-200:]!r}" * (
            answer.code == 2 and "remedy" not in answer.err
        )
        ledger.note(kind, traceback=answer.traceback, silent=silent, unclear=unclear)
    assert not ledger.wrong(kind)


def damaged(content, dice):
    """Return the content with one to four bytes changed near its beginning or anywhere, cut short, or repeated."""
    found = bytearray(content)
    reach = dice.choice([64, 512, len(content)])
    for _ in range(dice.randint(1, 4)):
        found[dice.randrange(min(reach, len(found)))] = dice.randrange(256)
    turn = dice.randrange(4)
    if turn == 0:
        del found[dice.randrange(len(found)) :]
    elif turn == 1:
        at = dice.randrange(len(found))
        found[at:at] = found[: dice.randrange(1, 40)]
    return bytes(found)
