"""Texts as characters: the standard library's and one's own, their split and windows, and texts that are refused."""

import math
import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from hessfig.config.enums import MLP, Data, DType, Loss, Norm
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.config.training_settings import TrainingConfig
from hessfig.errors import UserError
from hessfig.models.kinds.transformer import KIND
from hessfig.states.training.loop import right_answers
from hessfig.sweep.measure import compute_cell
from hessfig.sweep.plan import Cell
from hessfig.sweep.variant import Variant
from hessfig.tasks import text
from hessfig.tasks.batch import draw_batch
from hessfig.tasks.examples import training_batch, unseen_batch
from hessfig.terms import CHARACTERS
from tests.measured_rows import values
from tests.toys import toy_problem

WORDS = "".join(f"line {k}: the quick brown fox;\n" for k in range(40))
GPT2 = ModelConfig(
    d_model=4, d_mlp=5, n_heads=2, n_layers=2, norm=Norm.pre, mlp=MLP.gelu
)


@pytest.fixture
def task(tmp_path):
    return TaskConfig(
        data=Data.text, path=written(tmp_path, WORDS.encode()), length=6, batch_size=3
    )


def written(folder, content):
    (folder / "own.txt").write_bytes(content)
    return str(folder / "own.txt")


def test_characters_have_ids_and_all_others_share_one():
    assert text.as_ids("\n ~é\t€").tolist() == [0, 1, 95, 96, 96, 96]
    assert (
        text.as_text(text.as_ids(CHARACTERS + "é").astype(np.int64))
        == CHARACTERS + "\N{INVERTED QUESTION MARK}"
    )
    assert (
        TaskConfig(data=Data.text).vocabulary
        == len(CHARACTERS) + 1
        == text.OTHER + 1
        == 97
    )


def test_the_standard_library_is_split_by_module():
    task = TaskConfig(data=Data.text, length=64)
    found = text.split(task)
    assert list(text.MODULES) == sorted(text.MODULES)
    assert len(text.MODULES) == 126
    held = text.MODULES[9::10]
    start = Path(os.__file__).parent
    sources = [(start / f"{name}.py").read_text("utf-8") for name in held]
    assert text.as_text(found.held_out[:2000].astype(np.int64)) == text.as_text(
        text.as_ids("".join(sources)[:2000]).astype(np.int64)
    )
    assert len(found.held_out) == sum(map(len, sources))
    assert 5 < len(found.training) / len(found.held_out) < 20


def test_the_end_of_ones_own_text_is_held_out(task):
    found = text.split(task)
    joined = text.as_text(
        np.concatenate([found.training, found.held_out]).astype(np.int64)
    )
    assert joined == WORDS
    assert len(found.held_out) == len(WORDS) // 10
    windows = text.held_out(task, 50)
    assert windows.shape == (50, 6)
    assert text.as_text(windows[0]) == WORDS[len(found.training) :][:6]
    assert text.as_text(windows[-1]) == WORDS[-6:]


def test_batches_are_windows_of_the_training_text_from_named_streams(task):
    def batch(**settings):
        return draw_batch(
            replace(task, **settings), width=4, dtype=DType.float64
        ).inputs

    assert torch.equal(batch(), batch(batch_size=9)[:3])
    assert not torch.equal(batch(), batch(seed=1))
    training = WORDS[: len(text.split(task).training)]
    assert all(text.as_text(row.numpy()) in training for row in batch(batch_size=50))
    config = Config(task=task, model=GPT2, training=TrainingConfig(batch_size=5))
    steps = [training_batch(config, seed=1, step=step).inputs for step in (1, 1, 2)]
    assert torch.equal(steps[0], steps[1])
    assert not torch.equal(steps[0], steps[2])


def test_every_position_is_scored_but_those_before_the_first(task):
    whole, later = (
        draw_batch(replace(task, first_scored=k), width=4, dtype=DType.float64)
        for k in (0, 2)
    )
    assert torch.equal(whole.targets, whole.inputs[:, 1:])
    assert whole.scored == slice(0, 5)
    assert torch.equal(later.targets, whole.inputs[:, 3:])
    assert later.scored == slice(2, 5)
    assert (
        task.num_tokens,
        task.num_scored,
        replace(task, first_scored=2).num_scored,
    ) == (6, 5, 3)
    squares = draw_batch(replace(task, loss=Loss.mse), width=4, dtype=DType.float64)
    assert squares.targets.shape == (3, 5, 97)
    assert torch.equal(squares.targets.argmax(-1), whole.targets)


def rows_of(name, task):
    config = Config(model=GPT2, task=task, blocks=["W_V"], quantities=[name], seeds=1)
    return compute_cell(Cell(Variant("", config), 0.5, 1, name)).rows


