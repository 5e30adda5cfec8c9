"""A new kind of network is one file: dropped into a copy of the package, it is checked, drawn and measured."""

import csv
import json
import os
import shutil
import subprocess
import sys

import pytest

from tests.test_architecture import ROOT

KIND = '''
"""Bags of words: the logits are the mean embedding times an unembedding."""

import torch
from torch import nn

from hessfig.errors import UserError
from hessfig.models.protocol import Draw, NetworkKind
from hessfig.terms import Matrix
from hessfig.weights import Layout, Weight


class Bag(nn.Module):
    def __init__(self, width, vocabulary):
        super().__init__()
        self.tok_embed, self.head = nn.Embedding(vocabulary, width), nn.Linear(width, vocabulary)

    def hidden(self, tokens, depth):
        return self.tok_embed(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]

    def from_hidden(self, hidden, depth, scored):
        return self.head(hidden[:, scored])


def layout(config):
    size = config.model.d_model * config.task.vocabulary
    bias = Weight("b_U", "head.bias", config.task.vocabulary, is_main=False)
    return Layout((Weight("W_E", "tok_embed.weight", size), Weight("W_U", "head.weight", size), bias))


def skeleton(config):
    return Bag(config.model.d_model, config.task.vocabulary)


def check_model(model):
    if model.n_layers != 1:
        raise UserError("model.n_layers: a bag has no layers", got=model.n_layers, allowed="1", remedy="leave it out")


KIND = NetworkKind(
    layout=layout,
    skeleton=skeleton,
    matrices=lambda model: [Matrix.W_E, Matrix.W_U],
    weights_drawn=Draw.inputs,
    reads={"d_model": "", "n_layers": ""},
    check_model=check_model,
)
'''
TOY = (
    "sweep=sigma",
    "model.kind=bag",
    "model.d_model=4",
    "task.digits=1",
    "task.batch_size=3",
    "workers=1",
    "seeds=2",
)


@pytest.fixture(scope="module")
def package(tmp_path_factory):
    """Return a folder with a copy of the package and one file more."""
    folder = tmp_path_factory.mktemp("copy")
    shutil.copytree(
        ROOT / "hessfig",
        folder / "hessfig",
        ignore=shutil.ignore_patterns("__pycache__"),
    )
    for data in ("conf", "data"):
        shutil.copytree(ROOT / data, folder / "hessfig" / data)
    (folder / "hessfig" / "models" / "kinds" / "bag.py").write_text(KIND)
    return folder


REFUSED = {
    ("model.n_layers=2",): "a bag has no layers",
    ("model.path=x",): "model.path: kind=bag does not read it",
    ("task=digits",): "addition with transformer",
    ("blocks=[W_V]",): "no weight W_V",
    ("blocks=[W_U]", "estimator=exact"): "exact routes know",
    ("quantities=[score_spread]",): "shows no attention scores",
}
MEASURED = ("estimator=dense", "grid.values=[0.3]", "blocks=[W_E,W_U,[W_E,W_U]]")
# One process for all commands: to import PyTorch takes longer than to be measured or
# refused.
EACH = """
import contextlib, io, json, sys
from hessfig.cli.main import main

for words in json.loads(sys.argv[1]):
    out, err, code = io.StringIO(), io.StringIO(), None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            main(words)
        except SystemExit as ended:
            code = ended.code
    print(json.dumps([code, out.getvalue(), err.getvalue()]))
"""


@pytest.fixture(scope="module")
def answers(package):
    """Return code and words of a run that is measured, then of those that are refused, by the copy of the package."""
    refused = []
    for words in REFUSED:
        refused.append(["run", *TOY, "blocks=[W_U]", *words, "sweep.name=refused"])
    done = subprocess.run(
        [sys.executable, "-c", EACH, json.dumps([["run", *TOY, *MEASURED], *refused])],
        cwd=package,
        env={**os.environ, "PYTHONPATH": str(package)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.mark.long
def test_one_file_is_a_kind_of_network_that_is_measured(package, answers):
    code, out, err = answers[0]
    assert code == 0, out + err
    assert "2 cells measured, 0 reused, 0 failed" in out, out + err
    with (package / "outputs" / "sigma" / "table.csv").open() as handle:
        rows = list(csv.DictReader(handle))
    assert {row["row"] for row in rows} == {"W_E", "W_U"}
    for row in rows:
        assert float(row["value"]) >= 0
    assert max(float(row["value"]) for row in rows) > 0


@pytest.mark.long
def test_its_settings_are_refused_by_what_is_true_of_it(package, answers):
    for said, (code, _, answer) in zip(REFUSED.values(), answers[1:], strict=True):
        assert code == 2, answer
        assert said in answer, answer
    assert not (package / "outputs" / "refused").exists()
