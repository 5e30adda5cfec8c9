"""What a product really takes stays below what was planned for it (a process of its own: seconds of imports)."""

import subprocess
import sys

import pytest

PROGRAM = """
import re
import torch
from hessfig.config.enums import Data, Products, Scored
from hessfig.config.schema import Config
from hessfig.config.science import ModelConfig, TaskConfig
from hessfig.models.kinds.huggingface import STORED
from hessfig.models.routes import Engines
from hessfig.states.point import drawn
from hessfig.terms import Block, Part

def held(key):
    return int(re.search(key + r":\\s+(\\d+)", open("/proc/self/status").read())[1]) * 1024

torch.set_num_threads(1)
task = TaskConfig(data=Data.tokens, scored=Scored.all, length={length}, batch_size={batch})
model = ModelConfig("huggingface", architecture="{name}", n_layers=4, n_heads=4, d_model=96, vocabulary={words})
config = Config(task=task, model=model, blocks=["{block}"], memory="1TB")
before = held("VmRSS")
problem = drawn(config, sigma=None, seed=0)
name, _, layer = "{block}".partition("@")
block = Block(int(layer or 0), name, name)
column = Engines(problem, model, Products.linearised).column(block.layer, name, [block])
column.split_matmat(torch.randn(column.dim, 2, dtype=problem.dtype), [Part.H_o, Part.H_f])
print((held("VmHWM") - before) / STORED.plan(config).bytes)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak is read from /proc")
@pytest.mark.parametrize(
    ("name", "block", "length", "batch", "words"),
    [
        ("gpt2", "all", 256, 8, 500),  # scores
        ("gpt2", "W_V@1", 32, 64, 500),  # MLP
        ("llama", "all", 64, 16, 500),
        ("gpt_neox", "W_Q@3", 128, 8, 500),
        ("gpt2", "all", 64, 4, 50257),  # logits
    ],
)
def test_the_plan_counts_from_above(name, block, length, batch, words):
    program = PROGRAM.format(
        name=name, block=block, length=length, batch=batch, words=words
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert 0.1 < float(done.stdout) < 1.0
