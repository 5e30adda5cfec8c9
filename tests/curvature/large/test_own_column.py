"""Products of large networks of others: rows of every parameter next to plain double backward."""

from __future__ import annotations

import pytest
import torch

from hessfig.terms import PARTS
from tests.curvature.large.large_networks import CASES, Plain, column_of, off_by_parameter, problem_of, products

EVERY_DAY = ("GPT2LMHeadModel", "ViT")
OF_SOFTMAX_IN_FLOAT32 = ("GPTNeoXForCausalLM", "OPTForCausalLM", "LlamaForCausalLM", "ViT")
BOUNDS = {"float64": 1e-9, "float32": 1e-4}


@pytest.mark.parametrize("dtype", BOUNDS)
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in EVERY_DAY else pytest.mark.long) for n in CASES])
def test_rows_of_every_parameter_are_those_of_plain_double_backward(name: str, dtype: str) -> None:
    """For a constant and a random vector and along the gradient; no part falls back.

    Some models evaluate their softmax in float32, so that their float64 has fewer digits. In float32 the constant
    vector has rows in which everything cancels: they may be as far off as those of plain double backward in float32.
    """
    network, inputs, targets = case = CASES[name]()
    truth, single = Plain(case, torch.float64), Plain(case, torch.float32)
    count = len(truth.gradient)
    assert count > 65_536
    bound = 1e-5 if dtype == "float64" and name in OF_SOFTMAX_IN_FLOAT32 else BOUNDS[dtype]
    random = torch.randn(count, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    vectors = torch.stack([torch.ones_like(random), random, truth.gradient / truth.gradient.norm()], dim=1)
    column = column_of(problem_of(network, inputs, targets), dtype)
    assert all(map(column.network.holds, PARTS))
    mine, wrong = products(column, vectors, *PARTS), {}
    for k, vector in enumerate(vectors.T):
        real, rounded = truth.products(vector), single.products(vector.float())
        longest = max(float(one.norm()) for one in real.values())
        for part, one in real.items():
            allowed = off_by_parameter(network, rounded[part], one, longest) if dtype == "float32" else {}
            for parameter, off in off_by_parameter(network, mine[part][:, k], one, longest).items():
                if not off <= max(bound, allowed.get(parameter, 0.0)):
                    wrong[part, k, parameter] = off
    assert wrong == {}
