"""Small numbers count as zero where float32 is asked for, and nowhere else, nor afterwards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from hessfig.curvature.underflow import _flushes, flushing

pytestmark = pytest.mark.skipif(not torch.set_flush_denormal(False), reason="this processor cannot flush")


@pytest.fixture(autouse=True)
def as_it_was() -> Iterator[None]:
    yield
    torch.set_flush_denormal(False)


@pytest.mark.parametrize("before", [False, True])
def test_only_float32_flushes_and_what_was_set_comes_back(before: bool) -> None:
    torch.set_flush_denormal(before)
    with flushing(torch.float64):
        assert _flushes() == before
    with pytest.raises(ZeroDivisionError), flushing(torch.float32):
        assert _flushes()
        assert float(torch.full((1,), 1e-40) * 1.0) == 0.0 and float(torch.full((1,), 1e-37) * 1.0) > 0.0
        raise ZeroDivisionError
    assert _flushes() == before
