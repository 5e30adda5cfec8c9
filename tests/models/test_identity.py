"""What networks and losses are made of: the same in every process, and another where code or data are."""

import logging
import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy
import pytest
import torch
from torch import nn

from hessfig.models.identity import identities, identity

GAIN = 1.0


class Holder:
    """An object with attributes of every kind, and a cycle."""

    words, gains = {"a", "b", "c"}, frozenset({1.5, 2.5})

    def __init__(self, value=0):
        self.value = value
        self.me = self
        self.kind = torch.float32
        self.lock = threading.Lock()
        self.array = numpy.arange(3.0)
        self.log = logging.getLogger("any")
        self.generator = torch.Generator()

    def __call__(self, x):
        return x * GAIN * self.value


def made(gain):
    """Things that differ in one number each."""
    return [
        Holder(gain),
        [Holder({"inner": [gain]})],
        {gain, 7.0},
        numpy.array([gain]),
        torch.tensor([gain]),
        lambda x: x * gain,
        lambda x, gain=gain: x * gain,
        nn.LayerNorm(3, eps=gain),
    ]


def test_one_number_anywhere_counts():
    for same, other, one in zip(made(1.0), made(2.0), made(1.0), strict=True):
        assert identity(one) == identity(same) != identity(other)
    assert len({identity(one) for one in made(1.0)}) == len(made(1.0))


def test_a_global_that_code_names_counts(monkeypatch):
    before = identity(Holder())
    monkeypatch.setattr(sys.modules[__name__], "GAIN", 2.0)
    assert identity(Holder()) != before


def test_a_method_of_the_class_counts(monkeypatch):
    before = identity(Holder())
    monkeypatch.setattr(Holder, "__call__", lambda self, x: x)
    assert identity(Holder()) != before


def test_weights_modes_and_graphs_do_not_count():
    network = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2))
    held = [*network.parameters(), *network.buffers()]
    before = identity(network, without=held)
    parts = identities(network)
    network.eval()
    with torch.no_grad():
        network[0].weight.add_(1)
    network[1].running_mean.add_(1)
    assert identity(network, without=held) == before
    changed = {name for name, one in identities(network).items() if one != parts[name]}
    assert changed == {"buffer 1.running_mean"}


@pytest.mark.parametrize(
    "make",
    [lambda held: [held], lambda held: {"held": held}, lambda held: Holder(held)],
)
def test_depth_has_an_end(make):
    held = 0
    for _ in range(5000):
        held = make(held)
    assert identity(held) == identity(held)


class Ring:
    """A class whose entries lead back to the set that holds them."""

    def __init__(self, gain):
        self.gain = gain
        self.others = {self}

    def __hash__(self):
        return 1


def test_entries_of_a_set_that_lead_back_to_it_have_an_end():
    assert identity(Ring(1.0)) == identity(Ring(1.0)) != identity(Ring(2.0))
    rings = [Ring(1.0) for _ in range(3)]
    rings[0].others |= {*rings}
    assert identity(rings[0])
    held = frozenset({0})
    for _ in range(500):
        held = frozenset({held, 1})
    assert identity(held)


def found():
    """Return the identities of things made here, and of a model of transformers."""
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(
        GPT2Config(n_embd=4, n_layer=1, n_head=2, vocab_size=5, n_positions=4)
    )
    return [
        identity(*made(1.0)[:-3], Holder, made),
        identity(model, without=model.parameters()),
    ]


@pytest.mark.long
def test_every_process_finds_the_same():
    """Whatever the seed of Python's hashes is, by which sets are ordered: in another process as in this one."""
    seed = "2" if os.environ.get("PYTHONHASHSEED") == "1" else "1"
    done = subprocess.run(
        [
            sys.executable,
            "-c",
            "from tests.models import test_identity as t; print(*t.found())",
        ],
        cwd=Path(__file__).parents[2],
        env={**os.environ, "PYTHONHASHSEED": seed},
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == found()
    assert len(found()[1]) == 64
