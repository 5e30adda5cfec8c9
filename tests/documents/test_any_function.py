"""The functions at the beginning of docs/own-model.md: their Hessians are those of plain double backward."""

import pytest
import torch

import hessfig
from tests.daily import thinned
from tests.double_backward import hessian
from tests.pages import text_of


def kinds():
    code = (
        text_of("docs/own-model.md")
        .partition("`kinds.py`\n```python\n")[2]
        .partition("```")[0]
    )
    names = {"__name__": "kinds"}
    exec(code, names)
    return dict(names["kinds"])


@pytest.mark.parametrize("name", thinned(kinds(), 2))
def test_the_hessian_of_every_kind(name):
    network, batches, function = kinds()[name]
    found = (
        hessfig.Problem(network, batches, compute_loss=function)
        .operator("all", dtype="float32")
        .dense()
    )
    every = batches if isinstance(batches, list) else [batches]
    at = list(network.parameters())
    truth = hessian(
        lambda: sum(function(network, one) for one in every) / len(every),
        at,
        rounding=1e-5,
    )
    assert torch.allclose(found, truth, rtol=0, atol=1e-5 * float(truth.abs().max()))
    assert float(truth.norm()) > 0
