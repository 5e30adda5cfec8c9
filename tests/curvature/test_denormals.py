"""Small numbers count as zero where float32 is asked for, and nowhere else, nor afterwards."""

import pytest
import torch

from hessfig.models.exact import exact_blocks
from hessfig.models.exact.exact_blocks import ExactEngine
from hessfig.models.tape.columns import (
    LinearisedNetwork,
    _flushes_denormals,
    flush_denormals,
)
from hessfig.models.tape.tape import Tape
from hessfig.terms import PARTS
from tests.toys import ARCHITECTURES, toy_problem

pytestmark = pytest.mark.skipif(
    not torch.set_flush_denormal(False), reason="this processor cannot flush"
)


@pytest.fixture(autouse=True)
def as_it_was():
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("before", [False, True])
def test_only_float32_flushes_and_what_was_set_comes_back(before):
    torch.set_flush_denormal(before)
    with flush_denormals(torch.float64):
        assert _flushes_denormals() == before
    with pytest.raises(ZeroDivisionError), flush_denormals(torch.float32):
        assert _flushes_denormals()
        assert float(torch.full((1,), 1e-40) * 1.0) == 0.0
        assert float(torch.full((1,), 1e-37) * 1.0) > 0.0
        raise ZeroDivisionError
    assert _flushes_denormals() == before


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_products_and_exact_norms_flush_for_problems_in_float32(dtype, monkeypatch):
    model = ARCHITECTURES["softmax"]
    seen = []
    problem = toy_problem(model).cast(dtype)
    for owner, name in ((Tape, "push"), (exact_blocks, "last_layer_norms")):
        whole = getattr(owner, name)
        monkeypatch.setattr(
            owner,
            name,
            lambda *given, whole=whole: (
                seen.append(_flushes_denormals()),
                whole(*given),
            )[1],
        )
    column = LinearisedNetwork(problem, model).column(1, "W_V", ["W_V"])
    column.split_matmat(torch.ones(column.dim, 1, dtype=dtype))
    ExactEngine(problem, model).column(1, "W_V", ["W_V"], list(PARTS))
    assert seen == [dtype == torch.float32] * 2
    assert not _flushes_denormals()
