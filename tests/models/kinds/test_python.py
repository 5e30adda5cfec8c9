"""Anybody's network from the command line: found, called, measured like in Python, refused where it misfits."""

import csv
import sys
from pathlib import Path

import pytest

from hessfig.config.enums import Data, Kind
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.errors import UserError
from hessfig.models.kinds.python import draw, find_factory
from hessfig.models.protocol import kind, kinds
from hessfig.sweep import preview
from hessfig.sweep.plan import Sweep
from hessfig.sweep.runner import run_sweep
from hessfig.sweep.variant import Variant

NETWORK = """
import numpy, torch
from torch import nn

def make(seed=0, width=5):
    torch.manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, width), nn.Tanh(), nn.Linear(width, 2))
    weights = {"W@1": "0.weight", "half@1": ("0.weight", numpy.s_[:2, :]), "W@2": "2.weight"}
    return network, torch.randn(6, 4), torch.randint(0, 2, (6,)), "cross_entropy", weights

def large(memory=None):
    import hessfig
    network = nn.Sequential(nn.Linear(260, 260), nn.Tanh(), nn.Linear(260, 2))
    return hessfig.Problem(network, torch.randn(6, 260), torch.randint(0, 2, (6,)), memory=memory)

def several():
    import hessfig
    network = nn.Sequential(nn.Linear(260, 260), nn.Tanh(), nn.Linear(260, 2))
    return hessfig.Problem(network, [torch.randn(6, 260)] * 3, [torch.randint(0, 2, (6,))] * 3)

def with_sigma(sigma):
    return make()[0], sigma * torch.ones(3, 4), torch.zeros(3, dtype=torch.long), "cross_entropy"

def wrong():
    return "a network"

def stumbles():
    class Stumbling(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = nn.Linear(4, 2)

        def forward(self, x):
            raise KeyError("no such layer")

    return Stumbling(), torch.ones(3, 4), torch.zeros(3, dtype=torch.long), "cross_entropy"

def breaks():
    raise RuntimeError("no data here")
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    (tmp_path / "mynet.py").write_text(NETWORK)
    (tmp_path / "unseen.py").write_text(NETWORK)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def config(factory, folder=None, **model):
    return Config(
        task=TaskConfig(data=Data.python),
        model=ModelConfig(kind=Kind.python, factory=factory, **model),
        blocks="each",
        quantities=["frobenius", "trace"],
        seeds=2,
        first_seed=3,
        output_dir=str(folder or "outputs"),
    )


def test_weights_have_the_layers_their_names_say(folder):
    variant = Variant("", config("mynet.py:make"))
    assert [(b.layer, b.row) for b in variant.blocks] == [
        (1, "W"),
        (1, "half"),
        (2, "W"),
    ]
    assert variant.layout.size(0, "all") == 4 * 5 + 5 + 5 * 2 + 2
    assert variant.axes == {"seed"}
    assert variant.sigmas() == [None]


@pytest.mark.usefixtures("workers")
@pytest.mark.long
def test_the_command_line_gives_the_bits_of_the_python_interface(folder):
    import hessfig

    summary = run_sweep(Sweep([("", config("mynet.py:make", folder / "results"))]))
    assert (summary.measured, summary.failed) == (4, 0)
    with summary.table.open() as handle:
        rows = list(csv.DictReader(handle))
    assert {row["sigma"] for row in rows} == {""}
    assert {row["num_layers"] for row in rows} == {"2"}
    for seed in (3, 4):
        made = find_factory(config("mynet.py:make"))(seed=seed)
        problem = hessfig.Problem(*made)
        parts = [str(part) for part in config(None).parts]
        here = hessfig.measure(
            problem, quantities=["frobenius", "trace"], parts=parts, seed=seed
        )
        there = [row for row in rows if row["seed"] == str(seed)]
        assert [float(row["value"]) for row in there] == here["value"].tolist()
        assert [float(row["error"]) for row in there] == here["error"].tolist()


def test_the_preview_states_what_a_product_of_a_large_network_takes(folder):
    variants = [Variant("", config(f"mynet.py:{name}")) for name in ("make", "large")]
    size = kind(Kind.python).product_bytes(variants[1].config)
    made = find_factory(variants[1].config)()
    assert size == made.operator("all", dtype=variants[1].config.dtype).memory
    assert size is not None
    assert 8 * 68_382 < size < 20 * 8 * 68_382
    assert preview._product_lines(variants) == [
        f"memory of a product: about {size / 1e9:.2g} GB"
    ]
    assert preview._product_lines(variants[:1]) == []


def test_the_preview_counts_the_graphs_of_every_batch(folder):
    several = config("mynet.py:several")
    size = kind(Kind.python).product_bytes(several)
    made = find_factory(several)()
    of_one = kind(Kind.python).product_bytes(config("mynet.py:large"))
    assert size == made.operator("all", dtype=several.dtype).memory
    assert size is not None
    assert of_one is not None
    assert size > of_one


def test_a_problem_of_a_factory_keeps_its_bound_of_memory(folder):
    bounded = config("mynet.py:large", options={"memory": "3MB"})
    assert draw(bounded, None, 3).memory == 3e6
    assert draw(config("mynet.py:large"), None, 3).memory is None


def test_a_factory_that_takes_sigma_is_swept(folder):
    cells = Sweep([("", config("mynet.py:with_sigma"))]).cells
    assert len({cell.sigma for cell in cells}) == 20


def test_another_text_of_the_file_makes_other_cells(folder):
    keys = []
    for name in ("one.py", "two.py", "same.py"):
        (folder / name).write_text(NETWORK + "# changed" * (name == "two.py"))
        keys.append(
            Sweep([("", config(f"{name}:make"))])
            .cells[0]
            .variant.science("frobenius")["source"]
        )
    assert keys[0] == keys[2] != keys[1]


def test_options_are_arguments(folder):
    wide = Variant("", config("mynet.py:make", options={"width": 7}))
    assert wide.layout.size(1, "W") == 28


def test_a_factory_gets_seeds_that_generators_take_and_keeps_the_folder(folder):
    """Networks of pilots have negative seeds; a factory that changes the folder moves no results."""
    text = NETWORK + "\n\ndef strict(seed):\n    import os, numpy\n    os.chdir('/')\n"
    (folder / "strict.py").write_text(
        text + "    return make(int(numpy.random.default_rng(seed).integers(2**31)))\n"
    )
    where = Path.cwd()
    inputs = []
    for seed in (3, 2**32 + 3):
        inputs.append(draw(config("strict.py:strict"), None, seed).batch.inputs)
    assert not inputs[0].equal(inputs[1])
    assert draw(config("strict.py:strict"), None, -3).layout.size(1, "W")
    assert Path.cwd() == where


REFUSED = {
    None: "does not name a function",
    "mynet.py": "does not name a function",
    "nowhere.py:make": "there is no such file",
    "nowhere.module:make": "there is no module 'nowhere.module'",
    "unseen:make": r"model\.factory=unseen\.py:NAME \(a file here\)",
    "mynet.py:mak": "did you mean 'make'",
    "mynet.py:wrong": "returned something other than a problem",
    "mynet.py:breaks": "no data here",
    "mynet.py:stumbles": "the network raises KeyError(.|\n)*no such layer",
}


@pytest.mark.parametrize("factory", REFUSED, ids=str)
def test_factories_that_cannot_serve_are_explained(folder, factory):
    with pytest.raises(UserError, match=REFUSED[factory]) as caught:
        Variant("", config(factory)).check()
    assert caught.value.allowed
    assert caught.value.remedy


def test_options_the_factory_does_not_take_are_refused(folder):
    with pytest.raises(UserError, match=r"cannot be called(.|\n)*depth"):
        Variant("", config("mynet.py:make", options={"depth": 3})).check()


def test_no_unknown_kind_is_taken_for_a_transformer():
    with pytest.raises(UserError, match="no such kind of network") as caught:
        kind("transformr")
    assert "did you mean 'transformer'" in caught.value.remedy
    assert set(kinds()) >= {"transformer", "self_attention", "linear_mlp", "python"}
