"""Who only measures a network of their own pays for torch, curvlinops and what these need: nothing of our figures."""

import subprocess
import sys

import pytest

from hessfig.sweep.pool import PRELOAD
from tests.daily import daily

HEAVY = {
    "transformer_lens",
    "transformers",
    "sklearn",
    "hydra",
    "omegaconf",
    "matplotlib",
    "rich",
    "jinja2",
    "tueplots",
}
PROGRAM = """
import sys
import torch
import hessfig

assert "torch" in sys.modules and "hessfig.api.interface" not in sys.modules
network = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Tanh(), torch.nn.Linear(2, 2))
problem = hessfig.Problem(network, torch.randn(4, 3), torch.tensor([0, 1, 0, 1]))
for name in {quantities!r}:
    table = hessfig.measure(problem, blocks=["0.weight"], quantities=[name], spectrum={{"steps": 4}}, num_probes=4)
    assert len(table), name
print(*sorted({{name.partition(".")[0] for name in sys.modules}} & {heavy!r}))
"""
QUANTITIES = [
    "frobenius",
    "trace",
    "spectrum",
    "largest_eigenvalue",
    "smallest_eigenvalue",
    "density",
    "gradient_norm",
    "weight_norm",
    "jacobian_norm",
    "loss",
]


def printed(program):
    """Return the words that a program of Python prints in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", program],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.mark.long
def test_measuring_a_network_of_ones_own_imports_no_more_than_it_needs():
    program = PROGRAM.format(quantities=QUANTITIES, heavy=HEAVY)
    assert printed(program) == []


@pytest.mark.long
def test_workers_import_no_library_of_models():
    """The package's own transformers are plain torch: the libraries that they came from take seconds to import."""
    program = f"import sys, {', '.join(PRELOAD)}; print(*{{'transformer_lens', 'transformers'}} & {{*sys.modules}})"
    assert printed(program) == []


COUNTED = """
import sys, torch, hessfig

network = torch.nn.Sequential(torch.nn.Linear(20, 40), torch.nn.ReLU(), torch.nn.Linear(40, {width}))
batches = [(torch.randn(4, 20), torch.randint(0, {width}, (4,))) for _ in range(2)]
problem = hessfig.Problem(network, batches)
for products in ("auto", "differences"):
    operator = problem.operator("0.bias", products=products)
    operator @ torch.ones(operator.shape[1])
print(*{{"torch._dynamo", "torch._inductor", "triton"}} & {{*sys.modules}})
print(*[name for name in sys.modules if name.startswith({elsewhere!r})])
layer = torch.nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True)
problem = hessfig.Problem(layer, torch.randn(3, 4, 8), torch.randn(3, 4, 8), loss="mse")
torch.set_num_threads(2)
assert (hessfig.measure(problem, num_probes=4)["status"] != "nonfinite").all()
assert torch.get_num_threads() == 2
hessfig.lens
heavy = ("torch._dynamo", "curvlinops", "transformers", "transformer_lens")
print(*[name for name in sys.modules if name.startswith(heavy)])
"""
# What other networks, other numbers or the command line need.
ELSEWHERE = (
    "hessfig.api.sharded",
    "hessfig.config.compose",
    "hessfig.curvature.spectral",
    "hessfig.figures",
    "hessfig.models.naming",
    "hessfig.models.tape",
    "hessfig.states.published",
    "hessfig.sweep",
)


@pytest.mark.parametrize(
    "width",
    daily([3, 1700], 3),
    ids=["small, two batches", "more than 65 536 parameters"],
)
def test_a_network_needs_no_compiler_nor_what_others_need_and_leaves_threads_alone(
    width,
):
    """Operators need nothing of other networks, and all norms no library of models."""
    program = COUNTED.format(width=width, elsewhere=ELSEWHERE)
    assert printed(program) == []