def test_the_held_out_loss_is_that_of_plain_torch(task):
    found = values(rows_of("held_out_loss", task), "quantity")
    problem = toy_problem(GPT2, task, sigma=0.5, seed=1)
    config = Config(task=task, model=GPT2)
    batch = unseen_batch(config.task, config.training.evaluation_size, config.dtype)
    logits = problem.network(batch.inputs)[:, :-1].log_softmax(-1)
    truth = -logits.gather(2, batch.inputs[:, 1:, None]).mean()
    assert found["held_out_loss"] == pytest.approx(float(truth), rel=1e-10)
    shares = batch.inputs[:, 1:].flatten().bincount() / batch.targets.numel()
    entropy = torch.special.entr(shares.double()).sum()
    assert found["uniform_loss"] == math.log(97)
    assert found["unigram_loss"] == pytest.approx(float(entropy), rel=1e-6)
    counts = torch.ones(97, 97, dtype=torch.float64)
    ids = torch.from_numpy(text.split(task).training.astype("int64"))
    counts.index_put_(
        (ids[:-1], ids[1:]),
        torch.ones(len(ids) - 1, dtype=torch.float64),
        accumulate=True,
    )
    pairs = -(counts / counts.sum(1, keepdim=True)).log()[
        batch.inputs[:, :-1], batch.inputs[:, 1:]
    ]
    assert found["bigram_loss"] == pytest.approx(float(pairs.mean()), rel=1e-10)
    right = right_answers(problem.network, task, config.training.evaluation_size)
    assert float(right.double().mean()) == float(
        (logits.argmax(-1) == batch.inputs[:, 1:]).double().mean()
    )


def test_attention_mass_is_counted_by_head_and_by_key(task):
    rows = rows_of("sink_mass", task)
    problem = toy_problem(GPT2, task, sigma=0.5, seed=1)
    problem.network(problem.batch.inputs)
    layer = problem.network.layers[0]
    hidden = layer.ln1(problem.network.hidden(problem.batch.inputs, 0))
    attention = layer.attn
    scores = attention.scores(hidden, slice(None))
    pattern = attention.pattern(scores, slice(None), attention.causal_mask)
    found = values(rows, "quantity", "layer", "index")
    assert len(found) == 2 * (2 + 6)
    by_hand = pattern[:, 1, 1:, 0].mean()
    assert found["sink_mass", 1, 2] == pytest.approx(float(by_hand))
    # Of the query i, which sees i + 1 keys, from the key itself on.
    seen = torch.arange(1, 7)[3:]
    by_key = (seen * pattern[:, :, 3:, 3]).mean()
    assert found["key_mass", 1, 4] == pytest.approx(float(by_key))


def test_another_text_is_another_key(task, tmp_path):
    config = Config(task=task, model=GPT2)
    standard = replace(task, path=None)
    sources = [
        KIND.source(config),
        KIND.source(replace(config, task=standard)),
        KIND.source(Config()),
    ]
    assert sources[2] == ""
    assert len(set(sources)) == 3
    (tmp_path / "own.txt").write_text(WORDS + ".")
    assert KIND.source(config) != sources[0]


BAD = {
    "empty": (b"", {}, "shorter than a window"),
    "a short text": (
        b"abc" * 15,
        {"length": 64},
        r"shorter than a window(.|\n)*task.length=4",
    ),
    "not utf-8": (b"caf\xe9 " * 100, {}, "cannot be read as text"),
    "windows of one character": (
        WORDS.encode(),
        {"length": 1},
        "no character of a window",
    ),
    "no length": (WORDS.encode(), {"length": None}, "no character of a window"),
    "nothing scored": (WORDS.encode(), {"first_scored": 5}, "no character of a window"),
    "another file than was planned": (
        WORDS.encode(),
        {"sha256": "0" * 64},
        "not what was planned",
    ),
}


@pytest.mark.parametrize(("content", "settings", "message"), BAD.values(), ids=BAD)
def test_texts_that_cannot_be_taken_are_refused(tmp_path, content, settings, message):
    path = written(tmp_path, content)
    task = TaskConfig(**{"data": Data.text, "path": path, "length": 6, **settings})
    with pytest.raises(UserError, match=message):
        Variant("", Config(task=task, model=GPT2, blocks=["W_V"])).check()


def test_a_text_that_is_not_there_and_a_library_without_sources_are_refused(
    tmp_path, monkeypatch
):
    with pytest.raises(UserError, match="there is no such file"):
        text.split(
            TaskConfig(data=Data.text, path=str(tmp_path / "none.txt"), length=6)
        )
    with pytest.raises(UserError, match="there is no such file"):
        text.split(TaskConfig(data=Data.text, path=str(tmp_path), length=6))
    monkeypatch.setattr("os.__file__", str(tmp_path / "os.py"))
    text._standard.cache_clear()
    with pytest.raises(UserError, match=r"without the sources(.|\n)*and 121 more"):
        text.split(TaskConfig(data=Data.text, length=6))
    monkeypatch.undo()
    text._standard.cache_clear()
