"""Products by oneDNN are those of plain multiplication, whatever the layout, and other types never go there."""

import pytest
import torch

from hessfig.models.tape import tape
from hessfig.models.tape.tape import times_transposed

pytestmark = pytest.mark.skipif(not tape._HAS_ONEDNN, reason="this torch has no oneDNN")
ROUNDING = 4 * torch.finfo(torch.float32).eps


@pytest.fixture(autouse=True)
def by_onednn(monkeypatch):
    """Whoever made the processor."""
    monkeypatch.setattr(tape, "_BY_ONEDNN", True)


def _layouts():
    torch.manual_seed(0)
    rows = torch.randn(3, 5, 4, 64)
    matrix = torch.randn(48, 64)
    return {
        "contiguous": (rows, matrix),
        "transposed matrix": (rows, torch.randn(64, 48).T),
        "transposed rows": (torch.randn(64, 60).T, matrix),
        "both transposed": (torch.randn(64, 60).T, torch.randn(64, 48).T),
        "selected rows": (rows[:, 1:4], matrix),
        "expanded rows": (torch.randn(3, 5, 1, 64).expand(3, 5, 4, 64), matrix),
        "strided matrix": (rows, torch.randn(48, 128)[:, ::2]),
    }


@pytest.mark.parametrize("layout", _layouts())
def test_every_layout_gives_the_plain_product(layout):
    rows, matrix = _layouts()[layout]
    exact = rows.double() @ matrix.double().T
    scale = rows.double().abs() @ matrix.double().abs().T
    found = times_transposed(rows, matrix)
    assert found.dtype == torch.float32
    assert found.shape == exact.shape
    assert ((found.double() - exact).abs() <= ROUNDING * scale).all()


def test_the_precision_is_that_of_float32_and_the_same_on_every_call():
    torch.manual_seed(1)
    rows = torch.randn(500, 512)
    matrix = torch.randn(128, 512)
    found = times_transposed(rows, matrix)
    error = (
        found.double() - rows.double() @ matrix.double().T
    ).norm() / found.double().norm()
    assert 1e-9 < error < 1e-6  # bfloat16 would leave 2e-3
    assert torch.equal(found, times_transposed(rows, matrix))


def test_small_and_large_numbers_survive():
    rows = torch.full((2, 8), 1e-30)
    assert torch.allclose(
        times_transposed(rows, torch.full((3, 8), 1e20)), torch.full((2, 3), 8e-10)
    )
    assert (
        not times_transposed(torch.tensor([[float("nan")] * 8]), torch.ones(3, 8))
        .isfinite()
        .any()
    )


def test_float64_is_the_plain_product_to_the_bit(monkeypatch):
    rows = torch.randn(20, 16, dtype=torch.float64)
    matrix = torch.randn(8, 16, dtype=torch.float64)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
    assert torch.equal(times_transposed(rows, matrix), rows @ matrix.T)


def test_without_onednn_it_is_the_plain_product(monkeypatch):
    rows = torch.randn(20, 16)
    matrix = torch.randn(8, 16)
    monkeypatch.setattr(tape, "_BY_ONEDNN", False)
    monkeypatch.setattr(torch.ops.mkldnn, "_linear_pointwise", None)
    assert torch.equal(times_transposed(rows, matrix), rows @ matrix.T)


@pytest.mark.parametrize(
    ("said", "is_intel"),
    [
        ("vendor_id\t: GenuineIntel\nflags: fma\n\nprocessor: 1\n", True),
        ("vendor_id\t: AuthenticAMD\n\nvendor_id\t: GenuineIntel\n", False),
        ("", False),
    ],
)
def test_processors_of_intel_keep_mkl(tmp_path, said, is_intel):
    (tmp_path / "cpuinfo").write_text(said)
    assert tape._is_intel(tmp_path / "cpuinfo") == is_intel
    assert not tape._is_intel(tmp_path / "nowhere")
